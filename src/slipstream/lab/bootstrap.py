"""Resampling with a fixed seed, and the 95 % interval of what was drawn."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

N_DRAWS = 10_000
SEED = 0

Floats = NDArray[np.float64]


def generator(stream: int = 0) -> np.random.Generator:
    """Random numbers; what is drawn together takes a `stream` each."""
    return np.random.default_rng((SEED, stream))


def resampled(n: int, random: np.random.Generator, n_draws: int = N_DRAWS) -> NDArray[np.int64]:
    """Indices below `n`, drawn with replacement, int64 (n_draws, n)."""
    return random.integers(n, size=(n_draws, n))


def interval(drawn: Floats) -> tuple[float, float]:
    """The percentiles 2.5 and 97.5."""
    low, high = np.percentile(drawn, (2.5, 97.5))
    return float(low), float(high)
