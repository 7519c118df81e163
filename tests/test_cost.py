"""t(w): measured under a cap of time, interpolated, corrected by what passes really took."""

import math

import numpy as np
import pytest

from slipstream.decoding.cost import MAX_WIDTH, CostCurve
from slipstream.decoding.cost_probe import measure
from slipstream.decoding.protocols import Pass, Rows

STEPS = {1: 0.020, 2: 0.037, 3: 0.048, 4: 0.040, 8: 0.051, 16: 0.078}


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TimedRuntime:
    """Computes nothing; lets the clock advance by t(w)."""

    n_vocab, n_ctx, n_seq_max, n_batch = 4, 512, 1, 512

    def __init__(self, clock: FakeClock, seconds, max_rollback: int | None = None) -> None:
        self.clock, self.seconds, self.max_rollback = clock, seconds, max_rollback
        self.held = 0
        self.widths: list[int] = []

    def forward(self, rows: list[Rows]) -> Pass:
        assert [r.start for r in rows] == [self.held]
        width = sum(len(r.tokens) + r.n_padding for r in rows)
        self.held += width
        self.widths.append(width)
        self.clock.now += self.seconds(width)
        return Pass(tuple(np.zeros((r.n_outputs, 4), dtype=np.float32) for r in rows), (width,))

    def keep(self, seq: int, n_tokens: int) -> None:
        if self.max_rollback is not None and n_tokens:
            assert self.held - n_tokens <= min(self.max_rollback, self.widths[-1] - 1)
        self.held = n_tokens


def test_what_was_measured_is_kept_and_what_lies_between_is_interpolated():
    curve = CostCurve(STEPS)
    assert all(curve.time(w) == pytest.approx(t) for w, t in STEPS.items())
    assert curve.time(6) == pytest.approx((0.040 + 0.051) / 2)
    assert curve.time(32) > curve.time(16)
    assert curve.time(2 * MAX_WIDTH) == pytest.approx(2 * curve.time(MAX_WIDTH))


def test_with_one_point_nothing_is_taken_to_be_free():
    assert CostCurve({1: 0.5}).time(4) == pytest.approx(2.0)


def test_a_pass_is_padded_to_a_width_that_is_cheaper():
    curve = CostCurve(STEPS)
    assert curve.cheapest(3, limit=100) == 4
    assert curve.cheapest(3, limit=3) == 3
    assert curve.cheapest(1, limit=100) == 1


def test_a_gain_within_the_noise_is_no_reason_to_pad():
    assert CostCurve({1: 0.0475, 2: 0.0470}).cheapest(1, limit=10) == 1


def test_a_busier_machine_moves_the_whole_curve():
    curve = CostCurve(STEPS)
    before = curve.time(8) / curve.time(1)
    for _ in range(200):
        curve.observe(1, 0.030)
        curve.observe(8, 0.0765)
    assert curve.time(1) == pytest.approx(0.030, rel=0.02)
    assert curve.time(16) == pytest.approx(0.117, rel=0.1)
    assert curve.time(8) / curve.time(1) == pytest.approx(before, rel=0.02)


def test_a_width_measured_wrong_is_learned_while_running():
    curve = CostCurve(STEPS)
    for _ in range(300):
        curve.observe(1, 0.020)
        curve.observe(2, 0.025)
    assert curve.time(2) / curve.time(1) == pytest.approx(1.25, rel=0.03)


def test_one_interrupted_pass_hardly_moves_the_curve():
    curve = CostCurve(STEPS)
    curve.observe(4, 5.0)
    assert curve.time(4) < 0.040 * 1.07
    assert curve.time(1) < 0.020 * 1.05


def test_measuring_finds_the_steps_and_keeps_to_its_time():
    clock = FakeClock()
    runtime = TimedRuntime(clock, CostCurve(STEPS).time)
    done: list[float] = []
    curve = measure(runtime, list(range(100)), clock, cap_s=3.0, progress=done.append)
    assert clock.now <= 3.0
    assert curve.time(3) > curve.time(4) == pytest.approx(0.040)
    assert runtime.held == 0 and done[-1] == 1.0 and done == sorted(done)


def test_measuring_needs_no_text():
    """Of the probe's text a small vocabulary may have no token at all."""
    clock = FakeClock()
    assert measure(TimedRuntime(clock, lambda width: 0.01), [], clock, cap_s=0.1).time(1) == pytest.approx(0.01)


def test_on_a_slow_machine_the_widths_that_matter_are_measured_first():
    clock = FakeClock()
    runtime = TimedRuntime(clock, lambda width: 0.4 * (1 + 0.1 * width))
    curve = measure(runtime, [1, 2, 3], clock, cap_s=3.0)
    assert clock.now <= 3.0
    assert {1, 2} <= set(curve.measured) and 32 not in curve.measured


def test_one_interrupted_sample_does_not_spoil_a_measurement():
    clock, calls = FakeClock(), iter(range(10**6))
    runtime = TimedRuntime(clock, lambda width: 0.01 * width if next(calls) % 7 else 0.2)
    curve = measure(runtime, [1, 2, 3], clock, cap_s=20.0)
    assert curve.time(1) == pytest.approx(0.01) and curve.time(4) == pytest.approx(0.04)


@pytest.mark.parametrize(("max_rollback", "widest"), [(0, 1), (6, 6)])
def test_widths_stay_within_what_the_cache_can_drop(max_rollback, widest):
    clock = FakeClock()
    runtime = TimedRuntime(clock, lambda width: 0.01 * width, max_rollback)
    assert max(measure(runtime, [1, 2, 3], clock, cap_s=1.0).measured) == widest


def test_a_curve_survives_being_stored():
    curve = CostCurve.from_data(CostCurve(STEPS).to_data())
    assert curve is not None and all(curve.time(w) == pytest.approx(t) for w, t in STEPS.items())


@pytest.mark.parametrize(
    "data",
    [
        *(None, {}, {"seconds": []}, {"seconds": {"2": 1.0}}, {"seconds": {"1": 0.1, "34": 1.0}}),
        *({"seconds": {"1": 0.1, "2": t}} for t in (-1, math.nan, 1e308, 1e-300, True, "0.1", None, 10**400)),
    ],
)
def test_a_damaged_curve_is_no_curve(data):
    assert CostCurve.from_data(data) is None
