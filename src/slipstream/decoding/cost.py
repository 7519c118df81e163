"""t(w): what one pass of a runtime over w tokens costs, measured at load and corrected while running."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .protocols import Rows, Runtime

Clock = Callable[[], float]
"""Seconds, from any origin."""

MAX_WIDTH = 33
"""The widest pass that control uses: a draft of 32 and the last committed token."""

PROBE_ORDER = (1, 2, 4, 3, 8, 6, 5, 16, 7, 12, 10, 32, 24, 9, 20, 14)
"""The widths that matter most come first: the probe stops when its time is up."""

PREFIX = 8
WORTH_PADDING = 0.97
"""A wider pass must be cheaper by more than the noise of its measurement."""

SCALE_STEP = 0.2
SHAPE_STEP = 0.05
CLIP = math.log(1.25)
"""A single pass moves an estimate by no more than a step of this: an interrupted one must not mislead."""


class CostCurve:
    """t(w) in seconds for w = 1 … `max_width`: a step function kept width by width, never fitted to a line.

    Widths that were not measured are interpolated between their neighbours. While running, each pass corrects the
    common scale first (another load, a longer context) and then the shape at its own width, both by clipped steps.
    """

    def __init__(self, seconds: Mapping[int, float], max_width: int = MAX_WIDTH) -> None:
        assert 1 in seconds and all(w >= 1 and t > 0 for w, t in seconds.items()), "t(1) at least, all above 0"
        self.max_width = max_width
        self.measured = dict(seconds)
        self._times = [math.inf, *(_interpolate(self.measured, w) for w in range(1, max_width + 1))]
        self._scale = 1.0

    def time(self, width: int) -> float:
        """Expected seconds of a pass over `width` tokens."""
        if width > self.max_width:
            return self._times[self.max_width] * self._scale * width / self.max_width
        return self._times[width] * self._scale

    def cheapest(self, width: int, limit: int) -> int:
        """The width from `width` to `limit`, at most 3 more, whose pass costs least; `width` unless it is worth it."""
        if width >= self.max_width:
            return width
        times = self._times[width : min(width + 3, limit, self.max_width) + 1]
        least = min(times)
        return width + times.index(least) if least < WORTH_PADDING * times[0] else width

    def observe(self, width: int, seconds: float) -> None:
        """Corrects the curve by one pass that was really run. Wider passes than `max_width` say nothing here."""
        if not 1 <= width <= self.max_width or seconds <= 0:
            return
        surprise = _clip(math.log(seconds / self.time(width)))
        self._scale *= math.exp(SCALE_STEP * surprise)
        self._times[width] *= math.exp(SHAPE_STEP * (1 - SCALE_STEP) * surprise)

    def to_data(self) -> dict[str, Any]:
        """What was measured at load: the corrections belong to the hour and are not kept."""
        return {"seconds": {str(w): t for w, t in self.measured.items()}}

    @classmethod
    def from_data(cls, data: Any) -> CostCurve | None:
        """The curve that `to_data` described, or None where the data is damaged."""
        try:
            seconds = {int(w): t for w, t in data["seconds"].items()}
        except (AttributeError, KeyError, TypeError, ValueError):
            return None
        if 1 not in seconds or not all(1 <= w <= MAX_WIDTH and _is_plausible(t) for w, t in seconds.items()):
            return None
        return cls(seconds)


def _is_plausible(seconds: object) -> bool:
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and 1e-7 <= seconds <= 1e3


def measure(
    runtime: Runtime,
    text: Sequence[int],
    clock: Clock,
    cap_s: float,
    progress: Callable[[float], None] = lambda done: None,
) -> CostCurve:
    """Times passes of growing width over real text (token ids) in sequence 0, for `cap_s` seconds at most.

    The cap holds between passes; t(1) is measured whatever it is. `progress` gets the fraction done. The sequence
    is empty afterwards.
    """
    began = clock()
    widest = min(MAX_WIDTH, runtime.n_ctx - 1, runtime.n_batch)
    if runtime.max_rollback is not None:
        widest = min(widest, max(runtime.max_rollback, 1))
    prefix = min(PREFIX, runtime.n_ctx - widest, runtime.n_batch)
    text = text or (0,)  # a vocabulary may have no token for any of it
    tokens = [text[i % len(text)] for i in range(prefix + widest)]
    runtime.forward([Rows(0, tokens[:prefix], 0, 0)])
    samples: dict[int, list[float]] = {}

    def left() -> float:
        return cap_s - (clock() - began)

    def run(width: int) -> None:
        if runtime.max_rollback is not None:
            runtime.keep(0, 0)
            runtime.forward([Rows(0, tokens[:prefix], 0, 0)])
        start = clock()
        runtime.forward([Rows(0, tokens[prefix : prefix + width], prefix, width)])
        samples.setdefault(width, []).append(clock() - start)
        if runtime.max_rollback is None:
            runtime.keep(0, prefix)
        progress(min(1.0, (clock() - began) / cap_s) if cap_s > 0 else 1.0)

    run(1)  # warms the caches: the first pass after a load is slow
    samples.clear()
    run(1)
    widths = [w for w in PROBE_ORDER if w <= widest]
    for _ in range(16):
        for width in widths:
            if left() < _expected(samples, width):
                continue
            run(width)
        if left() <= 0:
            break
    runtime.keep(0, 0)
    progress(1.0)
    return CostCurve({w: _robust(times) for w, times in samples.items()})


def _expected(samples: Mapping[int, Sequence[float]], width: int) -> float:
    """A guess of a pass's seconds from what is known, so that the probe ends on time."""
    if width in samples:
        return min(samples[width])
    known = max(w for w in samples if w < width)
    return min(samples[known]) * width / known


def _robust(times: Sequence[float]) -> float:
    """The lower quartile: other processes only ever make a pass slower."""
    return sorted(times)[(len(times) - 1) // 4]


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


def _clip(x: float) -> float:
    return max(-CLIP, min(CLIP, x))
