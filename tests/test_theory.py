"""Closed forms against published figures and counting; the roofline's shape."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slipstream.decoding.cost import MAX_WIDTH
from slipstream.lab.theory import Roofline, best_length, distinct_experts, speedup

MACHINE = Roofline(weight_bytes=8e9, n_parameters=8e9, bandwidth=1e12, flops=20e12)
RIDGE = 10
"""The width at which its arithmetic takes as long as reading its weights."""


@pytest.mark.parametrize(
    ("acceptance", "draft_cost", "length", "gain"), [(0.6, 0.05, 4, 1.92), (0.8, 0.05, 8, 3.09), (0.9, 0.05, 13, 4.67)]
)
def test_the_best_length_is_that_of_the_literature(acceptance, draft_cost, length, gain):
    """Leviathan et al., arXiv 2211.17192, theorem 3.8."""
    assert best_length(acceptance, draft_cost) == (length, pytest.approx(gain, abs=0.01))


def test_the_best_length_may_be_none():
    assert best_length(0.2, 0.5) == (0, 1.0)


def test_a_draft_that_is_always_right_is_as_long_as_it_may_be():
    assert best_length(1.0, 0.01) == (MAX_WIDTH - 1, pytest.approx(MAX_WIDTH / (1 + 0.01 * (MAX_WIDTH - 1))))
    assert speedup(1.0, 4, 0.0) == 5.0 and speedup(0.0, 4, 0.25) == 0.5


@pytest.mark.parametrize(("n_experts", "n_used", "width"), [(16, 2, 1), (16, 2, 5), (64, 6, 8), (8, 8, 3)])
def test_distinct_experts_are_as_many_as_are_counted(n_experts, n_used, width):
    """Tokens that each draw their experts evenly; the bound is four standard errors."""
    rng = np.random.default_rng(0)
    drawn = rng.random((2000, width, n_experts)).argsort(axis=2)[:, :, :n_used]
    counts = [len(np.unique(sample)) for sample in drawn]
    error = np.std(counts) / np.sqrt(len(counts))
    assert abs(np.mean(counts) - distinct_experts(n_experts, n_used, width)) <= 4 * error + 1e-9


@pytest.mark.parametrize(("width", "times"), [(1, 1.0), (2, 1.97), (4, 3.8)])
def test_a_pass_over_a_few_tokens_reads_almost_as_many_times_the_experts(width, times):
    assert distinct_experts(256, 8, width) / 8 == pytest.approx(times, abs=0.05)


def test_a_pass_costs_what_memory_takes_and_then_what_arithmetic_takes():
    flat = [MACHINE.time(w) for w in range(1, RIDGE + 1)]
    assert flat == pytest.approx([8e-3] * RIDGE)
    steep = np.diff([MACHINE.time(w) for w in range(RIDGE, MAX_WIDTH + 1)])
    assert steep == pytest.approx([0.8e-3] * len(steep))


def test_a_faster_memory_moves_the_ridge():
    fast = replace(MACHINE, bandwidth=2e12)
    assert [fast.time(w) for w in (1, 5, 6)] == pytest.approx([4e-3, 4e-3, 4.8e-3])


def test_every_pass_has_its_overhead():
    slow = replace(MACHINE, overhead_s=0.003)
    assert [slow.time(w) - MACHINE.time(w) for w in (1, 10, 30)] == pytest.approx([0.003] * 3)


def test_a_longer_context_has_more_to_read():
    machine = replace(MACHINE, kv_bytes=1e5)
    assert machine.time(1, 10_000) - machine.time(1) == pytest.approx(1e-3)
    assert machine.time(33, 1000) == machine.time(33), "hidden behind the arithmetic"


def test_experts_make_a_wider_pass_dear_where_a_dense_one_is_free():
    experts = replace(MACHINE, weight_bytes=1e9, n_parameters=2e9, expert_bytes=60e9, n_experts=256, n_used=8)
    assert experts.time(1) == pytest.approx((1e9 + 60e9 * 8 / 256) / 1e12)
    assert experts.time(4) / experts.time(1) > 2.5
    assert replace(experts, n_experts=0).time(4) == replace(experts, n_experts=0).time(1)


@pytest.mark.parametrize("kv_bytes", [0.0, 1e5])
def test_the_curve_is_the_roofline_itself(kv_bytes):
    machine = replace(MACHINE, kv_bytes=kv_bytes)
    curve = machine.curve()
    assert [curve.time(w) for w in range(1, MAX_WIDTH + 1)] == pytest.approx(
        [machine.time(w) for w in range(1, MAX_WIDTH + 1)]
    )
    assert curve.time(1, 700) == pytest.approx(machine.time(1, 768)), "each band of contexts has one time"
