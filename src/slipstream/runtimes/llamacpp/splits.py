"""How llama.cpp divides a pass over recurrent states, as measured on b11549; attention is computed in one piece."""

from __future__ import annotations

from collections.abc import Sequence


def splits(rows: Sequence[tuple[int, int]], *, tail: int, in_order: bool) -> tuple[int, ...]:
    """The widths of the pieces; each takes equally many rows of several sequences.

    rows: number and rows of each sequence. tail: what a sequence leaves for a later piece is nothing or at least
    this much, so that its snapshots are of one piece. in_order: only consecutive numbers go together, as where the
    model has no attention.
    """
    widths = []
    left = list(rows)
    while left:
        group = _candidates(left, in_order)
        n = min(left[i][1] for i in group)
        fits = [left[i][1] == n or left[i][1] - n >= tail for i in group]
        if not fits[0]:
            n, group = left[0][1], [0]
        elif not all(fits):
            group = group[: fits.index(False)]
        widths.append(n * len(group))
        left = [(seq, rows - n * (i in group)) for i, (seq, rows) in enumerate(left)]
        left = [row for row in left if row[1] > 0]
    return tuple(widths)


def _candidates(left: Sequence[tuple[int, int]], in_order: bool) -> list[int]:
    group = [0]
    for i in range(1, len(left)):
        if not in_order or left[i][0] == left[group[-1]][0] + 1:
            group.append(i)
    return group
