"""From what was measured of each engine to its results, verdicts and settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from slipstream.lab import tune_verdict as verdicts
from slipstream.lab.tune_results import arm_result, not_run
from slipstream.lab.tune_rounds import Rounds
from slipstream.lab.tune_search import Arm
from slipstream.lab.tune_settings import by_batch_size, written
from slipstream.lab.tune_statistics import drift, points
from slipstream.lab.tune_visit import Role
from slipstream.lab.tuned import ArmResult, EngineResult

Measured = list[tuple[Arm, ArmResult]]
"""The settings of one engine, each with what came out."""


def engine_results(runs: Sequence[Rounds]) -> tuple[EngineResult, ...]:
    """One a run. What an engine takes by batch size stands with its greatest number of requests at once."""
    measured = [_measured(rounds) for rounds in runs]
    results = []
    for rounds, arms in zip(runs, measured, strict=True):
        result, engine = _result(rounds, arms), rounds.bench.engine
        sizes = {
            other.bench.plain.parallel: found
            for other, found in zip(runs, measured, strict=True)
            if other.bench.engine is engine
        }
        if rounds.bench.plain.parallel == max(sizes):
            result = replace(result, settings=result.settings + by_batch_size(engine, sizes))
        results.append(result)
    return tuple(results)


def _result(rounds: Rounds, measured: Measured) -> EngineResult:
    bench, about = rounds.bench, _circumstances(rounds)
    arms = [*(found for _, found in measured), *(not_run(option) for option in rounds.options if option.why_not)]
    verdict = verdicts.overall(arms, _judged(rounds, rounds.chosen, ("winner",)), about)
    by_category = {
        category: verdicts.in_category(arms, _judged_in(rounds, category), category, about)
        for category in dict.fromkeys(task.category for task in rounds.pools.search)
    }
    return EngineResult(
        name=bench.engine.name,
        version=bench.engine.version,
        concurrency=bench.plain.parallel,
        arms=tuple(arms),
        verdict=verdict,
        by_category=by_category,
        settings=written(bench.engine, bench.plain, rounds.arms, verdict, by_category),
    )


def _circumstances(rounds: Rounds) -> verdicts.Circumstances:
    return verdicts.Circumstances(
        drift=drift(rounds.bench.blocks),
        fresh=rounds.pools.search is not rounds.pools.fresh,
        drafted=rounds.bench.drafted_plainly(),
        with_draft=frozenset(arm.name for arm in rounds.arms if arm.settings.draft),
        at_once=rounds.bench.plain.parallel,
        broke=rounds.broke,
        needed_s=rounds.needed_s(),
    )


def _measured(rounds: Rounds) -> Measured:
    bench = rounds.bench
    return [(arm, arm_result(arm, bench.blocks, bench.failed.get(arm.name, ""))) for arm in rounds.arms]


def _judged_in(rounds: Rounds, category: str) -> str | None:
    if category in rounds.led:
        return _judged(rounds, rounds.led[category], ("category", "winner"), category)
    return _judged(rounds, rounds.chosen, ("winner",), category)


def _judged(rounds: Rounds, arm: Arm | None, roles: Sequence[Role], category: str | None = None) -> str | None:
    """The name of a setting, if enough tasks judged it for an interval: overall, or in a category."""
    if arm is None:
        return None
    found = [p for p in points(rounds.bench.blocks, roles) if p.arm == arm.name and category in (None, p.category)]
    return arm.name if len({p.task for p in found}) > 1 else None
