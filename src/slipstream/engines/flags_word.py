"""A word of a command line: what a program is given, what in it the shell puts in, and how it is written for sh."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import Final, NamedTuple, SupportsIndex


class Part(NamedTuple):
    """expands: whether a shell puts something in for it; else it stands for itself, `$` and all."""

    text: str
    expands: bool


HOME: Final = Part("~", True)


class Word(str):
    """A word read from a text. written: how it stood there; empty for one that was made of others.

    A slice, and a sum with any text, is a word that still knows what the shell puts in. Text that is no `Word` stands
    for itself.
    """

    parts: tuple[Part, ...]
    written: str

    def __new__(cls, parts: Iterable[Part], written: str = "") -> Word:
        kept = tuple(part for part in parts if part.text)
        word = super().__new__(cls, "".join(part.text for part in kept))
        word.parts, word.written = kept, written
        return word

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        if not isinstance(key, slice):
            return super().__getitem__(key)
        start, stop, step = key.indices(len(self))
        assert step == 1
        parts, at = [], 0
        for text, does_expand in self.parts:
            parts.append(Part(text[max(start - at, 0) : max(stop - at, 0)], does_expand))
            at += len(text)
        return Word(parts)

    def __add__(self, other: str) -> Word:
        return Word([*self.parts, *parts_of(other)])

    def __radd__(self, other: str) -> Word:
        return Word([*parts_of(other), *self.parts])


def parts_of(text: str) -> tuple[Part, ...]:
    return text.parts if isinstance(text, Word) else (Part(text, False),)


def expands(text: str) -> bool:
    """Whether a shell puts something in: for a variable, the output of a command, or the home."""
    return any(part.expands for part in parts_of(text))


def joined(separator: str, texts: Iterable[str]) -> str:
    """`separator.join(texts)`, as a word that still knows what the shell puts in."""
    parts = [part for text in texts for part in (Part(separator, False), *parts_of(text))]
    return Word(parts[1:])


def parted(text: str, separator: str) -> list[str]:
    """`text.split(separator)`, as words that still know what the shell puts in. separator: one character."""
    found, at = [], 0
    for part in text.split(separator):
        found.append(text[at : at + len(part)])
        at += len(part) + 1
    return found


def behind_equals(word: str) -> str:
    """The value in `--flag=value`."""
    return word[word.index("=") + 1 :]


def quoted(word: str) -> str:
    """The word for sh."""
    name, is_set, _ = word.partition("=")
    if is_set and name.isidentifier():
        return f"{name}={_quoted_value(behind_equals(word))}"
    return _quoted_value(word)


def _quoted_value(word: str) -> str:
    if parts_of(word)[:1] == (HOME,):
        return "~/" + _quoted_value(word[2:])
    if expands(word):
        parts = parts_of(word)
        following = [*(part.text for part in parts[1:]), ""]
        return '"' + "".join(map(_in_double_quotes, parts, following)) + '"'
    return shlex.quote(str(word))


def _in_double_quotes(part: Part, following: str) -> str:
    if part.expands:
        text = "$HOME" if part == HOME else part.text  # within quotes no shell reads ~
        would_run_on = re.match(r"\$[A-Za-z_]", text) and re.match(r"[A-Za-z0-9_]", following)
        return f"${{{text[1:]}}}" if would_run_on else text
    return re.sub(r'([\\"$`])', r"\\\1", part.text)
