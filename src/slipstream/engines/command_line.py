"""A command line as words: changed flag by flag with a note of each change, and written for the shell again.

A word that is not changed comes back as it was written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from subprocess import list2cmdline
from typing import NamedTuple

from slipstream.errors import InputError

from .flags_word import Word, behind_equals, quoted

N_DIGITS = 9
"""As many as a number of a line may have."""


@dataclass(frozen=True)
class Change:
    """One change of a line: what, why, and since when; `since` is empty where that is not known."""

    what: str
    why: str
    since: str = ""


@dataclass(frozen=True)
class Flag:
    """A flag of old. new: its name today, empty where there is none. n_values: words that belong to it."""

    old: tuple[str, ...]
    new: str
    why: str
    since: str = ""
    n_values: int = 1


class Taken(NamedTuple):
    """A flag that was taken out: its place among the words, its name as written, its values."""

    at: int
    name: str
    values: list[str]

    @property
    def value(self) -> str:
        return self.values[0]


@dataclass
class Line:
    """A command line that is being changed.

    before: what stands before the program (variables, `sudo`, a container's options). program: its name, and what names
    it further. words: its arguments. changes, remarks: what was done to it, and what there is to say of what was left.
    compared_with: the program and release whose flags all its flags were compared with; empty where only those of
    speculation were looked at. unknown: flags that this program refuses.
    """

    before: list[str]
    program: list[str]
    words: list[str]
    is_windows: bool = False
    changes: list[Change] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    compared_with: str = ""
    unknown: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return " ".join(map(self._as_written, [*self.before, *self.program, *self.words]))

    def _as_written(self, word: str) -> str:
        if isinstance(word, Word) and word.written:
            return word.written
        return list2cmdline([word]) if self.is_windows else quoted(word)

    def index(self, *names: str) -> int | None:
        """Where a flag of one of these names stands; the last one counts, as it does for the programs."""
        found = [i for i, word in enumerate(self.words) if name_of(word) in names]
        return found[-1] if found else None

    def has(self, *names: str) -> bool:
        return self.index(*names) is not None

    def value(self, *names: str) -> str | None:
        """The value of a flag, None where the flag is not given. Raises InputError where it lacks its value."""
        values = self.all_values(*names)
        return values[-1] if values else None

    def all_values(self, *names: str) -> list[str]:
        """The values of a flag that may be given more than once. Raises InputError where it lacks one."""
        return [self._values(at, 1)[0] for at, word in enumerate(self.words) if name_of(word) in names]

    def take(self, *names: str, n_values: int = 1) -> Taken | None:
        """Takes out every such flag; None where there is none. Raises InputError where one lacks a value.

        Returns the last, which is the one that counts, at the place of the first.
        """
        found = [at for at, word in enumerate(self.words) if name_of(word) in names]
        taken = None
        for at in reversed(found):
            word, values = self.words[at], self._values(at, n_values)
            taken = taken or Taken(found[0], word.partition("=")[0] if is_joined(word) else word, values)
            del self.words[at : at + 1 + (0 if is_joined(word) else n_values)]
        return taken

    def put(self, *words: str, at: int | None = None) -> None:
        where = len(self.words) if at is None else at
        self.words[where:where] = words

    def set(self, name: str, value: str) -> None:
        """Gives a flag this value, once: at its place, or at the end."""
        found = self.take(name)
        self.put(name, value, at=found.at if found else None)

    def note(self, what: str, why: str, since: str = "") -> None:
        """Notes a change; one that was noted already is not said again."""
        change = Change(what, why, since)
        if change not in self.changes:
            self.changes.append(change)

    def refused(self, flag: str, instead: str = "") -> None:
        """Names, once, a flag that the program of `compared_with` refuses. instead: what there is to do about it."""
        if flag not in self.unknown:
            self.unknown.append(str(flag))
            end = f"; {instead}" if instead else ""
            self.remarks.append(f"{self.compared_with} knows no {flag} and refuses the line{end}.")

    def replace(self, flags: Sequence[Flag]) -> None:
        """Replaces the flags of a table, or takes them out."""
        for flag in flags:
            if (found := self.take(*flag.old, n_values=flag.n_values)) is not None:
                written = " ".join([found.name, *found.values])
                if flag.new:
                    self.put(flag.new, *found.values, at=found.at)
                what = f"{found.name} → {flag.new}" if flag.new else f"{written} taken out"
                self.note(what, flag.why, flag.since)

    def _values(self, at: int, n: int) -> list[str]:
        word = self.words[at]
        if is_joined(word):
            return [behind_equals(word)]
        values = self.words[at + 1 : at + 1 + n]
        if len(values) < n or any(is_flag(value) for value in values):
            raise InputError(f"{word} has no value.", "Give the command line as it was run.")
        return values


def name_of(word: str) -> str:
    """The name of a flag, as programs compare it: without `=value`, `_` read as `-`. Empty for what is no flag."""
    if not is_flag(word):
        return ""
    return word.partition("=")[0].replace("_", "-") if word.startswith("--") else word


def program_name(word: str) -> str:
    """The name of a program, without its folder and `.exe`."""
    return PurePath(word.replace("\\", "/")).name.removesuffix(".exe")


def is_joined(word: str) -> bool:
    """Whether the value stands in the same word, behind `=`."""
    return re.match(r"--[A-Za-z][\w-]*=", word) is not None


def is_count(text: str) -> bool:
    """Whether it is a number that a line may hold; Python reads no longer ones than 4300 digits."""
    return text.isdecimal() and len(text) <= N_DIGITS


def is_flag(word: str) -> bool:
    return re.match(r"-{1,2}[A-Za-z]", word) is not None
