"""What if: a trace replayed under other policies, other costs and another acceptance, beside the oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from slipstream.decoding.choice import Sampler
from slipstream.decoding.control import Control
from slipstream.decoding.cost import MAX_WIDTH, CostCurve
from slipstream.decoding.protocols import Budget, Drafter
from slipstream.decoding.record import DraftCost
from slipstream.decoding.sampling import Sampling
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.lab.simulate import FixedLength, Foresight, oracle, simulate
from slipstream.lab.simulated import Clock, Model, OnClock, Script, Text
from slipstream.lab.trace import TracedRequest, TracedRun

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)
SUFFIX, COIN = "suffix", "draft"
COIN_CONFIDENCE = 0.85
ROUNDING = 1e-9


@dataclass
class Played:
    """A policy and what it took: tokens from each answer's second on, simulated seconds, by category."""

    policy: str
    tokens: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    n_passes: int = 0
    n_drafted: int = 0
    n_accepted: int = 0

    def add(self, category: str, n_tokens: int, seconds: float) -> None:
        self.tokens[category] = self.tokens.get(category, 0) + n_tokens
        self.seconds[category] = self.seconds.get(category, 0.0) + seconds

    def rate(self, category: str | None = None) -> float:
        """Tokens a second, in a category or in all."""
        if category is None:
            return sum(self.tokens.values()) / sum(self.seconds.values())
        return self.tokens[category] / self.seconds[category]


@dataclass(frozen=True)
class WhatIf:
    """All policies over the same texts. `fixed` are those of one drafter at one length each; `oracle` knows all."""

    plain: Played
    auto: Played
    oracle: Played
    fixed: tuple[Played, ...]

    @property
    def categories(self) -> list[str]:
        return list(self.plain.tokens)

    def speedup(self, played: Played, category: str | None = None) -> float:
        """Rate ÷ that of plain decoding."""
        return played.rate(category) / self.plain.rate(category)

    def best_fixed(self, category: str | None = None) -> Played:
        """The fixed setting, plain decoding included, that was the fastest in hindsight."""
        return max((self.plain, *self.fixed), key=lambda played: played.rate(category))

    def share(self, category: str | None = None) -> float | None:
        """(auto − 1) ÷ (oracle − 1), None where the oracle gains nothing but the rounding of sums."""
        possible = self.speedup(self.oracle, category) - 1.0
        return (self.speedup(self.auto, category) - 1.0) / possible if possible > ROUNDING else None


Make = Callable[[Clock], Drafter]


@dataclass(frozen=True)
class _World:
    """Texts with their categories, makers of the drafters by name, and what everything costs."""

    texts: Sequence[Text]
    categories: Sequence[str]
    makers: Mapping[str, Make]
    costs: Mapping[str, DraftCost]
    curve: CostCurve
    widths: tuple[int, ...]

    def play(self, policy: str, names: Sequence[str], control: Control, n_parallel: int) -> Played:
        clock, played = Clock(), Played(policy)
        drafters = [self.makers[name](clock) for name in names]
        for step in simulate(self.texts, drafters, control, self.curve.time, clock, n_parallel):
            n_tokens = sum(len(done.tokens) for _, done in step.rounds)
            played.n_passes += 1
            for number, done in step.rounds:
                played.n_drafted += done.drafted
                played.n_accepted += done.accepted
                part = len(done.tokens) / n_tokens
                played.add(self.categories[number], len(done.tokens), step.seconds * part)
        return played

    def foresee(self) -> Played:
        """The oracle's time over all texts, one at a time."""
        played = Played("oracle")
        reach = {name: list(_accepted(self.texts, make(Clock()))) for name, make in self.makers.items()}
        for number, text in enumerate(self.texts):
            known = [
                Foresight(reach[name][number], self.costs[name].token_s if name in self.costs else 0.0)
                for name in self.makers
            ]
            seconds = oracle(text, known, self.curve.time)
            if len(text.answer) > 1:
                played.add(self.categories[number], len(text.answer) - 1, seconds)
        return played


def what_if(
    run: TracedRun,
    curve: CostCurve | None = None,
    acceptance: float | None = None,
    n_parallel: int = 1,
    progress: Callable[[float], None] = lambda done: None,
) -> WhatIf:
    """Replays the requests of a trace.

    curve: another cost curve; drafting then costs as much more or less as plain passes do. acceptance: drafts that
    are right so often at every place, instead of those of the trace. n_parallel: requests at a time; the oracle and
    its share are those of one at a time all the same. progress: told the fraction done.
    """
    factor = curve.time(1) / run.cost.time(1) if curve else 1.0
    costs = {name: DraftCost(token_s * factor, read_s * factor) for name, (token_s, read_s) in run.draft_costs.items()}
    curve = curve or run.cost
    texts = [Text(request.prompt, request.answer) for request in run.requests]
    makers = _makers(run, costs) if acceptance is None else {COIN: _coin(texts, acceptance, costs)}
    if acceptance is not None:
        costs = dict(zip((COIN,), costs.values(), strict=False))
    names = [request.category or "all" for request in run.requests]
    world = _World(texts, names, makers, costs, curve, run.widths)
    settings = [(name, n) for name in makers for n in LENGTHS]
    plain = world.play("plain", (), Control(_fresh(curve)), n_parallel)
    auto = world.play("auto", list(makers), Control(_fresh(curve), costs, run.widths), n_parallel)
    fixed = []
    for i, (name, n) in enumerate(settings):
        fixed.append(world.play(f"{name} {n}", [name], FixedLength(_fresh(curve), n, costs), n_parallel))
        progress((i + 1) / (len(settings) + 1))
    result = WhatIf(plain, auto, world.foresee(), tuple(fixed))
    progress(1.0)
    return result


def _fresh(curve: CostCurve) -> CostCurve:
    """The curve as it was measured: what control learns while playing stays with that play."""
    return CostCurve(curve.measured, curve.max_width, curve.far)


def _makers(run: TracedRun, costs: Mapping[str, DraftCost]) -> dict[str, Make]:
    """The drafters of the trace, the free ones first: the suffix drafter itself, others as they were recorded."""
    names = {name for request in run.requests for name in request.said}
    makers: dict[str, Make] = {}
    if SUFFIX in names:
        said = [s.seconds for request in run.requests for s in request.said.get(SUFFIX, {}).values()]
        ask_s = median(said)
        makers[SUFFIX] = lambda clock: OnClock(SuffixDrafter(), ask_s, clock)
    for name in sorted(names - {SUFFIX}):
        makers[name] = _model(name, _recorded(run.requests, name), costs.get(name, DraftCost(0.0)))
    return makers


def _model(name: str, script: Script, cost: DraftCost) -> Make:
    return lambda clock: Model(name, script, cost, clock)


def _recorded(requests: Sequence[TracedRequest], name: str) -> Script:
    def script(number: int, tokens: Sequence[int]) -> tuple[Sequence[int], Sequence[float]]:
        request = requests[number]
        said = request.said.get(name, {}).get(len(tokens) - len(request.prompt) - 1)
        if said is None:
            return (), ()
        before = (1.0, *said.survival)
        return said.tokens, [s / b if b else 0.0 for s, b in zip(said.survival, before, strict=False)]

    return script


def _coin(texts: Sequence[Text], acceptance: float, costs: Mapping[str, DraftCost]) -> Make:
    """A drafter that is right by chance, at each place the same whoever asks."""
    rng = np.random.default_rng(0)
    right = [rng.random(len(text.tokens)) < acceptance for text in texts]

    def script(number: int, tokens: Sequence[int]) -> tuple[Sequence[int], Sequence[float]]:
        at = len(tokens)
        coming = texts[number].tokens[at : at + MAX_WIDTH - 1]
        drafted = [token if right[number][at + i] else -1 for i, token in enumerate(coming)]
        return drafted, [COIN_CONFIDENCE] * len(drafted)

    return _model(COIN, script, next(iter(costs.values()), DraftCost(0.0)))


def _accepted(texts: Sequence[Text], drafter: Drafter) -> Iterator[list[int]]:
    """For each text, how many of the tokens that the drafter would say at each place of the answer are right."""
    budget = Budget(MAX_WIDTH - 1)
    for text in texts:
        drafter.begin(0, [*text.prompt, *text.answer[:1]])
        choice = Sampler(Sampling(temperature=0.0), 1).bind(())
        accepted = []
        for place in range(len(text.answer)):
            if place:
                drafter.observe(0, [text.answer[place]])
            drafted = drafter.propose(0, budget, choice).tokens.tolist()
            coming = text.answer[place + 1 : place + 1 + len(drafted)]
            wrong = (i for i, (mine, true) in enumerate(zip(drafted, coming, strict=False)) if mine != true)
            accepted.append(next(wrong, len(coming)))
        yield accepted
