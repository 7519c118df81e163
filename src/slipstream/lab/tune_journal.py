"""What `tune` writes down while it measures, so that Ctrl-C or a crash loses nothing, and a later run goes on.

A line of kind "run" (settings, versions) opens the file and every continuation of it. A "measurement" is one task
answered, written at once. A "visit" closes one setting's turn and says how much of the budget was spent by then. What
to measure next depends on the visits alone, so a run that goes on reads them in their order instead of measuring; an
interrupted visit is measured anew, since those of plain decoding around it would no longer be its neighbours.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal, NoReturn

from slipstream.errors import InputError
from slipstream.lab import json_lines
from slipstream.lab.tune_lines import LINES, CostLine, MeasurementLine, RunLine, VisitLine, read_line
from slipstream.lab.tune_tasks import Task
from slipstream.lab.tune_visit import Measured, Visit
from slipstream.lab.tuned import CostPoint

if sys.platform != "win32":
    import fcntl

Where = tuple[str, int]
"""An engine's name, and how many requests run at once."""


class Unwritable(InputError):
    """The journal cannot be written: the run ends, and no engine is blamed for it."""


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


@dataclass(frozen=True)
class Written:
    """A visit that the file holds, closed in this line of it, and what was measured in it, by task."""

    number: int
    line: VisitLine
    measured: Mapping[str, Measured]


class Journal:
    """The file, written from the first measurement on. about: what else the first run wrote of itself. cost: what
    passes were last seen to cost. budgets: seconds, ascending, that its runs were given, this one's last.

    Use `with`: until its end no other run may write the file, where the system has such locks.
    Raises InputError for a file of something else or a damaged one, which it leaves as it is; for one of a run with
    other settings or versions, of a larger budget, or of a run that is going on; and where it cannot be written
    (`Unwritable`).
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], about: Mapping[str, str], budget: Budget) -> None:
        self._path, self._budget = path, budget
        self._file: BinaryIO | None = None
        self._visits: dict[Where, list[Written]] = {}
        self._versions: dict[str, str] = {}
        self.about = about
        self.cost: tuple[CostPoint, ...] = ()
        self._opening: dict[str, Any] = {"kind": "run", "settings": settings, "budget_s": budget.seconds, **about}
        try:
            runs = self._take(self._read())
            for run in runs:
                self._require_same(run.settings, json.loads(json.dumps(settings)))
            self.budgets = _budgets([run.budget_s for run in runs], budget.seconds)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets others write the file; harmless when done twice."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def replayed(self, where: Where, arm: str, tasks: Sequence[Task], version: str) -> Visit | None:
        """The next visit that was measured already, None behind the last; the budget stands as it did then.

        version: of the engine now, "" where unknown. Raises InputError for another than it was measured with.
        """
        self._require_version(where[0], version)
        waiting = self._visits.get(where)
        if not waiting:
            return None
        written = waiting.pop(0)
        if not _fits(written, arm, tasks):
            self._refuse(f"does not fit this run in line {written.number}")
        self._budget.restore(written.line.spent_s)
        return written.line.visit(written.measured)

    def measured(self, where: Where, arm: str, task: str, measured: Measured) -> None:
        """Writes a task down."""
        self._append("measurement", {**asdict(MeasurementLine(*where, arm, task)), **asdict(measured)})

    def visited(self, where: Where, tasks: Sequence[str], visit: Visit, version: str) -> None:
        """Closes a visit whose tasks are written down. version: as in `replayed`."""
        self._require_version(where[0], version)
        line = {"engine": where[0], "concurrency": where[1], "tasks": list(tasks)}
        line |= {**asdict(replace(visit, measured={})), "measured": list(visit.measured)}
        self._append("visit", {**line, "version": version, "spent_s": self._budget.mark()})

    def costs(self, cost: Sequence[CostPoint]) -> None:
        """Writes down what passes cost, which only an engine that was started knows."""
        self.cost = tuple(cost)
        self._append("cost", asdict(CostLine(self.cost)))

    def _append(self, kind: str, line: Mapping[str, Any]) -> None:
        """Adds a line, behind this run's own where it is the first."""
        try:
            if self._file is None:
                self._file = self._locked("xb")
            if self._opening:
                json_lines.append(self._path, self._opening)
                self._opening = {}
            json_lines.append(self._path, {"kind": kind, **line})
        except OSError as error:
            raise Unwritable(*self._trouble("written", error)) from None

    def _read(self) -> list[dict[str, Any]]:
        """The lines that are there, of a file that nobody else writes from now on."""
        try:
            if self._path.exists():
                self._file = self._locked("ab")
            elif not os.access(self._path.parent, os.W_OK):
                raise InputError(f"{self._path.parent} cannot be written to.", "Name another folder.")
            return json_lines.read(self._path, LINES)
        except OSError as error:
            raise InputError(*self._trouble("read and written", error)) from None
        except ValueError as error:
            if isinstance(error, InputError):
                raise
            self._refuse(f"is no journal of a tuning run: {error}")

    def _locked(self, mode: Literal["ab", "xb"]) -> BinaryIO:
        """The file, opened for this run alone. Raises InputError where another run has it."""
        message, hint = f"{self._path.parent} is being written by another run.", "Wait for its end, or stop it."
        try:
            file = self._path.open(mode)
        except FileExistsError:
            raise InputError(message, hint) from None
        try:
            _lock(file)
        except BlockingIOError:
            file.close()
            raise InputError(message, hint) from None
        return file

    def _take(self, lines: Sequence[dict[str, Any]]) -> list[RunLine]:
        """Pairs each visit with the measurements written before it; those of an interrupted one belong to none."""
        runs: list[RunLine] = []
        pending: dict[str, Measured] = {}
        for number, data in enumerate(lines, start=1):
            try:
                found, measured = read_line(data)
                if isinstance(found, RunLine):
                    runs.append(found)
                    pending = {}
                elif not runs:
                    raise ValueError("no run began before")
                elif measured is not None:
                    pending[found.task] = measured
                elif isinstance(found, VisitLine):
                    self._add(number, found, pending)
                    pending = {}
                else:
                    self.cost = found.points
            except ValueError as error:
                self._refuse(f"is damaged in line {number}: {error}")
        if self._file is not None and not runs:
            self._refuse("is no journal of a tuning run: no run began in it")
        self.about = {"began": runs[0].began, "command": runs[0].command} if runs else self.about
        return runs

    def _add(self, number: int, found: VisitLine, pending: Mapping[str, Measured]) -> None:
        """Raises ValueError for a visit whose measurements are not there, or that stands there twice."""
        missing = [task for task in found.measured if task not in pending]
        if missing:
            raise ValueError(f"what it measured of {missing[0]!r} is not there")
        before = self._visits.setdefault((found.engine, found.concurrency), [])
        if before and before[-1].line == found:
            raise ValueError(f"it is the same as line {before[-1].number}")
        self._versions.setdefault(found.engine, found.version)
        before.append(Written(number, found, {task: pending[task] for task in found.measured}))

    def _require_version(self, engine: str, version: str) -> None:
        known = self._versions.get(engine) or version
        self._versions[engine] = known
        if version and version != known:
            self._refuse_change(engine, known, version)

    def _require_same(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        for name in dict.fromkeys([*old, *new]):
            if old.get(name) != new.get(name):
                self._refuse_change(name, old.get(name), new.get(name))

    def _refuse_change(self, name: str, old: object, new: object) -> NoReturn:
        message = f"{self._path} was measured with {name} {old!r}, now it is {new!r}."
        raise InputError(message, "Give the same options as before, or start a new run without --resume.")

    def _refuse(self, what: str) -> NoReturn:
        raise InputError(f"{self._path} {what}.", "Start a new run, without --resume.")

    def _trouble(self, how: str, error: OSError) -> tuple[str, str]:
        return f"{self._path} cannot be {how}: {error.strerror}.", "Mend that, or start a new run."


def _lock(file: BinaryIO) -> None:
    """Raises BlockingIOError where another run holds it; does without where the system or the disk has no locks."""
    if sys.platform == "win32":
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return


def _budgets(earlier: Sequence[float], now: float) -> tuple[float, ...]:
    """Raises InputError for less than what may be spent already."""
    if earlier and now < max(earlier):
        message = f"--budget {now:g}s is less than the {max(earlier):g}s that this run was given before."
        raise InputError(message, "Give as much, or more to go on measuring.")
    return tuple(sorted({*earlier, now}))


def _fits(written: Written, arm: str, tasks: Sequence[Task]) -> bool:
    """Whether it is a visit of this arm to these tasks, with answers to their prompts; plain decoding's has some."""
    line, known = written.line, {task.id: (task.category, [prompt.id for prompt in task.prompts]) for task in tasks}
    found = {task: (some.category, [prompt for prompt, _ in some.answers]) for task, some in written.measured.items()}
    if (line.arm, list(line.tasks)) != (arm, [task.id for task in tasks]):
        return False
    return all(known.get(task) == what for task, what in found.items()) and bool(found or line.refused or line.failed)
