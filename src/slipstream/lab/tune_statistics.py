"""How sure a speed is: paired ratios, their intervals, and settings compared with each other.

The unit is a task: speed-ups differ between prompts far more than between measurements of one. Intervals are a
bootstrap over tasks within each category, since the mix of categories is the user's and no sample. Plain resampling is
too narrow for few tasks, so each draw is stretched by a draw of the standard deviation's uncertainty, which gives it
Student's tails; degrees of freedom over several categories are Satterthwaite's (Biometrics Bulletin 2, 1946). What all
tasks of a visit share (another load of the machine) no resampling of tasks shows: it is read off the pairs of plain
visits around each block, and added. A task on which these two hardly agree is left out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from slipstream.lab.bootstrap import Floats, generator, interval, resampled
from slipstream.lab.tune_visit import Block, Role
from slipstream.lab.tuned import Ratio

PLAIN_SHARE = 0.75
"""Variance of (a visit − the mean of two others) ÷ variance of (one visit − another)."""

UNUSUAL, ROUGH = 4.0, math.log(1.25)
"""Plain decoding before and after hardly agrees if it differs by so many standard deviations, and by so much."""

SIGMA = 1.4826
"""Standard deviation ÷ median of the distances, of normal values."""

N_DRAWS = 4000

FAR = 50.0
"""As a logarithm, no bound of two wild tasks is given farther out."""


@dataclass(frozen=True)
class Point:
    """One task in one block: the logarithm of an arm's speed against plain decoding."""

    arm: str
    task: str
    category: str
    block: int
    log_ratio: float


@dataclass(frozen=True)
class Drift:
    """How much whole visits of plain decoding differ: variance of the logarithm, from `n_blocks` pairs of visits."""

    variance: float
    n_blocks: int


def disturbed(blocks: Sequence[Block]) -> list[frozenset[str]]:
    """By block, the tasks during which something else took the machine, as plain decoding before and after shows.

    The setting itself has no part in it, so leaving such tasks out favours none.
    """
    shifts = [{task: abs(drift) for task, drift in block.log_drifts().items()} for block in blocks]
    every = [shift for found in shifts for shift in found.values()]
    limit = max(ROUGH, UNUSUAL * SIGMA * statistics.median(every)) if every else 0.0
    return [frozenset(task for task, shift in found.items() if shift > limit) for found in shifts]


def points(blocks: Sequence[Block], roles: Sequence[Role] = ("search",)) -> list[Point]:
    return [
        Point(block.arm, task, block.category(task), i, value)
        for i, (block, left_out) in enumerate(zip(blocks, disturbed(blocks), strict=True))
        if block.role in roles
        for task, value in block.log_ratios().items()
        if task not in left_out
    ]


def drift(blocks: Sequence[Block]) -> Drift:
    """From the plain visits around each block; what single tasks vary by is taken off, since it is counted already.

    Where a visit is a single task the two are one, and there is nothing to add.
    """
    steady = (
        [drift for task, drift in block.log_drifts().items() if task not in left_out]
        for block, left_out in zip(blocks, disturbed(blocks), strict=True)
    )
    several = [np.array(found) for found in steady if len(found) > 1]
    if not several:
        return Drift(0.0, 0)
    within = sum(float(((d - d.mean()) ** 2).sum()) for d in several) / sum(len(d) - 1 for d in several)
    shared = float(np.mean([d.mean() ** 2 - within / len(d) for d in several]))
    return Drift(max(shared, 0.0), len(several))


def ratio(some: Sequence[Point], drift: Drift) -> Ratio | None:
    """The geometric mean over tasks with its 95 % interval; None for fewer than two tasks."""
    values = _by_task(some)
    if len(values) < 2:
        return None
    random = generator()
    value = float(np.mean([log_ratio for *_, log_ratio in values]))
    drawn = value + _deviations([np.array(group) for group in _strata(values)], random)
    drawn += _shifts(some, drift, random)
    low, high = interval(drawn)
    return Ratio(_speed(value), _speed(low), _speed(high), len(values))


def _speed(log_ratio: float) -> float:
    return math.exp(max(-FAR, min(FAR, log_ratio)))


def versus(some: Sequence[Point], arm: str, other: str, drift: Drift) -> Ratio | None:
    """One arm's speed against another's, on the tasks that both had; None for fewer than two."""
    theirs = {task: value for task, _, value in _by_task([p for p in some if p.arm == other])}
    both = [replace(p, log_ratio=p.log_ratio - theirs[p.task]) for p in some if p.arm == arm and p.task in theirs]
    return ratio(both, Drift(2 * drift.variance, drift.n_blocks))


def scores(some: Sequence[Point]) -> dict[str, float]:
    """By arm, its logarithm as if all arms had had all tasks: log ratio = arm + task, by least squares."""
    arms, tasks = ({name: i for i, name in enumerate(dict.fromkeys(names))} for names in _names(some))
    if not arms:
        return {}
    rows = np.zeros((len(some) + 1, len(arms) + len(tasks)))
    for i, p in enumerate(some):
        rows[i, arms[p.arm]] = rows[i, len(arms) + tasks[p.task]] = 1.0
    rows[-1, len(arms) :] = 1.0  # tasks are those of no arm: their effects add up to nothing
    target = np.array([*(p.log_ratio for p in some), 0.0])
    solved = np.linalg.lstsq(rows, target, rcond=None)[0]
    return {arm: float(solved[i]) for arm, i in arms.items()}


def _names(some: Sequence[Point]) -> tuple[list[str], list[str]]:
    return [p.arm for p in some], [p.task for p in some]


def _by_task(some: Sequence[Point]) -> list[tuple[str, str, float]]:
    """(task, category, mean log ratio)."""
    tasks: dict[str, list[Point]] = {}
    for point in some:
        tasks.setdefault(point.task, []).append(point)
    return [(t, found[0].category, float(np.mean([p.log_ratio for p in found]))) for t, found in tasks.items()]


def _strata(values: Sequence[tuple[str, str, float]]) -> list[list[float]]:
    """Groups of at least two: by category, and what is alone in its own together."""
    groups: dict[str, list[float]] = {}
    for _, category, value in values:
        groups.setdefault(category, []).append(value)
    alone = [group[0] for group in groups.values() if len(group) == 1]
    several = [group for group in groups.values() if len(group) > 1]
    if len(alone) > 1 or not several:
        return [*several, alone]
    return [several[0] + alone, *several[1:]]


def _deviations(groups: Sequence[Floats], random: np.random.Generator) -> Floats:
    """Draws of what the mean over all groups is off by, float64 (N_DRAWS,), with Student's tails."""
    n_all = sum(map(len, groups))
    drawn, variances, freedom = np.zeros(N_DRAWS), [], []
    for group in groups:
        n, share = len(group), len(group) / n_all
        means = group[resampled(n, random, N_DRAWS)].mean(axis=1)
        drawn += share * math.sqrt(n / (n - 1)) * (means - group.mean())
        variances.append(share**2 * float(group.var(ddof=1)) / n)
        freedom.append(n - 1)
    squares = sum(variance**2 / n for variance, n in zip(variances, freedom, strict=True))
    if not squares:
        return drawn
    degrees = sum(variances) ** 2 / squares
    stretched: Floats = drawn * np.sqrt(degrees / random.chisquare(degrees, N_DRAWS))
    return stretched


def _shifts(some: Sequence[Point], drift: Drift, random: np.random.Generator) -> Floats | float:
    """Draws of what whole visits were off by, float64 (N_DRAWS,)."""
    if not drift.variance:
        return 0.0
    _, counts = np.unique([p.block for p in some], return_counts=True)
    shares = counts / counts.sum()
    scale = math.sqrt(PLAIN_SHARE * drift.variance * float((shares**2).sum()))
    return scale * random.standard_t(drift.n_blocks, N_DRAWS)
