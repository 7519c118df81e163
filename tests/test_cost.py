"""t(w): measured under a cap of time, interpolated, corrected by what passes really took."""

import json
import math

import numpy as np
import pytest

from slipstream.decoding.cost import MAX_WIDTH, CostCurve, Far
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


FAR = Far(1000, {1: 0.030, 8: 0.081, 16: 0.138})
"""Behind 1000 tokens a pass takes 10 ms more, one over 8 takes 30 ms more, one over 16 takes 60 ms."""


def test_a_pass_takes_longer_behind_a_longer_context():
    curve = CostCurve(STEPS, far=FAR)
    assert curve.time(8, 256) == curve.time(8, 0) == pytest.approx(0.051)
    assert curve.time(8, 1024) == pytest.approx(0.051 + 0.030 * 0.768), "three quarters of where the band ends"
    assert curve.time(8, 4000) == pytest.approx(0.051 + 0.030 * 3.072)
    times = [curve.time(1, n) for n in (1, 256, 257, 512, 513, 1024, 1025, 2048)]
    assert times == sorted(times) and len(set(times)) == 4, "one time a band"


def test_what_a_context_adds_between_the_widths_that_were_measured_there_is_interpolated():
    curve = CostCurve({1: 0.02, 33: 0.02}, far=FAR)
    added = [(curve.time(w, 1000) - 0.02) / 0.768 for w in (1, 8, 12, 16)]
    assert added == pytest.approx([0.010, 0.061, (0.061 + 0.118) / 2, 0.118])


def test_a_wider_pass_is_never_thought_to_gain_by_a_longer_context():
    """One interrupted sample behind the long context would make all wider passes look cheap there."""
    curve = CostCurve(STEPS, far=Far(1000, {1: 0.020, 4: 0.140, 8: 0.051}))
    assert curve.time(8, 1000) - curve.time(8) == pytest.approx(curve.time(4, 1000) - curve.time(4))


def test_without_a_far_measurement_the_context_costs_nothing():
    assert CostCurve(STEPS).time(8, 8000) == CostCurve(STEPS).time(8)


def test_a_far_measurement_survives_being_stored():
    curve = CostCurve.from_data(json.loads(json.dumps(CostCurve(STEPS, far=FAR).to_data())))
    assert curve is not None and curve.far == FAR


@pytest.mark.parametrize(
    "far",
    [
        *([], 3, {"n_context": 100}, {"n_context": 100, "seconds": {"2": 0.1}}, {"seconds": {"1": 0.1}}),
        *({"n_context": n, "seconds": {"1": 0.1}} for n in (0, -1, 1.5, True, "9", math.nan, 10**400)),
        *({"n_context": 100, "seconds": {"1": t}} for t in (math.nan, -1, 10**400)),
    ],
)
def test_a_damaged_far_measurement_makes_no_curve(far):
    data = {"seconds": {"1": 0.1}, "far": far}
    assert CostCurve.from_data(data) is None or not far


def learn(curve: CostCurve, n_context: int, factor: float, widths=(1, 8), n: int = 200) -> None:
    """Passes behind such a context take `factor` times what was measured, those of width 1 what was measured."""
    for _ in range(n):
        for width in widths:
            curve.observe(width, STEPS[width] * (factor if width > 1 else 1.0), n_context)


def test_a_band_learns_without_spoiling_the_first_one():
    curve = CostCurve(STEPS)
    learn(curve, 2000, 2.0)
    assert curve.time(8, 2000) == pytest.approx(2 * STEPS[8], rel=0.05)
    assert curve.time(16, 2000) > 1.5 * STEPS[16], "its neighbours learn with it"
    assert curve.time(1, 2000) == pytest.approx(STEPS[1], rel=0.05)
    for width in 1, 4, 8, 16:
        for n_context in 100, 600:
            shape = curve.time(width, n_context) / curve.time(1, n_context)
            assert shape == pytest.approx(STEPS[width] / STEPS[1], rel=0.01), "nor those between"
            assert curve.time(width, n_context) == pytest.approx(STEPS[width], rel=0.2), "the scale is shared"


def test_two_bands_that_are_visited_in_turn_keep_their_own_times():
    """All passes take twice as long behind the longer context, plain ones too: that is no load of the machine."""
    curve = CostCurve(STEPS)
    for n_context, factor in [(100, 1.0), (2000, 2.0)] * 40:
        for width in (1, 4, 8) * 10:
            curve.observe(width, factor * STEPS[width], n_context)
    for n_context, factor in (100, 1.0), (2000, 2.0):
        for width in 1, 4, 8:
            assert curve.time(width, n_context) == pytest.approx(factor * STEPS[width], rel=0.05)


def test_a_plain_pass_tells_a_busier_machine_from_a_shape_that_was_wrong():
    """While only wide passes run, both look alike; what the plain ones say then decides."""
    busier, wrong = CostCurve(STEPS), CostCurve(STEPS)
    for curve in busier, wrong:
        for _ in range(60):
            curve.observe(8, 2 * STEPS[8])
        assert curve.time(8) == pytest.approx(2 * STEPS[8], rel=0.1)
        assert curve.time(1) > 1.3 * STEPS[1], "taken for the machine at first"
        assert curve.drift > 0.2, "so that control asks for a plain pass"
    for _ in range(6):
        busier.observe(1, 2 * STEPS[1])
        wrong.observe(1, STEPS[1])
    assert busier.time(1) == pytest.approx(2 * STEPS[1], rel=0.1)
    assert wrong.time(1) == pytest.approx(STEPS[1], rel=0.1)
    for curve in busier, wrong:
        assert curve.time(8) == pytest.approx(2 * STEPS[8], rel=0.1), "what wide ones take is known all the same"
        assert abs(curve.drift) < 0.05


def test_plain_passes_alone_move_the_whole_curve():
    """Where nothing but plain decoding ran, a change can only be one of the machine."""
    curve = CostCurve(STEPS)
    for _ in range(60):
        curve.observe(1, 2 * STEPS[1])
    assert curve.time(8) / curve.time(1) == pytest.approx(STEPS[8] / STEPS[1])
    assert curve.time(1) == pytest.approx(2 * STEPS[1], rel=0.05)


def test_what_three_passes_agree_on_is_learned_sooner_than_what_one_says():
    once, thrice = CostCurve(STEPS), CostCurve(STEPS)
    for seconds in 0.020, 0.020, 0.080, 0.020:
        once.observe(1, seconds)
    for _ in range(4):
        thrice.observe(1, 0.080)
    assert once.time(1) < 0.022 and thrice.time(1) > 0.028


class ContextRuntime(TimedRuntime):
    """A pass takes longer behind a longer context: each token of the context adds 10 µs a row."""

    n_ctx = 2048

    def forward(self, rows: list[Rows]) -> Pass:
        held, passed = self.held, super().forward(rows)
        self.clock.now += 1e-5 * held * passed.widths[0]
        self.farthest = max(getattr(self, "farthest", 0), held)
        return passed


def test_where_there_is_time_passes_are_measured_behind_a_longer_context():
    clock = FakeClock()
    runtime = ContextRuntime(clock, lambda width: 0.001 + 0.0005 * width)
    curve = measure(runtime, list(range(100)), clock, cap_s=5.0)
    assert clock.now <= 5.0 and runtime.held == 0
    assert curve.far is not None and 512 < curve.far.n_context <= 1024
    for width in 1, 8, 16:
        added = curve.far.seconds[width] - curve.time(width)
        assert added == pytest.approx(1e-5 * width * (curve.far.n_context - 8), rel=0.01)
        assert curve.time(width, 1024) == pytest.approx(curve.time(width) + 1e-5 * width * 768, rel=0.02)


@pytest.mark.parametrize("cap_s", [0.05, 0.3, 1.0])
def test_where_there_is_no_time_the_short_context_has_it_all(cap_s):
    """Reading 256 tokens takes longer here than its share of the time: no second is lost on it."""
    clock = FakeClock()
    runtime = ContextRuntime(clock, lambda width: 0.005 * width)
    curve = measure(runtime, list(range(100)), clock, cap_s=cap_s)
    assert curve.far is None and runtime.farthest < 64
    assert clock.now <= cap_s + 0.005 * 8 + 2 * 0.005, "the prefix, the pass that warms up, and one of width 1"


def test_a_long_context_that_took_all_the_time_does_not_stand_for_the_short_one():
    """It was read in time, but so slowly that hardly a pass could be timed there: those of the short one count."""
    clock = FakeClock()
    runtime = ContextRuntime(clock, lambda width: 0.001 * width if width < 200 else 4.9)
    curve = measure(runtime, list(range(100)), clock, cap_s=2.0)
    assert runtime.farthest > 200
    assert curve.time(1) == pytest.approx(0.001, rel=0.1) and 8 in curve.measured


def test_a_cache_that_cannot_go_back_is_not_filled():
    clock = FakeClock()
    runtime = ContextRuntime(clock, lambda width: 0.0001 * width, max_rollback=6)
    assert measure(runtime, [1, 2, 3], clock, cap_s=2.0).far is None and runtime.farthest < 64


def test_a_context_of_the_model_s_length_bounds_the_long_one():
    clock = FakeClock()
    runtime = ContextRuntime(clock, lambda width: 0.0001 * width)
    runtime.n_ctx = 600
    curve = measure(runtime, [1, 2, 3], clock, cap_s=5.0)
    assert curve.far is not None and curve.far.n_context + 33 <= 600
