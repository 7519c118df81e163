"""Width classes: the widths of a pass within which every row's logits are the same to the last bit.

Kernels may add up in another order for one token than for several, and in another again for many. Which widths
agree depends on the quantisation, the number of threads and the length of the context, so it is found out by
comparing bits, never by a timing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from .cost import MAX_WIDTH
from .protocols import Logits, Rows, Runtime

PAGE = 256
"""llama.cpp pads the part of the cache that a pass looks at to a multiple of this (`llama_kv_cache::get_n_kv`)."""

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32)
"""The widths that exact mode may use, where they agree."""

SHORT_ROWS, WHOLE_ROWS = 8, 32
"""Rows compared in a band, by the short form at load and by the whole one."""

FIRST_START = 64


@dataclass(frozen=True)
class Band:
    """What was seen of `n_rows` rows behind `start` tokens.

    classes: the widths compared, grouped. difference: the largest between logits of two classes. flips: the rows
    whose arg-max is not the same in all classes.
    """

    start: int
    n_rows: int
    classes: tuple[tuple[int, ...], ...]
    difference: float
    flips: int

    @property
    def page(self) -> int:
        """The context length above which the band is met: the last multiple of `PAGE` that its rows pass."""
        return (self.start + self.n_rows) // PAGE * PAGE


@dataclass(frozen=True)
class WidthClasses:
    """The bands that were probed, in ascending order."""

    bands: tuple[Band, ...] = ()

    @property
    def reach(self) -> int:
        """The context length up to which all is known: the end of the last page before the first gap."""
        reach = 0
        for band in self.bands:
            if band.page != reach:
                break
            reach += PAGE
        return reach

    def common(self, n_context: float = math.inf) -> tuple[tuple[int, ...], ...]:
        """The classes that hold in every band which a context of `n_context` tokens meets; none if none is known."""
        bands = [band for band in self.bands if band.page < n_context]
        if not bands:
            return ()
        groups: dict[tuple[int, ...], list[int]] = {}
        for width in sorted(w for group in bands[0].classes for w in group):
            place = tuple(next(i for i, g in enumerate(band.classes) if width in g) for band in bands)
            groups.setdefault(place, []).append(width)
        return tuple(tuple(group) for group in groups.values())

    @property
    def exact(self) -> tuple[int, ...]:
        """The widths of exact mode: of all common classes of two and more the one that begins narrowest.

        Width 1 alone where every width is its own class: then exact means not to speculate. Empty if not probed.
        """
        common = self.common()
        several = [group for group in common if len(group) > 1]
        return min(several, default=(1,) if common else ())

    @property
    def is_free(self) -> bool:
        """All widths agree, so that exact mode costs nothing."""
        return len(self.common()) == 1

    def shows(self, widths: Iterable[int], n_context: int) -> bool:
        """Whether the probe has shown that passes of these widths agree, in contexts up to `n_context` tokens."""
        used = set(widths)
        if used <= {1}:
            return True
        return n_context <= self.reach and any(used <= set(group) for group in self.common(n_context))

    def missing(self, starts: Sequence[int], n_rows: int) -> list[int]:
        """Those of the starts whose bands are not known yet by so many rows."""
        pages = {band.page for band in self.bands if band.n_rows >= n_rows}
        return [start for start in starts if (start + n_rows) // PAGE * PAGE not in pages]

    def with_band(self, band: Band) -> WidthClasses:
        """With another band, in place of the one of the same page."""
        bands = {b.page: b for b in self.bands} | {band.page: band}
        return WidthClasses(tuple(bands[page] for page in sorted(bands)))

    def to_data(self) -> dict[str, Any]:
        """Plain data, for `from_data`."""
        return {"bands": [[b.start, b.n_rows, [list(g) for g in b.classes], b.difference, b.flips] for b in self.bands]}

    @classmethod
    def from_data(cls, data: Any) -> WidthClasses | None:
        """The classes that `to_data` described, or None where the data is damaged."""
        try:
            bands = tuple(
                Band(
                    int(start), int(n), tuple(tuple(int(w) for w in g) for g in classes), float(difference), int(flips)
                )
                for start, n, classes, difference, flips in data["bands"]
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        compared = {tuple(sorted(w for g in band.classes for w in g)) for band in bands}
        ascending = all(a.start < b.start for a, b in pairwise(bands))
        return cls(bands) if len(compared) <= 1 and all(map(_is_possible, bands)) and ascending else None


def _is_possible(band: Band) -> bool:
    """Whether the probe can have seen this: all `WIDTHS` up to one of them, each in one class."""
    widths = sorted(w for group in band.classes for w in group)
    counts = band.start >= 0 and band.n_rows > 0 and 0 <= band.flips <= band.n_rows and 0 <= band.difference < math.inf
    return counts and all(band.classes) and 1 in widths and widths == [w for w in WIDTHS if w <= widths[-1]]


def starts(n_ctx: int, n_rows: int) -> list[int]:
    """Where the whole probe looks: within the first page, and around the end of each page."""
    room = n_ctx - n_rows - MAX_WIDTH
    return [s for s in (FIRST_START, *(end - n_rows // 2 for end in range(PAGE, n_ctx, PAGE))) if s <= room]


def probe(
    runtime: Runtime,
    text: Sequence[int],
    starts: Sequence[int],
    n_rows: int,
    progress: Callable[[float], None] = lambda done: None,
) -> Iterator[Band]:
    """Compares the rows of a text (token ids, repeated as needed) over all `WIDTHS`, in sequence 0, from each start.

    Every width writes its own rows into the cache and reads them again, so that a difference anywhere shows. The
    work is fixed: it does not depend on how fast the machine is. `progress` gets the fraction done.
    """
    widest = runtime.n_batch
    if runtime.max_rollback is not None:
        widest = min(widest, max(runtime.max_rollback, 1))
    widths = [w for w in WIDTHS if w <= widest]
    for n, start in enumerate(starts):
        groups: dict[bytes, list[int]] = {}
        seen: list[Logits] = []
        for i, width in enumerate(widths):
            rows = _rows(runtime, text, start, width, n_rows)
            bits = hashlib.blake2b(rows.tobytes()).digest()
            if bits not in groups:
                seen.append(rows)
            groups.setdefault(bits, []).append(width)
            progress((n + (i + 1) / len(widths)) / len(starts))
        yield Band(start, n_rows, tuple(map(tuple, groups.values())), *_differences(seen))


def _rows(runtime: Runtime, text: Sequence[int], start: int, width: int, n_rows: int) -> Logits:
    """The rows of the tokens behind `start`, computed in passes of one width: float32 (n_rows, n_vocab)."""
    fill(runtime, text, start)
    rows: list[Logits] = []
    for at in range(start, start + n_rows, width):
        tokens = [text[i % len(text)] for i in range(at, at + width)]
        rows.append(runtime.forward([Rows(0, tokens, at, width)]).logits[0].copy())
    return np.concatenate(rows)[:n_rows]


def fill(runtime: Runtime, text: Sequence[int], n_tokens: int) -> None:
    """Leaves the first `n_tokens` of the text in the cache, as read in whole batches."""
    if runtime.held(0) > n_tokens:
        runtime.keep(0, n_tokens if runtime.floor(0) <= n_tokens else 0)
    for at in range(runtime.held(0), n_tokens, runtime.n_batch):
        tokens = [text[i % len(text)] for i in range(at, min(at + runtime.n_batch, n_tokens))]
        runtime.forward([Rows(0, tokens, at, 0)])


def _differences(rows: Sequence[Logits]) -> tuple[float, int]:
    """The largest difference between the first of several arrays of rows and the others; rows whose arg-max flips."""
    first, best = rows[0], rows[0].argmax(axis=1)
    flips = np.zeros(len(first), dtype=bool)
    difference = 0.0
    for other in rows[1:]:
        difference = max(difference, float(np.abs(first - other).max()))
        flips |= other.argmax(axis=1) != best
    return difference, int(flips.sum())
