"""Answers that go round in a loop: drafts gain there what they gain nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

SHARE = 0.9
"""Of the second half, what must agree with what stands a period before."""


def repeats_itself(items: Sequence[object], max_period: int) -> bool:
    """Whether at least 90 % of the last half equal the item p places before, for a p up to `max_period`.

    items: tokens, or the characters of a text.
    """
    half = len(items) // 2
    n_tail = len(items) - half
    for period in range(1, min(max_period, half) + 1):
        n_same = sum(items[i] == items[i - period] for i in range(half, len(items)))
        if n_same >= SHARE * n_tail:
            return True
    return False
