"""Top-k, top-p and min-p: which tokens of a row of logits remain, exactly, without sorting the vocabulary.

Each function takes float32 logits (m,), of which the largest is finite, and returns the indices that remain, intp,
ascending. Definitions are llama.cpp's (src/llama-sampling.cpp), with the lowest index first among equal logits.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.intp]
Row = NDArray[np.float32]

N_BLOCKS_DEEP = 64
"""A block of the top-k search is a column of the row folded into so many lines: numpy's fastest maximum."""

CHUNK = 65_536
"""Logits whose exponentials are summed at once; they stay in the caches."""

FEW = 2048
"""So many tokens are simply sorted."""

BUCKETS_PER_NAT = 32
N_BUCKETS = 4096


def top_k(logits: Row, k: int) -> Index:
    """The k largest logits; all of them where there are no more than k."""
    if k >= len(logits):
        return np.arange(len(logits))
    able = np.flatnonzero(logits >= np.float32(_kth_bound(logits, k)))
    values = logits[able]
    kth = np.partition(values, len(values) - k)[len(values) - k]
    keep = values > kth
    ties = np.flatnonzero(values == kth)
    keep[ties[: k - np.count_nonzero(keep)]] = True
    kept: Index = able[keep]
    return kept


def _kth_bound(logits: Row, k: int) -> float:
    """A value that at least k logits reach: the k-th largest of the maxima of disjoint blocks."""
    width = len(logits) // N_BLOCKS_DEEP
    if k > width:
        return -np.inf
    maxima = logits[: width * N_BLOCKS_DEEP].reshape(N_BLOCKS_DEEP, width).max(axis=0)
    return float(np.partition(maxima, width - k)[width - k])


def top_p(logits: Row, p: float) -> Index:
    """The smallest head of the softmax (temperature 1), likeliest token first, whose mass reaches p; at least one.

    Over more than `FEW` tokens the mass is summed in float32, as in llama.cpp: one within some 10⁻⁷ of p may count
    as either.
    """
    top = float(logits.max())
    if len(logits) > FEW:
        mass = p * exp_sum(logits, top)
        able, weights = _reaching(logits, top, mass)
    else:
        able, weights = np.arange(len(logits)), np.exp(np.subtract(logits, top, dtype=np.float64))
        mass = p * float(weights.sum())
    keep, edge, before = np.zeros(len(able), dtype=bool), np.arange(len(able)), 0.0
    if len(able) > FEW:
        # The likeliest buckets are in as a whole; only the bucket in which the mass is reached needs an order.
        below = np.subtract(top, logits[able], dtype=np.float64)
        bucket = np.minimum(below * BUCKETS_PER_NAT, N_BUCKETS - 1).astype(np.intp)
        mass_to = np.cumsum(np.bincount(bucket, weights=weights))
        last = int(np.searchsorted(mass_to, mass))
        keep, edge = bucket < last, np.flatnonzero(bucket == last)
        before = float(mass_to[last - 1]) if last else 0.0
    order = edge[np.argsort(-logits[able[edge]], kind="stable")]
    n = int(np.searchsorted(before + np.cumsum(weights[order]), mass)) + 1
    keep[order[:n]] = True
    kept: Index = able[keep]
    return kept


def exp_sum(logits: Row, top: float) -> float:
    """Σ exp(logit − top). Float32 within a chunk, float64 over the chunks: right to some 10⁻⁷ of it."""
    total = 0.0
    scratch = np.empty(min(CHUNK, len(logits)), dtype=np.float32)
    with np.errstate(over="ignore"):
        for start in range(0, len(logits), CHUNK):
            part = logits[start : start + CHUNK]
            weights = scratch[: len(part)]
            np.subtract(part, np.float32(top), out=weights)
            total += float(np.exp(weights, out=weights).sum())
    return total


def _reaching(logits: Row, top: float, mass: float) -> tuple[Index, NDArray[np.float64]]:
    """Tokens above a threshold that falls until their weights exp(logit − top) sum up to `mass`; those weights."""
    for depth in (5.0, 8.0, 11.0, 14.0, 20.0):
        able = np.flatnonzero(logits >= at_least(top - depth))
        weights = np.exp(np.subtract(logits[able], top, dtype=np.float64))
        if weights.sum() > mass:
            return able, weights
    return np.arange(len(logits)), np.exp(np.subtract(logits, top, dtype=np.float64))


def min_p(logits: Row, p: float) -> Index:
    """The tokens at least p times as likely as the likeliest."""
    return np.flatnonzero(logits >= at_least(float(logits.max()) + math.log(p)))


def at_least(threshold: float) -> np.float32:
    """The smallest float32 that is ≥ threshold, so that one float32 comparison decides as float64 would."""
    rounded: np.float32 = np.float32(threshold)
    if float(rounded) < threshold:
        rounded = np.nextafter(rounded, np.float32(np.inf))
    return rounded
