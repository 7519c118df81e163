"""A toy runtime whose rows depend on the width of the pass, in classes that are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from toy import ToyRuntime

from slipstream.decoding.protocols import Logits, Pass, Rows
from slipstream.decoding.widths import PAGE, WIDTHS
from slipstream.runtimes.llamacpp.options import ROLLBACK

Group = Callable[[int, int], int]
"""The class of a width, on a page of the cache: (width, page number) → a number of its own."""


def grouped(*pages: Sequence[Sequence[int]]) -> Group:
    """The classes of each page, the last one's for all further pages; a width that isn't listed stands alone."""

    def group(width: int, page: int) -> int:
        listed = pages[min(page, len(pages) - 1)]
        return next((i for i, widths in enumerate(listed) if width in widths), 100 + width)

    return group


class WidthToy(ToyRuntime):
    """Adds to each row the shift of its pass's class, and that of the class in which the row before was written.

    So a difference comes from the pass and from the cache. A pass of which not all rows are outputs has a class of its
    own, as in llama.cpp.
    """

    def __init__(self, group: Group, size: float = 1.0, **options: int | None) -> None:
        super().__init__(**options)
        self.group = group
        self.size = size
        self.written: list[list[int]] = [[] for _ in range(self.n_seq_max)]
        self._shifts: dict[int, Logits] = {}

    def shift(self, group: int) -> Logits:
        """What a class adds to a row."""
        if group not in self._shifts:
            noise = np.random.default_rng(1000 + group).normal(0, self.size, self.n_vocab)
            self._shifts[group] = noise.astype(np.float32)
        return self._shifts[group]

    def forward(self, rows: Sequence[Rows]) -> Pass:
        result = super().forward(rows)
        (width,) = result.widths
        for r, logits in zip(rows, result.logits, strict=True):
            n = len(r.tokens) + r.n_padding
            kind = 0 if r.n_outputs == n else 1000 * (1 + n - r.n_outputs)
            written = self.written[r.seq]
            written[r.start :] = [kind + self.group(width, at // PAGE) for at in range(r.start, r.start + n)]
            first = r.start + len(r.tokens) - r.n_outputs
            for at, row in enumerate(logits, first):
                row += self.shift(written[at])
                row += self.shift(written[at - 1] if at else -1)
        return result


WIDTHS_OF = {"mamba": (1,), "lfm2": tuple(w for w in WIDTHS if 1 < w <= ROLLBACK)}
"""The widths of exact mode of architectures whose caches cannot take everything back."""
