"""Traces made without a model: the real ring over texts that are known, in simulated time."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from slipstream.decoding.choice import Sampler
from slipstream.decoding.control import Control
from slipstream.decoding.cost import CostCurve
from slipstream.decoding.protocols import Drafter
from slipstream.decoding.record import DraftCost
from slipstream.decoding.ring import Ring, SequenceState
from slipstream.decoding.sampling import Sampling
from slipstream.decoding.statistics import Round
from slipstream.decoding.trace import Trace
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.lab.simulated import Clock, Model, OnClock, Text, TextRuntime
from slipstream.lab.trace import TraceWriter

STEPS = {1: 0.020, 2: 0.024, 4: 0.027, 8: 0.034, 16: 0.050, 32: 0.080}
MODEL_COST = DraftCost(0.002, 0.0002)
N_VOCAB = 60


def copying(n_tokens: int, seed: int = 0) -> Text:
    """An answer that copies stretches of its prompt, with words of its own between them."""
    rng = random.Random(seed)
    prompt = [rng.randrange(N_VOCAB) for _ in range(40)]
    answer: list[int] = []
    while len(answer) < n_tokens:
        start = rng.randrange(30)
        answer += prompt[start : start + rng.randrange(4, 12)]
        answer += [rng.randrange(N_VOCAB) for _ in range(rng.randrange(4))]
    return Text(prompt, answer[:n_tokens])


def guessing(texts: Sequence[Text], clock: Clock, acceptance: float, cost: DraftCost = MODEL_COST) -> Model:
    """A small model that is right so often."""
    rng = random.Random(1)
    right = [[rng.random() < acceptance for _ in text.tokens] for text in texts]

    def script(number: int, tokens: Sequence[int]) -> tuple[list[int], list[float]]:
        at, text = len(tokens), texts[number].tokens
        coming = text[at : at + 32]
        return [t if right[number][at + i] else (t + 1) % N_VOCAB for i, t in enumerate(coming)], [0.85] * len(coming)

    return Model("model", script, cost, clock)


def write(
    texts: Sequence[Text],
    drafters: Sequence[Drafter],
    control: Control,
    clock: Clock,
    trace: Trace | None = None,
    categories: Sequence[str] = (),
    seconds: Mapping[int, float] = STEPS,
) -> list[Round]:
    """Answers one request after another; `seconds` are what passes take."""
    runtime = TextRuntime(N_VOCAB, 1, CostCurve(seconds).time, clock)
    ring = Ring(runtime, drafters, control, clock, trace)
    rounds = []
    for i, text in enumerate(texts):
        if isinstance(trace, TraceWriter):
            trace.category = categories[i] if categories else ""
        runtime.texts[0] = text.tokens
        state = SequenceState(0, Sampler(Sampling(temperature=0), N_VOCAB), lambda token: False, len(text.tokens))
        ring.begin(state, text.prompt, 0)
        while not state.ended:
            rounds += ring.step([state])
        assert state.tokens == text.tokens
    return rounds


def loaded(control: Control, drafters: Sequence[Drafter]) -> Any:
    """As much of an LLM as a trace tells of."""
    return SimpleNamespace(control=control, drafters=tuple(drafters))


def traced(
    path: Path,
    texts: Sequence[Text],
    acceptance: float | None = None,
    model: str = "made-up",
    categories: Sequence[str] = (),
    curve: CostCurve | None = None,
) -> list[Round]:
    """Adds a run to a trace file: the suffix drafter, and a small model if it has an acceptance."""
    clock = Clock()
    drafters: list[Drafter] = [OnClock(SuffixDrafter(), 0.0001, clock)]
    costs = {}
    if acceptance is not None:
        drafters.append(guessing(texts, clock, acceptance))
        costs["model"] = MODEL_COST
    control = Control(curve or CostCurve(STEPS), costs)
    with TraceWriter(path, loaded(control, drafters), model) as trace:
        return write(texts, drafters, control, clock, trace, categories)
