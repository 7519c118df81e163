"""What was measured: a visit is one setting's turn over some tasks, a block a visit between two of plain decoding."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from slipstream.engines.protocol import Answer, Counters

MIN_TOKENS = 8
"""Answers of fewer tokens tell nothing of speed."""

Role = Literal["search", "winner", "category"]
"""What a block is for: to choose by; to judge the chosen one; to judge what is best in some categories."""


@dataclass(frozen=True)
class Measured:
    """A task once answered. n_tokens in `seconds`: for one request behind its first token, for several all of them,
    from the first request to the last answer. answers: by prompt, its id first. at_s: when, since the run began."""

    category: str
    n_tokens: int
    seconds: float
    answers: tuple[tuple[str, Answer], ...]
    at_s: float = 0.0

    @property
    def token_s(self) -> float | None:
        """Seconds a token; None for answers too short to count."""
        enough = self.n_tokens >= MIN_TOKENS * len(self.answers) - 1 and self.seconds > 0
        return self.seconds / self.n_tokens if enough else None


@dataclass(frozen=True)
class Visit:
    """One setting's turn. measured: by task. refused: tasks that the engine answered with an error, and which.

    start_s: seconds that starting took, 0 where it ran already. answer_s: all that the tasks took. counters: of these
    tasks alone. failed: why the engine could not go on; empty where it could.
    """

    arm: str
    measured: Mapping[str, Measured]
    refused: Mapping[str, str]
    start_s: float
    answer_s: float
    counters: Counters | None = None
    failed: str = ""


@dataclass(frozen=True)
class Block:
    """One setting's visit, and those of plain decoding before and after, on the same tasks."""

    arm: str
    role: Role
    before: Visit
    tried: Visit
    after: Visit

    def log_ratios(self) -> dict[str, float]:
        """By task, the logarithm of the speed against plain decoding around it; tasks that counted all three times."""
        found: dict[str, float] = {}
        for task, measured in self.tried.measured.items():
            seconds = [_token_s(self.before, task), measured.token_s, _token_s(self.after, task)]
            if all(seconds):
                before, tried, after = (s or math.nan for s in seconds)
                found[task] = math.log((before + after) / 2 / tried)
        return found

    def log_drifts(self) -> dict[str, float]:
        """By task, the logarithm of how much faster plain decoding was after than before."""
        pairs = {task: (_token_s(self.before, task), _token_s(self.after, task)) for task in self.tried.measured}
        return {task: math.log(before / after) for task, (before, after) in pairs.items() if before and after}

    def category(self, task: str) -> str:
        return self.tried.measured[task].category


def _token_s(visit: Visit, task: str) -> float | None:
    measured = visit.measured.get(task)
    return measured.token_s if measured else None
