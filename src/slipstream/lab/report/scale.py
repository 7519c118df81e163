"""Axes: from values to places in percent of a chart's width or height."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_RATIOS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)
_APART = 14.0
"""Percent that labels of a scale of ratios stand apart at least."""


@dataclass(frozen=True)
class Scale:
    """From `low` (0 %) to `high` (100 %), with places to label; logarithmic if asked."""

    low: float
    high: float
    ticks: tuple[float, ...]
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """Percent, from 0 to 100 whatever the value."""
        low, high = self._bent(self.low), self._bent(self.high)
        return min(max(100.0 * (self._bent(value) - low) / (high - low), 0.0), 100.0)

    def _bent(self, value: float) -> float:
        return math.log(max(value, 1e-9)) if self.logarithmic else value


SHARES = Scale(0.0, 1.0, (0.0, 0.25, 0.5, 0.75, 1.0))
"""From nothing to all."""


def from_zero(values: Iterable[float], whole: bool = False, tight: bool = False) -> Scale:
    """Linear from 0 to the next label above all values.

    whole: whole numbers alone are labelled. tight: it ends at the highest value instead.
    """
    top = max(values, default=0.0)
    top = top if top > 0.0 else 1.0
    step = _round_step(top / 5.0)
    step = max(1.0, round(step)) if whole else step
    n = math.floor(top / step + 1e-9) if tight else math.ceil(top / step - 1e-9)
    return Scale(0.0, top if tight else n * step, tuple(i * step for i in range(n + 1)))


def around(values: Sequence[float]) -> Scale:
    """Linear from the lowest value to the highest, with a little room at both ends; at least one value."""
    low, high = min(values), max(values)
    room = 0.03 * (high - low) or 1.0
    step = _round_step((high - low) / 5.0 or 1.0)
    ticks = range(math.ceil((low - room) / step), math.floor((high + room) / step) + 1)
    return Scale(low - room, high + room, tuple(i * step for i in ticks))


def positions(first: int, last: int, n_labels: int = 10) -> Scale:
    """Whole numbers from `first` to `last`, with room at both ends."""
    step = max(1, math.ceil((last - first + 1) / n_labels))
    return Scale(first - 0.5, last + 0.5, tuple(float(i) for i in range(first, last + 1, step)))


def ratios(values: Sequence[float]) -> Scale:
    """Logarithmic around 1, so that half and double lie equally far from it; at least 0.8 to 1.25."""
    low = max(min((*values, 0.82)) * 0.97, _RATIOS[0])
    high = min(max((*values, 1.22)) * 1.03, _RATIOS[-1])
    scale = Scale(low, high, (), logarithmic=True)
    kept = [1.0]
    # From 1 outwards, the wide and round steps first.
    for tick in sorted(_RATIOS, key=_roughness):
        if low <= tick <= high and all(abs(scale.at(tick) - scale.at(other)) >= _APART for other in kept):
            kept.append(tick)
    return Scale(low, high, tuple(sorted(kept)), logarithmic=True)


def _roughness(ratio: float) -> tuple[int, float]:
    digits = f"{ratio:g}".replace(".", "").strip("0")
    return (0 if digits in ("1", "2", "5") else 1, abs(math.log(ratio)))


def _round_step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(m * power for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * power >= least * (1.0 - 1e-9))
