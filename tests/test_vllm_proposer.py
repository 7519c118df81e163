"""slipstream's proposer for vLLM, in a batch that behaves as vLLM's does; see tests/engines for vLLM itself."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from vllm_batch import MAX_MODEL_LEN, Batch, vllm_config

from slipstream.engines.vllm_length import LengthControl, PassCost
from slipstream.engines.vllm_proposer import SlipstreamProposer

CYCLE = list(range(100, 110))


def repetitive(seed: int, n_prompt: int = 30, n_answer: int = 80) -> tuple[list[int], list[int]]:
    """A request whose answer repeats a passage of ten tokens of its own, with a new token now and then."""
    noise = random.Random(seed)
    passage = [noise.randrange(1000) for _ in range(10)]
    text = [noise.randrange(1000) if noise.random() < 0.03 else passage[i % 10] for i in range(n_prompt + n_answer)]
    return text[:n_prompt], text[n_prompt:]


def random_text(seed: int, n_prompt: int = 20, n_answer: int = 300) -> tuple[list[int], list[int]]:
    """A request in which single tokens come again but nothing follows from them."""
    noise = random.Random(seed)
    return [noise.randrange(20) for _ in range(n_prompt)], [noise.randrange(20) for _ in range(n_answer)]


def test_repeated_passages_are_drafted_and_accepted() -> None:
    batch = Batch([repetitive(0)], n_rows=1)
    batch.run()
    assert batch.counters.accepted > 40
    assert batch.n_passes < 50  # 80 tokens


def test_counters_are_those_of_vllm_while_requests_end_and_others_take_their_rows() -> None:
    requests = [repetitive(seed, 5 + 17 * seed % 60, 10 + 23 * seed % 90) for seed in range(25)]
    batch = Batch(requests)
    batch.run()
    assert batch.counters.accepted > 200
    assert batch.proposer.counters == batch.counters
    assert all(
        asked.tokens[: len(asked.prompt) + len(asked.answer)] == asked.prompt + asked.answer for asked in batch.all
    )


def test_twins_and_conversations_that_go_on_are_kept_apart_or_share_what_is_equal() -> None:
    prompt, answer = repetitive(3)
    going_on = [*prompt, *answer, 5, 6, 7]
    batch = Batch([(prompt, answer), (prompt, answer), (going_on, answer), (prompt, answer[:7])], n_rows=2)
    batch.run()
    assert batch.proposer.counters == batch.counters
    assert batch.counters.accepted > 100


def test_a_prompt_that_is_still_being_read_gets_no_draft() -> None:
    long_prompt = CYCLE * 8
    batch = Batch([(long_prompt, CYCLE * 3)], chunk=16)
    for _ in range(4):
        batch.step()
    assert batch.proposed == [[0]] * 4
    batch.step()
    assert batch.proposed[-1][0] > 0


@pytest.mark.parametrize("n_calls", [3, 40])
def test_a_request_that_was_left_out_for_a_while_goes_on(n_calls: int) -> None:
    batch = Batch([repetitive(seed) for seed in range(3)], n_rows=3)
    for _ in range(15):
        batch.step()
    away = batch.send_away(0)
    away.draft = []
    before = away.written
    for _ in range(n_calls):
        batch.step()
    batch.rows.append(away)
    batch.run()
    assert away.written > before
    assert batch.counters.accepted > 100
    # The draft that it left with was never verified, so that vLLM counts nothing of it either.
    assert batch.proposer.counters.accepted == batch.counters.accepted


def test_drafts_end_before_the_length_of_the_model() -> None:
    text = np.asarray([(CYCLE * 60)[:MAX_MODEL_LEN]], dtype=np.int32)
    for n, room in (100, 16), (MAX_MODEL_LEN - 4, 3), (MAX_MODEL_LEN - 1, 0), (MAX_MODEL_LEN, 0):
        (draft,) = SlipstreamProposer(vllm_config(n_max=16)).propose([[1]], np.asarray([n]), text)
        assert len(draft) == room


def test_a_schedule_by_batch_size_is_obeyed() -> None:
    schedule = [(1, 1, 4), (2, 3, 2), (4, 512, 0)]
    batch = Batch([(CYCLE * 3, CYCLE * n) for n in (4, 4, 4, 4, 6, 9)], schedule=schedule)
    batch.run()
    assert {0} == {length for lengths in batch.proposed if len(lengths) == 4 for length in lengths}
    assert max(length for lengths in batch.proposed if len(lengths) in (2, 3) for length in lengths) == 2
    assert max(length for lengths in batch.proposed if len(lengths) == 1 for length in lengths) == 4


def timed(requests: list[tuple[list[int], list[int]]], slope: float, n_rows: int = 1, draft_s: float = 0.0) -> Batch:
    """Run where a pass over w tokens takes 1 + slope · w seconds, and a call of the proposer `draft_s`."""
    batch = Batch(requests, n_rows, pass_s=lambda width: 1.0 + slope * width)
    ask = batch.proposer._drafter.propose

    def slow(*arguments: Any) -> Any:
        batch.clock.now += draft_s
        return ask(*arguments)

    batch.proposer._drafter.propose = slow  # type: ignore[method-assign]
    batch.run()
    return batch


def plain_s(requests: list[tuple[list[int], list[int]]], slope: float) -> float:
    """One row, plain decoding, prompts read in chunks of 16."""
    answers = sum(len(answer) for _, answer in requests)
    prompts = sum(
        sum(1.0 + slope * len(prompt[i : i + 16]) for i in range(0, len(prompt), 16)) for prompt, _ in requests
    )
    return (answers - len(requests)) * (1.0 + slope) + prompts


def test_what_passes_cost_decides_how_much_is_drafted() -> None:
    requests = [random_text(seed) for seed in range(4)]
    free, dear = timed(requests, 0.0), timed(requests, 1.0)
    assert free.counters.drafted > 3 * dear.counters.drafted
    assert free.clock.now < plain_s(requests, 0.0)


@pytest.mark.parametrize("slope", [0.05, 0.3, 1.0, 10.0])
def test_text_that_does_not_repeat_itself_loses_little(slope: float) -> None:
    requests = [random_text(seed) for seed in range(10)]
    assert timed(requests, slope).clock.now < 1.03 * plain_s(requests, slope)


@pytest.mark.parametrize("slope", [0.0, 0.05, 0.3])
def test_text_that_repeats_itself_gains(slope: float) -> None:
    requests = [repetitive(seed, n_answer=300) for seed in range(4)]
    assert timed(requests, slope).clock.now < 0.75 * plain_s(requests, slope)


def test_drafting_that_costs_more_than_it_saves_is_given_a_rest() -> None:
    requests = [random_text(seed) for seed in range(10)]
    batch = timed(requests, 0.3, draft_s=1.0)
    assert batch.clock.now < 1.15 * plain_s(requests, 0.3)
    assert batch.proposer.counters == batch.counters


def test_a_rest_that_a_text_does_not_deserve_ends() -> None:
    """Behind text that does not repeat itself comes one that does."""
    requests = [*(random_text(seed, n_answer=100) for seed in range(2)), repetitive(1, 30, 460)]
    batch = timed(requests, 0.3, draft_s=0.2)
    asked = batch.all[-1]
    assert asked.written >= len(asked.answer)
    assert batch.counters.accepted > 60


def observed(passes: list[tuple[int, float]]) -> PassCost:
    cost = PassCost()
    for width, seconds in passes:
        cost.observe(width, seconds)
    return cost


def test_a_line_is_learned_from_passes_of_different_widths() -> None:
    noise = random.Random(0)
    widths = [noise.choice([1, 2, 5, 9]) for _ in range(300)]
    cost = observed([(w, (3.0 + 0.5 * w) * noise.uniform(0.9, 1.1)) for w in widths])
    base, slope = cost.line()
    assert base == pytest.approx(3.0, rel=0.1)
    assert slope == pytest.approx(0.5, rel=0.15)


def test_without_different_widths_a_token_more_is_assumed_to_be_cheap() -> None:
    base, slope = observed([(4, 2.0)] * 50).line()
    assert slope == pytest.approx(0.02 * 2.0)
    assert base + 4 * slope == pytest.approx(2.0)


def test_what_was_learned_of_widths_fades() -> None:
    dear = [(w, float(w)) for w in (1, 2, 3, 4)] * 5
    assert observed(dear).line()[1] > 0.8
    assert observed([*dear, *[(1, 1.0)] * 1000]).line()[1] < 0.1


def test_an_interrupted_pass_counts_as_twice_its_time_at_most() -> None:
    passes = [(1, 1.0), (5, 1.2)] * 20
    assert observed([*passes, (1, 3600.0)]).time(1) < 1.1


def test_a_wider_pass_is_never_cheaper_and_never_dearer_than_its_share() -> None:
    assert observed([(1, 5.0), (9, 1.0)] * 20).line()[1] == 0.0
    base, slope = observed([(1, 0.1), (10, 5.0)] * 20).line()
    assert base >= 0.0
    assert slope > 0.0


def test_the_surest_tokens_of_all_drafts_are_verified() -> None:
    control = LengthControl()
    for _ in range(20):
        control.cost.observe(3, 1.0 + 3 * 0.25)
        control.cost.observe(7, 1.0 + 7 * 0.25)
    assert control.lengths(3, [[0.9, 0.8, 0.1], [], [0.6, 0.05]]) == [2, 0, 1]
    assert control.lengths(1, [[0.1]]) == [0]


def test_before_a_pass_was_seen_whole_drafts_are_verified() -> None:
    assert LengthControl().lengths(1, [[0.9, 0.1]]) == [2]
