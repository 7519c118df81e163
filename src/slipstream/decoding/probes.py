"""Trying what does not seem to pay, now and then: rarely where it keeps failing, for a share of the time at most."""

from __future__ import annotations

from collections.abc import Mapping

SHARE = 0.01
"""The share of all time that may go into probes."""

FIRST_WAIT, LONGEST_WAIT = 4, 256


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

    def passed(self, seconds: float) -> None:
        """A round took so long."""
        self._round += 1
        self.total_s += seconds
