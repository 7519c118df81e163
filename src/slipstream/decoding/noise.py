"""Counter-based Gumbel noise, and the choice of a token that is coupled to it.

The noise is a pure function of (seed, position, token): whoever chooses the token at a position, the target or a
drafter, in whichever order and however often, meets the same noise. The arg-max of logit ÷ temperature + noise is a
sample of the softmax (Gumbel-max: Maddison, Tarlow, Minka 2014, "A* Sampling").

Bits: SplitMix64 (Steele, Lea, Flood 2014) gives four 32-bit keys for each (seed, position); tokens are spread and
then mixed with the keys by lowbias32 (Wellons 2018, "Prospecting for Hash Functions", nullprogram.com).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Hashed = NDArray[np.uint32]
Keys = tuple[np.uint32, np.uint32, np.uint32, np.uint32]

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
DOMAIN = 0xD1B54A32D192ED03
"""Keeps the numbers of the rejection rules apart from the Gumbel noise of the same seed."""
FEW = 2048
"""So many candidates get their exact scores at once."""

MARGIN = 1e-3
"""Far above the rounding of the float32 bounds (some 1e-5 where a token can win)."""


def _splitmix64(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def keys(seed: int, position: int) -> Keys:
    """The keys of one position: outputs 2·position + 1 and + 2 of the SplitMix64 stream of a mixed seed."""
    state = _splitmix64((seed + GOLDEN) & MASK)
    a = _splitmix64((state + (2 * position + 1) * GOLDEN) & MASK)
    b = _splitmix64((state + (2 * position + 2) * GOLDEN) & MASK)
    return np.uint32(a >> 32), np.uint32(a & 0xFFFFFFFF), np.uint32(b >> 32), np.uint32(b & 0xFFFFFFFF)


def uniform(seed: int, stream: int, n_round: int, node: int) -> float:
    """A number of [0, 1) with 53 random bits: a pure function of its four names (`node` from −1 on)."""
    state = _splitmix64(seed ^ DOMAIN)
    for name in (stream, n_round, node + 1):
        state = _splitmix64((state + (name + 1) * GOLDEN) & MASK)
    return float((state >> 11) * 2.0**-53)


def _lowbias32(x: Hashed, key: np.uint32, spare: Hashed) -> Hashed:
    """Mixes x in place, with a key added half-way; a bijection of 32-bit words for each key."""
    np.right_shift(x, np.uint32(16), out=spare)
    np.bitwise_xor(x, spare, out=x)
    np.multiply(x, np.uint32(0x7FEB352D), out=x)
    np.right_shift(x, np.uint32(15), out=spare)
    np.bitwise_xor(x, spare, out=x)
    np.add(x, key, out=x)
    np.multiply(x, np.uint32(0x846CA68B), out=x)
    np.right_shift(x, np.uint32(16), out=spare)
    return np.bitwise_xor(x, spare, out=x)


def spread(ids: NDArray[np.integer]) -> Hashed:
    """Token ids scattered over the 32-bit words, so that no two positions' keys map one range onto the other."""
    x = ids.astype(np.uint32)
    return _lowbias32(x, np.uint32(0), np.empty_like(x))


def _gumbel(keys: Keys, spreaded: Hashed) -> NDArray[np.float64]:
    spare = np.empty_like(spreaded)
    high = _lowbias32(spreaded ^ keys[0], keys[1], spare).astype(np.float64)
    low = _lowbias32(spreaded ^ keys[2], keys[3], spare)
    v = np.minimum((high * 2.0**32 + low + 0.5) * 2.0**-64, 1 - 2.0**-53)
    gumbel: NDArray[np.float64] = -np.log(-np.log1p(-v))
    return gumbel


def gumbel(seed: int, position: int, ids: NDArray[np.integer]) -> NDArray[np.float64]:
    """Standard Gumbel noise, float64 (m,), of the token ids (m,) at a position of the sequence.

    −log(−log(1 − v)) with v uniform on a grid of 2⁻⁶⁴ above 0: finest where tokens win; within [−3.61, 45.06].
    """
    return _gumbel(keys(seed, position), spread(ids))


def scaled(logits: NDArray[np.float32], top: float | np.float32, temperature: float) -> NDArray[np.float64]:
    """(logit − top) ÷ temperature, float64: the largest is 0, so that no temperature can overflow it."""
    with np.errstate(over="ignore"):
        return np.subtract(logits, top, dtype=np.float64) / temperature


class CoupledChoice:
    """Arg-max of logit ÷ temperature + Gumbel noise, in float64, the lowest token among equals; with scratch memory."""

    def __init__(self, seed: int, temperature: float) -> None:
        self.seed = seed
        self.temperature = temperature
        self._grow(0)

    def _grow(self, n: int) -> None:
        self._spread = spread(np.arange(n))
        self._hash, self._spare = np.empty(n, np.uint32), np.empty(n, np.uint32)
        self._score, self._noise = np.empty(n, np.float32), np.empty(n, np.float32)

    def __call__(self, logits: NDArray[np.float32], ids: NDArray[np.intp] | None, position: int) -> int:
        """The token chosen among candidates: float32 logits (m,), the largest finite, and their ids (None: 0 … m−1).

        `ids` ascend.
        """
        if len(logits) == 1:
            return 0 if ids is None else int(ids[0])
        top = logits.max()
        position_keys = keys(self.seed, position)
        if ids is None and len(logits) > len(self._spread):
            self._grow(len(logits))
        spreaded = self._spread[: len(logits)] if ids is None else spread(ids)
        if len(logits) > FEW and 1e-30 < self.temperature < 1e30:
            able = self._able(logits, top, position_keys, spreaded)
            logits, spreaded = logits[able], spreaded[able]
            ids = able if ids is None else ids[able]
        best = int((scaled(logits, top, self.temperature) + _gumbel(position_keys, spreaded)).argmax())
        return best if ids is None else int(ids[best])

    def _able(self, logits: NDArray[np.float32], top: np.float32, keys: Keys, spreaded: Hashed) -> NDArray[np.intp]:
        """Indices of those that can still win, by a float32 upper bound of the score from the high word alone.

        v ≥ high ÷ 2³², and −log(1 − v) ≥ v, so the noise is at most 32·log 2 − log(high).
        """
        m = len(logits)
        if m > len(self._hash):
            self._grow(m)
        bound, noise, word = self._score[:m], self._noise[:m], self._hash[:m]
        with np.errstate(over="ignore"):
            np.subtract(logits, top, out=bound)
            np.multiply(bound, np.float32(1 / self.temperature), out=bound)
        np.bitwise_xor(spreaded, keys[0], out=word)
        np.copyto(noise, _lowbias32(word, keys[1], self._spare[:m]), casting="unsafe")
        np.maximum(noise, np.float32(2.0**-33), out=noise)  # high = 0: v ≥ 2⁻⁶⁵
        np.subtract(bound, np.log(noise, out=noise), out=bound)
        leader = int(bound.argmax())
        lead = scaled(logits[leader : leader + 1], top, self.temperature) + _gumbel(keys, spreaded[leader : leader + 1])
        return np.flatnonzero(bound >= np.float32(lead[0] - 32 * math.log(2) - MARGIN))
