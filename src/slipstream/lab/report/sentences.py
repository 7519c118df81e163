"""What the page says in words: what was measured, how texts compare, and why something is not drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from slipstream.lab.tuned import ArmResult, EngineResult, Timeline, Tuned

from .chart import Plot
from .numbers import MISSING, count, duration, known, listed
from .speedups import Panel

N_COURSES = 2
"""Charts over the course of a run: speed and acceptance."""


def given(tuned: Tuned) -> str:
    """How many prompts."""
    categories = len(tuned.prompts)
    of = f" of {count(categories, 'category', 'categories')}" if categories > 1 else ""
    return f"{count(sum(tuned.prompts.values()), 'prompt')}{of}"


def date(text: str) -> str:
    """ISO 8601 as people write it; another text as it is."""
    try:
        when = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return text
    zone = f" UTC{when:%z}" if when.tzinfo else ""
    return f"{when:%Y-%m-%d %H:%M}{zone.replace('+0000', '')}"


def measured(n: int, n_given: int) -> str:
    """How many of the prompts; empty where all."""
    return f"{n} of {count(n_given, 'prompt')} measured" if n < n_given else ""


def disturbed(engine: EngineResult) -> str:
    """How much was measured in vain; empty where nothing was."""
    n, of = engine.n_disturbed, count(engine.n_measured, "measurement")
    return f"{n} of {of} of arms count in no speed-up: plain decoding before and after hardly agreed." if n else ""


def loops(engine: EngineResult) -> str:
    """How many prompts favour drafts; empty where none do."""
    n, of = engine.n_loops, count(sum(engine.prompts.values()), "prompt")
    why = "drafts gain more there than elsewhere"
    return f"Plain decoding answered {n} of {of} by repeating itself: {why}." if n else ""


def missing(
    engine: EngineResult, panel: Panel | None, acceptance: Sequence[Plot], answer: Sequence[Plot], run: Sequence[Plot]
) -> Iterator[str]:
    """Why something is not drawn, as far as it can be told."""
    if not engine.settings:
        yield "Settings to copy: none were written."
    if not any(arm.tokens_per_s for arm in engine.arms):
        yield "Speed-up, acceptance, course of time: no arm was measured."
        return
    if panel is None:
        yield "Speed-up: no arm was measured long enough."
    if not acceptance:
        yield f"Acceptance by position: {engine.name} does not count it, or no draft had two tokens."
    if not answer:
        several = "of several requests at a time none is drawn"
        yield f"An answer as it came: {several if engine.concurrency > 1 else 'not known when its tokens came'}."
    if len(run) < N_COURSES:
        yield f"Acceptance of each answer: {engine.name} does not count it by request, or nothing was drafted."


def answered(timeline: Timeline) -> str:
    """Which answer it was, and how long its first tokens took to come."""
    firsts = [(name, points[0][0]) for name, points in (("", timeline.arm), ("plain ", timeline.plain)) if points]
    waited = ", ".join(f"{name}{duration(seconds)}" for name, seconds in firsts)
    return f"Prompt {timeline.prompt}, category {timeline.category}; time to its first token: {waited or MISSING}."


def without_ratio(arms: Sequence[ArmResult]) -> str:
    """Which arms no chart of speed-ups shows; empty where it shows all."""
    without = [arm.arm for arm in arms if not (arm.overall and known(arm.overall.value))]
    return f"Without a speed-up to draw: {listed(without)}." if without else ""


def lossless(arms: Sequence[ArmResult]) -> str:
    """How many answers had plain decoding's text, and of which arms others had not."""
    n_same, n_compared = sum(arm.n_same for arm in arms), sum(arm.n_compared for arm in arms)
    if not n_compared:
        return "No answer was compared with plain decoding’s text."
    if n_same == n_compared:
        return f"All {count(n_compared, 'greedy answer')} compared had plain decoding’s text, to the character."
    others = [(arm.arm, arm.n_compared - arm.n_same, arm.n_compared) for arm in arms if arm.n_same < arm.n_compared]
    parted = [f"{name} ({n} of {of})" for name, n, of in others]
    return (
        f"{n_compared - n_same} of {count(n_compared, 'greedy answer')} compared parted from plain decoding’s text: "
        f"{listed(parted)}."
    )
