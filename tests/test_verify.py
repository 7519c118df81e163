"""Whatever is drafted, verification commits what plain decoding writes: shown on a toy model of a table of rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.decoding.choice import Sampler
from slipstream.decoding.draft import EMPTY, Draft, chain
from slipstream.decoding.sampling import Sampling
from slipstream.decoding.verdict import Verdict
from slipstream.decoding.verify import match, verify

N = 5
TABLE = np.random.default_rng(0).normal(0, 1, (N, N, N)).astype(np.float32)
TABLE.setflags(write=False)
SAMPLINGS = [
    Sampling(temperature=0),
    Sampling(temperature=0, repeat_penalty=1.5, repeat_last_n=3, logit_bias={2: -1.0}),
    Sampling(seed=3),
    Sampling(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=2),
    Sampling(top_k=3, frequency_penalty=0.3, repeat_last_n=-1, seed=1),
]
PROMPT = [1, 4]


def row_after(text: Sequence[int]) -> np.ndarray:
    """The toy model: logits depend on the last two tokens."""
    return TABLE[text[-2], text[-1]]


def plain(sampler: Sampler, text: Sequence[int], n: int) -> list[int]:
    text = list(text)
    for _ in range(n):
        text.append(sampler.bind(text)(row_after(text), ()))
    return text


def rows_of(text: list[int], draft: Draft) -> np.ndarray:
    paths = [draft.tokens[draft.ancestry(i)].tolist() for i in range(len(draft))]
    return np.stack([row_after(text + path) for path in [[], *paths]])


@st.composite
def trees(draw: st.DrawFn) -> Draft:
    """Trees whose nodes may have several children with the same token."""
    n = draw(st.integers(0, 12))
    parents = [draw(st.integers(-1, i - 1)) for i in range(n)]
    tokens = draw(st.lists(st.integers(0, N - 1), min_size=n, max_size=n))
    return Draft(np.array(tokens, np.int32), np.array(parents, np.int32), np.ones(n))


chains = st.lists(st.integers(0, N - 1), max_size=8).map(lambda tokens: chain(tokens, [1.0] * len(tokens)))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(trees(), chains), min_size=1, max_size=8), st.sampled_from(SAMPLINGS))
def test_rounds_write_what_plain_decoding_writes(drafts: list[Draft], sampling: Sampling) -> None:
    sampler, text = Sampler(sampling, N), list(PROMPT)
    for draft in drafts:
        verdict = verify(draft, rows_of(text, draft), sampler.bind(text))
        assert len(verdict.tokens) == len(verdict.accepted) + 1
        if verdict.accepted:
            assert list(verdict.accepted) == draft.ancestry(verdict.accepted[-1])
            assert tuple(draft.tokens[list(verdict.accepted)]) == verdict.tokens[:-1]
        text += verdict.tokens
    assert text == plain(Sampler(sampling, N), PROMPT, len(text) - len(PROMPT))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_all_or_none_accepted(sampling: Sampling) -> None:
    sampler = Sampler(sampling, N)
    right = plain(sampler, PROMPT, 9)[len(PROMPT) :]
    all_right = chain(right[:8], [1.0] * 8)
    verdict = verify(all_right, rows_of(PROMPT, all_right), sampler.bind(PROMPT))
    assert verdict == Verdict(tuple(range(8)), tuple(right))
    wrong = chain([(right[0] + 1) % N, *right[1:8]], [1.0] * 8)
    assert verify(wrong, rows_of(PROMPT, wrong), sampler.bind(PROMPT)) == Verdict((), (right[0],))
    assert verify(EMPTY, rows_of(PROMPT, EMPTY), sampler.bind(PROMPT)) == Verdict((), (right[0],))


def test_second_branch_is_taken() -> None:
    """0 ─ 2        the root's children carry 1 and 3, theirs 2 and 4
    root           ┤
         1 ─ 3"""
    draft = Draft(np.array([1, 3, 2, 4], np.int32), np.array([-1, -1, 0, 1], np.int32), np.ones(4))
    rows = np.zeros((5, N), np.float32)
    rows[0, 3] = rows[2, 4] = rows[4, 0] = 1
    assert verify(draft, rows, Sampler(Sampling(temperature=0), N).bind([])) == Verdict((1, 3), (3, 4, 0))


def test_reads_only_the_rows_on_the_path() -> None:
    read = []

    def choose(row: np.ndarray, drafted: Sequence[int]) -> int:
        read.append((int(row[0]), list(drafted)))
        return int(row[1])

    draft = chain([1, 2, 0], [1.0] * 3)
    rows = np.array([[0, 1], [1, 4], [2, 0], [3, 0]], np.float32)
    assert match(draft, rows, choose) == Verdict((0,), (1, 4))
    assert [index for index, _ in read] == [0, 1]
