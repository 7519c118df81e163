"""Draft lengths by batch size, as vLLM and SGLang take them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from slipstream.engines.schedules import (
    best_length,
    scheduled,
    sglang_adaptive,
    sglang_start,
    vllm_schedule,
    with_schedule,
)
from slipstream.errors import InputError

# Tokens a second by batch size and draft length: drafting pays up to 4 at once, and no longer at 16.
MEASURED = {
    1: {0: 100.0, 3: 180.0, 5: 170.0},
    4: {0: 390.0, 3: 420.0, 5: 430.0},
    16: {0: 1500.0, 3: 1300.0, 5: 1100.0},
    64: {0: 4000.0, 3: 2500.0},
}


def test_the_fastest_length_wins_and_of_equals_the_shortest() -> None:
    assert best_length({0: 1.0, 3: 1.5, 5: 1.5}) == 3
    assert best_length({0: 1.0, 3: 1.0}) == 0


def test_vllm_gets_one_range_a_length_from_1_to_the_largest_batch() -> None:
    # Cut at the geometric means of 1 and 4, and of 4 and 16; 16 and 64 are of one mind.
    assert vllm_schedule(MEASURED, 512) == [(1, 2, 3), (3, 8, 5), (9, 512, 0)]


def test_ranges_meet_without_gap_or_overlap() -> None:
    speeds = {size: {0: 1.0, size % 3: 2.0} for size in (2, 3, 5, 7, 30, 31, 100)}
    schedule = vllm_schedule(speeds, 256)
    assert schedule[0][0] == 1
    assert schedule[-1][1] == 256
    assert all(last + 1 == first for (_, last, _), (first, _, _) in pairwise(schedule))
    for size, by_length in speeds.items():
        assert scheduled(schedule, size, 9) == best_length(by_length)


def test_ranges_behind_the_largest_batch_are_left_out() -> None:
    assert vllm_schedule(MEASURED, 8) == [(1, 2, 3), (3, 8, 5)]


def test_a_schedule_goes_into_the_configuration_with_its_longest_length() -> None:
    config = {"method": "eagle3", "model": "head", "num_speculative_tokens": 2}
    assert with_schedule(config, vllm_schedule(MEASURED, 64)) == {
        "method": "eagle3",
        "model": "head",
        "num_speculative_tokens": 5,
        "num_speculative_tokens_per_batch_size": [[1, 2, 3], [3, 8, 5], [9, 64, 0]],
    }


def test_one_length_for_all_needs_no_schedule_and_none_at_all_no_speculation() -> None:
    assert with_schedule({"method": "mtp"}, [(1, 64, 2)]) == {"method": "mtp", "num_speculative_tokens": 2}
    assert with_schedule({"method": "mtp"}, [(1, 64, 0)]) is None


def test_batch_sizes_in_a_gap_or_behind_the_end_follow_the_range_before() -> None:
    schedule = [[1, 4, 5], [9, 16, 2]]
    assert [scheduled(schedule, batch, 7) for batch in (1, 4, 6, 9, 16, 500)] == [5, 5, 5, 2, 2, 2]
    assert scheduled(None, 3, 7) == 7


def test_sglang_gets_the_lengths_that_lost_nothing() -> None:
    assert sglang_adaptive(MEASURED) == {"1": {"candidate_steps": [3, 5]}, "9": {"candidate_steps": [0]}}
    assert sglang_start(MEASURED) == 3


def test_sglang_never_gets_a_length_that_was_slower_than_plain() -> None:
    assert sglang_adaptive({8: {0: 10.0, 1: 11.0, 3: 9.0}}) == {"1": {"candidate_steps": [1]}}


@pytest.mark.parametrize(
    ("speeds", "said"),
    [
        ({}, "batch sizes from 1 on"),
        ({0: {0: 1.0}}, "batch sizes from 1 on"),
        ({1: {3: 1.0}}, "speed of plain decoding"),
        ({1: {0: 1.0, 3: 0.0}}, "length 3 at speed 0.0"),
        ({1: {0: 1.0, -2: 1.0}}, "length -2"),
        ({1: {0: float("nan")}}, "length 0 at speed nan"),
    ],
)
def test_speeds_that_decide_nothing_are_refused(speeds: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        vllm_schedule(speeds, 64)
    with pytest.raises(InputError, match=said):
        sglang_adaptive(speeds)
