"""Where the marks of the report's charts lie, and how its numbers are written."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from tuned_examples import arm, timeline

from slipstream.lab.report import numbers, plots, scale, speedups, timelines
from slipstream.lab.report.chart import Axes
from slipstream.lab.tuned import CostPoint, Ratio, Sample, Timeline


@pytest.mark.parametrize(
    ("value", "text"), [(1.2449, "1.24×"), (0.083, "0.08×"), (9.996, "10.0×"), (12.44, "12.4×"), (None, "–")]
)
def test_a_factor_has_three_digits(value: float | None, text: str) -> None:
    assert numbers.factor(value) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (Ratio(1.24, 1.18, 1.31, 9), "[1.18–1.31]"),
        (Ratio(11.5, 9.5, 12.95, 9), "[9.50–12.9]"),
        (Ratio(1.0, math.nan, 1.3, 9), ""),
        (Ratio(1.1, 1.0033, 1.2, 9), "[1.003–1.20]"),
        (Ratio(0.9, 0.8, 0.9996, 9), "[0.80–1.000]"),
        (Ratio(1.1, 1.0, 5e21, 2), "[1.00–many]"),
    ],
)
def test_an_interval_is_written_like_its_factor(ratio: Ratio, text: str) -> None:
    assert numbers.interval(ratio) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.416, "0.42 s"),
        (9.999, "10 s"),
        (59.6, "1 min 0 s"),
        (583.4, "9 min 43 s"),
        (3900, "1 h 5 min"),
        (math.nan, "–"),
    ],
)
def test_a_duration_has_the_units_of_its_size(seconds: float, text: str) -> None:
    assert numbers.duration(seconds).replace("\u00a0", " ") == text


@pytest.mark.parametrize(("speed", "text"), [(5.306, "5.31"), (54.06, "54.1"), (99.96, "100"), (1234.5, "1234")])
def test_a_speed_has_three_digits_where_there_is_a_point(speed: float, text: str) -> None:
    assert numbers.decimal(speed) == text


def test_half_and_double_lie_equally_far_from_plain_decoding() -> None:
    on = scale.ratios([0.5, 2.0])
    assert on.at(2.0) - on.at(1.0) == pytest.approx(on.at(1.0) - on.at(0.5))
    assert 0.0 < on.at(0.5) < on.at(2.0) < 100.0


@pytest.mark.parametrize("values", [[], [1.0], [0.001, 1e6], [1.3, 1.31], [0.05, 7.0], [-1.0, 0.0]])
def test_a_scale_of_ratios_always_shows_1_and_labels_that_do_not_touch(values: list[float]) -> None:
    on = scale.ratios(values)
    assert 1.0 in on.ticks and 0.0 < on.at(1.0) < 100.0
    places = [on.at(tick) for tick in on.ticks]
    assert all(b - a >= 13.9 for a, b in pairwise(places))


@pytest.mark.parametrize(
    ("top", "whole", "ticks"),
    [
        (0.0, False, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)),
        (43.6, False, (0.0, 10.0, 20.0, 30.0, 40.0, 50.0)),
        (3.0, True, (0.0, 1.0, 2.0, 3.0)),
    ],
)
def test_a_scale_from_zero_has_round_labels(top: float, whole: bool, ticks: tuple[float, ...]) -> None:
    assert scale.from_zero([top], whole=whole).ticks == pytest.approx(ticks)


@pytest.mark.parametrize("values", [[47.0], [47.0, 72.0], [0.0, 0.0], [1.2, 580.0, 3.4]])
def test_a_scale_around_values_holds_all_of_them_and_labels(values: list[float]) -> None:
    on = scale.around(values)
    assert on.low < min(values) and max(values) < on.high
    assert on.ticks and all(on.low <= tick <= on.high for tick in on.ticks)


def test_a_tight_scale_ends_at_the_highest_value() -> None:
    on = scale.from_zero([3.1], tight=True)
    assert on.at(3.1) == 100.0 and max(on.ticks) == 3.0


@pytest.mark.parametrize(
    ("low", "high", "tone"),
    [(1.01, 1.3, "faster"), (0.7, 0.99, "slower"), (0.9, 1.1, "unclear"), (1.0, 1.2, "unclear")],
)
def test_a_speed_up_counts_as_one_only_where_its_interval_lies_clear_of_1(low: float, high: float, tone: str) -> None:
    one = replace(arm("a", 1.0), overall=Ratio((low + high) / 2, low, high, 6))
    panel = speedups.panel([one], lambda arm: arm.overall, None, speedups.scale([one]))
    assert panel is not None
    row = panel.rows[0]
    assert row.tone == tone
    assert row.low < row.at < row.high and (row.low > panel.one) == (tone == "faster")


def test_one_wild_interval_does_not_hide_the_others() -> None:
    wild = replace(arm("wild", 1.0), overall=Ratio(1.2, 0.001, 5e21, 2), by_category={})
    sure = replace(arm("sure", 1.0), overall=Ratio(1.1, 0.9, 1.3, 30), by_category={})
    panel = speedups.panel([wild, sure], lambda arm: arm.overall, None, speedups.scale([wild, sure]))
    assert panel is not None
    assert [row.goes_on for row in panel.rows] == [(True, True), (False, False)]
    assert panel.rows[0].interval == "[0.00–many]"
    assert panel.rows[1].high - panel.rows[1].low > 15


def test_the_courses_of_speed_and_acceptance_have_one_axis_of_time() -> None:
    samples = [Sample(30.0 + i, "chat", 40.0, 40.0, 0.5 if i == 3 else None) for i in range(9)]
    speeds, accepted = timelines.run("r", "arm", samples)
    assert speeds.x_ticks == accepted.x_ticks
    assert accepted.lines[0].marks[0].x == speeds.lines[0].marks[3].x


def test_a_speed_up_without_an_interval_is_a_dot_alone() -> None:
    one = replace(arm("a", 1.0), overall=Ratio(1.4, math.nan, math.nan, 1), by_category={})
    panel = speedups.panel([one], lambda arm: arm.overall, None, speedups.scale([one]))
    assert panel is not None
    assert panel.rows[0].low == panel.rows[0].at == panel.rows[0].high and panel.rows[0].interval == ""


def test_a_line_breaks_where_a_value_is_missing() -> None:
    axes = Axes(scale.positions(1, 4), scale.SHARES)
    assert axes.path([(1.0, 0.75), (2.0, None), (3.0, 0.5), (4.0, 0.25)]) == "M12.50,25.00M62.50,50.00L87.50,75.00"


def test_acceptance_draws_six_arms_at_most_and_has_the_numbers_of_all() -> None:
    reached, drafts = plots.acceptance("a", [arm(f"arm {i}", 1.0) for i in range(9)])
    for plot in (reached, drafts):
        assert [line.name for line in plot.lines] == [f"arm {i}" for i in range(6)]
        assert plot.note == "The first 6 of 9 arms; the numbers are those of all."
        assert plot.figures is not None and plot.figures.rows[0] == ("1", *["81\u00a0%"] * 9)
    assert reached.figures is not None and reached.figures.rows[1][1] == "72\u00a0%"
    assert drafts.figures is not None and drafts.figures.rows[1][1] == "58\u00a0%"


def test_acceptance_leaves_out_arms_and_last_positions_that_are_not_known() -> None:
    none = replace(arm("none", 1.0, rates=(None, None)), survival=())
    some = replace(arm("some", 1.0, rates=(0.8, None, 0.6, None)), survival=())
    (plot,) = plots.acceptance("a", [none, some])
    assert [(line.name, len(line.marks)) for line in plot.lines] == [("some", 2)]
    assert plot.figures is not None and [row[1] for row in plot.figures.rows] == ["80\u00a0%", "–", "60\u00a0%"]


def test_where_nobody_counts_what_was_reached_acceptance_is_that_of_all_drafts() -> None:
    """As llama.cpp and vLLM tell it: how often each position was accepted, of how many drafts."""
    told = replace(arm("ngram", 1.0, rates=(0.9, None, None)), survival=(0.9, 0.5, 0.25, 0.0, 0.0))
    (plot,) = plots.acceptance("a", [told])
    assert plot.words.y == "accepted with all before it"
    assert plot.figures is not None and [row[1].split("\u00a0")[0] for row in plot.figures.rows] == [
        "90",
        "50",
        "25",
        "0",
    ]
    assert plots.acceptance("a", [replace(told, survival=(0.9,))]) == ()


def test_the_cost_of_a_pass_is_drawn_beside_that_of_single_passes() -> None:
    plot = plots.cost("c", [CostPoint(1, 256, 1.0), CostPoint(4, 256, 2.6), CostPoint(8, 256, math.inf)])
    assert plot is not None
    line, guide = plot.lines
    assert len(line.marks) == 2 and guide.guide and not guide.marks
    assert line.marks[1].tip == "context of up to 256\u00a0tokens, 4 tokens: 2.60× the time of one"


def test_a_cost_of_single_tokens_alone_is_not_drawn() -> None:
    assert plots.cost("c", [CostPoint(1, 256, 1.0), CostPoint(2, 256, math.nan)]) is None


def test_speed_in_an_answer_is_that_of_its_stretches() -> None:
    points = [(0.5 + i / 10, i + 1) for i in range(50)] + [(5.4 + i / 40, 50 + i) for i in range(1, 101)]
    _, pace = timelines.answer("t", "arm", Timeline("p", "c", tuple(points), ()))
    ys = [float(pair.split(",")[1]) for pair in pace.lines[0].path.replace("M", "L").split("L")[1:]]
    top = 100 - ys[-1]
    assert pace.lines[0].marks[0].tip.startswith("arm, 40.0\u00a0tokens/s after")
    assert 100 - ys[0] == pytest.approx(top / 4, rel=0.01)


def test_bursts_of_an_answer_do_not_make_its_speed_jump() -> None:
    bursts = tuple((0.1 + (i // 4) * 0.1 + (i % 4) * 1e-4, i + 1) for i in range(400))
    _, pace = timelines.answer("t", "arm", Timeline("p", "c", bursts, ()))
    ys = [float(pair.split(",")[1]) for pair in pace.lines[0].path.replace("M", "L").split("L")[1:]]
    assert max(ys) - min(ys) < 1.0


def test_a_long_answer_is_thinned_but_keeps_its_end() -> None:
    long = tuple((i / 100, i + 1) for i in range(5000))
    so_far, _ = timelines.answer("t", "arm", Timeline("p", "c", long, timeline(1.0).plain))
    assert len(so_far.lines[0].path.split("L")) < 350
    assert so_far.lines[0].marks[0].tip == "arm, 5,000\u00a0tokens after 50\u00a0s"


def test_an_answer_of_one_piece_is_not_drawn() -> None:
    assert timelines.answer("t", "arm", Timeline("p", "c", ((0.1, 9),), ((0.1, 1), (0.1, 2)))) == ()


def test_the_run_is_told_in_minutes_where_it_was_long_and_only_what_is_known_is_drawn() -> None:
    samples = [Sample(30.0, "chat", 40.0, None, None), Sample(600.0, "code", 50.0, None, math.nan)]
    (plot,) = timelines.run("r", "arm", samples)
    assert plot.words.x == "minutes of measuring"
    assert [(line.name, [mark.tip for mark in line.marks]) for line in plot.lines] == [
        ("arm", ["arm, chat: 40.0\u00a0tokens/s", "arm, code: 50.0\u00a0tokens/s"])
    ]
    assert timelines.run("r", "arm", []) == ()
