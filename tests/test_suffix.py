"""The suffix automaton and the drafter over it."""

import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.decoding.choice import Sampler
from slipstream.decoding.protocols import Budget
from slipstream.decoding.sampling import Sampling
from slipstream.drafters.automaton import MAX_LINKS, SuffixAutomaton
from slipstream.drafters.suffix import SuffixDrafter

CHOICE = Sampler(Sampling(temperature=0), 8).bind([])
texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def propose(drafter: SuffixDrafter, n: int, min_survival: float = 0.0):
    return drafter.propose(0, Budget(n, min_survival), CHOICE)


def occurrences(text: list[int], part: list[int]) -> list[int]:
    """Where `part` ends in `text`, as the index of the token behind it."""
    return [i + len(part) for i in range(len(text) - len(part) + 1) if text[i : i + len(part)] == part]


@settings(max_examples=300, deadline=None)
@given(texts)
def test_the_longest_repeated_suffix_is_found(text):
    automaton = SuffixAutomaton()
    for token in text:
        automaton.append(token)
    longest = max(n for n in range(len(text)) if len(occurrences(text, text[len(text) - n :])) > 1 or n == 0)
    assert automaton.length[automaton.longest_repeated_suffix()] == longest


@settings(max_examples=300, deadline=None)
@given(texts)
def test_counts_are_those_of_a_plain_search(text):
    automaton = SuffixAutomaton()
    for token in text:
        automaton.append(token)
    state = automaton.longest_repeated_suffix()
    if state == 0 or len(text) > MAX_LINKS:
        return
    part = text[len(text) - automaton.length[state] :]
    followers = Counter(text[end] for end in occurrences(text, part) if end < len(text))
    assert automaton.followed[state] == followers.total()
    assert automaton.best_count[state] == max(followers.values())
    assert followers[automaton.best[state]] == max(followers.values())


def test_a_repeated_passage_is_proposed_to_its_end():
    drafter = SuffixDrafter()
    passage = [10, 11, 12, 13, 14, 15, 16]
    drafter.begin(0, [*passage, 99, 10, 11, 12])
    draft = propose(drafter, 4)
    assert draft.tokens.tolist() == [13, 14, 15, 16]
    assert draft.is_chain and list(draft.survival) == sorted(draft.survival, reverse=True)


def test_the_more_frequent_continuation_wins():
    drafter = SuffixDrafter()
    drafter.begin(0, [1, 2, 3, 5, 1, 2, 4, 6, 1, 2, 3, 7, 1, 2])
    assert propose(drafter, 1).tokens.tolist() == [3]


def test_nothing_is_proposed_where_nothing_repeats():
    drafter = SuffixDrafter()
    drafter.begin(0, [1, 2, 3, 4])
    assert len(propose(drafter, 8)) == 0


def test_a_token_that_will_not_survive_is_not_proposed():
    drafter = SuffixDrafter()
    drafter.begin(0, [1, 2, 3, 4, 1, 2])
    full = propose(drafter, 4)
    cut = propose(drafter, 4, min_survival=float(full.survival[1]))
    assert len(full) == 4 and cut.tokens.tolist() == full.tokens[:2].tolist()


def test_confidence_falls_when_the_text_contradicts_and_rises_when_it_agrees():
    pattern = [1, 2, 3, 4, 5, 6, 7, 8]
    agreeing, contradicting = SuffixDrafter(), SuffixDrafter()
    for drafter in (agreeing, contradicting):
        drafter.begin(0, pattern)
    prior = list(agreeing.acceptance.rates)
    agreeing.observe(0, pattern * 4)
    contradicting.observe(0, [t for i in range(30) for t in (5, 100 + i)])
    assert any(a > p for a, p in zip(agreeing.acceptance.rates, prior, strict=True))
    assert all(a >= p for a, p in zip(agreeing.acceptance.rates, prior, strict=True))
    assert any(c < p - 0.05 for c, p in zip(contradicting.acceptance.rates, prior, strict=True))


def test_sequences_are_apart_and_can_be_forgotten():
    drafter = SuffixDrafter()
    drafter.begin(0, [1, 2, 3, 1, 2])
    drafter.begin(1, [1, 2, 9, 1, 2])
    assert propose(drafter, 1).tokens.tolist() == [3]
    drafter.end(1)
    with pytest.raises(KeyError):
        drafter.observe(1, [1])


@pytest.mark.parametrize("text", [[7] * 30_000, list(range(30_000)), [i % 5 for i in range(30_000)]])
def test_reading_takes_constant_time_a_token(text):
    """A quadratic algorithm would take minutes here; 20 µs a token is five times what a slow machine needs."""
    drafter = SuffixDrafter()
    began = time.process_time()
    drafter.begin(0, text)
    assert time.process_time() - began < 30_000 * 40e-6
    assert len(drafter._texts[0].automaton.next) <= 2 * len(text)
