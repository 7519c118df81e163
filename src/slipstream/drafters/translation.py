"""Between two vocabularies: the tokens that both have, and what a text of the one is in tokens of the other.

Tokens are compared by their bytes, control tokens spelt out. After Timor et al., "Accelerating LLM Inference with
Lossless Speculative Decoding Algorithms for Heterogeneous Vocabularies", arXiv 2502.05202.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..decoding.protocols import Logits
from ..errors import PairError

TAIL = 16
"""Tokens at the end of a text that what follows may still change."""

LEAD = 4
"""Tokens before those that are tokenised again with them, so that they do not stand at the beginning of a text."""


class Tokenizer(Protocol):
    """A model's vocabulary, with the names of `runtimes.llamacpp.Tokenizer`."""

    n_vocab: int
    bos: int
    eos: int
    add_bos: bool

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]: ...

    def piece(self, token: int, special: bool = False) -> bytes: ...

    def is_eog(self, token: int) -> bool: ...


@dataclass(frozen=True, eq=False)
class Twins:
    """The tokens of two vocabularies side by side, in one row: those of the target, then those of the draft alone.

    n_target: the target's tokens. place: intp (n_draft,), where each token of the draft stands: at its twin's id, or
    behind the target's tokens. draft: intp (n_places,), the draft's token at each place, −1 for the target's alone.
    """

    n_target: int
    place: NDArray[np.intp]
    draft: NDArray[np.intp]

    @property
    def n_common(self) -> int:
        return int((self.draft[: self.n_target] >= 0).sum())

    def row(self) -> Logits:
        """An empty row, float32 (n_places,): no token is possible."""
        return np.full(len(self.draft), -np.inf, dtype=np.float32)


def twins(target: Tokenizer, draft: Tokenizer) -> Twins:
    """Pairs tokens of the same bytes, and the two that end a text. Raises PairError where no token is common."""
    ids = {target.piece(token, special=True): token for token in range(target.n_vocab)}
    ids.pop(b"", None)
    pairs = {ids[piece]: t for t in range(draft.n_vocab) if (piece := draft.piece(t, special=True)) in ids}
    if draft.eos not in pairs.values() and target.eos >= 0 and draft.eos >= 0:
        pairs.setdefault(target.eos, draft.eos)
    if not pairs:
        raise PairError(
            "The draft's vocabulary and the target's have no token in common.",
            "Choose a draft of the same family, or --draft suffix, which needs none.",
        )
    place = np.full(draft.n_vocab, -1, dtype=np.intp)
    place[list(pairs.values())] = list(pairs)
    alone = np.flatnonzero(place < 0)
    place[alone] = target.n_vocab + np.arange(len(alone))
    of_place = np.full(target.n_vocab + len(alone), -1, dtype=np.intp)
    of_place[place] = np.arange(draft.n_vocab)
    return Twins(target.n_vocab, place, of_place)


class GrowingText:
    """The tokens of a text that grows, as if it were tokenised anew each time; only its tail is.

    tokens: of all whole characters so far, behind the token that the model wants at the beginning. Bytes that are no
    UTF-8 count as U+FFFD.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokens = [tokenizer.bos] if tokenizer.add_bos else []
        self._tokenizer = tokenizer
        self._n_before = len(self.tokens)
        self._starts = [0] * self._n_before
        self._text = bytearray()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def held(self) -> bytes:
        """The beginning of a character whose end has not come yet."""
        return self._decoder.getstate()[0]

    def append(self, data: bytes) -> int:
        """The text goes on with these bytes. Returns a number of tokens that have stayed what they were."""
        text = self._decoder.decode(data)
        if not text:
            return len(self.tokens)
        self._text += text.encode()
        first = len(self.tokens) - TAIL
        tail = self._tail(first) if first - LEAD > self._n_before else None
        if tail is None:
            first, tail = self._n_before, self._tokenize(0)
        self.tokens[first:] = tail
        self._starts[first:] = _starts(self._tokenizer, tail, len(self._text))
        return first

    def _tail(self, first: int) -> list[int] | None:
        """The tokens from this one on; None where, with the lead alone before them, they can't be told."""
        lead = first - LEAD
        while lead > self._n_before and not _is_boundary(self._text, self._starts[lead]):
            lead -= 1
        tokens = self._tokenize(max(self._starts[lead], 0))
        starts = _starts(self._tokenizer, tokens, len(self._text))
        at = starts.index(self._starts[first]) if self._starts[first] in starts else 0
        return tokens[at:] if at > 0 and tokens[at - 1] == self.tokens[first - 1] else None

    def _tokenize(self, start: int) -> list[int]:
        return self._tokenizer.tokenize(self._text[start:].decode(), add_special=False, parse_special=True)


def spelt(tokenizer: Tokenizer, tokens: Sequence[int]) -> bytes:
    """The bytes of tokens, control tokens spelt out."""
    return b"".join(tokenizer.piece(token, special=True) for token in tokens)


def continued(tokenizer: Tokenizer, before: Sequence[int], data: bytes) -> list[int]:
    """Tokens of `data` behind others, as far as its characters are whole; none where no token would begin with it."""
    context = spelt(tokenizer, before[-LEAD:])
    while context and not _is_boundary(context, 0):
        context = context[1:]
    # Where the tokenizer would not part the text here, the target did all the same. A line break, since some
    # tokenizers put a blank before a text.
    for lead in (context, b"", b"\n"):
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            text = decoder.decode(lead + data)
        except UnicodeDecodeError:
            continue
        tokens = tokenizer.tokenize(text, add_special=False, parse_special=True)
        starts = _starts(tokenizer, tokens, len(lead) + len(data) - len(decoder.getstate()[0]))
        if len(lead) in starts:
            return tokens[starts.index(len(lead)) :]
    return []


def _starts(tokenizer: Tokenizer, tokens: Sequence[int], end: int) -> list[int]:
    """Where each token begins, in bytes, if the last one stops at `end`: a blank put before a text does not count."""
    sizes = [len(tokenizer.piece(token, special=True)) for token in reversed(tokens)]
    return [end - size for size in accumulate(sizes)][::-1]


def _is_boundary(text: Sequence[int], at: int) -> bool:
    """Whether a UTF-8 character begins at this byte."""
    return at < 0 or text[at] & 0xC0 != 0x80
