"""How often proposed tokens are accepted: learned conditional rates, by band of evidence and position in the draft."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

MEMORY = 200.0
"""Observations that a rate remembers; older ones fade."""

KEPT = 50.0
"""What a rate of an earlier run weighs, in observations: another text may stand before it."""

FAST_MEMORY, CHANGE = 16.0, 0.3
"""Where the last observations differ so much from all that is remembered, the text has changed: they alone count."""

N_POSITIONS = 5
POSITION_WEIGHT = 20.0
"""Observations until the rate at a position counts as much as that of its whole band."""


def expected_tokens(acceptance: float, n_drafted: int) -> float:
    """Tokens that a round gives at a constant acceptance, the bonus token included (arXiv 2211.17192, eq. 1)."""
    if acceptance == 1.0:
        return n_drafted + 1.0
    return (1.0 - acceptance ** (n_drafted + 1)) / (1.0 - acceptance)


class Acceptance:
    """Conditional acceptance (accepted ÷ reached), started from priors that weigh as `prior_weight` tries.

    What a band means is its drafter's affair: a kind of match, or an interval of a model's own probability. Within
    a band each group of positions (1, 2, 3–4, 5–8, 9 and more) has a rate of its own, drawn to that of the band as
    long as it has been seen little.
    """

    def __init__(self, priors: Sequence[float], prior_weight: float) -> None:
        self.rates = list(priors)
        self._weights = [prior_weight] * len(self.rates)
        self._latest = list(priors)
        self._seen = [prior_weight * rate / sum(self.rates) for rate in self.rates]
        self._at = [[[0.0, 0.0] for _ in range(N_POSITIONS)] for _ in self.rates]  # (tries, share accepted)

    def rate(self, band: int, position: int) -> float:
        """The rate at a position of the draft, counted from 0."""
        tries, share = self._at[band][group(position)]
        return (tries * share + POSITION_WEIGHT * self.rates[band]) / (tries + POSITION_WEIGHT)

    def learn(self, band: int, accepted: bool) -> None:
        """One token of this band, drafted or not, proved right or wrong."""
        weight = self._weights[band] = min(self._weights[band] + 1.0, MEMORY)
        self.rates[band] += (accepted - self.rates[band]) / weight
        self._latest[band] += (accepted - self._latest[band]) / FAST_MEMORY
        if abs(self._latest[band] - self.rates[band]) > CHANGE and weight > FAST_MEMORY:
            self.rates[band], self._weights[band] = self._latest[band], FAST_MEMORY
            self._at[band] = [[0.0, 0.0] for _ in range(N_POSITIONS)]

    def learn_at(self, band: int, position: int, accepted: bool) -> None:
        """One token of this band was verified at this position of a draft. The band itself is told by `learn`."""
        cell = self._at[band][group(position)]
        cell[0] = min(cell[0] + 1.0, MEMORY)
        cell[1] += (accepted - cell[1]) / cell[0]

    def learn_draft(self, bands: Sequence[int], drafted: Sequence[int], tokens: Sequence[int]) -> int:
        """Compares a draft, of whose tokens the bands are given, with what came; how many of it are right."""
        for band in bands:
            self.meet(band)
        for position, (mine, true, band) in enumerate(zip(drafted, tokens, bands, strict=False)):
            self.learn(band, mine == true)
            self.learn_at(band, position, mine == true)
            if mine != true:
                return position
        return min(len(drafted), len(tokens), len(bands))

    def meet(self, band: int) -> None:
        """A token of this band was proposed."""
        self._seen[band] += 1.0
        if self._seen[band] > MEMORY:
            self._seen = [n / 2 for n in self._seen]

    def typical(self, position: int) -> float:
        """The rate at a position where it is not known yet of which band the token will be."""
        return sum(n * self.rate(band, position) for band, n in enumerate(self._seen)) / sum(self._seen)

    def to_data(self) -> dict[str, Any]:
        """All rates as plain data, for `restore`."""
        return {"rates": self.rates, "weights": self._weights, "positions": self._at}

    def restore(self, data: Any) -> None:
        """Takes over what `to_data` described, at less weight; nothing where the data is damaged."""
        try:
            rates = [_share(r) for r in data["rates"]]
            weights = [min(_count(w), KEPT) for w in data["weights"]]
            at = [[[min(_count(n), KEPT), _share(s)] for n, s in cells] for cells in data["positions"]]
        except (KeyError, TypeError, ValueError, OverflowError):
            return
        n = len(self.rates)
        if len(rates) == len(weights) == len(at) == n and all(len(cells) == N_POSITIONS for cells in at):
            self.rates, self._weights, self._at = rates, weights, at
            self._latest = list(rates)


def group(position: int) -> int:
    """The group of a position: 0, 1, 2–3, 4–7, 8 and more."""
    return min(position.bit_length(), N_POSITIONS - 1)


def _share(value: object) -> float:
    if not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
        raise ValueError("a share")
    return float(value)


def _count(value: object) -> float:
    if not isinstance(value, int | float) or not 0.0 <= value < math.inf:
        raise ValueError("a count")
    return float(value)
