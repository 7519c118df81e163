"""The choice of a token: by the target, and by drafters that have logits of their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .chance import Chance, KeyedChance, Stream
from .distribution import Distribution
from .noise import CoupledChoice
from .protocols import Logits
from .sampling import NO_HISTORY, Chain, Sampling


class Sampler:
    """Chooses tokens as the options say: a pure function of (row, history, position) and the seed.

    At temperature 0 the arg-max, the lowest token among equals; else the choice coupled to the noise of (seed,
    position, token), see `noise`, or under the rejection rules a draw keyed by the round. Keeps nothing between calls
    but scratch memory: one sampler for each thread.
    """

    def __init__(self, sampling: Sampling, n_vocab: int) -> None:
        self.sampling = sampling
        self.chain = Chain(sampling, n_vocab)
        self._coupled = CoupledChoice(sampling.seed, sampling.temperature)
        self._is_plain = sampling.greedy and not sampling.penalises

    def choose(self, row: Logits, window: NDArray[np.integer], position: int) -> int:
        """The token at `position` (the number of tokens before it), given its raw row and what penalties look at.

        Raises RuntimeLibraryError for a row without numbers, see `require_numbers`.
        """
        if self._is_plain:
            token = self.chain.unbiased_argmax(row)
            if token is not None:
                return token
        row = self.chain.adjust(row, window)
        if self.sampling.greedy:
            return int(row.argmax())
        ids, logits = self.chain.keep(row)
        return self._coupled(logits, ids, position)

    def bind(self, tokens: Sequence[int]) -> Choice:
        """The choices of one round, given the committed tokens (prompt included). Valid until the next commit."""
        return Choice(self, tokens)


class Choice:
    """How the tokens of one sequence are chosen in one round.

    rule:   "greedy", "coupled", "rejection" or "block".
    chance: the decisions of the last two.
    """

    def __init__(self, sampler: Sampler, tokens: Sequence[int]) -> None:
        sampling = sampler.sampling
        self.rule = "greedy" if sampling.greedy else sampling.verification
        self.draws = self.rule in ("rejection", "block")
        self.chance: Chance = KeyedChance(sampling.seed, len(tokens))
        self._sampler = sampler
        self._n_tokens = len(tokens)
        self._past = self._window(tokens)

    def __call__(self, row: Logits, drafted: Sequence[int]) -> int:
        """The target's own choice behind the tokens drafted since the last commit; raw row, float32 (n_vocab,)."""
        if self.draws:
            return self.chance.draw(Stream.TARGET, len(drafted), self.distribution(row, drafted))
        return self._sampler.choose(row, self._window(drafted, self._past), self._n_tokens + len(drafted))

    def distribution(self, row: Logits, drafted: Sequence[int]) -> Distribution:
        """The distribution after the whole chain, the penalties seeing what was drafted."""
        return self._sampler.chain.distribution(row, self._window(drafted, self._past))

    def _window(self, tokens: Sequence[int], past: NDArray[np.int32] = NO_HISTORY) -> NDArray[np.int32]:
        """The last `repeat_last_n` tokens of past + tokens; nothing where nobody looks back."""
        sampling = self._sampler.sampling
        if not sampling.penalises:
            return NO_HISTORY
        n = sampling.repeat_last_n
        recent = np.asarray(tokens if n < 0 else tokens[-n:], dtype=np.int32)
        window = np.concatenate((past, recent))
        return window if n < 0 else window[-n:]
