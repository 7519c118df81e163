"""What is tried next, and what is given up."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tuning import DRAFT, NGRAM, OTHER

from slipstream.engines.protocol import Option, Settings, Speculation
from slipstream.lab.tune_search import (
    NOT_MEASURED,
    Arm,
    best_of,
    coarse,
    combined,
    drop,
    finer,
    give_up,
    is_settled,
    leaders,
    ranked,
)
from slipstream.lab.tune_statistics import Drift, Point

STEADY = Drift(0.0, 0)
SETTINGS = Settings("big", draft="small")


def names(arms: list[Arm]) -> list[str]:
    return [arm.name for arm in arms]


def arm(kind: str, n_max: int | None = None, p_min: float | None = None, option: Option = NGRAM) -> Arm:
    return Arm(Settings("big", (Speculation(kind, n_max, p_min),)), option)


def measured(name: str, *speeds: float, category: str = "chat") -> list[Point]:
    return [Point(name, f"{category} {i}", category, 0, math.log(speed)) for i, speed in enumerate(speeds)]


def test_coarse_is_each_kind_at_two_lengths_or_one():
    options = [NGRAM, Option("cache"), Option("gone", (4,), why_not="no"), Option("wide", (2, 4, 8, 16))]
    assert names(coarse(SETTINGS, options)) == ["ngram n 4", "ngram n 16", "cache", "wide n 4", "wide n 8"]
    assert names(coarse(SETTINGS, options, per_kind=1)) == ["ngram n 8", "cache", "wide n 8"]


def test_a_draft_model_is_loaded_only_where_it_is_asked_for():
    drafts = {arm.option.kind: arm.settings.draft for arm in coarse(SETTINGS, [NGRAM, DRAFT])}
    assert drafts == {"ngram": None, "draft": "small"}


def test_finer_is_half_way_to_what_was_tried_and_beyond_its_ends():
    assert names(finer(arm("ngram", 8), ["ngram n 8"])) == ["ngram n 4", "ngram n 16"]
    tried = ["ngram n 4", "ngram n 8", "ngram n 16"]
    assert names(finer(arm("ngram", 8), tried)) == ["ngram n 6", "ngram n 11"]
    assert names(finer(arm("ngram", 16), tried)) == ["ngram n 11", "ngram n 32"]
    assert names(finer(arm("ngram", 1), ["ngram n 1", "ngram n 2"])) == []


def test_finer_comes_to_an_end():
    tried = {"ngram n 8"}
    while new := finer(arm("ngram", 8), tried):
        tried |= set(names(new))
    assert len(tried) < 8


def test_finer_tries_thresholds_too():
    tried = ["draft n 4", "draft n 2", "draft n 8"]
    assert names(finer(arm("draft", 4, option=DRAFT), tried))[-1] == "draft n 4 p 0.5"
    assert finer(arm("cache", option=Option("cache")), ["cache"]) == []


def test_two_kinds_at_once_where_both_gain_and_the_engine_can():
    both = [arm(kind, 4, option=Option(kind, (4,), combines=True)) for kind in ("a", "b")]
    gains = [*measured("a n 4", 1.2, 1.3), *measured("b n 4", 1.4, 1.5)]
    assert names(combined(both, gains)) == ["b n 4 + a n 4"]
    assert combined([*both, *combined(both, gains)], gains) == [], "it was tried"
    assert combined(both, [*measured("a n 4", 0.9, 0.9), *measured("b n 4", 1.4, 1.5)]) == []
    alone = [arm(kind, 4, option=Option(kind, (4,))) for kind in ("a", "b")]
    assert combined(alone, gains) == []


def test_what_lies_below_plain_or_below_the_best_is_given_up():
    arms = [arm("ngram", 4), arm("ngram", 8), arm("other", 4, option=OTHER)]
    speeds = [*measured("ngram n 4", 1.5, 1.52, 1.48, 1.5), *measured("ngram n 8", 1.2, 1.22, 1.18, 1.2)]
    drop(arms, [*speeds, *measured("other n 4", 0.8, 0.82, 0.78, 0.8)], STEADY)
    assert arms[0].out == ""
    assert arms[1].out == "slower than ngram n 4: 0.80 [0.80–0.80] of its speed"
    assert arms[2].out.startswith("slower than plain decoding: 0.80 [0.7")


def test_what_is_not_sure_stays():
    arms = [arm("ngram", 4), arm("ngram", 8)]
    drop(arms, [*measured("ngram n 4", 1.5, 0.9), *measured("ngram n 8", 1.3, 1.0)], STEADY)
    assert [a.out for a in arms] == ["", ""]


def test_much_slower_on_each_task_of_two_visits_is_enough():
    """One visit is not: whatever else the machine did then, it did to all of it."""
    arms, slow = [arm("ngram", 4)], measured("ngram n 4", 0.6, 0.1)
    drop(arms, slow, STEADY)
    assert arms[0].out == ""
    drop(arms, [slow[0], replace(slow[1], block=1)], STEADY)
    assert arms[0].out


def test_a_setting_that_leads_in_a_category_stays_though_it_loses_over_all():
    arms = [arm("ngram", 4), arm("ngram", 8)]
    speeds = [
        *measured("ngram n 4", 1.2, 1.2, 1.2, 1.2, 1.21),
        *measured("ngram n 4", 1.2, 1.2, category="edit"),
        *measured("ngram n 8", 0.7, 0.7, 0.7, 0.7, 0.71),
        *measured("ngram n 8", 2.0, 2.1, category="edit"),
    ]
    drop(arms, speeds, STEADY)
    assert arms[1].out == "" and best_of(arms, speeds) is arms[0]
    assert leaders(arms, speeds, arms[0]) == {"edit": arms[1]}


def test_a_small_lead_in_a_category_is_none():
    arms = [arm("ngram", 4), arm("ngram", 8)]
    speeds = [*measured("ngram n 4", 1.20, 1.20), *measured("ngram n 8", 1.22, 1.22)]
    speeds += [*measured("ngram n 4", 1.5, 1.5, category="edit"), *measured("ngram n 8", 1.3, 1.3, category="edit")]
    assert leaders(arms, speeds, arms[0]) == {}


def test_nothing_is_left_to_tell_apart_where_no_other_may_be_much_faster():
    arms = [arm("ngram", 4), arm("ngram", 8)]
    alike = [*measured("ngram n 4", 1.50, 1.50, 1.50), *measured("ngram n 8", 1.49, 1.50, 1.50)]
    assert is_settled(arms, alike, STEADY)
    assert not is_settled(arms, alike, Drift(0.01, 5))
    assert is_settled([], [], STEADY)


def test_for_want_of_time_the_worst_are_given_up_first():
    arms = [arm("ngram", 4), arm("ngram", 8), arm("ngram", 16), arm("other", 4, option=OTHER)]
    speeds = [*measured("ngram n 4", 1.1, 1.1), *measured("ngram n 8", 1.3, 1.3), *measured("other n 4", 1.2, 1.2)]
    order = ranked(arms, speeds)
    assert names(order) == ["ngram n 8", "other n 4", "ngram n 4", "ngram n 16"]
    give_up(order[2:], speeds)
    assert [a.out for a in order] == ["", "", "others were better when time ran short", NOT_MEASURED]


def test_what_was_given_up_is_no_longer_the_best():
    arms = [arm("ngram", 4), arm("ngram", 8)]
    speeds = [*measured("ngram n 4", 1.5, 1.5), *measured("ngram n 8", 1.2, 1.2)]
    arms[0].out = "failed"
    assert best_of(arms, speeds) is arms[1]
    arms[1].out = "failed"
    assert best_of(arms, speeds) is None


@pytest.mark.parametrize("n", [1, 2, 64])
def test_lengths_stay_within_bounds(n):
    assert all(1 <= found.settings.speculation[0].n_max <= 64 for found in finer(arm("ngram", n), [f"ngram n {n}"]))
