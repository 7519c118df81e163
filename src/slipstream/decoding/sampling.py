"""Sampling: what the user asks for, and the way from a row of logits to the tokens that may be chosen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, RuntimeLibraryError
from .distribution import Distribution
from .noise import scaled
from .protocols import Logits
from .truncation import min_p, top_k, top_p

NO_HISTORY: NDArray[np.int32] = np.empty(0, dtype=np.int32)
RULES = ("coupled", "rejection", "block")
FLOAT32_MAX = float(np.finfo(np.float32).max)
MAX_PENALTY = 1e6
"""Far beyond any logit; more could not be told from a ban, and would overflow where it is counted."""


@dataclass(frozen=True)
class Sampling:
    """Sampling options with llama.cpp's names, defaults and order.

    Order: logit bias, penalties (repetition, presence, frequency over the last `repeat_last_n` tokens), top-k,
    top-p, min-p, temperature. `temperature` 0 takes the arg-max. `top_k` 0, `top_p` 1 and `min_p` 0 switch a
    filter off; `repeat_last_n` 0 switches the penalties off and −1 means the whole sequence. A `logit_bias` of
    −inf bans a token. `verification` is the rule above temperature 0, one of `RULES`; see `verify`.

    Raises InputError for a value out of range.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int = 64
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    verification: str = "coupled"

    def __post_init__(self) -> None:
        t, top_p, min_p, repeat = self.temperature, self.top_p, self.min_p, self.repeat_penalty
        _check("temperature", t, _is_finite(t) and t >= 0, "a finite number, 0 or more")
        _check("top_k", self.top_k, _is_int(self.top_k) and self.top_k >= 0, "a whole number, 0 (off) or more")
        _check("top_p", top_p, _is_finite(top_p) and 0 < top_p <= 1, "above 0 and at most 1 (off)")
        _check("min_p", min_p, _is_finite(min_p) and 0 <= min_p < 1, "at least 0 (off) and below 1")
        _check("repeat_penalty", repeat, _is_finite(repeat) and repeat > 0, "a finite number above 0; 1 is off")
        for name, value in ("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty):
            fits = _is_finite(value) and abs(value) <= MAX_PENALTY
            _check(name, value, fits, f"from {-MAX_PENALTY:.0f} to {MAX_PENALTY:.0f}; 0 is off")
        last_n = self.repeat_last_n
        _check("repeat_last_n", last_n, _is_int(last_n) and last_n >= -1, "−1 (everything), 0 (off) or more")
        _check("seed", self.seed, _is_int(self.seed) and 0 <= self.seed < 2**64, "a whole number from 0 to 2⁶⁴ − 1")
        _check("verification", self.verification, self.verification in RULES, "one of " + ", ".join(RULES))
        is_mapping = isinstance(self.logit_bias, Mapping)
        _check("logit_bias", self.logit_bias, is_mapping, "a mapping of token ids to numbers")
        for token, bias in self.logit_bias.items():
            _check("logit_bias token", token, _is_int(token) and token >= 0, "a token id, 0 or more")
            _check(f"logit_bias of token {token}", bias, _is_finite(bias) or bias == -math.inf, "a number or -inf")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def penalises(self) -> bool:
        changes = self.repeat_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0
        return self.repeat_last_n != 0 and changes


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: object) -> bool:
    """Whether it is a number, and a finite one."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def _check(name: str, value: object, fits: bool, allowed: str) -> None:
    if not fits:
        raise InputError(f"{name} is {value!r}.", f"It must be {allowed}.")


@dataclass(frozen=True, eq=False)
class Candidates:
    """What remains of a row: token ids, intp (m,), ascending, and their logits, float64 (m,).

    The logits are divided by the temperature and shifted so that the largest is 0.
    """

    ids: NDArray[np.intp]
    logits: NDArray[np.float64]


class Chain:
    """Bias, penalties and filters. Never writes into a row; what it returns may live in its scratch row.

    Rows are raw float32 logits (n,), usually n = n_vocab; a draft model's may be of another length. `window` holds
    the tokens that penalties look back on, int (any,). Raises InputError for a biased token beyond n_vocab, and
    where every token is banned.
    """

    def __init__(self, sampling: Sampling, n_vocab: int) -> None:
        self.sampling = sampling
        self.n_vocab = n_vocab
        bias = sampling.logit_bias
        for token in bias:
            _check("logit_bias token", token, token < n_vocab, f"below {n_vocab}, the size of the vocabulary")
        self._biased = np.fromiter(bias.keys(), dtype=np.intp, count=len(bias))
        self._bias = np.fromiter(bias.values(), dtype=np.float64, count=len(bias))
        self._raises = any(amount > 0 for amount in bias.values())
        self._scratch = np.empty(n_vocab if bias or sampling.penalises else 0, dtype=np.float32)

    def adjust(self, row: Logits, window: NDArray[np.integer] = NO_HISTORY) -> Logits:
        """The row after logit bias and penalties: itself where neither applies, else the scratch row.

        Raises RuntimeLibraryError for a row without numbers, see `require_numbers`.
        """
        require_numbers(row.max())
        penalises = self.sampling.penalises and len(window) > 0
        if not penalises and not len(self._biased):
            return row
        if len(self._scratch) < len(row):
            self._scratch = np.empty(len(row), dtype=np.float32)
        adjusted = self._scratch[: len(row)]
        np.copyto(adjusted, row)
        fits = self._biased < len(row)
        biased = self._biased[fits]
        _store(adjusted, biased, adjusted[biased].astype(np.float64) + self._bias[fits])
        if penalises:
            self._penalise(adjusted, window)
        if len(biased) and adjusted.max() == -np.inf:
            raise InputError("logit_bias bans every token.", "Leave at least one token that may be chosen.")
        return adjusted

    def unbiased_argmax(self, row: Logits) -> int | None:
        """The arg-max after bias alone where the row's own shows it: it has no bias, and no token is raised.

        None where it takes the biased row to tell. Raises RuntimeLibraryError for a row without numbers.
        """
        token = int(row.argmax())
        require_numbers(row[token])
        return None if self._raises or token in self.sampling.logit_bias else token

    def _penalise(self, row: Logits, window: NDArray[np.integer]) -> None:
        tokens, counts = np.unique(window, return_counts=True)
        tokens, counts = tokens[tokens < len(row)], counts[tokens < len(row)]
        logits, repeat = row[tokens].astype(np.float64), self.sampling.repeat_penalty
        with np.errstate(over="ignore"):
            logits = np.where(logits > 0, logits / repeat, logits * repeat)
        logits -= counts * self.sampling.frequency_penalty + self.sampling.presence_penalty
        _store(row, tokens, logits)

    def keep(self, row: Logits) -> tuple[NDArray[np.intp] | None, Logits]:
        """The ids, ascending, that top-k, top-p and min-p leave of an adjusted row (None: all), and their logits."""
        s = self.sampling
        ids: NDArray[np.intp] | None = None
        if 0 < s.top_k < len(row):
            ids = top_k(row, s.top_k)
            row = row[ids]
        if s.top_p < 1:
            index = top_p(row, s.top_p)
            ids, row = index if ids is None else ids[index], row[index]
        if s.min_p > 0:
            index = min_p(row, s.min_p)
            ids, row = index if ids is None else ids[index], row[index]
        return ids, row

    def candidates(self, row: Logits, window: NDArray[np.integer] = NO_HISTORY) -> Candidates:
        """The tokens that can be chosen: of nothing but the arg-max at temperature 0."""
        row = self.adjust(row, window)
        if self.sampling.greedy:
            return Candidates(np.array([row.argmax()], dtype=np.intp), np.zeros(1))
        ids, logits = self.keep(row)
        scores = scaled(logits, logits.max(), self.sampling.temperature)
        possible = scores > -np.inf
        return Candidates((np.arange(len(row)) if ids is None else ids)[possible], scores[possible])

    def distribution(self, row: Logits, window: NDArray[np.integer] = NO_HISTORY) -> Distribution:
        """The distribution that the options define: of the tokens that are not cut off."""
        candidates = self.candidates(row, window)
        distribution = Distribution.of_weights(candidates.ids, np.exp(candidates.logits))
        assert distribution is not None, "the largest logit is 0"
        return distribution


def require_numbers(largest: float | np.floating) -> None:
    """Raises RuntimeLibraryError where the largest logit of a row is not finite: it is NaN if any of them is."""
    if not math.isfinite(largest):
        raise RuntimeLibraryError(
            f"The model computes no numbers: its largest logit is {largest}.",
            "Its file is damaged, or the K/V cache type or flash attention does not suit it.",
        )


def _store(row: Logits, tokens: NDArray[np.integer], logits: NDArray[np.float64]) -> None:
    """Writes float64 logits; none becomes +inf, so that differences stay defined."""
    with np.errstate(over="ignore"):
        row[tokens] = np.minimum(logits, FLOAT32_MAX)
