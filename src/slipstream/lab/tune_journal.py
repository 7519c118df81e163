"""What `tune` writes down while it measures, so that Ctrl-C or a crash loses nothing, and a later run goes on.

A line of kind "run" (settings, versions) opens the file and every continuation of it. A "measurement" is one task
answered, written at once. A "visit" closes one setting's turn and says how much of the budget was spent by then. What
to measure next depends on the visits alone, so a run that goes on reads them in their order instead of measuring; an
interrupted visit is measured anew, since those of plain decoding around it would no longer be its neighbours.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from slipstream.engines.protocol import Answer, Counters
from slipstream.errors import InputError
from slipstream.lab import json_lines
from slipstream.lab.tune_visit import Measured, Visit
from slipstream.lab.tuned import CostPoint

KINDS = ("run", "measurement", "visit", "cost")

Where = tuple[str, int]
"""An engine's name, and how many requests run at once."""


class Budget:
    """Seconds to spend, and those spent by the last visit: decisions read these, so that they can be repeated."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self.seconds = seconds
        self.spent_s = 0.0
        self._clock = clock
        self._began = clock()

    @property
    def left_s(self) -> float:
        return self.seconds - self.spent_s

    @property
    def now_s(self) -> float:
        """Seconds spent by now, for those who watch."""
        return self._clock() - self._began

    def mark(self) -> float:
        self.spent_s = self.now_s
        return self.spent_s

    def restore(self, spent_s: float) -> None:
        """Goes on as if so much had been spent."""
        self.spent_s = spent_s
        self._began = self._clock() - spent_s


class Journal:
    """The file, written from the first measurement on. about: what else the first run wrote of itself. cost: what
    passes were last seen to cost. budgets: seconds, ascending, that its runs were given, this one's last.

    Raises InputError for a file of something else, of a run with other settings or versions, or of a larger budget.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], about: Mapping[str, Any], budget: Budget) -> None:
        self._path, self._budget = path, budget
        self._visits: dict[Where, list[dict[str, Any]]] = {}
        try:
            lines = json_lines.read(path, KINDS)
        except ValueError:
            raise InputError(f"{path} is no journal of a tuning run.", "Give the folder that one wrote.") from None
        wanted = json.loads(json.dumps(settings))
        earlier = [line for line in lines if line["kind"] == "run"]
        for line in earlier:
            _require_same(path, line["settings"], wanted)
        self.budgets = _budgets([line["budget_s"] for line in earlier], budget.seconds)
        self._take(lines)
        self.about = next(iter(earlier), about)
        self.cost = next((_cost(line) for line in reversed(lines) if line["kind"] == "cost"), ())
        self._opening = {"kind": "run", "settings": settings, "budget_s": budget.seconds, **about}

    def replayed(self, where: Where, arm: str, tasks: Sequence[str]) -> Visit | None:
        """The next visit that was measured already, None behind the last; the budget stands as it did then."""
        waiting = self._visits.get(where)
        if not waiting:
            return None
        line = waiting.pop(0)
        if (line["arm"], line["tasks"]) != (arm, list(tasks)):
            raise InputError(f"{self._path} does not fit this run.", "Start a new one, without --resume.")
        self._budget.restore(line["spent_s"])
        return _visit(line)

    def measured(self, where: Where, arm: str, task: str, measured: Measured) -> None:
        """Writes a task down."""
        answers = [[prompt, asdict(answer)] for prompt, answer in measured.answers]
        line = {"engine": where[0], "concurrency": where[1], "arm": arm, "task": task, "category": measured.category}
        line |= {"n_tokens": measured.n_tokens, "seconds": measured.seconds, "at_s": measured.at_s, "answers": answers}
        self._append({"kind": "measurement", **line})

    def visited(self, where: Where, tasks: Sequence[str], visit: Visit) -> None:
        """Closes a visit whose tasks are written down."""
        line = {"engine": where[0], "concurrency": where[1], "tasks": list(tasks)}
        line |= {**asdict(replace(visit, measured={})), "measured": list(visit.measured)}
        self._append({"kind": "visit", **line, "spent_s": self._budget.mark()})

    def costs(self, cost: Sequence[CostPoint]) -> None:
        """Writes down what passes cost, which only an engine that was started knows."""
        self.cost = tuple(cost)
        self._append({"kind": "cost", "points": [asdict(point) for point in cost]})

    def _append(self, line: Mapping[str, Any]) -> None:
        """Adds a line, behind this run's own where it is the first."""
        if self._opening:
            json_lines.append(self._path, self._opening)
            self._opening = {}
        json_lines.append(self._path, line)

    def _take(self, lines: Sequence[dict[str, Any]]) -> None:
        """Pairs each visit with the measurements written before it; those of an interrupted one belong to none."""
        pending: dict[str, Any] = {}
        for line in lines:
            if line["kind"] == "measurement":
                pending[line["task"]] = line
            elif line["kind"] == "visit":
                line["measured"] = {task: pending[task] for task in line["measured"]}
                self._visits.setdefault((line["engine"], line["concurrency"]), []).append(line)
                pending = {}
            elif line["kind"] == "run":
                pending = {}


def _budgets(earlier: Sequence[float], now: float) -> tuple[float, ...]:
    """Raises InputError for less than what may be spent already."""
    if earlier and now < max(earlier):
        message = f"--budget {now:g}s is less than the {max(earlier):g}s that this run was given before."
        raise InputError(message, "Give as much, or more to go on measuring.")
    return tuple(sorted({*earlier, now}))


def _cost(line: Mapping[str, Any]) -> tuple[CostPoint, ...]:
    return tuple(CostPoint(**point) for point in line["points"])


def _visit(line: Mapping[str, Any]) -> Visit:
    return Visit(
        line["arm"],
        {task: _measured(data) for task, data in line["measured"].items()},
        line["refused"],
        line["start_s"],
        line["answer_s"],
        _counters(line["counters"]),
        line["failed"],
    )


def _measured(line: Mapping[str, Any]) -> Measured:
    answers = tuple((prompt, _answer(data)) for prompt, data in line["answers"])
    return Measured(line["category"], line["n_tokens"], line["seconds"], answers, line["at_s"])


def _answer(data: Mapping[str, Any]) -> Answer:
    arrivals = tuple((seconds, n) for seconds, n in data["arrivals"])
    return Answer(**{**data, "arrivals": arrivals, "counters": _counters(data["counters"])})


def _counters(data: Mapping[str, Any] | None) -> Counters | None:
    if data is None:
        return None
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
    return Counters(**values)


def _require_same(path: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    for name in dict.fromkeys([*old, *new]):
        if old.get(name) != new.get(name):
            raise InputError(
                f"{path} was measured with {name} {old.get(name)!r}, now it is {new.get(name)!r}.",
                "Give the same options as before, or start a new run without --resume.",
            )
