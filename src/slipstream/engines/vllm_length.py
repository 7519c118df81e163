"""How far to draft within another engine, where what a pass costs is seen only from outside: by the time between calls.

`PassCost` learns seconds = base + slope · tokens from the passes that happen to be run; `LengthControl` drafts what
raises expected tokens ÷ expected seconds, and rests where drafting has not paid. Both know numbers only, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

FLOOR: Final = 0.02
"""A token less likely than this is never worth looking at."""

MEMORY: Final = 100.0
"""Passes that an estimate remembers; older ones fade."""

ASSUMED_SHARE: Final = 0.02
ASSUMED_WEIGHT: Final = 4.0
"""Until passes of different widths were seen, a token more is taken to add this share of a pass. What was seen of
widths fades as well, and this comes back: so drafting that did not pay is tried again, a few times in a thousand."""

SETTLED: Final = 8
LOSS: Final = 0.01
"""A loss of more than this share of plain decoding is worth resting for."""

TRIAL, FIRST_REST, LONGEST_REST = 64, 256, 8192


class PassCost:
    """A line through (tokens of a pass, seconds), by least squares with fading memory."""

    def __init__(self) -> None:
        self._n = self._w = self._ww = self._t = self._wt = 0.0
        self._n_seen = 0

    def observe(self, width: int, seconds: float) -> None:
        """A pass over `width` tokens took so long. One that was interrupted counts twice its expected time at most."""
        if self._n_seen >= SETTLED:
            expected = self.time(width)
            seconds = min(max(seconds, expected / 2), 2 * expected)
        self._n_seen += 1
        for name, value in ("_n", 1.0), ("_w", width), ("_ww", width**2), ("_t", seconds), ("_wt", width * seconds):
            setattr(self, name, (1 - 1 / MEMORY) * getattr(self, name) + value)

    @property
    def is_known(self) -> bool:
        return self._n_seen > 0

    def time(self, width: int) -> float:
        """Expected seconds of a pass over `width` tokens; at least one pass was observed."""
        base, slope = self.line()
        return base + slope * width

    def line(self) -> tuple[float, float]:
        """(seconds of a pass, seconds that each of its tokens adds)."""
        width, seconds = self._w / self._n, self._t / self._n
        spread = max(self._ww - self._w * width, 0.0)
        together = self._wt - self._w * seconds
        slope = (together + ASSUMED_WEIGHT * ASSUMED_SHARE * seconds) / (spread + ASSUMED_WEIGHT)
        slope = min(max(slope, 0.0), seconds / width)
        return seconds - slope * width, slope


class LengthControl:
    """Decides how much of the drafts of a batch is verified, and when to stop asking for drafts.

    Resting: when `TRIAL` passes with drafts asked for cost more than they saved, for `FIRST_REST` calls and twice as
    long each time it happens again.
    """

    def __init__(self) -> None:
        self.cost = PassCost()
        self._balance = 0.0
        self._n_tried = 0
        self._rest = FIRST_REST
        self._n_resting = 0

    @property
    def is_resting(self) -> bool:
        return self._n_resting > 0

    def rested(self) -> None:
        """One call of a rest went by."""
        self._n_resting -= 1

    def min_survival(self, n_rows: int) -> float:
        """What a token must promise to be worth verifying behind `n_rows` sequences, were it the only one drafted."""
        if not self.cost.is_known:
            return FLOOR
        base, slope = self.cost.line()
        return min(max(FLOOR, n_rows * slope / (base + slope * n_rows)), 1.0)

    def lengths(self, n_rows: int, survivals: Sequence[Sequence[float]]) -> list[int]:
        """How many tokens of each draft to verify; `survivals` of each draft's tokens, never rising.

        `n_rows` sequences are in the pass, those without a draft included. Until a pass was seen, everything.
        """
        if not self.cost.is_known:
            return [len(survival) for survival in survivals]
        base, slope = self.cost.line()
        lengths = [0] * len(survivals)
        tokens, seconds = float(n_rows), base + slope * n_rows
        # Survival never rises along a draft and the sort is stable: every head of this list is a head of each draft.
        for survival, row in sorted(((-s, row) for row, all_ in enumerate(survivals) for s in all_)):
            if (tokens - survival) * seconds <= tokens * (seconds + slope):
                break
            tokens, seconds = tokens - survival, seconds + slope
            lengths[row] += 1
        return lengths

    def passed(self, n_rows: int, width: int, seconds: float, n_accepted: int, drafting_s: float) -> None:
        """A pass of `n_rows` sequences over `width` tokens took `seconds`, the drafting for it `drafting_s`."""
        if seconds <= 0:
            return  # a clock that stood still tells nothing
        self.cost.observe(width, seconds)
        plain_s = self.cost.time(n_rows)
        saved_s = n_accepted * plain_s / n_rows - (self.cost.time(width) - plain_s) - drafting_s
        self._n_tried += 1
        self._balance += (max(saved_s / plain_s, -1.0) - self._balance) / min(self._n_tried, MEMORY)
        if self._n_tried < TRIAL:
            return
        if self._balance > 0:
            self._rest = FIRST_REST
        elif self._balance < -LOSS:
            self._n_resting, self._rest = self._rest, min(2 * self._rest, LONGEST_REST)
            self._n_tried, self._balance = 0, 0.0
