"""Runtimes with known faults, planted where both arms and the replay meet them, as they would meet one of our own.

Each wraps a sound runtime of one sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from slipstream.decoding.protocols import Pass, Rows
from slipstream.lab.recorder import Recorder


class Passing(Recorder):
    """Hands everything on to a sound runtime, and keeps no record."""

    def forward(self, rows: Sequence[Rows]) -> Pass:
        return self.inner.forward(rows)


class WrongRemoval(Passing):
    """After a removal the cache holds `extra` rows more than anyone knows, and all that follows stands so far off."""

    extra = 0
    n_padding = 0

    def left(self, n_dropped: int) -> int:
        """How many of the rows that should go stay; each fault has its own number."""
        return 0

    def forward(self, rows: Sequence[Rows]) -> Pass:
        self.n_padding = rows[0].n_padding
        return self.inner.forward([replace(rows[0], start=rows[0].start + self.extra)])

    def keep(self, seq: int, n_tokens: int) -> None:
        n_dropped = self.held(seq) - n_tokens
        if n_tokens == 0:
            self.extra = 0
        elif n_dropped > 0:
            self.extra += self.left(n_dropped)
        self.inner.keep(seq, n_tokens + self.extra)

    def held(self, seq: int) -> int:
        return self.inner.held(seq) - self.extra


class StaleRow(WrongRemoval):
    """One of the rejected tokens stays in the cache."""

    def left(self, n_dropped: int) -> int:
        return 1


class ShiftedPosition(WrongRemoval):
    """One row too many is removed, so that what follows stands one position too low."""

    def left(self, n_dropped: int) -> int:
        return -1


class PaddingStays(WrongRemoval):
    """Nothing was rejected, but the padding stays in the cache."""

    def left(self, n_dropped: int) -> int:
        return n_dropped if n_dropped == self.n_padding else 0


class NeighboursRow(Passing):
    """In passes of several tokens each row is the next one's."""

    def forward(self, rows: Sequence[Rows]) -> Pass:
        done = self.inner.forward(rows)
        logits = done.logits[0]
        if len(rows[0].tokens) == 1 or len(logits) < 2:
            return done
        return Pass((np.concatenate([logits[1:], logits[-1:]]),), done.widths)


class LastPassesRows(Passing):
    """In passes of several tokens the second row is what the pass before had there: logits that were not copied."""

    before: np.ndarray | None = None

    def forward(self, rows: Sequence[Rows]) -> Pass:
        done = self.inner.forward(rows)
        logits = done.logits[0].copy()
        if len(logits) < 2:
            return done
        stale, self.before = self.before, logits[1].copy()
        if stale is not None:
            logits[1] = stale
        return Pass((logits,), done.widths)


FAULTS: list[type[Passing]] = [StaleRow, ShiftedPosition, PaddingStays, NeighboursRow, LastPassesRows]


class TwoKernels(Passing):
    """Sound, but it computes passes of one token in another way than all others: logits move by up to half."""

    def forward(self, rows: Sequence[Rows]) -> Pass:
        done = self.inner.forward(rows)
        if len(rows[0].tokens) + rows[0].n_padding == 1:
            return done
        move = np.random.default_rng(0).uniform(-0.5, 0.5, self.n_vocab).astype(np.float32)
        return Pass((done.logits[0] + move,), done.widths)
