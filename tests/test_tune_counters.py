"""Counters that can be, and those that cannot."""

from __future__ import annotations

import pytest

from slipstream.engines.protocol import Answer, Counters, Settings, Speculation
from slipstream.lab.tune_counters import tally
from slipstream.lab.tune_visit import Measured, Visit

FOUR = Settings("big", (Speculation("ngram", 4),))
UNKNOWN = Settings("big", (Speculation("auto"),))


def visit(counters: Counters | None, n_tokens: int = 101) -> Visit:
    measured = {"a": Measured("chat", n_tokens - 1, 1.0, (("a", Answer("text", n_tokens, 0.1, 1.0)),))}
    return Visit("ngram n 4", measured, {}, 1.0, 1.0, counters)


@pytest.mark.parametrize(
    ("counters", "settings"),
    [
        (Counters(0, 0), FOUR),
        (Counters(0, 0, 0), FOUR),
        (Counters(100, 60, 40), FOUR),
        (Counters(80, 80, 20, (20, 20, 20, 20), (20, 20, 20, 20)), FOUR),
        (Counters(84, 84, 21), FOUR),
        (Counters(120, 97, 4), UNKNOWN),
    ],
    ids=str,
)
def test_what_can_be_is_believed(counters, settings):
    """The last draft may have been cut off: 84 tokens of 21 drafts are more than 100 written tokens have room for."""
    found = tally([visit(counters)], settings)
    assert found.lie == "" and found.trusted == counters and found.n_decoded == 100


@pytest.mark.parametrize(
    ("counters", "said"),
    [
        (Counters(50, 60), "60 tokens accepted of 50 drafted"),
        (Counters(-1, 0), "-1 of something"),
        (Counters(10, 5, 20), "20 drafts of 10 tokens"),
        (Counters(90, 90, 20), "90 tokens accepted of 20 drafts of at most 4"),
        (Counters(400, 120), "120 tokens accepted, but 100 written"),
        (Counters(400, 95), "95 tokens accepted of 100 written, in drafts of at most 4"),
        (Counters(400, 60, 60), "60 tokens accepted, but 100 written"),
        (Counters(80, 40, 20, (30, 10)), "30 first tokens accepted of 20 drafts"),
        (Counters(80, 40, 20, (10, 30)), "at a later place"),
        (Counters(80, 40, 20, (20, 10), (20, 5)), "than drafted there"),
    ],
    ids=str,
)
def test_what_cannot_be_is_not(counters, said):
    found = tally([visit(counters)], FOUR)
    assert said in found.lie and found.trusted is None and found.mean_tokens_a_pass is None


def test_a_first_token_that_a_draft_brought_is_counted_with_its_pass():
    """Two rounds of four tokens each, as transformers gives them: the first is a pass with a draft, too."""
    answer = Answer("text", 8, 0.1, 1.0, ((0.1, 4), (1.1, 8)), Counters(6, 6, 2))
    measured = {"a": Measured("chat", 7, 1.0, (("a", answer),))}
    found = tally([Visit("ngram n 4", measured, {}, 1.0, 1.0, answer.counters)], FOUR)
    assert found.mean_tokens_a_pass == 4.0


def test_one_lie_spoils_the_sum():
    found = tally([visit(Counters(100, 60, 40)), visit(Counters(10, 20, 5))], FOUR)
    assert "20 tokens accepted of 10" in found.lie


def test_speed_that_the_tokens_cannot_explain():
    assert tally([visit(Counters(100, 50, 50))], FOUR, speed=2.1).lie == ""
    assert (
        "2.00 tokens a pass, but at least 2.50 times the speed"
        in tally([visit(Counters(100, 50, 50))], FOUR, speed=2.5).lie
    )


def test_nothing_told_is_no_lie():
    assert tally([visit(None)], FOUR).lie == "" and tally([visit(None), visit(Counters(4, 2))], FOUR).counters is None
    assert tally([], FOUR).counters is None


def test_tokens_a_pass_are_of_counters_that_drafted():
    assert tally([visit(Counters(100, 50, 50))], FOUR).mean_tokens_a_pass == 2.0
    assert tally([visit(Counters(0, 0, 0))], FOUR).mean_tokens_a_pass is None
