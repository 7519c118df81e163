"""The suffix drafter: proposes what followed the longest repeated suffix of the text, prompt included.

No model: it reads the tokens alone. After Oliaro et al., "SuffixDecoding", arXiv 2411.04975, with two changes:
an automaton of unlimited depth instead of a tree, and confidences that are learned from the text itself. Every
committed token shows, for each suffix that stood before it, whether the likeliest continuation was right, whether
or not it had been drafted.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..decoding.acceptance import Acceptance
from ..decoding.choice import Choice
from ..decoding.draft import Draft, chain
from ..decoding.protocols import Budget
from .automaton import SuffixAutomaton

N_EVIDENCE = 6
SUFFIXES_WEIGHED = 4

# How often the likeliest continuation came true, by match length (1, 2, 3, 4–5, 6–9, 10+; down) and by evidence
# (seen once; always the same, twice and more often; a share of >= 3/4, >= 1/2, less; across).
PRIORS = (
    *(0.30, 0.60, 0.80, 0.70, 0.40, 0.20),
    *(0.55, 0.80, 0.90, 0.80, 0.45, 0.28),
    *(0.65, 0.85, 0.93, 0.80, 0.45, 0.28),
    *(0.75, 0.90, 0.95, 0.85, 0.50, 0.30),
    *(0.85, 0.93, 0.97, 0.88, 0.52, 0.30),
    *(0.93, 0.97, 0.99, 0.90, 0.58, 0.35),
)
PRIOR_WEIGHT = 12.0


LENGTH_BANDS = (0, 0, 1, 2, 3, 3, 4, 4, 4, 4, 5)
"""The band of each match length; the last one for all that are longer."""


def evidence_band(best_count: int, followed: int) -> int:
    if best_count >= followed:
        return followed - 1 if followed < 3 else 2
    share = best_count / followed
    return 3 if share >= 0.75 else 4 if share >= 0.5 else 5


def band(length: int, best_count: int, followed: int) -> int:
    return LENGTH_BANDS[length if length < 10 else 10] * N_EVIDENCE + evidence_band(best_count, followed)


class SuffixDrafter:
    """Implements `decoding.protocols.Drafter`. What it learns of confidences is shared by all its sequences."""

    name = "suffix"

    def __init__(self) -> None:
        self.acceptance = Acceptance(PRIORS, PRIOR_WEIGHT)
        self._texts: dict[int, SuffixAutomaton] = {}

    def begin(self, seq: int, tokens: Sequence[int]) -> None:
        text = self._texts[seq] = SuffixAutomaton()
        for token in tokens:
            text.append(token)

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        text = self._texts[seq]
        for token in tokens:
            self._learn(text, token)
            text.append(token)

    def end(self, seq: int) -> None:
        self._texts.pop(seq, None)

    def propose(self, seq: int, budget: Budget, choice: Choice) -> Draft:
        text = self._texts[seq]
        state = text.longest_repeated_suffix()
        matched = text.length[state]
        tokens: list[int] = []
        survival: list[float] = []
        alive = 1.0
        while len(tokens) < budget.max_tokens:
            found = self._likeliest(text, state, matched)
            if found is None or alive * found[0] < budget.min_survival:
                break
            alive *= found[0]
            tokens.append(found[1])
            survival.append(alive)
            state, matched = self._follow(text, state, matched, found[1])
        return chain(tokens, survival)

    def _likeliest(self, text: SuffixAutomaton, state: int, matched: int) -> tuple[float, int] | None:
        """The most confident continuation among the longest suffixes: (confidence, token)."""
        best: tuple[float, int] | None = None
        for _ in range(SUFFIXES_WEIGHED):
            if state <= 0:
                break
            n, total = text.best_count[state], text.followed[state]
            if n:
                rate = self.acceptance.rates[band(matched, n, total)]
                if best is None or rate > best[0]:
                    best = rate, text.best[state]
            state = text.link[state]
            matched = text.length[state]
        return best

    def _follow(self, text: SuffixAutomaton, state: int, matched: int, token: int) -> tuple[int, int]:
        """The longest suffix of (match + token) that occurs in the text, and its length."""
        while token not in text.next[state]:
            state = text.link[state]
            matched = text.length[state]
        return text.next[state][token], matched + 1

    def _learn(self, text: SuffixAutomaton, token: int) -> None:
        state = text.longest_repeated_suffix()
        for _ in range(SUFFIXES_WEIGHED):
            if state <= 0:
                break
            n = text.best_count[state]
            if n:
                kind = band(text.length[state], n, text.followed[state])
                self.acceptance.learn(kind, text.best[state] == token)
            state = text.link[state]
