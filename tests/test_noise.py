"""The noise is a pure function of (seed, position, token), uniform and independent in each; seeds are fixed, so that
every test here either passes always or never. Bounds leave a random function a chance of failing below 1 in 10,000."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from slipstream.decoding.noise import CoupledChoice, gumbel, keys

N_VOCAB = 151_936


def uniform(seed: int, position: int, n: int) -> np.ndarray:
    """The noise as numbers that ought to be uniform on (0, 1)."""
    return np.exp(-np.exp(-gumbel(seed, position, np.arange(n))))


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
@pytest.mark.parametrize("position", [0, 1, 100_000])
def test_is_gumbel(seed: int, position: int) -> None:
    noise = gumbel(seed, position, np.arange(N_VOCAB))
    assert stats.kstest(noise, stats.gumbel_r.cdf).pvalue > 1e-4
    counts = np.bincount((uniform(seed, position, N_VOCAB) * 1024).astype(int), minlength=1024)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_is_gumbel_along_positions_and_along_seeds() -> None:
    one = np.array([17])
    along_positions = np.array([gumbel(3, p, one)[0] for p in range(4000)])
    along_seeds = np.array([gumbel(s, 3, one)[0] for s in range(4000)])
    for noise in along_positions, along_seeds:
        assert stats.kstest(noise, stats.gumbel_r.cdf).pvalue > 1e-4
        assert abs(np.corrcoef(noise[1:], noise[:-1])[0, 1]) < 4 / np.sqrt(len(noise))
    assert abs(np.corrcoef(along_positions, along_seeds)[0, 1]) < 4 / np.sqrt(4000)


def test_no_correlation_between_neighbouring_tokens_positions_and_seeds() -> None:
    n = N_VOCAB
    noise = uniform(0, 0, n)
    others = [uniform(0, p, n) for p in (1, 2, 3, 4, 8, 256, 2**20)] + [uniform(s, 0, n) for s in (1, 2, 3, 2**32)]
    for other in others:
        assert abs(np.corrcoef(noise, other)[0, 1]) < 4 / np.sqrt(n)
    for lag in (1, 2, 3, 4, 8, 16, 256, 65_536):
        assert abs(np.corrcoef(noise[lag:], noise[:-lag])[0, 1]) < 4 / np.sqrt(n - lag)


def test_pairs_are_uniform_on_the_square() -> None:
    for other in uniform(0, 1, N_VOCAB), uniform(1, 0, N_VOCAB), np.roll(uniform(0, 0, N_VOCAB), 1):
        cells = (uniform(0, 0, N_VOCAB) * 32).astype(int) * 32 + (other * 32).astype(int)
        assert stats.chisquare(np.bincount(cells, minlength=1024)).pvalue > 1e-4


def test_every_bit_is_balanced_and_flips_with_every_bit_of_position_and_seed() -> None:
    """Avalanche of the keys: any one bit of (seed, position) changes every key bit half of the time."""

    def bits(seed: int, position: int) -> np.ndarray:
        return np.unpackbits(np.array(keys(seed, position)).view(np.uint8)).astype(int)

    bases = [(s * 0x9E3779B9, p) for s in range(16) for p in range(16)]
    for bit in range(64):
        flips = sum(bits(s, p) ^ bits(s ^ (1 << bit), p) for s, p in bases)
        assert np.all(abs(flips - 128) < 6 * 8)
    for bit in range(20):
        flips = sum(bits(s, p) ^ bits(s, p ^ (1 << bit)) for s, p in bases)
        assert np.all(abs(flips - 128) < 6 * 8)


def test_does_not_depend_on_which_other_tokens_are_asked() -> None:
    all_at_once = gumbel(5, 9, np.arange(5000))
    for ids in ([0], [4999], [3, 1, 2], list(range(1, 5000, 7)), list(range(13))):
        assert np.array_equal(gumbel(5, 9, np.array(ids)), all_at_once[ids])


def test_winning_end_is_fine() -> None:
    """The largest of 2²² values is about 15; with 24-bit noise many would tie there, here none does."""
    noise = np.concatenate([gumbel(0, p, np.arange(2**17)) for p in range(32)])
    top = np.sort(noise)[-4096:]
    assert len(np.unique(top)) == len(top)
    assert noise.min() > -3.62


def test_extreme_words_stay_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    for word, expected in (0, 65 * np.log(2)), (2**32 - 1, -np.log(53 * np.log(2))):
        monkeypatch.setattr("slipstream.decoding.noise._lowbias32", lambda x, key, spare, w=word: np.full_like(x, w))
        assert gumbel(0, 0, np.arange(3)) == pytest.approx([expected] * 3)


ROWS = {
    "flat": np.zeros(N_VOCAB),
    "sharp": np.where(np.arange(N_VOCAB) == 77, 30.0, 0.0),
    "normal": np.random.default_rng(0).normal(0, 3, N_VOCAB),
    "two levels": np.random.default_rng(1).integers(0, 2, N_VOCAB) * 8.0,
    "far from zero": np.random.default_rng(2).normal(1e4, 2, N_VOCAB),
    "mostly banned": np.where(np.random.default_rng(3).random(N_VOCAB) < 0.01, 1.0, -np.inf),
    "huge": np.random.default_rng(4).normal(0, 1e38, N_VOCAB).clip(-3.4e38, 3.4e38),
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("temperature", [0.05, 0.8, 50.0])
def test_choice_is_the_brute_force_arg_max(name: str, temperature: float) -> None:
    row = ROWS[name].astype(np.float32)
    ids = np.sort(np.random.default_rng(5).choice(N_VOCAB, 9000, replace=False))
    choice = CoupledChoice(11, temperature)
    for position in range(6):
        with np.errstate(over="ignore"):
            scores = (row.astype(np.float64) - row.max()) / temperature + gumbel(11, position, np.arange(N_VOCAB))
            top = float(row[ids].max())
            some = (row[ids].astype(np.float64) - top) / temperature + gumbel(11, position, ids)
        assert choice(row, None, position) == scores.argmax()
        if top > -np.inf:
            assert choice(row[ids], ids, position) == ids[some.argmax()]


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-35, 1e35, 1e308])
def test_extreme_temperatures(temperature: float) -> None:
    row = ROWS["normal"].astype(np.float32)
    token = CoupledChoice(0, temperature)(row, None, 4)
    assert token == (row.argmax() if temperature < 1 else gumbel(0, 4, np.arange(N_VOCAB)).argmax())


def test_candidates_may_outnumber_an_earlier_row() -> None:
    choice = CoupledChoice(0, 1.0)
    assert choice(np.zeros(3, np.float32), None, 0) == gumbel(0, 0, np.arange(3)).argmax()
    assert choice(np.zeros(5000, np.float32), np.arange(5000), 0) == gumbel(0, 0, np.arange(5000)).argmax()
    assert choice(np.zeros(9000, np.float32), None, 0) == gumbel(0, 0, np.arange(9000)).argmax()


def test_a_token_of_the_smallest_word_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its noise is 45; a bound that takes the word for 1 (or ½) says 22.9 and prunes it."""
    monkeypatch.setattr("slipstream.decoding.noise.keys", lambda seed, position: (np.uint32(0),) * 4)
    monkeypatch.setattr(
        "slipstream.decoding.noise.spread", lambda ids: np.where(ids == 4321, 0, 2**31).astype(np.uint32)
    )
    monkeypatch.setattr("slipstream.decoding.noise._lowbias32", lambda x, key, spare: x)
    row = np.zeros(9000, np.float32)
    row[4321] = -40
    assert CoupledChoice(0, 1.0)(row, None, 0) == 4321
