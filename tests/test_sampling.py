"""The chain against a plain float64 reference; options out of range; the distribution of coupled choices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from slipstream.decoding.choice import Sampler
from slipstream.decoding.noise import gumbel
from slipstream.decoding.sampling import NO_HISTORY, Chain, Sampling
from slipstream.decoding.truncation import at_least, min_p, top_k, top_p
from slipstream.errors import InputError, RuntimeLibraryError

OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
BIG = 151_936


def adjusted(row: np.ndarray, s: Sampling, history: Sequence[int]) -> np.ndarray:
    """Bias and penalties as llama.cpp defines them, token by token; results are stored as float32 there, too."""
    out = row.astype(np.float64)
    for token, bias in s.logit_bias.items():
        out[token] = np.float32(out[token] + bias)
    n = len(history) if s.repeat_last_n < 0 else s.repeat_last_n
    window = list(history)[-n:] if n else []
    for token in set(window):
        x, count = out[token], window.count(token)
        x = x / s.repeat_penalty if x > 0 else x * s.repeat_penalty
        out[token] = np.float32(x - count * s.frequency_penalty - s.presence_penalty)
    return out


def remaining(logits: np.ndarray, s: Sampling) -> tuple[list[int], bool]:
    """Ids that remain, likeliest first; and whether top-p was a close call within rounding."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    close = False
    if s.top_k:
        order = order[: s.top_k]
    if s.top_p < 1:
        weights = np.exp(logits[order] - logits[order[0]])
        mass = np.cumsum(weights / weights.sum())
        close = bool(np.any(abs(mass - s.top_p) < 1e-9))
        order = order[: int(np.sum(mass < s.top_p)) + 1]
    if s.min_p:
        order = [i for i in order if logits[i] >= logits[order[0]] + math.log(s.min_p)]
    return order, close


def softmax(logits: np.ndarray, order: list[int], temperature: float) -> np.ndarray:
    out = np.zeros(len(logits))
    if temperature == 0:
        out[logits.argmax()] = 1
        return out
    with np.errstate(over="ignore"):
        weights = np.exp((logits[order] - logits[order[0]]) / temperature)
    out[order] = weights / weights.sum()
    return out


rows = st.lists(st.one_of(st.integers(-4, 4).map(float), st.floats(-20, 20, width=32)), min_size=8, max_size=40).map(
    lambda x: np.array(x, dtype=np.float32)
)
options = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 5e-324, 1e-30, 0.1, 0.8, 1.0, 3.0, 1e30, 1e308]),
    top_k=st.integers(0, 45),
    top_p=st.one_of(st.just(1.0), st.floats(1e-6, 1.0)),
    min_p=st.one_of(st.just(0.0), st.floats(0.0, 0.999)),
    repeat_penalty=st.sampled_from([1.0, 1.1, 0.5, 2.0]),
    presence_penalty=st.sampled_from([0.0, 0.5, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.25, -0.1]),
    repeat_last_n=st.integers(-1, 12),
    logit_bias=st.dictionaries(st.integers(0, 6), st.one_of(st.just(-math.inf), st.floats(-30, 30)), max_size=4),
    seed=st.integers(0, 2**64 - 1),
)


@settings(max_examples=400, deadline=None)
@given(rows, options, st.lists(st.integers(0, 7), max_size=20), st.integers(0, 20))
def test_chain_and_choice_are_the_reference(row: np.ndarray, s: Sampling, text: list[int], n_drafted: int) -> None:
    row.setflags(write=False)
    committed, drafted = text[: len(text) - n_drafted], text[len(text) - n_drafted :] if n_drafted else []
    if n_drafted > len(text):
        committed, drafted = [], text
    logits = adjusted(row, s, committed + drafted)
    order, close = remaining(logits, s)
    if close:
        return
    n = s.repeat_last_n
    window = np.array(text if n < 0 else text[-n:] if n else [], dtype=np.int32)
    chain = Chain(s, len(row))
    assert chain.distribution(row, window).dense(len(row)) == pytest.approx(
        softmax(logits, order, s.temperature), abs=1e-12
    )
    candidates = chain.candidates(row, window)
    assert candidates.logits.max() == 0 and np.all(np.diff(candidates.ids) > 0)

    scores = np.full(len(row), -np.inf)
    with np.errstate(over="ignore"):
        scores[order] = (logits[order] - logits[order[0]]) / s.temperature if s.temperature else logits[order]
    if s.temperature:
        scores[order] += gumbel(s.seed, len(text), np.array(order))
    assert Sampler(s, len(row)).bind(committed)(row, drafted) == scores.argmax()


def test_each_filter_alone_over_a_large_vocabulary() -> None:
    random = np.random.default_rng(0)
    smooth = random.normal(0, 3, BIG).astype(np.float32)
    peaked = smooth.copy()
    peaked[random.integers(BIG, size=30)] += 15
    tied = np.round(smooth)
    heavy = (random.gumbel(0, 1, BIG) * 2).astype(np.float32)
    for row in smooth, peaked, tied, heavy, np.zeros(BIG, np.float32):
        order = np.lexsort((np.arange(BIG), -row))
        for k in (1, 2, 40, 1000, 2374, 2375, 100_000, BIG - 1, BIG):
            assert np.array_equal(top_k(row, k), np.sort(order[:k]))
        weights = np.exp(row[order].astype(np.float64) - row.max())
        mass = np.cumsum(weights) / weights.sum()
        for p in (1e-9, 0.1, 0.5, 0.9, 0.95, 0.999, 0.9999999):
            kept = top_p(row, p)
            assert np.array_equal(kept, np.sort(order[: len(kept)])), "a head of the order"
            assert mass[len(kept) - 1] >= p - 1e-6
            assert len(kept) == 1 or mass[len(kept) - 2] < p + 1e-6
        for p in (1e-12, 0.05, 0.999999):
            assert np.array_equal(min_p(row, p), np.flatnonzero(row.astype(float) >= row.max() + math.log(p)))


@pytest.mark.parametrize("n", [1, 63, 64, 65, 4097, 151_937, 152_063])
def test_filters_at_odd_vocabulary_sizes(n: int) -> None:
    """The tail that does not fill a block must be seen; the largest logits stand there."""
    row = np.arange(n, dtype=np.float32)
    assert top_k(row, 5).tolist() == list(range(max(0, n - 5), n))
    assert top_p(row, 0.95).tolist() == list(range(max(0, n - 3), n))
    assert min_p(row, 0.5).tolist() == [n - 1]


@given(st.floats(-1e30, 1e30))
def test_at_least_decides_as_float64(threshold: float) -> None:
    limit = at_least(threshold)
    assert float(limit) >= threshold > float(np.nextafter(limit, np.float32(-np.inf)))


@pytest.mark.parametrize(
    "options",
    [
        OFF,
        {**OFF, "top_k": 5},
        {**OFF, "top_p": 0.7},
        {**OFF, "min_p": 0.2},
        {"temperature": 2.0, "logit_bias": {3: -math.inf, 4: 2.0}, "repeat_penalty": 1.3},
    ],
)
def test_coupled_choices_follow_the_distribution(options: dict) -> None:
    """χ² over 8,000 positions; seeds are fixed, a right sampler fails with probability 10⁻⁴."""
    row = np.random.default_rng(1).normal(0, 1.5, 12).astype(np.float32)
    sampler = Sampler(Sampling(**options), len(row))
    window = np.array([1, 2, 2], dtype=np.int32)
    n = 8000
    counts = np.bincount([sampler.choose(row, window, p) for p in range(n)], minlength=len(row))
    expected = n * sampler.chain.distribution(row, window).dense(len(row))
    assert np.all(counts[expected == 0] == 0)
    able = expected > 0
    assert stats.chisquare(counts[able], expected[able]).pvalue > 1e-4


def test_large_vocabulary_choices_follow_the_distribution() -> None:
    """The pruned search over 8,192 tokens, counted in 64 groups of equal size."""
    row = np.random.default_rng(2).normal(0, 2, 8192).astype(np.float32)
    sampler = Sampler(Sampling(**OFF, seed=7), len(row))
    choose, n = sampler.bind([]), 4000
    counts = np.bincount([choose(row, range(p)) // 128 for p in range(n)], minlength=64)
    expected = n * sampler.chain.distribution(row).dense(len(row)).reshape(64, 128).sum(axis=1)
    assert stats.chisquare(counts, expected).pvalue > 1e-4


def test_seeds_and_positions_are_independent() -> None:
    row = np.zeros(4, np.float32)
    table = np.zeros((4, 4))
    samplers = [Sampler(Sampling(**OFF, seed=s), 4) for s in (0, 1)]
    for p in range(4000):
        a, b = (s.choose(row, np.empty(0, np.int32), p) for s in samplers)
        table[a, b] += 1
    assert stats.chisquare(table.ravel()).pvalue > 1e-4


def test_penalties_see_prompt_and_drafted_prefix_within_the_window() -> None:
    row = np.array([1.0, 0.9, 0.8, 0.7], np.float32)
    choose = Sampler(Sampling(temperature=0, presence_penalty=5.0, repeat_last_n=2), 4).bind([3, 1, 0])
    assert choose(row, []) == 2  # 1 and 0 are penalised
    assert choose(row, [2]) == 1  # 0 and 2
    assert choose(row, [2, 1]) == 0  # 2 and 1: the committed text is out of sight
    everything = Sampler(Sampling(temperature=0, presence_penalty=5.0, repeat_last_n=-1), 4).bind([3, 1, 0])
    assert everything(row, []) == 2
    assert everything(row, [2]) == 0  # all penalised alike


def test_rows_are_never_written_and_may_be_longer_or_shorter() -> None:
    s = Sampling(repeat_penalty=1.5, logit_bias={5: -math.inf})
    sampler = Sampler(s, 6)
    for n in (4, 6, 9):
        row = np.arange(n, dtype=np.float32)
        before = row.copy()
        row.setflags(write=False)
        assert 0 <= sampler.bind([8, 2])(row, [1]) < n
        assert np.array_equal(row, before)
        assert sampler.chain.distribution(row).probabilities.sum() == pytest.approx(1)
    assert Chain(Sampling(), 9).adjust(row) is row


def test_ties_go_to_the_lowest_token() -> None:
    row = np.array([0, 2, 2, 1, 2], np.float32)
    assert Sampler(Sampling(temperature=0), 5).bind([])(row, []) == 1
    assert top_k(row, 2).tolist() == [1, 2]
    assert top_p(row, 0.3).tolist() == [1, 2]


def test_huge_bias_stays_defined() -> None:
    row = np.zeros(3, np.float32)
    s = Sampling(logit_bias={0: 1e308, 1: -1e308}, repeat_penalty=1e-30)
    assert Chain(s, 3).distribution(row, np.array([0])).dense(3).tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    "option, value",
    [
        *[("temperature", v) for v in (-0.1, math.nan, math.inf, "x", None, True, 10**400)],
        *[("top_k", v) for v in (-1, 1.5, True)],
        *[("top_p", v) for v in (0.0, 1.1, math.nan, "x")],
        *[("min_p", v) for v in (-0.1, 1.0, math.nan, None)],
        *[("repeat_penalty", v) for v in (0.0, -1.0, math.inf, [])],
        *[("presence_penalty", v) for v in (math.nan, 1e308, "x")],
        *[("frequency_penalty", v) for v in (math.inf, -1e308, None)],
        *[("repeat_last_n", v) for v in (-2, 0.5)],
        *[("seed", v) for v in (-1, 2**64, 0.5)],
        *[("logit_bias", v) for v in ({-1: 0.0}, {0: math.nan}, {0: math.inf}, {0: "x"}, {"a": 1.0}, None, [(0, 1.0)])],
    ],
)
def test_options_out_of_range(option: str, value: object) -> None:
    with pytest.raises(InputError, match=option) as error:
        Sampling(**{option: value})
    assert error.value.hint.startswith("It must be ")


@pytest.mark.parametrize("options", [{"repeat_penalty": x} for x in (1e308, 1e-308)] + [
    {"presence_penalty": s * 1e6, "frequency_penalty": f * 1e6, "logit_bias": {2: -math.inf, 3: 1e308, 4: -1e308}}
    for s in (-1, 1) for f in (-1, 1)
])  # fmt: skip
def test_extreme_penalties_stay_defined(options: dict) -> None:
    """Without a warning of numpy's, which is an error here; a banned token stays banned."""
    row = np.linspace(-3e38, 3e38, 9, dtype=np.float32)
    row[5] = -np.inf
    chain = Chain(Sampling(**OFF, **options), len(row))
    adjusted = chain.adjust(row, np.arange(9).repeat(1000))
    assert not np.isnan(adjusted).any() and adjusted.max() < np.inf and adjusted[5] == -np.inf
    assert chain.distribution(row, np.arange(9)).dense(9).sum() == pytest.approx(1)


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 0, "repeat_penalty": 1.1}, {}, OFF])
@pytest.mark.parametrize("verification", ["coupled", "rejection"])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_rows_without_numbers_are_an_error(options: dict, verification: str, number: float) -> None:
    choose = Sampler(Sampling(**options, verification=verification), BIG).bind([1, 2])
    broken = [np.full(BIG, number, np.float32)]
    if number != -math.inf:
        broken.append(np.zeros(BIG, np.float32))
        broken[-1][BIG - 1] = number
    for row in broken:
        with pytest.raises(RuntimeLibraryError, match=r"no numbers.*damaged"):
            choose(row, [3])


def test_bias_beyond_the_vocabulary_and_bans_of_everything() -> None:
    with pytest.raises(InputError, match="10"):
        Sampler(Sampling(logit_bias={10: 1.0}), 10)
    everything = Sampler(Sampling(logit_bias={0: -math.inf, 1: -math.inf}), 2)
    with pytest.raises(InputError, match="every token"):
        everything.bind([])(np.zeros(2, np.float32), [])


@pytest.mark.parametrize("raised", [0.0, 5.0])
def test_bias_alone_is_read_off_the_row_where_that_is_enough(raised):
    """Banning the end of text copied every row: half a millisecond a token beside llama.cpp's server."""
    row = np.array([1.0, 4.0, 3.0, 2.0], dtype=np.float32)
    banned = Sampler(Sampling(temperature=0, logit_bias={0: -math.inf, 3: raised}), 4)
    assert banned.choose(row, NO_HISTORY, 0) == (3 if raised else 1)
    first = Sampler(Sampling(temperature=0, logit_bias={1: -math.inf}), 4)
    assert first.choose(row, NO_HISTORY, 0) == 2
