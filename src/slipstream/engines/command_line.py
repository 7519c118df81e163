"""A command line as words: split, changed flag by flag with a note of each change, and written for the shell again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from subprocess import list2cmdline
from typing import NamedTuple

from slipstream.errors import InputError

CONTINUED = re.compile(r"[\\^`]\r?\n")
"""The end of a line that goes on, for sh, cmd and PowerShell."""

WINDOWS = re.compile(r"(?:^|[\s\"'])(?:[A-Za-z]:|\.{1,2})\\|\.exe\b")
OPERATORS = re.compile(r"^(?:&&?|\|\|?|;|[0-9]?[<>].*)$")
EXPANDED = re.compile(r"(?:[\w@%+=:,./-]|\$\w+|\$\{\w+\})*", re.ASCII)
"""Words with variables that a shell would put in, and that single quotes would spoil."""


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
    """A flag that was taken out: its place, its name as written, its values."""

    at: int
    name: str
    values: list[str]

    @property
    def value(self) -> str:
        return self.values[0]


@dataclass
class Line:
    """A command line that is being changed.

    before: what stands before the program (variables, `sudo`). program: its name, and what names it further. words:
    its arguments. changes, remarks: what was done to it, and what there is to say of what was left.
    """

    before: list[str]
    program: list[str]
    words: list[str]
    changes: list[Change] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    is_windows: bool = False

    def __str__(self) -> str:
        words = [*self.before, *self.program, *self.words]
        return list2cmdline(words) if self.is_windows else " ".join(map(quoted, words))

    def index(self, *names: str) -> int | None:
        """Where a flag of one of these names stands; the last one counts, as it does for the programs."""
        found = [i for i, word in enumerate(self.words) if name_of(word) in names]
        return found[-1] if found else None

    def has(self, *names: str) -> bool:
        return self.index(*names) is not None

    def value(self, *names: str) -> str | None:
        """The value of a flag, None where the flag is not given. Raises InputError where it lacks its value."""
        at = self.index(*names)
        return None if at is None else self._values(at, 1)[0]

    def take(self, *names: str, n_values: int = 1) -> Taken | None:
        """Takes out the first such flag; None where there is none. Raises InputError where it lacks a value."""
        for at, word in enumerate(self.words):
            if name_of(word) in names:
                values = self._values(at, n_values)
                del self.words[at : at + 1 + (0 if _is_joined(word) else n_values)]
                return Taken(at, word.partition("=")[0] if _is_joined(word) else word, values)
        return None

    def put(self, *words: str, at: int | None = None) -> None:
        where = len(self.words) if at is None else at
        self.words[where:where] = words

    def set(self, name: str, value: str) -> None:
        """Gives a flag this value, at its place or at the end."""
        found = self.take(name)
        self.put(name, value, at=found.at if found else None)

    def note(self, what: str, why: str, since: str = "") -> None:
        self.changes.append(Change(what, why, since))

    def replace(self, flags: Sequence[Flag]) -> None:
        """Replaces the flags of a table, or takes them out."""
        for flag in flags:
            while (found := self.take(*flag.old, n_values=flag.n_values)) is not None:
                written = " ".join([found.name, *found.values])
                if flag.new:
                    self.put(flag.new, *found.values, at=found.at)
                what = f"{found.name} → {flag.new}" if flag.new else f"{written} taken out"
                self.note(what, flag.why, flag.since)

    def _values(self, at: int, n: int) -> list[str]:
        word = self.words[at]
        if _is_joined(word):
            return [word.partition("=")[2]]
        values = self.words[at + 1 : at + 1 + n]
        if len(values) < n or any(is_flag(value) for value in values):
            raise InputError(f"{word} has no value.", "Give the command line as it was run.")
        return values


def name_of(word: str) -> str:
    """The name of a flag, as programs compare it: without `=value`, `_` read as `-`. Empty for what is no flag."""
    if not is_flag(word):
        return ""
    return word.partition("=")[0].replace("_", "-") if word.startswith("--") else word


def _is_joined(word: str) -> bool:
    """Whether the value stands in the same word, behind `=`."""
    return word.startswith("--") and "=" in word


def is_flag(word: str) -> bool:
    return re.match(r"-{1,2}[A-Za-z]", word) is not None


def split(text: str) -> tuple[list[str], bool]:
    """Words of a line as a shell reads it, and whether its paths are those of Windows.

    Raises InputError for quotes without an end, and for more than one command.
    """
    is_windows = WINDOWS.search(text) is not None
    joined = CONTINUED.sub(" ", text).strip().removeprefix("$ ")
    try:
        words = shlex.split(joined.replace("\\", "\\\\") if is_windows else joined)
    except ValueError as error:
        raise InputError(f"This is no command line: {str(error).lower()}.", "Check its quotes.") from None
    check(words)
    return words, is_windows


def check(words: Sequence[str]) -> None:
    """Raises InputError for nothing, and for what a shell would take for more than one command."""
    if not words:
        raise InputError("There is no command line.", "Give one in quotes.")
    for word in words:
        if OPERATORS.match(word):
            raise InputError(f"{word!r} joins commands or sends output elsewhere.", "Give one command alone.")


def quoted(word: str) -> str:
    """The word for a shell; variables and the home stay what they are."""
    home = "~/" if word.startswith("~/") else ""
    rest = word[len(home) :]
    if "$" in rest and EXPANDED.fullmatch(rest):
        return f'{home}"{rest}"'
    return home + shlex.quote(rest)
