"""Log-probabilities of the tokens that were written: those of the target's raw logits, before any processing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .protocols import Logits
from .truncation import top_k

MAX_TOP = 100


@dataclass(frozen=True)
class TokenLogprob:
    """A token, its natural log-probability, and the likeliest tokens at its place with theirs, likeliest first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def token_logprob(row: Logits, token: int, n_top: int) -> TokenLogprob:
    """What the raw row, float32 (n_vocab,), says of a token: log-softmax in float64.

    A pure function of the row: the same bits give the same numbers. Among equal logits the lower token comes first.
    """
    peak = float(row.max())
    log_sum = float(np.log(np.exp(np.subtract(row, peak, dtype=np.float64)).sum()))
    ids = top_k(row, n_top) if 0 < n_top < len(row) else np.arange(len(row) if n_top else 0)
    likeliest = sorted(ids.tolist(), key=lambda i: (-row[i], i))
    # In this order, since a large logit would swallow the sum.
    return TokenLogprob(
        token, float(row[token]) - peak - log_sum, tuple((i, float(row[i]) - peak - log_sum) for i in likeliest)
    )
