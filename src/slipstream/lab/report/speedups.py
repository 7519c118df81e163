"""Speed-ups as rows of dots and whiskers, on one scale an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slipstream.lab.tuned import ArmResult, Ratio

from .chart import Tick
from .numbers import factor, in_words, interval, known
from .scale import Scale, ratios

_N_SHOWN = 8
"""Rows of a panel before the rest is folded away."""


_FAR = 25.0
"""Percent between the labels of a narrow panel."""

_REACH = 2.0
"""Bars of intervals go no farther beyond the slowest and the fastest arm: two wild prompts would hide all others."""


@dataclass(frozen=True)
class Row:
    """One arm. low, at, high: places in percent. goes_on: whether the interval goes on at the left and right border of
    the chart. tone: faster, slower, or unclear where the interval holds 1."""

    arm: str
    low: float
    at: float
    high: float
    goes_on: tuple[bool, bool]
    tone: str
    chosen: bool
    dropped: bool
    factor: str
    interval: str
    tip: str


@dataclass(frozen=True)
class Panel:
    """Arms by speed, fastest first. one: the place of plain decoding in percent. rest: folded away."""

    ticks: tuple[Tick, ...]
    one: float
    rows: tuple[Row, ...]
    rest: tuple[Row, ...]


def scale(arms: Sequence[ArmResult]) -> Scale:
    """One for all panels of an engine, so that they can be compared."""
    found = [ratio for arm in arms for ratio in (arm.overall, *arm.by_category.values()) if ratio]
    values = [ratio.value for ratio in found if known(ratio.value)]
    low, high = min(values, default=1.0) / _REACH, max(values, default=1.0) * _REACH
    bounds = [bound for ratio in found for bound in (ratio.low, ratio.high) if known(bound)]
    return ratios([*values, *(min(max(bound, low), high) for bound in bounds)])


def panel(
    arms: Sequence[ArmResult],
    ratio_of: Callable[[ArmResult], Ratio | None],
    chosen: str | None,
    on: Scale,
    at_once: int = 1,
) -> Panel | None:
    """The arms that have a speed-up by `ratio_of`; None where there are none. at_once: requests measured together."""
    pairs = [(arm, ratio) for arm in arms if (ratio := ratio_of(arm)) and known(ratio.value)]
    pairs.sort(key=lambda pair: -pair[1].value)
    rows = [_row(arm, ratio, arm.arm == chosen, on, at_once) for arm, ratio in pairs]
    if not rows:
        return None
    # One row alone is not worth folding; the chosen arm is never folded away.
    n = len(rows) if len(rows) <= _N_SHOWN + 1 else _N_SHOWN
    shown = [row for i, row in enumerate(rows) if i < n or row.chosen]
    rest = [row for row in rows if row not in shown]
    return Panel(_ticks(on), on.at(1.0), tuple(shown), tuple(rest))


def _ticks(on: Scale) -> tuple[Tick, ...]:
    """Where there is little room, only those far enough from 1 and from each other keep their labels."""
    kept = [on.at(1.0)]
    for at in sorted(map(on.at, on.ticks), key=lambda at: -abs(at - kept[0])):
        if all(abs(at - other) >= _FAR for other in kept):
            kept.append(at)
    return tuple(Tick(on.at(value), f"{value:g}×", minor=on.at(value) not in kept) for value in on.ticks)


def _row(arm: ArmResult, ratio: Ratio, chosen: bool, on: Scale, at_once: int) -> Row:
    low = ratio.low if known(ratio.low) else ratio.value
    high = ratio.high if known(ratio.high) else ratio.value
    tone = "faster" if low > 1.0 else "slower" if high < 1.0 else "unclear"
    return Row(
        arm.arm,
        on.at(low),
        on.at(ratio.value),
        on.at(high),
        (low < on.low, high > on.high),
        tone,
        chosen,
        arm.state == "dropped",
        factor(ratio.value),
        interval(ratio),
        f"{arm.arm}: {in_words(ratio, at_once)}" + (" (dropped early)" if arm.state == "dropped" else ""),
    )
