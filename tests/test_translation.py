"""Between two vocabularies: a text that grows has the tokens of one tokenised anew; twins; what goes on behind tokens.

The vocabularies are made up. Three tokenizers stand for the kinds there are: the longest piece that fits, merges
within words (BPE), and one that puts a blank before every text (SentencePiece).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.drafters.translation import LEAD, TAIL, GrowingText, continued, spelt, twins
from slipstream.errors import PairError


class Longest:
    """A vocabulary of these pieces, control tokens behind them: a text is always cut at the longest that fits.

    Bytes that fit none are left out.
    `bos` and `end` are texts of control tokens; with `bos`, texts begin with it.
    """

    def __init__(self, *pieces: bytes, bos: bytes = b"", end: bytes = b"") -> None:
        self.controls = [control for control in (bos, end) if control]
        self.pieces = [*pieces, *self.controls]
        self.n_vocab = len(self.pieces)
        self.add_bos = bool(bos)
        self.bos = self.pieces.index(bos) if bos else -1
        self.eos = self.pieces.index(end) if end else -1
        self.n_bytes_read = 0

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        assert parse_special and not add_special
        self.n_bytes_read += len(text.encode())
        return self.cut(text.encode())

    def cut(self, data: bytes) -> list[int]:
        tokens: list[int] = []
        at = 0
        while at < len(data):
            piece = max((p for p in self.pieces if data.startswith(p, at)), key=len, default=b"")
            tokens += [self.pieces.index(piece)] if piece else []
            at += max(len(piece), 1)
        return tokens

    def piece(self, token: int, special: bool = False) -> bytes:
        piece = self.pieces[token]
        return b"" if piece in self.controls and not special else piece

    def is_eog(self, token: int) -> bool:
        return token == self.eos


class Blank(Longest):
    def cut(self, data: bytes) -> list[int]:
        return super().cut(b" " + data)


class Merges(Longest):
    """Byte pairs merged within words, the first of these pieces first."""

    def __init__(self, *pieces: bytes) -> None:
        super().__init__(*(bytes([b]) for b in range(256)), *pieces)

    def cut(self, data: bytes) -> list[int]:
        words = re.findall(rb" ?[^ ]+| +", data)
        return [self.pieces.index(piece) for word in words for piece in self.merged(word)]

    def merged(self, word: bytes) -> list[bytes]:
        parts = [bytes([b]) for b in word]
        while True:
            pairs = [(one + other, i) for i, (one, other) in enumerate(pairwise(parts))]
            pairs = [(piece, i) for piece, i in pairs if piece in self.pieces]
            if not pairs:
                return parts
            piece, i = min(pairs, key=lambda pair: (self.pieces.index(pair[0]), pair[1]))
            parts[i : i + 2] = [piece]


SINGLE = tuple(bytes([b]) for b in range(256))
PIECES = (b"ab", b"ba", b"aa", b" a", b"bab", b" ab", b"abba", b"  ", " é".encode(), "éa".encode(), b"aaaa", b"a b")
TOKENIZERS = {
    "longest": Longest(*SINGLE, *PIECES, b"abababab"),
    "merges": Merges(*PIECES[:-1]),
    "blank": Blank(*SINGLE, *PIECES),
    "with a beginning": Longest(*SINGLE, *PIECES, bos=b"<s>"),
}


def anew(tokenizer: Longest, data: bytes) -> list[int]:
    """The tokens of the whole characters of a text."""
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(data)
    before = [tokenizer.bos] if tokenizer.add_bos else []
    return before + (tokenizer.tokenize(text, add_special=False, parse_special=True) if text else [])


texts = st.lists(st.sampled_from(["a", "b", "ab", " ", "é", "日", "🙂"]), min_size=1, max_size=90).map("".join)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=60, deadline=None)
@given(text=texts, cuts=st.lists(st.integers(0, 400), max_size=40))
def test_a_text_that_grows_has_the_tokens_of_one_tokenised_anew(name: str, text: str, cuts: Sequence[int]) -> None:
    """However its bytes come, in the middle of a character too."""
    tokenizer, data = TOKENIZERS[name], text.encode()
    growing = GrowingText(tokenizer)
    begin = 0
    for end in sorted({*(cut for cut in cuts if cut < len(data)), len(data)}):
        before = list(growing.tokens)
        n_stayed = growing.append(data[begin:end])
        assert growing.tokens == anew(tokenizer, data[:end])
        assert growing.tokens[:n_stayed] == before[:n_stayed] and n_stayed <= len(before)
        begin = end


@pytest.mark.parametrize("name", TOKENIZERS)
def test_only_the_tail_of_a_long_text_is_tokenised_again(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    growing = GrowingText(tokenizer)
    growing.append(b"abba b ab bab a " * 50)
    longest = max(map(len, PIECES))
    for _ in range(20):
        tokenizer.n_bytes_read = 0
        n_stayed = growing.append(b" ab")
        assert 0 < tokenizer.n_bytes_read <= (TAIL + LEAD + 3) * longest
        assert n_stayed == len(growing.tokens) - TAIL - 1 or n_stayed > 100


def test_the_next_bytes_can_move_a_boundary() -> None:
    growing = GrowingText(TOKENIZERS["longest"])
    growing.append(b"bab")
    assert spelled_apart(growing) == [b"bab"]
    growing.append(b"a")
    growing.append(b"b")
    assert spelled_apart(growing) == [b"bab", b"ab"]


def test_where_more_than_the_tail_is_moved_the_whole_is_read_again() -> None:
    tokenizer = Longest(b"a", b"b", b"b" * (TAIL + 2))
    growing = GrowingText(tokenizer)
    text = b"a" * 30 + b"b" * (TAIL + 2)
    for end in range(len(text)):
        growing.append(text[end : end + 1])
        assert growing.tokens == anew(tokenizer, text[: end + 1])
    assert growing.tokens[-1] == 2


def spelled_apart(growing: GrowingText) -> list[bytes]:
    return [TOKENIZERS["longest"].piece(token) for token in growing.tokens]


def test_a_character_that_has_only_begun_is_held_back() -> None:
    tokenizer = TOKENIZERS["longest"]
    growing = GrowingText(tokenizer)
    growing.append(b"a" + "é".encode()[:1])
    assert (spelt(tokenizer, growing.tokens), growing.held) == (b"a", b"\xc3")
    growing.append("é".encode()[1:])
    assert (spelt(tokenizer, growing.tokens), growing.held) == ("aé".encode(), b"")


def test_bytes_that_are_no_text_do_no_lasting_harm() -> None:
    tokenizer = TOKENIZERS["longest"]
    growing = GrowingText(tokenizer)
    growing.append(b"ab\xff\xc3")
    growing.append(b"ab")
    assert spelt(tokenizer, growing.tokens).decode() == "ab\ufffd\ufffdab"


# Twins


def test_twins_have_the_same_bytes_and_the_rest_stands_behind() -> None:
    target, draft = Longest(b"a", b"b", b"ab", end=b"<end>"), Longest(b"b", b"c", b"a", b"aa", end=b"<end>")
    pair = twins(target, draft)
    assert pair.n_target == 4 and pair.n_common == 3
    assert pair.place.tolist() == [1, 4, 0, 5, 3]
    assert pair.draft.tolist() == [2, 0, -1, 4, 1, 3]
    row = pair.row()
    row[pair.place] = [10, 11, 12, 13, 14]
    assert row.tolist() == [12, 10, -np.inf, 14, 11, 13]


def test_the_tokens_that_end_a_text_are_twins_whatever_they_are_called() -> None:
    target, draft = Longest(b"a", end=b"<|end|>"), Longest(b"a", b"b", end=b"</s>")
    assert twins(target, draft).place.tolist() == [0, 2, 1]


def test_vocabularies_with_nothing_in_common_are_refused() -> None:
    with pytest.raises(PairError, match="no token in common"):
        twins(Longest(b"a"), Longest(b"b"))


# Behind other tokens


def behind(tokenizer: Longest, before: Sequence[bytes], data: bytes) -> list[bytes]:
    tokens = continued(tokenizer, [tokenizer.pieces.index(piece) for piece in before], data)
    return [tokenizer.piece(token) for token in tokens]


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=60, deadline=None)
@given(text=texts, at=st.integers(0, 80))
def test_what_goes_on_spells_the_text_and_is_what_tokenising_the_whole_gives(name: str, text: str, at: int) -> None:
    tokenizer = TOKENIZERS[name]
    whole = tokenizer.cut(text.encode())
    before, after = whole[:at], whole[at:]
    data = spelt(tokenizer, after)
    within_character = data[:1] and data[0] & 0xC0 == 0x80
    assert spelt(tokenizer, continued(tokenizer, before, data)) in ((data, b"") if within_character else (data,))
    if name == "longest" or (name == "merges" and b" " in spelt(tokenizer, before[-LEAD:])[1:]):
        assert continued(tokenizer, before, data) == after


def test_behind_a_boundary_that_the_tokenizer_would_not_make_the_text_stands_alone() -> None:
    assert behind(TOKENIZERS["longest"], [b"b", b"ba"], b"bab") == [b"bab"]
    assert behind(TOKENIZERS["longest"], [b"a"], b"b a") == [b"b", b" a"]


def test_the_rest_of_a_character_follows_its_beginning() -> None:
    assert behind(TOKENIZERS["longest"], [b"a", b"\xf0", b"\x9f"], "🙂".encode()[2:] + b"ab") == [
        b"\x99",
        b"\x82",
        b"ab",
    ]


def test_a_character_that_has_only_begun_is_left_out() -> None:
    assert behind(TOKENIZERS["longest"], [b"a"], b"ab\xf0\x9f") == [b"ab"]


def test_what_is_no_text_goes_on_with_nothing() -> None:
    assert behind(TOKENIZERS["longest"], [b"a"], b"\xff\xff") == []


def test_a_blank_that_a_tokenizer_puts_before_a_text_is_no_part_of_it() -> None:
    tokenizer = Blank(b" ", b"\n", b"a", b"b", b" a", b" ab", b"ab")
    assert behind(tokenizer, [b" a"], b"b") == [b"b"]
    assert behind(tokenizer, [], b"ab a") == [b"ab", b" a"]
