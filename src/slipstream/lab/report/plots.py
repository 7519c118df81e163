"""Line charts of what was measured: acceptance by position of a draft, and what a pass costs by its width."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.decoding.cost import FIRST_BAND
from slipstream.lab.tuned import ArmResult, CostPoint

from .chart import N_STYLES, Axes, Line, Plot, Points, Words, figures
from .numbers import count, factor, known, listed, percent
from .scale import SHARES, from_zero, positions


def acceptance(chart_id: str, arms: Sequence[ArmResult]) -> tuple[Plot, ...]:
    """By position in a draft, tokens accepted of those reached, and of all drafts; each where an arm tells of two."""
    told = [arm for arm in arms if len(_by_position(arm.conditional)) > 1 or len(_by_position(arm.survival)) > 1]
    reached = [(arm.arm, _by_position(arm.conditional)) for arm in told]
    drafts = [(arm.arm, _by_position(arm.survival)) for arm in told]
    plots = (
        _positions(f"{chart_id}-reached", "Accepted where it was reached", "accepted of those reached", reached),
        _positions(f"{chart_id}-drafts", "Accepted of all drafts", "accepted with all before it", drafts),
    )
    return tuple(plot for plot in plots if plot)


def _positions(chart_id: str, title: str, y: str, series: Sequence[tuple[str, Points]]) -> Plot | None:
    """The first arms as lines, a style each in both charts; None where none tells of two positions."""
    if not any(len(points) > 1 for _, points in series):
        return None
    shown = series[:N_STYLES]
    axes = Axes(positions(1, max(len(points) for _, points in shown)), SHARES, percent)
    lines = [
        axes.line(name, i, points, lambda x, y: f"token {x:g}: {percent(y)} accepted")
        for i, (name, points) in enumerate(shown)
        if points
    ]
    words = Words(
        chart_id,
        title,
        f"Share of draft tokens accepted, by their position in the draft, of {listed(line.name for line in lines)}. "
        "The numbers are in the table below the chart.",
        "position in the draft",
        y,
    )
    note = (
        f"The first {N_STYLES} of {len(series)} arms; the numbers are those of all." if len(series) > N_STYLES else ""
    )
    return axes.plot(words, lines, figures("position", series, percent), note)


def _by_position(rates: Sequence[float | None]) -> Points:
    """Up to the last that is known, and of those that are zero up to the first."""
    points = [(float(i), rate if known(rate) else None) for i, rate in enumerate(rates, 1)]
    while points and points[-1][1] is None:
        points.pop()
    while len(points) > 1 and points[-1][1] == points[-2][1] == 0.0:
        points.pop()
    return points


def cost(chart_id: str, points: Sequence[CostPoint]) -> Plot | None:
    """t(w) ÷ t(1), a line a context, and w itself: where w tokens in one pass cost as much as w passes.

    None where no pass of several tokens was measured.
    """
    points = [point for point in points if known(point.ratio)]
    if not any(point.width > 1 for point in points):
        return None
    series = [(_named(n), _at_context(points, n)) for n in _contexts(points)]
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


def _named(n_context: int) -> str:
    return f"context of {'up to ' if n_context <= FIRST_BAND else ''}{count(n_context, 'token')}"


def _contexts(points: Sequence[CostPoint]) -> list[int]:
    """Where there are many: some, spread over all of them, the longest among them."""
    contexts = sorted({point.n_context for point in points}, reverse=True)
    n = min(len(contexts), N_STYLES)
    return sorted(contexts[i * len(contexts) // n] for i in range(n))


def _at_context(points: Sequence[CostPoint], n_context: int) -> Points:
    return sorted((float(point.width), point.ratio) for point in points if point.n_context == n_context)
