"""A search within its share of the budget: rounds of comparison, then a judgement of what was chosen."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle, islice

from slipstream.engines.protocol import Option, Settings
from slipstream.errors import EngineError, SlipstreamError
from slipstream.lab.tune_measure import Bench
from slipstream.lab.tune_results import figures, is_idle
from slipstream.lab.tune_search import (
    PROMISING,
    Arm,
    best_of,
    coarse,
    combined,
    drop,
    finer,
    give_up,
    is_outrun,
    is_settled,
    leaders,
    ranked,
    take_up,
)
from slipstream.lab.tune_statistics import Point, drift, points, scores
from slipstream.lab.tune_tasks import Pools
from slipstream.lab.tune_verdict import is_decided

JUDGE_SHARE = 0.5
"""Of the time, kept for judging the chosen setting on measurements that did not choose it. In simulated worlds a third
found gains of a fifth more seldom (docs/log.md)."""

ROUND_SHARE = 0.6
"""Of the time left to search in, spent by a round: the later ones have fewer settings, and know more."""

IDLE = "it drafted nothing"

N_PROBE = 2
MIN_TASKS = 2
MIN_COARSE = 4
"""Two lengths of a kind are tried at once only where so many tasks can tell them apart."""

MIN_ROUND = 6
MAX_JUDGED, MAX_PASSES = 64, 10


class Rounds:
    """One engine's settings at one number of requests at once, from the first look to a judgement.

    arms: all that were tried. chosen, led: what was judged, overall and by category where another setting leads.
    options: what the engine has. broke: why it could not be measured to the end; empty where it could.
    """

    def __init__(self, bench: Bench, pools: Pools, settings: Settings) -> None:
        self.bench, self.pools, self.settings = bench, pools, settings
        self.options: tuple[Option, ...] = ()
        self.arms: list[Arm] = []
        self.chosen: Arm | None = None
        self.led: dict[str, Arm] = {}
        self.broke = ""
        self._tasks = cycle(pools.search)

    def run(self, until_s: float) -> None:
        """Measures until so much of the budget is spent; called again, goes on with what was given up for want of time.

        The engine is stopped at the end, whatever happens.
        """
        self.bench.until_s, self.broke = until_s, ""
        with self.bench:
            try:
                self.options = self.bench.options(self.settings)
            except SlipstreamError as error:
                self.broke = str(error)
                return
            try:
                self.bench.look(self.pools.search[:N_PROBE])
                self._spend(until_s)
            except EngineError as error:
                self.broke = str(error)

    def _spend(self, until_s: float) -> None:
        """Searches and judges; again, where settings were given up for want of time and the judgement left some."""
        n_blocks = -1
        while len(self.bench.blocks) > n_blocks:
            n_blocks = len(self.bench.blocks)
            search_s = until_s - JUDGE_SHARE * (until_s - self.bench.budget.spent_s)
            if not self._fits_one(search_s):
                search_s = until_s  # a setting that nobody judges is more than none
            self._add_coarse(search_s)
            self._search(search_s)
            self._judge(until_s)
            if not any(is_outrun(arm) for arm in self.arms) or not self._fits_one(until_s):
                return

    def _fits_one(self, until_s: float) -> bool:
        """Whether there is time to compare one setting on as many tasks as can tell anything."""
        return self.bench.pace.n_tasks(["any"], until_s - self.bench.budget.spent_s) >= self._least()

    def needed_s(self) -> float:
        """About the seconds that a first round of all settings and a judgement would take."""
        return self.bench.pace.cost([arm.name for arm in self.arms], MIN_COARSE) / (1 - JUDGE_SHARE) / ROUND_SHARE

    def _add_coarse(self, until_s: float) -> None:
        """The settings to begin with, as many as there is time for; those of an earlier run that lacked it, again."""
        take_up(self.arms)
        arms = coarse(self.settings, self.options)
        if self._fitting(arms, until_s) < min(MIN_COARSE, len(self.pools.search)):
            arms = coarse(self.settings, self.options, per_kind=1)
        tried = {arm.name for arm in self.arms}
        self.arms += [arm for arm in arms if arm.name not in tried]

    def _search(self, until_s: float) -> None:
        while alive := self._affordable(until_s):
            n = max(self._fitting(alive, until_s, ROUND_SHARE), MIN_TASKS)
            most = max(2 * len({task.category for task in self.pools.search}), MIN_ROUND)
            n = min(n, most, len(self.pools.search))
            self.bench.compare([arm.settings for arm in alive], list(islice(self._tasks, n)), "search")
            self._learn()
            if not self._add_finer(until_s) and is_settled(self.arms, self._points(), drift(self.bench.blocks)):
                return

    def _judge(self, until_s: float) -> None:
        """The best setting on tasks that did not choose it; where another leads clearly in a category, it on those."""
        found = self._points()
        self.chosen = best_of(self.arms, found)
        if self.chosen is None:
            return
        self.led = leaders(self.arms, found, self.chosen)
        share_s = (until_s - self.bench.budget.spent_s) / (2 if self.led else 1)
        self._judge_chosen(self.chosen, self.bench.budget.spent_s + share_s)
        for arm in dict.fromkeys(arm.name for arm in self.led.values()):
            self._judge_in_categories(arm, until_s)

    def _judge_chosen(self, arm: Arm, until_s: float) -> None:
        """Measures again while that may decide it: more visits, if not more prompts."""
        for _ in range(MAX_PASSES):
            n = self._fitting([arm], until_s)
            if n < MIN_TASKS:
                return
            self.bench.compare([arm.settings], self.pools.fresh[: min(n, MAX_JUDGED)], "winner")
            if (
                arm.name in self.bench.failed
                or is_idle(self.bench.blocks, arm.name)
                or is_decided(figures(self.bench.blocks, arm.name).overall)
            ):
                return

    def _judge_in_categories(self, name: str, until_s: float) -> None:
        categories = [category for category, arm in self.led.items() if arm.name == name]
        arm = next(arm for arm in self.arms if arm.name == name)
        tasks = [task for task in self.pools.fresh if task.category in categories]
        n = self.bench.pace.n_tasks([name], until_s - self.bench.budget.spent_s)
        if n >= MIN_TASKS:
            self.bench.compare([arm.settings], tasks[:n], "category")

    def _affordable(self, until_s: float) -> list[Arm]:
        """As many of the best settings as there is time to compare; the others are given up, unless none is left then.

        One that was measured and has nothing to be compared with any more is left to be judged.
        """
        alive = ranked(self.arms, self._points())
        for n in range(len(alive), 1 if self.bench.blocks else 0, -1):
            if self._fitting(alive[:n], until_s) >= self._least():
                give_up(alive[n:], self._points())
                return alive[:n]
        return []

    def _learn(self) -> None:
        for arm in self.arms:
            if arm.name in self.bench.failed:
                arm.out = "failed"
            elif not arm.out and is_idle(self.bench.blocks, arm.name):
                arm.out = IDLE
        drop(self.arms, self._points(), drift(self.bench.blocks))

    def _add_finer(self, until_s: float) -> bool:
        """Adds settings around the best one, and two kinds at once, as far as there is time to measure them."""
        found = self._points()
        best = best_of(self.arms, found)
        if best is None or scores(found)[best.name] < PROMISING:
            return False
        alive = [arm for arm in self.arms if not arm.out]
        new = finer(best, {arm.name for arm in self.arms}) + combined(self.arms, found)
        while new and self._fitting([*alive, *new], until_s) < self._least():
            new.pop()
        self.arms += new
        return bool(new)

    def _fitting(self, arms: Iterable[Arm], until_s: float, share: float = 1.0) -> int:
        left_s = until_s - self.bench.budget.spent_s
        return self.bench.pace.n_tasks([arm.name for arm in arms], share * left_s)

    def _least(self) -> int:
        return min(MIN_TASKS, len(self.pools.search))

    def _points(self) -> list[Point]:
        return points(self.bench.blocks)
