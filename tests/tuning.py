"""Tuning runs of simulated engines, without waiting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from simulated_engines import SimulatedClock, SimulatedEngine, World, prompts

from slipstream.engines.protocol import Option, Speculation
from slipstream.lab.tune import Asked, tune
from slipstream.lab.tuned import ArmResult, EngineResult, Tuned
from slipstream.lab.workload import Prompt

NGRAM = Option("ngram", n_max=(4, 8, 16))
DRAFT = Option("draft", n_max=(2, 4, 8), p_min=(0.5,), needs_draft=True)
OTHER = Option("other", n_max=(4,))


def engine(world: World | None = None, options: Sequence[Option] = (NGRAM, OTHER), **faults: Any) -> SimulatedEngine:
    return SimulatedEngine(SimulatedClock(), tuple(options), world or World(), **faults)


def run(
    engines: SimulatedEngine | Sequence[SimulatedEngine],
    folder: Path,
    some: Sequence[Prompt] | None = None,
    **asked: Any,
) -> Tuned:
    """With a budget of half an hour that nobody waits for, unless told; nor does anybody wait for the disk."""
    engines = [engines] if isinstance(engines, SimulatedEngine) else list(engines)
    folder.mkdir(exist_ok=True)
    values = {"model": "big", "budget_s": 1800.0, **asked}
    with patch("os.fsync"):
        return tune(Asked(**values), engines, some or prompts(), folder, "slipstream tune big", engines[0].clock)


def one(tuned: Tuned) -> EngineResult:
    (result,) = tuned.engines
    return result


def arm(result: EngineResult, name: str) -> ArmResult:
    (found,) = (arm for arm in result.arms if arm.arm == name)
    return found


def by_kind(**values: float) -> Callable[[Speculation, str], float]:
    """The same in all categories and at all lengths."""
    return lambda how, category: values.get(how.kind, 1.0)
