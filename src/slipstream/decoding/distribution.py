"""A distribution over tokens, with nothing kept of those that cannot come."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Distribution:
    """Token ids, intp (m,), ascending, and their probabilities, float64 (m,), all above 0, of sum 1."""

    ids: NDArray[np.intp]
    probabilities: NDArray[np.float64]

    @classmethod
    def of_weights(cls, ids: NDArray[np.intp], weights: NDArray[np.float64]) -> Distribution | None:
        """In proportion to these weights (m,), 0 or more; None where all of them are 0."""
        possible = weights > 0
        if not possible.any():
            return None
        weights = weights[possible]
        return cls(ids[possible], weights / weights.sum())

    def probability(self, token: int) -> float:
        at = int(self.ids.searchsorted(token))
        return float(self.probabilities[at]) if at < len(self.ids) and self.ids[at] == token else 0.0

    def draw(self, uniform: float) -> int:
        """The token at which the cumulative sum passes `uniform`, a number of [0, 1)."""
        cumulative = self.probabilities.cumsum()
        at = int(cumulative.searchsorted(uniform * cumulative[-1], side="right"))
        return int(self.ids[min(at, len(self.ids) - 1)])

    def without(self, tokens: list[int]) -> Distribution | None:
        """The rest, normalised; None where nothing is left."""
        return Distribution.of_weights(self.ids, self.probabilities * ~np.isin(self.ids, tokens))

    def dense(self, n_vocab: int) -> NDArray[np.float64]:
        """The probabilities of all tokens, float64 (n_vocab,)."""
        row = np.zeros(n_vocab)
        row[self.ids] = self.probabilities
        return row


def excess(p: Distribution, q: Distribution, share: float = 1.0) -> NDArray[np.float64]:
    """max(share · p(x) − q(x), 0) for the tokens x of p, float64 (m,)."""
    at = np.minimum(q.ids.searchsorted(p.ids), len(q.ids) - 1)
    other = np.where(q.ids[at] == p.ids, q.probabilities[at], 0.0)
    return np.maximum(share * p.probabilities - other, 0.0)
