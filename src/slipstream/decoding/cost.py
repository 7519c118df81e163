"""t(w, n): what a pass over w tokens costs in a context of n, measured at load and corrected while running."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Clock = Callable[[], float]
"""Seconds, from any origin."""

MAX_WIDTH = 33
"""The widest pass that control uses: a draft of 32 and the last committed token."""

FIRST_BAND = 256
"""Contexts up to this length form the first band; each further band reaches twice as far as the one before."""

WORTH_PADDING = 0.97
"""A wider pass must be cheaper by more than the noise of its measurement."""

SCALE_STEP, BAND_STEP, SHAPE_STEP = 0.2, 0.1, 0.1
ANCHOR_STEP, SETTLED, SURPRISING = 0.5, 0.05, 0.15
KINSHIP = 2.0
"""A width teaches another by (narrower ÷ wider) to this power."""

MOST_S = 1e5
CLIP, SURE_CLIP = math.log(1.25), math.log(4)
"""A single pass moves an estimate by no more than a step of the first: an interrupted one must not mislead. What
three passes agree on counts for more."""


@dataclass(frozen=True)
class Far:
    """Seconds by width, measured behind `n_context` tokens."""

    n_context: int
    seconds: Mapping[int, float]


class CostCurve:
    """t(w, n) in seconds: a step function of the width w = 1 … `max_width`, kept width by width for bands of n.

    Widths that were not measured are interpolated between their neighbours. `seconds` were measured in a short
    context; what attention adds in a longer one is taken to grow with n, as `far` shows it. While running, each pass
    corrects the common scale first (another load of the machine), then its band, then its own width and those near
    it, all by clipped steps of a median. Passes of width 1 tell the scale from the shape.
    """

    def __init__(self, seconds: Mapping[int, float], max_width: int = MAX_WIDTH, far: Far | None = None) -> None:
        assert 1 in seconds and all(w >= 1 and t > 0 for w, t in seconds.items()), "t(1) at least, all above 0"
        self.max_width = max_width
        self.measured = dict(seconds)
        self.far = far
        self._near = [_interpolate(self.measured, w) for w in range(1, max_width + 1)]
        self._growth = [0.0] * max_width if far is None else self._growth_by_width(far)
        self._bands: dict[int, list[float]] = {}
        self._scale = 1.0
        self._latest: dict[int, deque[float]] = {}
        self._since: set[int] = set()
        self._drift = 0.0
        self._plain_surprise = 0.0

    def time(self, width: int, n_context: int = 0) -> float:
        """Expected seconds of a pass over `width` tokens behind `n_context`."""
        times = self._band(n_context)
        if width > self.max_width:
            return times[-1] * self._scale * width / self.max_width
        return times[width - 1] * self._scale

    def cheapest(self, width: int, limit: int, n_context: int = 0) -> int:
        """The width from `width` to `limit`, at most 3 more, whose pass costs least; `width` unless it is worth it."""
        if width >= self.max_width:
            return width
        times = self._band(n_context)[width - 1 : min(width + 3, limit, self.max_width)]
        least = min(times)
        return width + times.index(least) if least < WORTH_PADDING * times[0] else width

    @property
    def is_settled(self) -> bool:
        """Whether the last pass of width 1 took about what was expected of it."""
        return abs(self._plain_surprise) < SURPRISING

    @property
    def drift(self) -> float:
        """How far the common scale was moved by wider passes since the last one of width 1, as a logarithm."""
        return self._drift

    def observe(self, width: int, seconds: float, n_context: int = 0) -> None:
        """Corrects the curve by one pass that was really run. Wider passes than `max_width` say nothing here."""
        if not 1 <= width <= self.max_width or not 0.0 < seconds < MOST_S:
            return
        surprise = self._surprise(width, seconds, n_context)
        if width == 1:
            self._plain_surprise = surprise
            self._anchor(surprise, n_context)
            return
        common = SCALE_STEP * max(-CLIP, min(CLIP, surprise))
        self._since.add(width)
        self._drift += common
        self._scale *= math.exp(common)
        times = self._band(n_context)
        if n_context > FIRST_BAND:
            # Only against the first band, which was measured, does another one move as a whole.
            factor = math.exp(BAND_STEP * (1 - SCALE_STEP) * surprise)
            times[:] = [t * factor for t in times]
        for w in range(2, self.max_width + 1):
            near = (min(w, width) / max(w, width)) ** KINSHIP
            times[w - 1] *= math.exp(SHAPE_STEP * (1 - SCALE_STEP) * surprise * near)

    def _surprise(self, width: int, seconds: float, n_context: int) -> float:
        """The logarithm of a pass's time ÷ what was expected, clipped: more generously where three in a row agree."""
        surprise = math.log(seconds / self.time(width, n_context))
        latest = self._latest.setdefault(width, deque(maxlen=3))
        latest.append(surprise)
        least = min(latest, key=abs)
        if len(latest) == latest.maxlen and all((s > 0) == (least > 0) for s in latest) and abs(least) > CLIP:
            return max(-SURE_CLIP, min(SURE_CLIP, least))
        return max(-CLIP, min(CLIP, sorted(latest)[(len(latest) - 1) // 2]))

    def _anchor(self, surprise: float, n_context: int) -> None:
        """A pass of width 1 sets the scale; what wider ones were seen to take since the last one stays as it is."""
        step = ANCHOR_STEP if self._since else SCALE_STEP
        self._scale *= math.exp(step * surprise)
        if self._since:
            times = self._band(n_context)
            narrowest = min(self._since)
            for w in range(2, self.max_width + 1):
                near = min(w / narrowest, 1.0) ** KINSHIP
                times[w - 1] *= math.exp(-step * surprise * near)
        self._drift -= math.copysign(min(abs(self._drift), abs(step * surprise)), self._drift)
        if abs(surprise) < SETTLED:
            self._since, self._drift = set(), 0.0

    def to_data(self) -> dict[str, Any]:
        """What was measured at load: the corrections belong to the hour and are not kept."""
        data: dict[str, Any] = {"seconds": {str(w): t for w, t in self.measured.items()}}
        if self.far is not None:
            data["far"] = {
                "n_context": self.far.n_context,
                "seconds": {str(w): t for w, t in self.far.seconds.items()},
            }
        return data

    @classmethod
    def from_data(cls, data: Any) -> CostCurve | None:
        """The curve that `to_data` described, or None where the data is damaged."""
        try:
            seconds = _seconds(data["seconds"])
            far = Far(data["far"]["n_context"], _seconds(data["far"]["seconds"])) if data.get("far") else None
        except (AttributeError, KeyError, TypeError, ValueError):
            return None
        if far is not None and (type(far.n_context) is not int or not 0 < far.n_context < 1 << 31):
            return None
        return cls(seconds, far=far)

    def _band(self, n_context: int) -> list[float]:
        """The times of the band, without the common scale; index w − 1."""
        number = max(0, (n_context - 1) // FIRST_BAND).bit_length()
        times = self._bands.get(number)
        if times is None:
            # Within a band the context is taken to be three quarters of where the band ends.
            n = 0.75 * FIRST_BAND * (1 << number) if number else 0.0
            times = [near + growth * n for near, growth in zip(self._near, self._growth, strict=True)]
            self._bands[number] = times
        return times

    def _growth_by_width(self, far: Far) -> list[float]:
        """Seconds that each token of the context adds, by width; never less for a wider pass."""
        added = {w: max(t - self._near[w - 1], 0.0) / far.n_context for w, t in far.seconds.items()}
        growth = [_interpolate(added, w) for w in range(1, self.max_width + 1)]
        return [max(growth[: w + 1]) for w in range(self.max_width)]


def _seconds(data: Mapping[str, object]) -> dict[int, float]:
    """Raises ValueError where something is missing or implausible."""
    seconds = {int(w): t for w, t in data.items()}
    if 1 not in seconds or not all(1 <= w <= MAX_WIDTH for w in seconds):
        raise ValueError("widths from 1 on")
    return {w: _plausible(t) for w, t in seconds.items()}


def _plausible(seconds: object) -> float:
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 1e-7 <= seconds <= 1e3:
        raise ValueError("seconds of a pass")
    return seconds


def _interpolate(seconds: Mapping[int, float], width: int) -> float:
    if width in seconds:
        return seconds[width]
    below = max(w for w in seconds if w < width)
    above = min((w for w in seconds if w > width), default=None)
    if above is None:
        lower = max((w for w in seconds if w < below), default=None)
        # Without a second point, assume that nothing is free: t(w) = w·t(1).
        slope = seconds[1] if lower is None else (seconds[below] - seconds[lower]) / (below - lower)
        return seconds[below] + max(slope, 0.0) * (width - below)
    return seconds[below] + (seconds[above] - seconds[below]) * (width - below) / (above - below)
