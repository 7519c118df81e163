"""Measures t(w) of a runtime: passes of growing width, in a short context and in a longer one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .cost import MAX_WIDTH, Clock, CostCurve, Far
from .protocols import Rows, Runtime

PROBE_ORDER = (1, 2, 4, 3, 8, 6, 5, 16, 7, 12, 10, 32, 24, 9, 20, 14)
"""The widths that matter most come first: the probe stops when its time is up."""

FAR_ORDER = (1, 4, 8, 16, 2, 32)
FAR_STEP, FAR_CONTEXT = 256, 1024
"""The long context is read in pieces of this size, up to this length, as far as its share of the time goes."""

NEAR_SHARE, FILL_SHARE = 0.5, 0.8
"""Of the time: until the short context is done; until the long one is read."""

MAX_SAMPLES = 16
PREFIX = 8


@dataclass
class _Probe:
    """Times passes behind the first `n_context` of some tokens, which sequence 0 holds."""

    runtime: Runtime
    text: Sequence[int]
    clock: Clock
    ends: float
    n_context: int = 0
    samples: dict[int, list[float]] = field(default_factory=dict)

    def tokens(self, start: int, n: int) -> list[int]:
        return [self.text[i % len(self.text)] for i in range(start, start + n)]

    def read(self, n_tokens: int) -> None:
        """Puts more of the text into the context."""
        self.runtime.forward([Rows(0, self.tokens(self.n_context, n_tokens), self.n_context, 0)])
        self.n_context += n_tokens

    def back_to(self, n_tokens: int) -> None:
        self.runtime.keep(0, n_tokens)
        self.n_context = n_tokens

    def run(self, width: int) -> None:
        """Times one pass, and takes it back."""
        began = self.clock()
        self.runtime.forward([Rows(0, self.tokens(self.n_context, width), self.n_context, width)])
        self.samples.setdefault(width, []).append(self.clock() - began)
        if self.runtime.max_rollback is None:
            self.runtime.keep(0, self.n_context)
            return
        n_context, self.n_context = self.n_context, 0
        self.runtime.keep(0, 0)
        self.read(n_context)

    def run_all(self, widths: Sequence[int], ends: float, progress: Callable[[], None]) -> Mapping[int, float]:
        """The seconds of each width that could be measured in time; of the first one always. Goes on where it was."""
        if not self.samples:
            self.run(widths[0])
        for _ in range(MAX_SAMPLES):
            for width in widths:
                if self.clock() + self._expected(width) < ends:
                    self.run(width)
                    progress()
            if self.clock() >= ends:
                break
        return {w: _robust(times) for w, times in self.samples.items()}

    def _expected(self, width: int) -> float:
        """A guess of a pass's seconds from what is known, so that the probe ends on time."""
        if width in self.samples:
            return min(self.samples[width])
        known = max(w for w in self.samples if w < width)
        return min(self.samples[known]) * width / known


def measure(
    runtime: Runtime,
    text: Sequence[int],
    clock: Clock,
    cap_s: float,
    progress: Callable[[float], None] = lambda done: None,
) -> CostCurve:
    """Times passes of growing width over real text (token ids) in sequence 0, for `cap_s` seconds at most.

    The cap holds between passes; t(1) is measured whatever it is. Where there is time to read a longer context, the
    passes are timed there too. `progress` gets the fraction done. The sequence is empty afterwards.
    """
    began = clock()
    widest = min(MAX_WIDTH, runtime.n_ctx - 1, runtime.n_batch)
    if runtime.max_rollback is not None:
        widest = min(widest, max(runtime.max_rollback, 1))
    probe = _Probe(runtime, text or (0,), clock, began + cap_s)  # a vocabulary may have no token for any of the text

    def tell() -> None:
        progress(min(1.0, (clock() - began) / cap_s) if cap_s > 0 else 1.0)

    probe.read(min(PREFIX, runtime.n_ctx - widest, runtime.n_batch))
    probe.run(1)  # warms the caches: the first pass after a load is slow
    probe.samples.clear()
    widths = [w for w in PROBE_ORDER if w <= widest]
    # A cache that cannot go back would be read anew for each pass; such a model's passes hardly grow with the context.
    share = NEAR_SHARE if runtime.max_rollback is None else 1.0
    near = probe.run_all(widths, began + share * cap_s, tell)
    far = _far(probe, near, began + FILL_SHARE * cap_s, widest, tell) if share < 1.0 else None
    if far is None:
        near = probe.run_all(widths, probe.ends, tell)
    runtime.keep(0, 0)
    progress(1.0)
    return CostCurve(near, far=far)


def _far(probe: _Probe, near: Mapping[int, float], filled: float, widest: int, tell: Callable[[], None]) -> Far | None:
    """What the passes cost behind as long a context as there is time to read until `filled`."""
    n_before, piece = probe.n_context, min(FAR_STEP, probe.runtime.n_batch)
    took = piece * min(t / w for w, t in near.items())
    reach = min(FAR_CONTEXT, probe.runtime.n_ctx - widest)
    while probe.n_context + piece <= reach and probe.clock() + took < filled:
        start = probe.clock()
        probe.read(piece)
        took = probe.clock() - start
        tell()
    if probe.n_context < FAR_STEP:
        probe.back_to(n_before)
        return None
    samples, probe.samples = probe.samples, {}
    seconds = probe.run_all([w for w in FAR_ORDER if w <= widest], probe.ends, tell)
    if len(seconds) > 1:
        return Far(probe.n_context, seconds)
    probe.samples = samples
    probe.back_to(n_before)
    return None


def _robust(times: Sequence[float]) -> float:
    """The lower quartile: other processes only ever make a pass slower."""
    return sorted(times)[(len(times) - 1) // 4]
