"""The suffix drafter: proposes what followed the longest repeated suffix of the text, prompt included.

No model: it reads the tokens alone. After Oliaro et al., "SuffixDecoding", arXiv 2411.04975, with two changes:
an automaton of unlimited depth instead of a tree, and confidences that are learned from the text itself. Every
committed token shows, for each suffix that stood before it, whether the likeliest continuation was right, whether
or not it had been drafted; `doubt` lowers them all where one text follows itself less than others. A corpus of past
requests is searched beside the text, with confidences of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from ..decoding.acceptance import Acceptance
from ..decoding.choice import Choice
from ..decoding.draft import EMPTY, Draft, chain
from ..decoding.protocols import Budget
from .automaton import SuffixAutomaton
from .corpus import Corpus
from .doubt import GREEDY, SAMPLED, Doubt

N_EVIDENCE = 6
SUFFIXES_WEIGHED = 4

# How often the likeliest continuation came true, by match length (1, 2, 3, 4–5, 6–9, 10+; down) and by evidence
# (seen once; always the same, twice and more often; a share of >= 3/4, >= 1/2, less; across). Those below 0.7 begin at
# half of what was seen: a text that does not repeat itself loses by hope, and one that does shows it at once.
PRIORS = (
    *(0.15, 0.30, 0.80, 0.70, 0.20, 0.10),
    *(0.28, 0.80, 0.90, 0.80, 0.22, 0.14),
    *(0.32, 0.85, 0.93, 0.80, 0.22, 0.14),
    *(0.75, 0.90, 0.95, 0.85, 0.25, 0.15),
    *(0.85, 0.93, 0.97, 0.88, 0.26, 0.15),
    *(0.93, 0.97, 0.99, 0.90, 0.29, 0.18),
)
PRIOR_WEIGHT = 12.0
CORPUS_PRIORS = tuple(0.8 * rate for rate in PRIORS)
"""Other texts say less of how this one goes on."""

LENGTH_BANDS = (0, 0, 1, 2, 3, 3, 4, 4, 4, 4, 5)
"""The band of each match length; the last one for all that are longer."""


def evidence_band(best_count: int, followed: int) -> int:
    if best_count >= followed:
        return followed - 1 if followed < 3 else 2
    share = best_count / followed
    return 3 if share >= 0.75 else 4 if share >= 0.5 else 5


def band(length: int, best_count: int, followed: int) -> int:
    return LENGTH_BANDS[length if length < 10 else 10] * N_EVIDENCE + evidence_band(best_count, followed)


@dataclass
class _Match:
    """Where the end of a text is found in an automaton: the state, and how long the match is."""

    automaton: SuffixAutomaton
    acceptance: Acceptance
    state: int = 0
    length: int = 0

    def candidates(self) -> Iterator[tuple[int, int]]:
        """What followed the longest matches, longest first: (band, token)."""
        text, state, length = self.automaton, self.state, self.length
        for _ in range(SUFFIXES_WEIGHED):
            if state <= 0:
                return
            if text.best_count[state]:
                yield band(length, text.best_count[state], text.followed[state]), text.best[state]
            state = text.link[state]
            length = text.length[state]

    def follow(self, token: int) -> None:
        """The longest suffix of (match + token) that occurs."""
        text = self.automaton
        while token not in text.next[self.state]:
            if self.state == 0:
                self.length = 0
                return
            self.state = text.link[self.state]
            self.length = text.length[self.state]
        self.state = text.next[self.state][token]
        self.length += 1

    def settle(self) -> None:
        """The state of the match again, where the automaton has grown since and split it."""
        text = self.automaton
        while self.state > 0 and self.length <= text.length[text.link[self.state]]:
            self.state = text.link[self.state]


@dataclass
class _Text:
    """A sequence: its tokens and their automaton; where it is found in the corpus; what was drafted last.

    doubt: how much less it is believed than others, once it is known how its tokens are chosen.
    drafted: acceptance, band and token of each, until one of them is wrong; n_right: how many of them have come.
    """

    tokens: list[int] = field(default_factory=list)
    automaton: SuffixAutomaton = field(default_factory=SuffixAutomaton)
    found: list[_Match] = field(default_factory=list)
    doubt: Doubt | None = None
    drafted: list[tuple[Acceptance, int, int]] = field(default_factory=list)
    n_right: int = 0


class SuffixDrafter:
    """Implements `decoding.protocols.Drafter`. What it learns of confidences is shared by all its sequences.

    `acceptance` is that of matches within a text, `corpus_acceptance` that of matches with past ones.
    """

    name = "suffix"
    can_continue = True

    def __init__(self, corpus: Corpus | None = None) -> None:
        self.corpus = Corpus() if corpus is None else corpus
        self.acceptance = Acceptance(PRIORS, PRIOR_WEIGHT)
        self.corpus_acceptance = Acceptance(CORPUS_PRIORS, PRIOR_WEIGHT)
        self.acceptances: Mapping[str, Acceptance] = {"text": self.acceptance, "corpus": self.corpus_acceptance}
        self._texts: dict[int, _Text] = {}

    def begin(self, seq: int, tokens: Sequence[int]) -> None:
        text = self._texts.setdefault(seq, _Text())
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text.tokens, tokens, strict=False)))
        if same < len(text.tokens):
            # What the new text does not hold goes into the corpus, behind as much of the rest as a match looks at; all
            # of the rest will, when the new text ends.
            self.corpus.add(text.tokens[max(same - len(LENGTH_BANDS), 0) :])
            text = self._texts[seq] = _Text()
            same = 0
        self._append(text, tokens[same:])
        text.found = self._find(text)
        text.drafted, text.n_right = [], 0

    def backlog(self, seq: int) -> int:
        return 0

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        text = self._texts[seq]
        if [found.automaton for found in text.found] != list(self.corpus.generations):
            text.found = self._find(text)
        for token in tokens:
            _learn_position(text, token)
            matches = self._matches(text)
            best = _likeliest(matches, 0)
            if best is not None and text.doubt is not None:
                text.doubt.learn(best[0], best[3] == token)
            for match in matches:
                for kind, likeliest in match.candidates():
                    match.acceptance.learn(kind, likeliest == token)
            self._append(text, [token])
            for found in text.found:
                found.follow(token)

    def end(self, seq: int) -> None:
        text = self._texts.pop(seq, None)
        if text is not None:
            self.corpus.add(text.tokens)

    def propose(self, seq: int, budget: Budget, choice: Choice, behind: Sequence[int] = ()) -> Draft:
        text = self._texts[seq]
        doubt = text.doubt = text.doubt or Doubt(GREEDY if choice.rule == "greedy" else SAMPLED)
        matches = self._matches(text)
        for token in behind:
            _follow(matches, token)
        drafted: list[tuple[Acceptance, int, int]] = []
        survival: list[float] = []
        alive = 1.0
        while len(drafted) < budget.max_tokens:
            best = _likeliest(matches, len(behind) + len(drafted))
            if best is None:
                break
            rate, acceptance, kind, token = best
            alive *= doubt.lowered(rate)
            if alive < budget.min_survival:
                break
            drafted.append((acceptance, kind, token))
            survival.append(alive)
            _follow(matches, token)
        if not budget.aside:
            text.drafted, text.n_right = [] if behind else drafted, 0
        return chain([token for _, _, token in drafted], survival) if drafted else EMPTY

    def _append(self, text: _Text, tokens: Iterable[int]) -> None:
        for token in tokens:
            text.tokens.append(token)
            text.automaton.append(token)

    def _find(self, text: _Text) -> list[_Match]:
        """Where the end of the text stands in the corpus."""
        found = [_Match(automaton, self.corpus_acceptance) for automaton in self.corpus.generations]
        for token in text.tokens[-len(LENGTH_BANDS) :]:
            _follow(found, token)
        return found

    def _matches(self, text: _Text) -> list[_Match]:
        """Where the end of the text is found: earlier in itself, and in the corpus. Copies, which may be moved."""
        state = text.automaton.longest_repeated_suffix()
        matches = [_Match(text.automaton, self.acceptance, state, text.automaton.length[state])]
        for found in text.found:
            found.settle()
            if found.state > 0:
                matches.append(_Match(found.automaton, found.acceptance, found.state, found.length))
        return matches


def _follow(matches: Iterable[_Match], token: int) -> None:
    for match in matches:
        match.follow(token)


def _likeliest(matches: Iterable[_Match], position: int) -> tuple[float, Acceptance, int, int] | None:
    """The most confident continuation: (confidence, whose, its band, token). Of equals the first."""
    best: tuple[float, Acceptance, int, int] | None = None
    for match in matches:
        acceptance = match.acceptance
        for kind, token in match.candidates():
            rate = acceptance.rate(kind, position)
            if best is None or rate > best[0]:
                best = rate, acceptance, kind, token
    return best


def _learn_position(text: _Text, token: int) -> None:
    """Whether the last draft goes on being right."""
    if text.n_right == len(text.drafted):
        return
    acceptance, kind, mine = text.drafted[text.n_right]
    acceptance.learn_at(kind, text.n_right, mine == token)
    if mine == token:
        text.n_right += 1
    else:
        text.drafted, text.n_right = [], 0
