"""One engine at one number of requests at once: settings visited in turn, each between two visits of plain decoding."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from operator import add

from slipstream.engines.protocol import Answer, Counters, Engine, Option, Request, Settings
from slipstream.errors import EngineError, SlipstreamError
from slipstream.lab.tune_journal import Budget, Journal, Unwritable, Where
from slipstream.lab.tune_pace import Pace
from slipstream.lab.tune_statistics import disturbed
from slipstream.lab.tune_tasks import Task
from slipstream.lab.tune_visit import Block, Measured, Role, Visit

Clock = Callable[[], float]
Watch = Callable[[str, float], None]
"""Told what is measured now, and which part of the budget is spent."""

WARM_UP = "Name three rivers of Europe and the seas that they flow into."
N_WARM_UP = 16

AT_ONCE_S = 0.2
"""An engine that starts within this time was only told what to ask for, and is as warm as before."""

MAX_TRIES = 2
"""Of a visit, where something else took the machine meanwhile."""

SLOW = 3.0
"""A visit that takes so many times as long as plain decoding's ends early."""


class Bench:
    """The engine and all that was measured with it. Use `with`: it stops the engine at the end, whatever happens.

    until_s: seconds of the budget, from which on a visit ends behind the task that it is at.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        n_tokens: int,
        url: str | None,
        journal: Journal,
        budget: Budget,
        clock: Clock,
        watch: Watch,
    ) -> None:
        self.engine, self.budget, self.pace = engine, budget, Pace()
        self.until_s = math.inf
        self.plain = replace(settings, speculation=(), draft=None)
        self.where: Where = (engine.name, settings.parallel)
        self.blocks: list[Block] = []
        self.failed: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.plain_visits: list[Visit] = []
        self._n_tokens, self._url = n_tokens, url
        self._journal, self._clock, self._watch = journal, clock, watch
        self._running: Settings | None = None
        self._warm: set[str] = set()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._halt()

    def options(self, settings: Settings) -> tuple[Option, ...]:
        """What can be tried.

        Raises what the engine raises where it is not installed, or nobody answers at the URL; EngineError for one that
        cannot answer several requests at once.
        """
        if self.plain.parallel > 1 and not self.engine.concurrent:
            raise EngineError(f"{self.engine.name} answers one request at a time.", "Leave --concurrency away.")
        if self._url is None:
            return self.engine.speculative_options(settings)
        self.engine.attach(self._url)
        try:
            return self.engine.speculative_options(settings)
        finally:
            self.engine.stop()

    def look(self, tasks: Sequence[Task]) -> None:
        """Learns what a visit of plain decoding costs now, whatever it cost before."""
        self.pace = Pace()
        self.plain_visit(tasks)

    def compare(self, arms: Sequence[Settings], tasks: Sequence[Task], role: Role) -> None:
        """Adds blocks: these arms on these tasks, until the time is over; once more if most of a visit is disturbed.

        An arm whose engine fails is left out from then on (`failed`).
        Raises EngineError where plain decoding itself fails, twice in a row.
        """
        for chunk in self._chunks(tasks):
            before = self.plain_visit(chunk)
            chunk = [task for task in chunk if task.id in before.measured]
            for arm in arms if chunk else ():
                for _ in range(MAX_TRIES):
                    if self.budget.spent_s >= self.until_s:
                        return
                    if arm.arm in self.failed:
                        break
                    before = self._add_block(arm, chunk, before, role)
                    if 2 * len(disturbed(self.blocks)[-1]) <= len(chunk):
                        break

    def _add_block(self, arm: Settings, tasks: Sequence[Task], before: Visit, role: Role) -> Visit:
        """Measures an arm behind a visit of plain decoding; returns the one that follows."""
        tried = self._visit(arm, tasks, SLOW * before.answer_s)
        trouble = tried.failed or next(iter(tried.refused.values()), "")
        if trouble:
            self.failed[arm.arm] = trouble
        after = self.plain_visit(tasks)
        self.blocks.append(Block(arm.arm, role, before, tried, after))
        return after

    def plain_visit(self, tasks: Sequence[Task]) -> Visit:
        """Tasks that plain decoding refuses are left out from then on (`refused`)."""
        asked = [task for task in tasks if task.id not in self.refused]
        if not asked:
            return Visit(self.plain.arm, {}, {}, 0.0, 0.0)
        visit = self._visit(self.plain, asked)
        if visit.failed:
            visit = self._visit(self.plain, asked)
        self.refused |= visit.refused
        if visit.failed or not visit.measured:
            raise EngineError(visit.failed or next(iter(visit.refused.values())))
        self.plain_visits.append(visit)
        return visit

    def drafted_plainly(self) -> int:
        """Tokens that were drafted while nothing should have been."""
        return sum(visit.counters.drafted for visit in self.plain_visits if visit.counters)

    def _chunks(self, tasks: Sequence[Task]) -> list[Sequence[Task]]:
        """Visits of about the same number of tasks."""
        n = math.ceil(len(tasks) / self.pace.visit_size())
        ends = [round(i * len(tasks) / n) for i in range(n + 1)] if n else []
        return [tasks[a:b] for a, b in pairwise(ends)]

    def _visit(self, settings: Settings, tasks: Sequence[Task], limit_s: float = math.inf) -> Visit:
        names = [task.id for task in tasks]
        visit = self._journal.replayed(self.where, settings.arm, tasks, self.engine.version)
        if visit is None:
            visit = self._visit_now(settings, tasks, limit_s)
            if visit.failed and settings == self.plain:
                return visit  # not written down: it may end this run, and be mended for the one that goes on
            self._journal.visited(self.where, names, visit, self.engine.version)
        self.pace.learn(visit)
        return visit

    def _visit_now(self, settings: Settings, tasks: Sequence[Task], limit_s: float) -> Visit:
        measured: dict[str, Measured] = {}
        refused: dict[str, str] = {}
        counters, failed = None, ""
        began = started = self._clock()
        try:
            restarted = self._run(settings)
            started = self._clock()
            before = self.engine.counters()
            for task in tasks:
                if self._clock() - started > limit_s or (measured and self.budget.now_s >= self.until_s):
                    break
                self._show(settings, task.category)
                try:
                    measured[task.id] = self._ask_twice(task)
                except EngineError as error:
                    refused[task.id] = f"On prompt {task.id}: {error}"
                    continue
                self._journal.measured(self.where, settings.arm, task.id, measured[task.id])
            counters = _counted(measured, before, self.engine.counters())
        except Unwritable:
            raise
        except SlipstreamError as error:
            failed = str(error)
            self._halt()
            restarted = True
        answer_s = self._clock() - started
        start_s = started - began if restarted else 0.0
        return Visit(settings.arm, measured, refused, start_s, answer_s, counters, failed)

    def _run(self, settings: Settings) -> bool:
        """Starts the engine with these settings unless it runs with them, and warms it up; whether it was started."""
        if self._running == settings:
            return False
        self._show(settings, "starting")
        self._halt()
        self._running = settings
        began = self._clock()
        if self._url is not None:
            self.engine.attach(self._url)
        self.engine.start(settings, lambda line: self._show(settings, "starting"))
        if settings.arm not in self._warm or self._clock() - began > AT_ONCE_S:
            self._warm_up()
            self._warm.add(settings.arm)
        return True

    def _halt(self) -> None:
        if self._running is not None:
            self._running = None
            self.engine.stop()

    def _warm_up(self) -> None:
        request = Request(({"role": "user", "content": WARM_UP},), N_WARM_UP)
        try:
            self.engine.complete(request)
        except EngineError:
            self.engine.complete(request)

    def _require_alive(self, error: EngineError) -> None:
        """Raises the error if the engine answers nothing else either."""
        try:
            self._warm_up()
        except SlipstreamError:
            raise error from None

    def _ask_twice(self, task: Task) -> Measured:
        """Once more after an error of an engine that goes on: one of a hundred requests may fail by chance."""
        try:
            return self._ask(task)
        except EngineError as error:
            self._require_alive(error)
        try:
            return self._ask(task)
        except EngineError as error:
            self._require_alive(error)
            raise

    def _ask(self, task: Task) -> Measured:
        requests = [Request(prompt.messages, self._n_tokens) for prompt in task.prompts]
        began, at_s = self._clock(), self.budget.now_s
        answers = self._ask_at_once(requests) if len(requests) > 1 else [self.engine.complete(requests[0])]
        n_tokens, seconds = sum(answer.n_tokens for answer in answers), self._clock() - began
        if len(answers) == 1:
            n_tokens, seconds = n_tokens - 1, answers[0].decode_s
        named = tuple(zip((prompt.id for prompt in task.prompts), map(_rounded, answers), strict=True))
        return Measured(task.category, n_tokens, seconds, named, at_s)

    def _ask_at_once(self, requests: Sequence[Request]) -> list[Answer]:
        pool = ThreadPoolExecutor(len(requests))
        try:
            return list(pool.map(self.engine.complete, requests))
        except KeyboardInterrupt:
            self._halt()  # ends what the other threads wait for
            raise
        finally:
            pool.shutdown(wait=self._running is not None, cancel_futures=True)

    def _show(self, settings: Settings, what: str) -> None:
        name, n = self.where
        at_once = f", {n} at once" if n > 1 else ""
        self._watch(f"{name}{at_once}, {settings.arm}: {what}", self.budget.now_s / self.budget.seconds)


def _rounded(answer: Answer) -> Answer:
    """Of its times of arrival, as many digits as anybody will see: there are hundreds in each answer."""
    return replace(answer, arrivals=tuple((round(seconds, 4), n) for seconds, n in answer.arrivals))


def _counted(measured: dict[str, Measured], before: Counters | None, after: Counters | None) -> Counters | None:
    """Of these tasks. The engine's totals may tell more, but others' requests are among them where it is shared."""
    each = [answer.counters for task in measured.values() for _, answer in task.answers]
    known = [counters for counters in each if counters is not None]
    totals = after - before if before is not None and after is not None else None
    if not known or len(known) < len(each):
        return totals
    own = reduce(add, known)
    is_same = totals is not None and (totals.drafted, totals.accepted) == (own.drafted, own.accepted)
    return totals if is_same and own.drafts is None else own
