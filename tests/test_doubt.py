"""How far one text is believed: less where its suffixes mislead, never more than others showed."""

from __future__ import annotations

import random

import pytest

from slipstream.drafters.doubt import GREEDY, SAMPLED, Doubt


def after(share: float, confidence: float = 0.6, n: int = 60) -> Doubt:
    """The doubt of a text in which what was expected with a confidence came with another share."""
    doubt, chance = Doubt(GREEDY), random.Random(1)
    for _ in range(n):
        doubt.learn(confidence, chance.random() < share)
    return doubt


def test_a_text_that_does_what_was_expected_is_believed():
    assert after(0.6).lowered(0.6) == pytest.approx(0.6, abs=0.08)


def test_a_text_that_does_not_repeat_itself_is_doubted_within_a_few_tokens():
    doubt = after(0.0, n=8)
    assert doubt.lowered(0.6) < 0.3
    assert doubt.lowered(0.95) < 0.85, "what one kind of match has shown is believed of the others"


def test_confidences_are_never_raised():
    assert after(1.0).lowered(0.6) == 0.6


def test_doubt_fades_where_the_text_begins_to_repeat_itself():
    doubt = after(0.0)
    for _ in range(40):
        doubt.learn(0.6, True)
    assert doubt.lowered(0.6) > 0.5


@pytest.mark.parametrize("confidence", [0.0, 1e-9, 1.0 - 1e-9, 1.0])
@pytest.mark.parametrize("came", [False, True])
def test_certainties_stay_defined(confidence, came):
    doubt = Doubt(GREEDY)
    for _ in range(500):
        doubt.learn(confidence, came)
    assert 0.0 <= doubt.lowered(confidence) <= 1.0


def test_a_text_that_is_sampled_is_doubted_more_at_first_and_for_its_beginning_only():
    greedy, sampled = Doubt(GREEDY), Doubt(SAMPLED)
    assert sampled.lowered(0.6) < greedy.lowered(0.6) < 0.6
    for doubt in greedy, sampled:
        for _ in range(20):
            doubt.learn(0.6, True)
    assert sampled.lowered(0.6) > 0.55
