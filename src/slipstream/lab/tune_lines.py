"""The lines of a tuning run's journal, and how they are read: each checked, since the file may have been edited."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from slipstream.engines.protocol import Counters
from slipstream.lab.plain_data import built
from slipstream.lab.tune_visit import Measured, Visit
from slipstream.lab.tuned import CostPoint


@dataclass(frozen=True)
class RunLine:
    """Opens a part of a run. settings: all that must not change. began: ISO 8601."""

    settings: Mapping[str, Any]
    budget_s: float
    began: str
    command: str


@dataclass(frozen=True)
class MeasurementLine:
    """A task once answered; `Measured` beside it in the same line."""

    engine: str
    concurrency: int
    arm: str
    task: str


@dataclass(frozen=True)
class VisitLine:
    """Closes a visit. measured: its tasks that were answered, whose lines stand before. version: of the engine, ""
    where unknown. spent_s: of the budget, by then. The others: see `Visit`."""

    engine: str
    concurrency: int
    tasks: tuple[str, ...]
    arm: str
    measured: tuple[str, ...]
    refused: Mapping[str, str]
    start_s: float
    answer_s: float
    counters: Counters | None
    failed: str
    version: str
    spent_s: float

    def visit(self, measured: Mapping[str, Measured]) -> Visit:
        return Visit(self.arm, measured, self.refused, self.start_s, self.answer_s, self.counters, self.failed)


@dataclass(frozen=True)
class CostLine:
    """What passes were seen to cost."""

    points: tuple[CostPoint, ...]


LINES = {"run": RunLine, "measurement": MeasurementLine, "visit": VisitLine, "cost": CostLine}


def read_line(data: Mapping[str, Any]) -> tuple[Any, Measured | None]:
    """The line, and what was measured where it is of a measurement. Raises ValueError, with the field that is wrong."""
    found = built(LINES[data["kind"]], data)
    measured = built(Measured, data) if isinstance(found, MeasurementLine) else None
    _check(found, measured)
    return found, measured


def _check(found: Any, measured: Measured | None) -> None:
    """Raises ValueError for values that no run writes."""
    if isinstance(found, RunLine):
        datetime.fromisoformat(found.began)
        _require(found.budget_s > 0, "budget_s", found.budget_s)
    for part, names in ((found, ("start_s", "answer_s", "spent_s")), (measured, ("seconds", "at_s"))):
        for name in names:
            value = getattr(part, name, 0.0)
            _require(value >= 0, name, value)
    for _, answer in measured.answers if measured else ():
        _require(answer.n_tokens >= 0 and answer.decode_s >= 0, "answers", answer)
    for point in found.points if isinstance(found, CostLine) else ():
        _require(point.width > 0 and point.n_context > 0 and point.ratio > 0, "points", point)


def _require(is_right: bool, name: str, value: object) -> None:
    if not is_right:
        raise ValueError(f"{name} cannot be {str(value)[:60]!r}")
