"""Drafting by text: a model of another vocabulary writes ahead, and what it wrote is read in the target's tokens.

A text has no distribution over the target's tokens: the draft is a point mass, verified by match under every rule
(SLEM: Timor et al., arXiv 2502.05202, algorithm 3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from ..decoding.acceptance import Acceptance
from ..decoding.choice import Choice
from ..decoding.draft import EMPTY, Draft, chain
from ..decoding.protocols import Budget, Logits, Rows, Runtime
from ..errors import InputError
from .model import N_BANDS, PRIOR_WEIGHT, PRIORS, band_of, goes_on, probability_of
from .translation import LEAD, GrowingText, Tokenizer, Twins, continued, spelt

STEPS_A_TOKEN = 4
"""So many of its tokens for one of the target's, on average, and a draft ends: a character may be as many bytes."""


@dataclass
class _Text:
    """own: the text in the draft's tokens; last: its end in the target's; unread: what came since, in the target's.

    cached: the tokens of the draft's cache.
    proposed and bands: what was drafted last and how sure the model was; observed once, then empty.
    drawn: whether that was the likeliest, under a rule that draws.
    """

    own: GrowingText
    last: list[int]
    unread: list[int] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)
    proposed: list[int] = field(default_factory=list)
    bands: list[int] = field(default_factory=list)
    drawn: bool = False


@dataclass
class _Writing:
    """What the draft has written behind a text: its tokens, where their bytes begin, how likely each was; the bytes.

    end: the target's token that ends the text, where the draft ended it.
    """

    tokens: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)
    data: bytes = b""
    end: int | None = None


class TextDrafter:
    """Implements `decoding.protocols.Drafter` over the runtime of a draft model, whose cache nobody else touches.

    It picks its tokens by the target's rule, with the same noise for those that both vocabularies have. Under the
    rejection rules it takes the likeliest: a number that the target's own draw needs must not shape the draft.
    """

    name = "model-text"
    can_continue = False

    def __init__(self, runtime: Runtime, target: Tokenizer, draft: Tokenizer, twins: Twins) -> None:
        """`runtime` computes for `draft`; `twins` are those of the two tokenizers."""
        assert runtime.max_rollback is None, "a draft is written token by token, and must go back over any number"
        self.runtime = runtime
        # The last token has rates of its own: the next one may still change it.
        self.acceptance = Acceptance(PRIORS * 2, PRIOR_WEIGHT)
        self.drawn_acceptance = Acceptance(PRIORS * 2, PRIOR_WEIGHT)
        self.acceptances: Mapping[str, Acceptance] = {"chosen": self.acceptance, "drawn": self.drawn_acceptance}
        self._target, self._draft, self._twins = target, draft, twins
        self._row = twins.row()
        self._texts: dict[int, _Text] = {}

    def begin(self, seq: int, tokens: Sequence[int]) -> None:
        begins = self._draft.add_bos and self._target.add_bos and tokens[0] == self._target.bos
        own = GrowingText(self._draft)
        own.append(spelt(self._target, tokens[1:] if begins else tokens))
        old = self._texts.get(seq)
        text = self._texts[seq] = _Text(own, list(tokens[-LEAD:]), cached=old.cached if old else [])
        self._keep(seq, text, _n_same(text.cached, own.tokens, 0))

    def backlog(self, seq: int) -> int:
        text = self._texts[seq]
        return max(len(text.own.tokens) + len(text.unread) - len(text.cached), 0)

    def propose(self, seq: int, budget: Budget, choice: Choice, behind: Sequence[int] = ()) -> Draft:
        assert not behind, "this drafter does not continue others"
        text = self._texts[seq]
        text.proposed, text.bands, text.drawn = [], [], choice.draws
        self._read_on(seq, text)
        n_max = min(budget.max_tokens, self.runtime.n_ctx - len(text.own.tokens))
        if n_max < 1 or not text.own.tokens:
            return EMPTY
        try:
            survival = self._write(seq, text, n_max, budget, choice)
        except InputError:
            return EMPTY  # a logit bias bans all tokens that the draft has
        n = next((i for i, alive in enumerate(survival) if alive < budget.min_survival), len(survival))
        return chain(text.proposed[:n], survival[:n]) if n else EMPTY

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        text = self._texts[seq]
        self._acceptance(text).learn_draft(text.bands, text.proposed, tokens)
        text.proposed, text.bands = [], []
        text.unread += tokens

    def end(self, seq: int) -> None:
        if self._texts.pop(seq, None) is not None:
            self.runtime.keep(seq, 0)

    def _read_on(self, seq: int, text: _Text) -> None:
        """Takes in what was committed; rows of another text than this leave the cache."""
        n_stayed = text.own.append(spelt(self._target, text.unread))
        text.last, text.unread = [*text.last, *text.unread][-LEAD:], []
        self._keep(seq, text, _n_same(text.cached, text.own.tokens, min(n_stayed, len(text.cached))))

    def _acceptance(self, text: _Text) -> Acceptance:
        return self.drawn_acceptance if text.drawn else self.acceptance

    def _write(self, seq: int, text: _Text, n_max: int, budget: Budget, choice: Choice) -> list[float]:
        """Writes until there are enough tokens of the target's, or more would not pay; the survival of each."""
        acceptance = self._acceptance(text)
        written, survival = _Writing(), [1.0]
        n_steps = min(STEPS_A_TOKEN * n_max, self.runtime.n_ctx - len(text.own.tokens))
        while len(written.tokens) < n_steps and goes_on(acceptance, survival[-1], len(text.proposed), budget):
            if not self._write_one(seq, text, written, choice):
                break
            text.proposed, text.bands = self._translated(text, written, n_max)
            survival = [1.0]
            for position, band in enumerate(text.bands):
                survival.append(survival[-1] * acceptance.rate(band, position))
            if len(text.proposed) == n_max or survival[-1] < budget.min_survival or written.end is not None:
                break
        return survival[1:]

    def _write_one(self, seq: int, text: _Text, written: _Writing, choice: Choice) -> bool:
        """Writes one token more; False where it cannot be the text: a control token, or another character than held."""
        row = self._next_row(seq, text, written)
        token = self._choose(row, choice, text.proposed)
        piece = self._draft.piece(token)
        end = self._end(token) if self._draft.is_eog(token) else None
        if end is None and not piece:
            return False
        written.tokens.append(token)
        written.starts.append(len(written.data) - len(text.own.held))
        written.probabilities.append(probability_of(row, token))
        if end is None:
            written.data += piece
        written.end = end
        held = text.own.held
        return written.data[: len(held)] == held[: len(written.data)]

    def _end(self, token: int) -> int | None:
        """What the target writes where the draft ends a text with this token."""
        place = int(self._twins.place[token])
        own = place if place < self._twins.n_target else self._target.eos
        return own if own >= 0 else None

    def _choose(self, row: Logits, choice: Choice, drafted: Sequence[int]) -> int:
        self._row[self._twins.place] = row
        if choice.draws:
            likely = choice.distribution(self._row, drafted)
            place = int(likely.ids[likely.probabilities.argmax()])
        else:
            place = choice(self._row, drafted)
        return int(self._twins.draft[place])

    def _translated(self, text: _Text, written: _Writing, n_max: int) -> tuple[list[int], list[int]]:
        """What was written in the target's tokens, at most `n_max`, and the band of each."""
        held, data = text.own.held, written.data
        if not data.startswith(held):
            return [], []
        tokens = continued(self._target, text.last, data[len(held) :])
        sizes = [len(self._target.piece(token, special=True)) for token in tokens]
        if written.end is not None:
            tokens, sizes = [*tokens, written.end], [*sizes, 1]
        bands, begin, mine = [], 0, list(zip(written.starts, written.probabilities, strict=True))
        for i, size in enumerate(sizes[:n_max]):
            # A token of the draft counts in that of the target where it begins.
            within = (p for start, p in mine if (start < begin + size) and (start >= begin or i == 0))
            is_open = written.end is None and i == len(tokens) - 1
            bands.append(band_of(prod(within)) + N_BANDS * is_open)
            begin += size
        return tokens[:n_max], bands

    def _next_row(self, seq: int, text: _Text, written: _Writing) -> Logits:
        """The row behind everything written so far."""
        if written.tokens:
            return self._forward(seq, text, written.tokens[-1:])
        # The last row is wanted even where the text lies in the cache as a whole.
        self._keep(seq, text, min(len(text.cached), len(text.own.tokens) - 1))
        while True:
            start = len(text.cached)
            row = self._forward(seq, text, text.own.tokens[start : start + self.runtime.n_batch])
            if len(text.cached) == len(text.own.tokens):
                return row

    def _forward(self, seq: int, text: _Text, tokens: Sequence[int]) -> Logits:
        row: Logits = self.runtime.forward([Rows(seq, tokens, len(text.cached), 1)]).logits[0][0]
        text.cached += tokens
        return row

    def _keep(self, seq: int, text: _Text, n_tokens: int) -> None:
        del text.cached[n_tokens:]
        self.runtime.keep(seq, n_tokens)


def _n_same(one: Sequence[int], other: Sequence[int], n: int) -> int:
    """The length of the common beginning, `n` of which is known."""
    while n < min(len(one), len(other)) and one[n] == other[n]:
        n += 1
    return n
