"""What visits cost, learned from those made, and so how many tasks there is time for."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.lab.tune_visit import Visit

START_SHARE = 0.2
"""A visit is so long that starting takes no more of it: short visits keep neighbours close, and starting is waste."""


@dataclass
class Pace:
    """What visits cost, learned from those made: seconds to start, and a task's by arm."""

    start_s: list[float] = field(default_factory=list)
    tasks: dict[str, list[float]] = field(default_factory=dict)

    def learn(self, visit: Visit) -> None:
        if visit.start_s:
            self.start_s.append(visit.start_s)
        if visit.measured:
            self.tasks.setdefault(visit.arm, []).append(visit.answer_s / len(visit.measured))

    def start(self) -> float:
        return statistics.median(self.start_s) if self.start_s else 0.0

    def task(self, arm: str = "plain") -> float:
        """Of an arm that was not measured yet, plain decoding's."""
        known = self.tasks.get(arm) or self.tasks.get("plain") or [0.0]
        return sum(known) / len(known)

    def visit_size(self) -> int:
        """Tasks a visit."""
        return max(1, math.ceil(self.start() / START_SHARE / max(self.task(), 1e-9)))

    def cost(self, arms: Sequence[str], n_tasks: int) -> float:
        """Seconds of comparing these arms on so many tasks: plain decoding before, between and behind them."""
        n_visits = math.ceil(n_tasks / self.visit_size())
        answers = (len(arms) + 1) * self.task() + sum(map(self.task, arms))
        return n_tasks * answers + (2 * len(arms) * n_visits + 1) * self.start()

    def n_tasks(self, arms: Sequence[str], seconds: float) -> int:
        """As many tasks as there is time to compare these arms on."""
        n = 0
        while n < 1000 and self.cost(arms, n + 1) <= seconds:
            n += 1
        return n
