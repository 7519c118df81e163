"""Trying what does not seem to pay, now and then: rarely where it keeps failing, for a share of the time at most."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SHARE = 0.01
"""The share of all time that may go into probes."""

FIRST_WAIT, LONGEST_WAIT = 4, 256
MOST_SAVED_S = 60.0
"""No more of what earlier runs have saved is believed."""


class Probes:
    """Counts the time; says when something may be tried again. A probe that failed doubles the wait, in rounds.

    What waiting saves can be spent at once when a probe succeeds: a change of the text is then learned within rounds.
    """

    def __init__(self, parts: Mapping[str, float]) -> None:
        """`parts`: what may be tried, and which part of the share it may take."""
        self.total_s = 0.0
        self._parts = parts
        self._spent_s = dict.fromkeys(parts, 0.0)
        self._round = 0
        self._next: dict[str, int] = {}
        self._wait: dict[str, int] = {}

    @property
    def spent_s(self) -> float:
        """Seconds spent, less what earlier runs had saved."""
        return sum(self._spent_s.values())

    def may(self, what: str, seconds: float) -> bool:
        """Whether it is time for a probe that will take so long."""
        allowed = SHARE * self._parts[what] * self.total_s
        return self._round >= self._next.get(what, 0) and self._spent_s[what] + seconds <= allowed

    def spent(self, what: str, seconds: float, succeeded: bool) -> None:
        """A probe was made."""
        self._spent_s[what] += max(seconds, 0.0)
        self._wait[what] = 1 if succeeded else min(2 * self._wait.get(what, FIRST_WAIT // 2), LONGEST_WAIT)
        self._next[what] = self._round + self._wait[what]

    def to_data(self) -> dict[str, float]:
        """What there was time for and was not spent, as plain data for `restore`: seconds by what may be tried."""
        allowed = {what: SHARE * part * self.total_s for what, part in self._parts.items()}
        return {what: max(allowed[what] - spent_s, 0.0) for what, spent_s in self._spent_s.items()}

    def restore(self, data: Any) -> None:
        """Begins with what earlier runs have saved; with nothing where the data is damaged."""
        for what in self._spent_s:
            saved = data.get(what) if isinstance(data, dict) else None
            if isinstance(saved, int | float) and 0.0 <= saved <= MOST_SAVED_S:
                self._spent_s[what] -= saved

    def passed(self, seconds: float) -> None:
        """A round took so long."""
        self._round += 1
        self.total_s += seconds
