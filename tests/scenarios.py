"""Worlds for control: what passes cost, what drafters cost and how often they are right, with the truth known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.decoding.control import Control
from slipstream.decoding.cost import MAX_WIDTH, CostCurve
from slipstream.decoding.protocols import Drafter
from slipstream.decoding.record import DraftCost
from slipstream.lab.simulate import FixedLength, Step, simulate
from slipstream.lab.simulated import Clock, Model, PassTime, Text
from slipstream.lab.theory import Roofline

STEPS = {
    1: 0.020,
    2: 0.037,
    3: 0.048,
    4: 0.040,
    5: 0.055,
    6: 0.045,
    8: 0.051,
    10: 0.054,
    12: 0.062,
    16: 0.078,
    32: 0.16,
}
HALF = {1: 0.02, 2: 0.025, 4: 0.028, 8: 0.033, 16: 0.045, 32: 0.08}
GPU = {1: 0.020, 8: 0.021, 16: 0.023, 32: 0.030}
MOE = Roofline(1e9, 3e9, 100e9, 20e12, expert_bytes=60e9, n_experts=256, n_used=8)
EXPERTS = {w: MOE.time(w) for w in range(1, MAX_WIDTH + 1)}

N_VOCAB = 50
FIXED_LENGTHS = (1, 2, 3, 5, 8, 12, 32)


@dataclass(frozen=True)
class Helper:
    """A drafter: the seconds of its tokens (0: free), how often it is right at each place, how sure it says it is.

    `odd`: what it is for every other sequence.
    """

    acceptance: Callable[[int], float]
    token_s: float = 0.0
    confidence: float = 0.85
    odd: Helper | None = None


@dataclass(frozen=True)
class World:
    """`seconds`: what passes really take; `told`: what was measured at load, the same unless given."""

    seconds: dict[int, float]
    helpers: dict[str, Helper]
    told: dict[int, float] | None = None
    noise: bool = False
    n_tokens: int = 2000
    seed: int = 0

    def texts(self, n: int = 1) -> list[Text]:
        rng = np.random.default_rng(self.seed)
        return [Text([0, 1], rng.integers(N_VOCAB, size=self.n_tokens).tolist()) for _ in range(n)]

    def pass_s(self) -> PassTime:
        """Seconds of passes, each with some noise, one in thirty an interrupted one, if the world is noisy."""
        curve, rng = CostCurve(self.seconds), np.random.default_rng(self.seed + 1)

        def noisy(width: int, n_context: int) -> float:
            factor = np.exp(rng.normal(0, 0.1)) * (5.0 if rng.random() < 0.03 else 1.0) if self.noise else 1.0
            return curve.time(width) * float(factor)

        return noisy

    def drafters(self, texts: Sequence[Text], clock: Clock, names: Sequence[str]) -> list[Drafter]:
        return [Model(name, self._script(name, texts), self._cost(name), clock) for name in names]

    def costs(self) -> dict[str, DraftCost]:
        return {name: self._cost(name) for name, helper in self.helpers.items() if helper.token_s > 0}

    def _cost(self, name: str) -> DraftCost:
        return DraftCost(self.helpers[name].token_s, self.helpers[name].token_s / 100)

    def _script(
        self, name: str, texts: Sequence[Text]
    ) -> Callable[[int, Sequence[int]], tuple[list[int], list[float]]]:
        """The text's own tokens, wrong where chance says so: the same at each place for all who play this world."""
        even = self.helpers[name]
        who = [even.odd if k % 2 and even.odd else even for k in range(len(texts))]
        chance = np.random.default_rng((self.seed, len(name)))
        right = [
            [chance.random() < helper.acceptance(i) for i in range(len(text.tokens))]
            for helper, text in zip(who, texts, strict=True)
        ]

        def script(seq: int, tokens: Sequence[int]) -> tuple[list[int], list[float]]:
            text, at = texts[seq].tokens, len(tokens)
            coming = text[at : at + MAX_WIDTH]
            drafted = [t if right[seq][at + i] else (t + 1) % N_VOCAB for i, t in enumerate(coming)]
            return drafted, [who[seq].confidence] * len(drafted)

        return script


def rate(steps: Sequence[Step], after: int = 0) -> float:
    """Tokens a second from a round on."""
    later = steps[after:]
    return sum(len(r.tokens) for s in later for _, r in s.rounds) / sum(s.seconds for s in later)


def play(
    world: World,
    control: Control,
    names: Sequence[str],
    n_parallel: int = 1,
    pass_s: PassTime | None = None,
) -> list[Step]:
    """Writes a text in each of `n_parallel` sequences."""
    clock, texts = Clock(), world.texts(n_parallel)
    return list(
        simulate(texts, world.drafters(texts, clock, names), control, pass_s or world.pass_s(), clock, n_parallel)
    )


def controlled(world: World) -> list[Step]:
    control = Control(CostCurve(world.told or world.seconds), world.costs())
    return play(world, control, list(world.helpers))


def fixed(world: World) -> dict[tuple[str, int], list[Step]]:
    """Every fixed choice: each drafter at each length, and plain decoding."""
    curve = CostCurve(world.told or world.seconds)
    choices = {
        (name, n): play(world, FixedLength(curve, n, {}), [name]) for name in world.helpers for n in FIXED_LENGTHS
    }
    return {("", 0): play(world, Control(curve), []), **choices}


def from_token(steps: Sequence[Step], n_tokens: int) -> int:
    """The number of the first step behind so many tokens."""
    written = 0
    for number, step in enumerate(steps):
        if written >= n_tokens:
            return number
        written += sum(len(r.tokens) for _, r in step.rounds)
    return len(steps)


def constant(acceptance: float) -> Callable[[int], float]:
    return lambda place: acceptance


WORLDS: dict[str, World] = {
    "a cheap good drafter": World(STEPS, {"model": Helper(constant(0.9), 0.002)}),
    "a dear good drafter": World(STEPS, {"model": Helper(constant(0.9), 0.008)}),
    "a cheap poor drafter": World(STEPS, {"model": Helper(constant(0.3), 0.002)}),
    "a drafter that is hardly worth it": World(STEPS, {"model": Helper(constant(0.65), 0.002)}),
    "nearly free verification": World(GPU, {"model": Helper(constant(0.8), 0.002)}),
    "a free drafter": World(STEPS, {"suffix": Helper(constant(0.8))}),
    "a free drafter on a GPU": World(GPU, {"suffix": Helper(constant(0.6))}),
    "acceptance falls": World(GPU, {"model": Helper(lambda i: 0.9 if i < 1000 else 0.05, 0.002)}),
    "acceptance rises": World(GPU, {"model": Helper(lambda i: 0.05 if i < 1000 else 0.9, 0.002)}),
    "text in stretches": World(STEPS, {"suffix": Helper(lambda i: 0.97 if i // 200 % 2 else 0.2)}),
    "experts": World(EXPERTS, {"model": Helper(constant(0.8), 0.002), "suffix": Helper(constant(0.5))}),
    "free and better": World(GPU, {"suffix": Helper(constant(0.5)), "model": Helper(constant(0.85), 0.002)}),
    "good and dear": World(STEPS, {"suffix": Helper(constant(0.85)), "model": Helper(constant(0.9), 0.006)}),
    "noise": World(STEPS, {"model": Helper(constant(0.9), 0.002)}, noise=True),
    "noise, and nothing to gain": World(STEPS, {"model": Helper(constant(0.3), 0.002)}, noise=True),
    "measured too cheap": World(STEPS, {"suffix": Helper(constant(0.8))}, told=HALF),
    "measured too dear": World(GPU, {"suffix": Helper(constant(0.8))}, told={1: 0.02, 2: 0.03, 8: 0.042, 32: 0.06}),
}

HOPELESS: dict[str, World] = {
    "a useless model": World(STEPS, {"model": Helper(constant(0.05), 0.006)}),
    "a model as slow as the target": World(STEPS, {"model": Helper(constant(0.8), 0.018)}),
    "experts": World(EXPERTS, {"model": Helper(constant(0.5), 0.003)}),
    "a free drafter that errs": World(STEPS, {"suffix": Helper(constant(0.3))}),
    "noise": World(STEPS, {"model": Helper(constant(0.1), 0.006)}, noise=True),
}
