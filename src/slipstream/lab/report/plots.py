"""Line charts of what was measured: acceptance by position of a draft, and what a pass costs by its width."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.lab.tuned import ArmResult, CostPoint

from .chart import N_STYLES, Axes, Line, Plot, Points, Words, figures
from .numbers import count, factor, known, listed, percent
from .scale import SHARES, from_zero, positions


def acceptance(chart_id: str, arms: Sequence[ArmResult]) -> Plot | None:
    """Conditional acceptance by position of a draft, of the first arms that know it; None where none does."""
    series = [(arm.arm, _by_position(arm)) for arm in arms if any(map(known, arm.conditional))]
    if not series:
        return None
    shown = series[:N_STYLES]
    axes = Axes(positions(1, max(len(points) for _, points in shown)), SHARES, percent)
    lines = [
        axes.line(name, i, points, lambda x, y: f"token {x:g}: {percent(y)} accepted")
        for i, (name, points) in enumerate(shown)
    ]
    words = Words(
        chart_id,
        "Acceptance by position in the draft",
        f"Share of draft tokens accepted, by their position in the draft, of {listed(name for name, _ in shown)}. "
        "The numbers are in the table below the chart.",
        "position in the draft",
        "accepted of those reached",
    )
    note = (
        f"The first {len(shown)} of {len(series)} arms that know it; the numbers are those of all."
        if len(series) > len(shown)
        else ""
    )
    return axes.plot(words, lines, figures("position", series, percent), note)


def _by_position(arm: ArmResult) -> Points:
    points = [(float(i), rate if known(rate) else None) for i, rate in enumerate(arm.conditional, 1)]
    while points[-1][1] is None:
        points.pop()
    return points


def cost(chart_id: str, points: Sequence[CostPoint]) -> Plot | None:
    """t(w) ÷ t(1), a line a context, and w itself: where w tokens in one pass cost as much as w passes."""
    points = [point for point in points if known(point.ratio)]
    if not points:
        return None
    series = [(f"context of {count(n, 'token')}", _at_context(points, n)) for n in _contexts(points)]
    widest = max(point.width for point in points)
    axes = Axes(from_zero([float(widest)], whole=True, tight=True), from_zero([point.ratio for point in points]))
    lines = [
        axes.line(name, i, line, lambda w, y: f"{w:g} tokens: {factor(y)} the time of one")
        for i, (name, line) in enumerate(series)
    ]
    reach = min(float(widest), axes.y.high)
    guide = Line("as dear as w passes of one token", 0, axes.path([(1.0, 1.0), (reach, reach)]), (), guide=True)
    words = Words(
        chart_id,
        "What a wider pass costs",
        f"Time of a pass over w tokens, divided by that of one, up to {widest} tokens, for "
        f"{listed(name for name, _ in series)}. The numbers are in the table below the chart.",
        "tokens in a pass (w)",
        "t(w) ÷ t(1)",
    )
    return axes.plot(words, [*lines, guide], figures("w", series, factor))


def _contexts(points: Sequence[CostPoint]) -> list[int]:
    """Where there are many: some, spread over all of them, the longest among them."""
    contexts = sorted({point.n_context for point in points}, reverse=True)
    n = min(len(contexts), N_STYLES)
    return sorted(contexts[i * len(contexts) // n] for i in range(n))


def _at_context(points: Sequence[CostPoint], n_context: int) -> Points:
    return sorted((float(point.width), point.ratio) for point in points if point.n_context == n_context)
