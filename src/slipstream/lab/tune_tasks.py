"""What is asked at once, and which of it chooses the winner and which judges it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from slipstream.errors import InputError
from slipstream.lab.workload import Prompt

SEED = 0
MIN_FRESH = 6
"""With fewer prompts kept apart, a judgement would rest on too few: all of them choose and judge then."""

MIXED = "mixed"
"""The category of requests at once that come from several."""


@dataclass(frozen=True)
class Task:
    """One prompt, or as many as are asked at once; measured as a whole."""

    id: str
    category: str
    prompts: tuple[Prompt, ...]


@dataclass(frozen=True)
class Pools:
    """search: tasks by which settings are chosen. fresh: those by which the chosen ones are judged, others if possible.

    Both in an order in which categories take turns.
    """

    search: tuple[Task, ...]
    fresh: tuple[Task, ...]


def pools(prompts: Sequence[Prompt], concurrency: int) -> Pools:
    """Raises InputError where there are fewer prompts than requests at once."""
    by_category: dict[str, list[Task]] = {}
    for task in _tasks(_named_apart(prompts), concurrency):
        by_category.setdefault(task.category, []).append(task)
    fresh = {category: tasks[: len(tasks) // 2] for category, tasks in by_category.items()}
    if sum(map(len, fresh.values())) < MIN_FRESH:
        everything = _in_turn(list(by_category.values()))
        return Pools(everything, everything)
    search = [tasks[len(fresh[category]) :] for category, tasks in by_category.items()]
    return Pools(_in_turn(search), _in_turn(list(fresh.values())))


def _tasks(prompts: Sequence[Prompt], concurrency: int) -> list[Task]:
    """In an order of chance, always the same. No prompt is in two: a drafter that learns would know the answer."""
    if len(prompts) < concurrency:
        raise InputError(
            f"{concurrency} requests at once need as many prompts; there are {len(prompts)}.",
            "Give more prompts, or a smaller --concurrency.",
        )
    shuffled = random.Random(SEED).sample(list(prompts), len(prompts))
    by_category: dict[str, list[Prompt]] = {}
    for prompt in shuffled:
        by_category.setdefault(prompt.category, []).append(prompt)
    tasks: list[Task] = []
    left: list[Prompt] = []
    for category, some in by_category.items():
        n_whole = len(some) // concurrency * concurrency
        tasks += [_task(category, some[i : i + concurrency]) for i in range(0, n_whole, concurrency)]
        left += some[n_whole:]
    n_whole = len(left) // concurrency * concurrency
    return tasks + [_task(MIXED, left[i : i + concurrency]) for i in range(0, n_whole, concurrency)]


def _task(category: str, prompts: Sequence[Prompt]) -> Task:
    name = prompts[0].id if len(prompts) == 1 else f"{prompts[0].id} and {len(prompts) - 1} more"
    return Task(name, category, tuple(prompts))


def _in_turn(groups: Sequence[Sequence[Task]]) -> tuple[Task, ...]:
    return tuple(task for row in zip_longest(*groups) for task in row if task is not None)


def _named_apart(prompts: Sequence[Prompt]) -> list[Prompt]:
    """With names that tell them apart: the second of a name gets a number."""
    names: set[str] = set()
    counts: dict[str, int] = {}
    apart = []
    for prompt in prompts:
        name = prompt.id
        while name in names:
            counts[prompt.id] = counts.get(prompt.id, 1) + 1
            name = f"{prompt.id} ({counts[prompt.id]})"
        names.add(name)
        apart.append(replace(prompt, id=name))
    return apart
