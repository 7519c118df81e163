"""Simulation: the real ring, control and drafters over texts that are known, in simulated time; and the oracle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from slipstream.decoding.choice import Sampler
from slipstream.decoding.control import ANYWHERE, Control, Plan, Standing
from slipstream.decoding.cost import MAX_WIDTH, CostCurve
from slipstream.decoding.draft import Draft
from slipstream.decoding.protocols import Budget, Drafter
from slipstream.decoding.record import DraftCost
from slipstream.decoding.ring import Ring, SequenceState
from slipstream.decoding.sampling import Sampling
from slipstream.decoding.statistics import Round
from slipstream.lab.simulated import Clock, PassTime, Text, TextRuntime

PADDING = 3
"""How many tokens wider than needed a pass may be, as in `CostCurve.cheapest`."""


@dataclass(frozen=True)
class Step:
    """One pass: its rounds, each with the number of its text, and the simulated seconds that all of it took."""

    rounds: tuple[tuple[int, Round], ...]
    seconds: float


class FixedLength(Control):
    """What engines do without control: always drafts `n` tokens, by whoever is there, and verifies them all."""

    def __init__(self, cost: CostCurve, n: int, draft_costs: Mapping[str, DraftCost]) -> None:
        super().__init__(cost, draft_costs)
        self.n = n

    def budget(self, drafter: str, room: int, so_far: float = 0.0, standing: Standing = ANYWHERE) -> Budget | None:
        n = min(room, self.n)
        return Budget(n) if n >= 1 else None

    def plan(self, drafts: Sequence[Draft], limit: int, n_context: int = 0) -> Plan:
        """All that was drafted, as far as the pass holds it."""
        kept, free = [], limit - len(drafts)
        for draft in drafts:
            kept.append(tuple(range(min(len(draft), free))))
            free -= len(kept[-1])
        width = limit - free
        return Plan(tuple(kept), width, self.cost.time(width, n_context))


def simulate(
    texts: Sequence[Text],
    drafters: Sequence[Drafter],
    control: Control,
    pass_s: PassTime,
    clock: Clock,
    n_parallel: int = 1,
) -> Iterator[Step]:
    """Writes the texts in order, `n_parallel` at a time, and tells of every pass. Reading prompts is not counted.

    `pass_s` is what passes really take; `control` knows of it what it is told. The drafters keep their state from
    one text to the next.
    """
    n_vocab = 1 + max((token for text in texts for token in text.tokens), default=0)
    runtime = TextRuntime(n_vocab, n_parallel, pass_s, clock)
    ring = Ring(runtime, drafters, control, clock)
    waiting = list(enumerate(texts))[::-1]
    live: dict[int, tuple[int, SequenceState]] = {}
    while waiting or live:
        for seq in range(n_parallel):
            if seq not in live and waiting:
                number, text = waiting.pop()
                state = _begin(ring, runtime, seq, text)
                if not state.ended:
                    live[seq] = number, state
        if not live:
            continue
        began = clock()
        rounds = ring.step([state for _, state in live.values()])
        numbers = [number for number, _ in live.values()]
        yield Step(tuple(zip(numbers, rounds, strict=True)), clock() - began)
        live = {seq: (number, state) for seq, (number, state) in live.items() if not state.ended}


def _begin(ring: Ring, runtime: TextRuntime, seq: int, text: Text) -> SequenceState:
    runtime.texts[seq] = text.tokens
    state = SequenceState(seq, Sampler(Sampling(temperature=0.0), runtime.n_vocab), lambda token: False, 0)
    state.limit = len(text.prompt) + len(text.answer)
    ring.begin(state, text.prompt, 0)
    return state


@dataclass(frozen=True)
class Foresight:
    """What a drafter would say at each place of an answer: how many of its tokens would be accepted.

    `token_s`: seconds that each of them takes; 0 for a drafter that may continue another one.
    """

    accepted: Sequence[int]
    token_s: float = 0.0


def oracle(text: Text, drafters: Sequence[Foresight], pass_s: PassTime) -> float:
    """Seconds of the best schedule in hindsight: at each place the drafter and length that lead to the earliest end.

    Dynamic programming from the end. No rejected token is ever drafted, which no control can know; a free drafter
    may continue a dear one, passes are padded where that is cheaper.
    """
    n = len(text.answer)
    free = [d for d in drafters if d.token_s == 0.0]
    reach = [max((d.accepted[i] for d in free), default=0) for i in range(n)]
    best = [0.0] * n
    for i in range(n - 2, -1, -1):
        n_context = len(text.prompt) + i  # what the cache holds
        times = [pass_s(w, n_context) for w in range(1, MAX_WIDTH + PADDING + 1)]
        cheapest = [min(times[w : w + PADDING + 1]) for w in range(MAX_WIDTH)]
        spent = _lengths(i, n, drafters, reach)
        best[i] = min(draft_s + cheapest[k] + best[min(i + k + 1, n - 1)] for k, draft_s in spent.items())
    return best[0]


def _lengths(i: int, n: int, drafters: Sequence[Foresight], reach: Sequence[int]) -> dict[int, float]:
    """By draft length, all of which is accepted: the fewest seconds of drafting it."""
    longest = min(MAX_WIDTH - 1, n - 1 - i)
    spent = dict.fromkeys(range(min(reach[i], longest) + 1), 0.0)
    for drafter in drafters:
        if drafter.token_s == 0.0:
            continue
        for k in range(1, min(drafter.accepted[i], longest) + 1):
            for end in range(k, min(k + reach[i + k], longest) + 1):
                spent[end] = min(spent.get(end, k * drafter.token_s), k * drafter.token_s)
    return spent
