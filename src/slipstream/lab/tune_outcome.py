"""From what was measured of each engine to its results, verdicts and settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from slipstream.lab import tune_verdict as verdicts
from slipstream.lab.tune_results import arm_result, is_loop, not_run, speed, texts_of
from slipstream.lab.tune_rounds import Rounds
from slipstream.lab.tune_search import Arm
from slipstream.lab.tune_settings import by_batch_size, rendered, written
from slipstream.lab.tune_statistics import disturbed, drift, points
from slipstream.lab.tune_visit import Role
from slipstream.lab.tuned import ArmResult, EngineResult, Verdict

Measured = list[tuple[Arm, ArmResult]]
"""The settings of one engine, each with what came out."""


def engine_results(runs: Sequence[Rounds]) -> tuple[EngineResult, ...]:
    """One a run. What an engine takes by batch size stands with its greatest number of requests at once."""
    measured = [_measured(rounds) for rounds in runs]
    needed_s = _needed_s(runs)
    results = []
    for rounds, arms in zip(runs, measured, strict=True):
        result, engine = _result(rounds, arms, needed_s), rounds.bench.engine
        sizes = {
            other.bench.plain.parallel: found
            for other, found in zip(runs, measured, strict=True)
            if other.bench.engine is engine
        }
        if rounds.bench.plain.parallel == max(sizes):
            result = replace(result, settings=result.settings + by_batch_size(engine, sizes))
        results.append(result)
    return tuple(results)


def _result(rounds: Rounds, measured: Measured, needed_s: float) -> EngineResult:
    bench, plain_texts = rounds.bench, texts_of(rounds.bench.plain_visits)
    n_unsteady = sum(len(some) > 1 for some in plain_texts.values())
    about = _circumstances(rounds, needed_s, n_unsteady)
    arms = [*(found for _, found in measured), *(not_run(option) for option in rounds.options if option.why_not)]
    verdict = verdicts.overall(arms, _judged(rounds, rounds.chosen, ("winner",)), about)
    verdict = replace(verdict, reason=" ".join(filter(None, (verdict.reason, _unused_draft(rounds, verdict)))))
    by_category = {
        category: verdicts.in_category(arms, _judged_in(rounds, category), category, about)
        for category in dict.fromkeys(task.category for task in rounds.pools.search)
    }
    return EngineResult(
        name=bench.engine.name,
        version=bench.engine.version,
        concurrency=bench.plain.parallel,
        prompts=_answered(rounds),
        plain_tokens_per_s=speed(bench.plain_visits),
        n_disturbed=sum(map(len, disturbed(bench.blocks))),
        n_measured=sum(len(block.tried.measured) for block in bench.blocks),
        n_loops=sum(any(map(is_loop, some)) for some in plain_texts.values()),
        n_unsteady=n_unsteady,
        arms=tuple(arms),
        verdict=verdict,
        by_category=by_category,
        settings=written(bench.engine, bench.plain, rounds.arms, verdict, by_category),
    )


def _unused_draft(rounds: Rounds, verdict: Verdict) -> str:
    """Why nothing was tried with the draft that was given, unless the verdict says so."""
    reasons = [option.why_not for option in rounds.options if option.needs_draft and option.why_not]
    if not reasons or rounds.settings.draft is None or any(arm.settings.draft for arm in rounds.arms):
        return ""
    return "" if reasons[0] in verdict.reason else f"The draft was not tried: {reasons[0]}."


def _needed_s(runs: Sequence[Rounds]) -> float:
    """About the budget, in seconds, with which each run would have been measured: what is left is shared by all."""
    short = [rounds.needed_s() for rounds in runs if not rounds.bench.blocks]
    return runs[0].bench.budget.spent_s + len(runs) * max(short, default=0.0)


def _circumstances(rounds: Rounds, needed_s: float, n_unsteady: int) -> verdicts.Circumstances:
    return verdicts.Circumstances(
        drift=drift(rounds.bench.blocks),
        fresh=rounds.pools.search is not rounds.pools.fresh,
        drafted=rounds.bench.drafted_plainly(),
        with_draft=frozenset(arm.name for arm in rounds.arms if arm.settings.draft),
        at_once=rounds.bench.plain.parallel,
        broke=rounds.broke,
        needed_s=needed_s,
        plain_speeds=_plain_speeds(rounds),
        n_unsteady=n_unsteady,
    )


def _answered(rounds: Rounds) -> dict[str, int]:
    """By category, prompts that plain decoding answered."""
    tasks = (*rounds.pools.search, *rounds.pools.fresh)
    categories = {prompt.id: prompt.category for task in tasks for prompt in task.prompts}
    visits = rounds.bench.plain_visits
    answered = {prompt for visit in visits for measured in visit.measured.values() for prompt, _ in measured.answers}
    counts = Counter(categories[prompt] for prompt in answered)
    return {category: counts[category] for category in dict.fromkeys(categories.values())}


def _plain_speeds(rounds: Rounds) -> tuple[float, ...]:
    """Tokens a second of each answer of plain decoding, in order."""
    answers = [measured.token_s for visit in rounds.bench.plain_visits for measured in visit.measured.values()]
    return tuple(1 / token_s for token_s in answers if token_s)


def _measured(rounds: Rounds) -> Measured:
    bench = rounds.bench
    found = ((arm, arm_result(arm, bench.blocks, bench.failed.get(arm.name, ""))) for arm in rounds.arms)
    return [(arm, replace(result, rendered=rendered(bench.engine, arm.settings))) for arm, result in found]


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
