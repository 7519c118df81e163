"""The model drafter: a smaller model of the same vocabulary writes ahead, and stops where it is no longer sure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..decoding.acceptance import Acceptance
from ..decoding.chance import Stream
from ..decoding.choice import Choice
from ..decoding.distribution import Distribution
from ..decoding.draft import EMPTY, Draft, chain
from ..decoding.protocols import Budget, Logits, Rows, Runtime

N_BANDS = 10
PRIORS = tuple((band + 0.5) / N_BANDS for band in range(N_BANDS))
"""Before anything is known, the target is taken to agree as often as the draft is sure of its token."""
PRIOR_WEIGHT = 4.0


@dataclass
class _Text:
    """tokens: the committed ones; n_cached: rows in the draft's cache that are right for them.

    proposed and bands: what was drafted last and how sure the model was; observed once, then empty.
    drawn: whether the tokens were drawn.
    """

    tokens: list[int] = field(default_factory=list)
    n_cached: int = 0
    proposed: list[int] = field(default_factory=list)
    bands: list[int] = field(default_factory=list)
    drawn: bool = False


class ModelDrafter:
    """Implements `decoding.protocols.Drafter` over a runtime of its own, whose cache nobody else touches.

    It picks its tokens by the target's own rule, with the same noise above temperature 0, so that it agrees with the
    target as often as it can; under the rejection rules it draws them, with randomness of its own.
    """

    name = "model"
    can_continue = False

    def __init__(self, runtime: Runtime, n_vocab: int) -> None:
        """`n_vocab` is the target's: padding tokens at the end may make the two differ."""
        assert runtime.max_rollback is None, "a draft is written token by token, and must go back over any number"
        self.runtime = runtime
        self.acceptance = Acceptance(PRIORS, PRIOR_WEIGHT)
        self.drawn_acceptance = Acceptance(PRIORS, PRIOR_WEIGHT)
        self.acceptances: Mapping[str, Acceptance] = {"chosen": self.acceptance, "drawn": self.drawn_acceptance}
        self._n_vocab = n_vocab
        self._texts: dict[int, _Text] = {}

    def begin(self, seq: int, tokens: Sequence[int]) -> None:
        old = self._texts.get(seq, _Text())
        same = 0
        while same < min(old.n_cached, len(tokens)) and old.tokens[same] == tokens[same]:
            same += 1
        self.runtime.keep(seq, same)
        self._texts[seq] = _Text(list(tokens), same)

    def backlog(self, seq: int) -> int:
        text = self._texts[seq]
        return len(text.tokens) - text.n_cached

    def propose(self, seq: int, budget: Budget, choice: Choice, behind: Sequence[int] = ()) -> Draft:
        assert not behind, "this drafter does not continue others"
        text = self._texts[seq]
        text.proposed, text.bands = [], []
        n_max = min(budget.max_tokens, self.runtime.n_ctx - len(text.tokens))
        if n_max < 1 or self._is_foreign(text):
            return EMPTY
        text.drawn = choice.draws
        write = self._draw if choice.draws else self._choose
        return write(seq, text, n_max, budget, choice)

    def _choose(self, seq: int, text: _Text, n_max: int, budget: Budget, choice: Choice) -> Draft:
        """The target's own choice, made with the draft's logits; each token's probability says how sure it is."""
        survival: list[float] = []
        alive = 1.0
        while len(survival) < n_max and goes_on(self.acceptance, alive, len(survival), budget):
            row = self._next_row(seq, text)
            token = choice(row, text.proposed)
            band = band_of(probability_of(row, token))
            alive *= self.acceptance.rate(band, len(survival))
            text.bands.append(band)
            text.proposed.append(token)
            if alive < budget.min_survival:
                break
            survival.append(alive)
        return chain(text.proposed[: len(survival)], survival)

    def _draw(self, seq: int, text: _Text, n_max: int, budget: Budget, choice: Choice) -> Draft:
        """Tokens drawn from the draft's own distribution; it stops by what is known before a token is drawn."""
        survival: list[float] = []
        q: list[Distribution] = []
        alive = 1.0
        while len(survival) < n_max and goes_on(self.drawn_acceptance, alive, len(survival), budget):
            distribution = choice.distribution(self._next_row(seq, text), text.proposed)
            band = band_of(float(distribution.probabilities.max()))
            alive *= self.drawn_acceptance.rate(band, len(q))
            rate = self.drawn_acceptance.typical(len(q) + 1)
            stops = alive < budget.min_survival or not budget.pays(len(q), alive, rate, computed=True)
            if q and stops:
                break
            text.proposed.append(choice.chance.draw(Stream.DRAFT, len(q), distribution))
            text.bands.append(band)
            survival.append(alive)
            q.append(distribution)
        return chain(text.proposed, survival, tuple(q)) if q else EMPTY

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        text = self._texts[seq]
        acceptance = self.drawn_acceptance if text.drawn else self.acceptance
        agreed = acceptance.learn_draft(text.bands, text.proposed, tokens)
        if text.proposed:
            # The last proposed token was never computed; those that the text did not take are dropped.
            text.n_cached = len(text.tokens) + min(agreed, len(text.proposed) - 1)
            self.runtime.keep(seq, text.n_cached)
        text.tokens += tokens
        text.proposed, text.bands = [], []

    def end(self, seq: int) -> None:
        if self._texts.pop(seq, None) is not None:
            self.runtime.keep(seq, 0)

    def _next_row(self, seq: int, text: _Text) -> Logits:
        """The row behind everything proposed so far."""
        if not text.proposed:
            return self._catch_up(seq, text)
        return self._forward(seq, text.proposed[-1:], len(text.tokens) + len(text.proposed) - 1)

    def _is_foreign(self, text: _Text) -> bool:
        """Whether the text holds a token of the target's (padding) that the draft model doesn't have."""
        return max(text.tokens[text.n_cached :], default=0) >= self.runtime.n_vocab

    def _catch_up(self, seq: int, text: _Text) -> Logits:
        """Reads what was committed since the last draft; returns the row after the last token."""
        # That row is wanted even where the text, begun anew or drafted before, lies in the cache as a whole.
        text.n_cached = min(text.n_cached, len(text.tokens) - 1)
        self.runtime.keep(seq, text.n_cached)
        while True:
            chunk = text.tokens[text.n_cached : text.n_cached + self.runtime.n_batch]
            row = self._forward(seq, chunk, text.n_cached)
            text.n_cached += len(chunk)
            if text.n_cached == len(text.tokens):
                return row

    def _forward(self, seq: int, tokens: Sequence[int], start: int) -> Logits:
        row = self.runtime.forward([Rows(seq, tokens, start, 1)]).logits[0][0]
        missing = self._n_vocab - len(row)
        if missing > 0:
            return np.concatenate([row, np.full(missing, -np.inf, dtype=np.float32)])
        shared: Logits = row[: self._n_vocab]
        return shared


def goes_on(acceptance: Acceptance, alive: float, position: int, budget: Budget) -> bool:
    """Whether to compute one more token. The first was decided on by who asked."""
    rate = acceptance.typical(position)
    return position == 0 or budget.pays(position, alive * rate, rate)


def band_of(probability: float) -> int:
    """Which of the `N_BANDS` rates a token has that the model gives this probability."""
    return min(int(probability * N_BANDS), N_BANDS - 1)


def probability_of(row: Logits, token: int) -> float:
    """The model's own probability of the token, at temperature 1."""
    return float(1.0 / np.exp(np.minimum(row - row[token], 80.0)).sum(dtype=np.float64))
