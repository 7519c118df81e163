"""What the page says, in the order in which it says it: every text and chart of it, made from a `Tuned`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slipstream.lab.tuned import ArmResult, EngineResult, Ratio, Tuned, Verdict, Written

from . import plots, sentences, speedups, timelines
from .chart import Plot
from .numbers import MISSING, count, decimal, duration, factor, interval, known, listed, percent, speed
from .scale import Scale
from .speedups import Panel

PLAIN = "plain"
_OWN_ENGINE = "slipstream"


@dataclass(frozen=True)
class Decision:
    """A verdict. kind: use, off or open. detail: figures beside it, a sentence."""

    kind: str
    headline: str
    factor: str
    interval: str
    detail: str
    reason: str
    hint: str


@dataclass(frozen=True)
class Category:
    """One category's decision and arms. asked: how many prompts, in words."""

    name: str
    asked: str
    decision: Decision | None
    panel: Panel | None


@dataclass(frozen=True)
class Arm:
    """One row of the table of all arms. log: the lines behind the reason's first. parted: which answers, and where."""

    name: str
    state: str
    chosen: bool
    factor: str
    interval: str
    tokens_per_s: str
    plain_tokens_per_s: str
    acceptance: str
    tokens_a_pass: str
    same: str
    parted: tuple[str, ...]
    reason: str
    log: str


@dataclass(frozen=True)
class Engine:
    """A section. load: requests at a time. measured: how many of the prompts, where not all. shown: the arm whose
    answers are drawn over time. answered: what the answer drawn was. missing: why something is not drawn."""

    id: str
    name: str
    load: str
    measured: str
    decision: Decision
    without_ratio: str
    panel: Panel | None
    categories: tuple[Category, ...]
    without_categories: tuple[str, ...]
    acceptance: tuple[Plot, ...]
    shown: str
    answered: str
    answer: tuple[Plot, ...]
    run: tuple[Plot, ...]
    arms: tuple[Arm, ...]
    lossless: str
    disturbed: str
    loops: str
    settings: tuple[Written, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Page:
    """facts: names and values of the provenance."""

    title: str
    lead: str
    engines: tuple[Engine, ...]
    cost: Plot | None
    command: str
    facts: tuple[tuple[str, str], ...]


def page(tuned: Tuned) -> Page:
    """The whole page."""
    answers = f"answers of at most {count(tuned.n_tokens, 'token')}"
    cost = plots.cost("cost", tuned.cost)
    return Page(
        title=short_name(tuned.model),
        lead=f"{sentences.given(tuned)} given, {answers}, on {tuned.machine or 'an unnamed machine'}.",
        engines=tuple(_engine(i, engine, tuned, cost) for i, engine in enumerate(tuned.engines, 1)),
        cost=cost,
        command=tuned.command,
        facts=_facts(tuned),
    )


def short_name(model: str) -> str:
    """The last part of a path; a name of the form owner/name as it is."""
    parts = [part for part in re.split(r"[\\/]", model) if part]
    is_path = len(parts) != 2 or model[0] in "/\\.~" or model.endswith(".gguf")
    return parts[-1] if parts and is_path else model or "an unnamed model"


def _facts(tuned: Tuned) -> tuple[tuple[str, str], ...]:
    by_category = ", ".join(f"{name} {n}" for name, n in tuned.prompts.items())
    facts = {
        "Model": tuned.model,
        "Draft": tuned.draft or "none",
        "Machine": tuned.machine,
        "Begun": sentences.date(tuned.started),
        "Measured for": duration(tuned.seconds),
        "Prompts given": f"{sentences.given(tuned)}{': ' if by_category else ''}{by_category}",
        "Answers": f"greedy, {count(tuned.n_tokens, 'token')} at most",
        "slipstream": tuned.slipstream,
        **{engine.name: engine.version for engine in tuned.engines if engine.name != _OWN_ENGINE},
    }
    return tuple((name, value or "not known") for name, value in facts.items())


def _engine(number: int, engine: EngineResult, tuned: Tuned, cost: Plot | None) -> Engine:
    identity = f"engine-{number}"
    arms = [arm for arm in engine.arms if arm.arm != PLAIN]
    ranked = sorted(arms, key=lambda arm: (arm.arm != engine.verdict.arm, -_value(arm.overall)))
    scale = speedups.scale(arms)
    categories = tuple(_category(name, engine, arms, tuned.prompts, scale) for name in _names(engine, tuned))
    shown = max(ranked, key=lambda arm: (arm.arm == engine.verdict.arm, len(arm.samples)), default=None)
    timeline = shown.timeline if shown else None
    panel = speedups.panel(arms, lambda arm: arm.overall, engine.verdict.arm, scale, engine.concurrency)
    acceptance = plots.acceptance(f"{identity}-acceptance", ranked)
    answer = timelines.answer(f"{identity}-answer", shown.arm, timeline) if shown and timeline else ()
    run = timelines.run(f"{identity}-run", shown.arm, shown.samples) if shown else ()
    return Engine(
        id=identity,
        name=f"{engine.name} {engine.version}".strip(),
        load=f"{count(engine.concurrency, 'request')} at a time",
        measured=sentences.measured(sum(engine.prompts.values()), sum(tuned.prompts.values())),
        decision=_decision(engine.verdict, arms, engine.plain_tokens_per_s),
        without_ratio=sentences.without_ratio(arms),
        panel=panel,
        categories=tuple(category for category in categories if not _is_empty(category)),
        without_categories=_without(category for category in categories if _is_empty(category)),
        acceptance=acceptance,
        shown=shown.arm if shown else "",
        answered=sentences.answered(timeline) if timeline else "",
        answer=answer,
        run=run,
        arms=tuple(_arm(arm, engine.verdict.arm) for arm in ranked),
        lossless=sentences.lossless(arms),
        disturbed=sentences.disturbed(engine),
        loops=sentences.loops(engine),
        settings=engine.settings,
        missing=tuple(sentences.missing(engine, panel, acceptance, answer, run)) + _no_cost(engine, cost),
    )


def _no_cost(engine: EngineResult, cost: Plot | None) -> tuple[str, ...]:
    return ("What a wider pass costs: not measured.",) if engine.name == _OWN_ENGINE and cost is None else ()


def _value(ratio: Ratio | None) -> float:
    return ratio.value if ratio and known(ratio.value) else 0.0


def _names(engine: EngineResult, tuned: Tuned) -> list[str]:
    """All categories, those of the prompts first and in their order."""
    measured = [name for arm in engine.arms for name in arm.by_category]
    return list(dict.fromkeys([*tuned.prompts, *engine.by_category, *measured]))


def _category(
    name: str, engine: EngineResult, arms: Sequence[ArmResult], prompts: Mapping[str, int], scale: Scale
) -> Category:
    verdict = engine.by_category.get(name)
    chosen = verdict.arm if verdict else None
    return Category(
        name,
        sentences.measured(engine.prompts.get(name, 0), prompts[name]) or count(prompts[name], "prompt")
        if name in prompts
        else "",
        _decision(verdict) if verdict else None,
        speedups.panel(arms, lambda arm: arm.by_category.get(name), chosen, scale, engine.concurrency),
    )


def _is_empty(category: Category) -> bool:
    """Whether nothing was found out about it."""
    return category.panel is None and (category.decision is None or category.decision.kind == "open")


def _without(categories: Iterable[Category]) -> tuple[str, ...]:
    """Those of which nothing is known, a sentence for each reason."""
    by_reason: dict[str, list[str]] = {}
    for category in categories:
        reason = (category.decision.reason if category.decision else "") or "No arm has a speed-up there."
        by_reason.setdefault(reason, []).append(category.name)
    return tuple(f"{listed(names)}: {reason}" for reason, names in by_reason.items())


def _decision(verdict: Verdict, arms: Sequence[ArmResult] = (), plain_tokens_per_s: float | None = None) -> Decision:
    plain = f"Plain decoding: {speed(plain_tokens_per_s)}." if known(plain_tokens_per_s) else ""
    if verdict.arm is None:
        return Decision("open", "Undecided", "", "", plain, verdict.reason, verdict.hint)
    if verdict.arm == PLAIN:
        return Decision("off", "Leave speculation off", "", "", plain, verdict.reason, verdict.hint)
    chosen = next((arm for arm in arms if arm.arm == verdict.arm), None)
    detail = ""
    if chosen and known(chosen.tokens_per_s) and known(chosen.plain_tokens_per_s):
        detail = f"{speed(chosen.tokens_per_s)}; plain decoding {speed(chosen.plain_tokens_per_s)}."
    ratio = verdict.ratio
    times, bounds = (factor(ratio.value), interval(ratio)) if ratio and known(ratio.value) else ("", "")
    return Decision("use", f"Use {verdict.arm}", times, bounds, detail, verdict.reason, verdict.hint)


def _arm(arm: ArmResult, chosen: str | None) -> Arm:
    reason, _, log = arm.reason.strip().partition("\n")
    parted = tuple(f"{prompt} after {count(n, 'character')}" for prompt, n in arm.parted)
    return Arm(
        arm.arm,
        "not measured" if arm.state == "dropped" and arm.tokens_per_s is None else arm.state,
        arm.arm == chosen,
        factor(arm.overall.value) if arm.overall else factor(None),
        interval(arm.overall) if arm.overall else "",
        decimal(arm.tokens_per_s),
        decimal(arm.plain_tokens_per_s),
        percent(arm.acceptance_rate),
        decimal(arm.mean_tokens_a_pass),
        f"{arm.n_same} of {arm.n_compared}" if arm.n_compared else MISSING,
        parted,
        reason,
        log,
    )
