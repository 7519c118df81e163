"""Ratios and their intervals, on numbers whose truth is known."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from slipstream.engines.protocol import Answer
from slipstream.lab.tune_statistics import Drift, Point, disturbed, drift, points, ratio, scores, versus
from slipstream.lab.tune_visit import Block, Measured, Visit

STEADY = Drift(0.0, 0)


def visit(arm: str, *seconds: float, n_tokens: int = 101) -> Visit:
    """One task a value, of a hundred tokens behind the first."""
    answer = Answer("text", n_tokens, 0.1, 1.0)
    measured = {f"t{i}": Measured("chat", n_tokens - 1, s, ((f"t{i}", answer),)) for i, s in enumerate(seconds)}
    return Visit(arm, measured, {}, 1.0, sum(seconds))


def some(values: list[float], arm: str = "fast", category: str = "chat", block: int = 0) -> list[Point]:
    return [Point(arm, f"{category} {i}", category, block, math.log(value)) for i, value in enumerate(values)]


def test_a_ratio_is_of_the_mean_of_both_neighbours():
    block = Block("fast", "search", visit("plain", 1.0), visit("fast", 0.5), visit("plain", 1.4))
    assert block.log_ratios() == {"t0": pytest.approx(math.log(2.4))}
    assert list(block.log_drifts().values()) == [pytest.approx(math.log(1 / 1.4))]


def test_a_load_that_grows_evenly_cancels_out():
    loads = [1.0, 1.1, 1.2, 1.3, 1.4]
    visits = [visit("plain" if i % 2 == 0 else "fast", 2.0 * load, 3.0 * load) for i, load in enumerate(loads)]
    blocks = [Block("fast", "search", *visits[i : i + 3]) for i in (0, 2)]
    assert ratio(points(blocks), STEADY).value == pytest.approx(1.0)


def test_answers_too_short_to_count_make_no_ratio():
    before, after = visit("plain", 1.0), visit("plain", 1.0)
    assert Block("fast", "search", before, visit("fast", 0.1, n_tokens=7), after).log_ratios() == {}
    assert Block("fast", "search", before, visit("fast", 0.1, n_tokens=8), after).log_ratios() != {}


def test_one_task_tells_nothing():
    assert ratio(some([1.5]), STEADY) is None and ratio([], STEADY) is None


def test_the_mean_is_geometric_and_of_tasks_not_of_measurements():
    twice = [*some([2.0, 0.5]), *some([2.0], block=1)]
    found = ratio(twice, STEADY)
    assert (found.value, found.n) == (pytest.approx(1.0), 2)


@pytest.mark.parametrize("n", [2, 3, 5, 20])
def test_intervals_hold_the_truth_as_often_as_they_say(n):
    """95 of 100 in the mean; with 300 runs, below 90 comes by chance once in ten thousand times."""
    random = np.random.default_rng(1)
    runs = [ratio(some(list(np.exp(random.normal(0.2, 0.1, n)))), STEADY) for _ in range(300)]
    held = sum(r.low <= math.exp(0.2) <= r.high for r in runs)
    assert held >= 270


@pytest.mark.parametrize(("sizes", "deviations"), [((3, 2), (0.1, 0.1)), ((2,) * 8, (0.1,) * 8), ((9, 8), (0.02, 0.3))])
def test_intervals_over_categories_hold_the_truth_as_often(sizes, deviations):
    random = np.random.default_rng(3)
    truth = sum(n * c for c, n in enumerate(sizes)) / sum(sizes)
    held, widths = 0, []
    for _ in range(300):
        values = [random.normal(c, s, n) for c, (n, s) in enumerate(zip(sizes, deviations, strict=True))]
        found = ratio([p for c, v in enumerate(values) for p in some(list(np.exp(v)), category=f"c{c}")], STEADY)
        held += found.low <= math.exp(truth) <= found.high
        widths.append(math.log(found.high / found.low))
    assert held >= 270 and np.median(widths) < 0.4


def test_categories_are_no_sample():
    """Twice as fast in one, half as fast in the other, always: of the mean there is no doubt."""
    found = ratio([*some([2.0, 2.0, 2.0]), *some([0.5, 0.5, 0.5], category="edit")], STEADY)
    assert (found.low, found.high) == (pytest.approx(1.0), pytest.approx(1.0))


def test_categories_of_one_task_are_taken_together():
    alone = [p for i, value in enumerate((1.0, 2.0, 4.0)) for p in some([value], category=f"c{i}")]
    found = ratio(alone, STEADY)
    assert found.value == pytest.approx(2.0) and found.low < 0.7 and found.high > 5
    assert ratio([*some([1.0, 1.1]), *some([2.0], category="edit")], STEADY).n == 3


def plain_blocks(*loads: float) -> list[Block]:
    visits = [visit("plain", 1.0 * load, 2.0 * load, 3.0 * load) for load in loads]
    return [Block("fast", "search", a, visit("fast", 1.0, 2.0, 3.0), b) for a, b in pairwise(visits)]


def test_what_something_else_disturbed_is_left_out():
    """The machine is four times slower for a visit: what is measured in them, and as it changes, tells nothing."""
    steady, busy = plain_blocks(1, 1.02, 1, 0.98, 1, 1.01), plain_blocks(1, 1.02, 1, 0.98, 4, 1.01, 1)
    all_tasks = frozenset(busy[0].tried.measured)
    assert disturbed(steady) == [frozenset()] * 5
    assert disturbed(busy) == [*[frozenset()] * 3, all_tasks, all_tasks, frozenset()]
    assert {p.block for p in points(busy)} == {0, 1, 2, 5} and drift(busy).n_blocks == 4


def test_on_a_machine_that_is_always_so_nothing_is_left_out():
    loads = [1, 1.5, 0.9, 1.4, 1, 1.6]
    assert not any(disturbed(plain_blocks(*loads))) and disturbed([]) == []


def test_what_whole_visits_differ_by_widens_the_interval():
    quiet, loud = drift(plain_blocks(1, 1, 1, 1)), drift(plain_blocks(1, 1.3, 1, 1.3))
    assert quiet.variance == pytest.approx(0.0, abs=1e-12) and loud.variance == pytest.approx(math.log(1.3) ** 2)
    values = some([1.1, 1.12, 1.08, 1.1])
    assert ratio(values, quiet).low > 1.05 and ratio(values, loud).low < 0.9


def test_more_visits_make_it_narrower_again():
    loud = Drift(0.04, 20)
    one_block, four = some([1.5] * 8), [p for i in range(4) for p in some([1.5, 1.5], category=f"c{i}", block=i)]
    assert ratio(one_block, loud).low < ratio(four, loud).low


def test_what_tasks_differ_by_is_no_drift():
    """Each task varies by a tenth between visits, the machine does not."""
    random = np.random.default_rng(2)
    visits = [visit("plain", *np.exp(random.normal(0, 0.1, 20))) for _ in range(21)]
    blocks = [Block("fast", "search", a, visit("fast", *[1.0] * 20), b) for a, b in pairwise(visits)]
    assert drift(blocks).variance < 0.001


def test_visits_of_one_task_tell_no_drift_apart_from_the_task():
    assert drift([Block("fast", "search", visit("plain", 1.0), visit("fast", 1.0), visit("plain", 2.0))]) == Drift(
        0.0, 0
    )


def test_two_settings_are_compared_on_the_tasks_that_both_had():
    """Tasks differ by a factor of four, the settings by a tenth each time: which no mean would show."""
    hard = [0.5, 1.0, 2.0]
    both = [*some(hard, "slow"), *some([1.1 * v for v in hard], "fast"), *some([9.0], "fast", category="other")]
    found = versus(both, "fast", "slow", STEADY)
    assert (found.value, found.n) == (pytest.approx(1.1), 3) and found.low == pytest.approx(1.1)
    assert versus(both, "fast", "nobody", STEADY) is None


def test_scores_are_as_if_all_had_had_all_tasks():
    """The newcomer had the easy task alone, and was worse there than the other one."""
    easy, hard = some([2.0, 1.0], "old"), some([1.8], "new")
    found = scores([*easy, *hard])
    assert found["old"] == pytest.approx(math.log(2) / 2) and found["new"] == pytest.approx(
        found["old"] + math.log(0.9)
    )
    assert scores([]) == {}


def test_wild_numbers_stay_finite():
    found = ratio(some([1e-12, 1e12]), STEADY)
    assert 0 < found.low < found.high < math.inf
