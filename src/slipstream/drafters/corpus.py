"""The texts of past requests, for the suffix drafter: bounded in size, shared by all sequences of an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .automaton import SuffixAutomaton

N_TOKENS = 1 << 16
"""Tokens kept. A token takes about half a kilobyte here."""


class Corpus:
    """Two generations of a suffix automaton: when the newer is half of all, the older is forgotten.

    With `n_tokens` 0 nothing is kept.

    `generations`: the automata, newest first. `on_add`: told what is added, for a file.
    """

    def __init__(self, n_tokens: int = N_TOKENS, on_add: Callable[[Sequence[int]], None] = lambda tokens: None) -> None:
        self.n_half = n_tokens // 2
        self.on_add = on_add
        self.generations: tuple[SuffixAutomaton, ...] = (SuffixAutomaton(),)
        self._n_texts = 0

    def __len__(self) -> int:
        return sum(map(len, self.generations))

    def add(self, tokens: Sequence[int]) -> None:
        """Takes in a text (token ids); of a very long one its end."""
        if not tokens or self.n_half < 2:
            return
        tokens = tokens[-(self.n_half - 1) :]
        if len(self.generations[0]) + len(tokens) >= self.n_half:
            self.generations = (SuffixAutomaton(), self.generations[0])
        newest = self.generations[0]
        for token in tokens:
            newest.append(token)
        self._n_texts += 1
        newest.end_text(-self._n_texts)
        self.on_add(tokens)
