"""The random decisions of a round under the rejection rules: which there are, and where their numbers come from."""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

from .distribution import Distribution
from .noise import uniform


class Stream(IntEnum):
    """What a random number is for. One stream a purpose: a number used twice would tie two decisions together."""

    DRAFT = 0
    ACCEPT = 1
    RESIDUAL = 2
    TARGET = 3


class Chance(Protocol):
    """Decides, independently for each (stream, node) of a round. Proofs enumerate all outcomes instead."""

    def draw(self, stream: Stream, node: int, distribution: Distribution) -> int:
        """A token of the distribution."""

    def accepts(self, node: int, probability: float) -> bool:
        """True with this probability."""


class KeyedChance:
    """Implements `Chance` by numbers that are a pure function of (seed, stream, round, node).

    A round is named by the number of tokens committed before it, which no other round of the text shares.
    """

    def __init__(self, seed: int, n_committed: int) -> None:
        self._seed = seed
        self._round = n_committed

    def draw(self, stream: Stream, node: int, distribution: Distribution) -> int:
        return distribution.draw(uniform(self._seed, stream, self._round, node))

    def accepts(self, node: int, probability: float) -> bool:
        return uniform(self._seed, Stream.ACCEPT, self._round, node) < probability
