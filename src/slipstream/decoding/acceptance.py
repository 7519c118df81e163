"""How often proposed tokens are accepted: learned conditional rates, one for each band of evidence."""

from __future__ import annotations

from collections.abc import Sequence

MEMORY = 200.0
"""Observations that a band remembers; older ones fade."""


class Acceptance:
    """Conditional acceptance (accepted ÷ reached) by band, started from priors that weigh as `prior_weight` tries.

    What a band means is its drafter's affair: a kind of match, or an interval of a model's own probability.
    """

    def __init__(self, priors: Sequence[float], prior_weight: float) -> None:
        self.rates = list(priors)
        self._weights = [prior_weight] * len(self.rates)

    def learn(self, band: int, accepted: bool) -> None:
        weight = self._weights[band] = min(self._weights[band] + 1.0, MEMORY)
        self.rates[band] += (accepted - self.rates[band]) / weight
