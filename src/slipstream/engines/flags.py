"""Outdated command lines of other engines, turned into today's: which program, its flags, what changed and why.

The tables stand in one file an engine. A flag that no table names is passed through untouched; of llama.cpp and vLLM
it is named where a list of all flags (`flags_known`) lacks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from slipstream.errors import InputError

from . import flags_llamacpp, flags_lmstudio, flags_mlx, flags_sglang, flags_vllm
from .command_line import Change, Line, is_flag, program_name
from .flags_container import CONTAINERS, Image, image_in, move
from .flags_shell import read
from .flags_wrappers import behind


class Dialect(Protocol):
    """What a file of one engine's flags offers."""

    @property
    def ENGINE(self) -> str: ...

    @property
    def KNOWN(self) -> tuple[str, ...]:
        """Every program that is recognised, as a person writes it."""

    def recognise(self, words: list[str]) -> int:
        """How many words name the program; 0 where it is another engine's. words: not empty."""

    def claims(self, words: list[str]) -> bool:
        """Whether flags without a program are this engine's."""

    def modernise(self, line: Line) -> None:
        """Changes the line to today's. Raises InputError where a flag lacks its value."""


# In this order flags without a program are asked for: the first engine that claims one has them.
DIALECTS: Final[tuple[Dialect, ...]] = (flags_lmstudio, flags_vllm, flags_llamacpp, flags_sglang, flags_mlx)
BY_FAME: Final[tuple[Dialect, ...]] = (flags_llamacpp, flags_vllm, flags_sglang, flags_mlx, flags_lmstudio)
KNOWN = ", ".join(name for dialect in BY_FAME for name in dialect.KNOWN) + " and docker run"


@dataclass(frozen=True)
class Translation:
    """A command line of today.

    remarks: what there is to know about it, though nothing was changed for it. compared_with: the program and release
    whose flags all flags of the line were compared with; empty where only those of speculation were looked at.
    unknown: flags of the line that this program refuses.
    """

    engine: str
    command: str
    changes: tuple[Change, ...]
    remarks: tuple[str, ...]
    compared_with: str
    unknown: tuple[str, ...]


class Place(NamedTuple):
    """Where a line's program stands. n_program: words that name it. image: of a container, where it runs in one."""

    dialect: Dialect
    at: int
    n_program: int
    image: Image | None = None


def translate(line: str | Sequence[str]) -> Translation:
    """Turns a line, as text or as the words that a shell made of it, into today's.

    Flags without a program are taken for those of the engine that has them. Raises InputError for quotes without an
    end, more than one command, a program or image that is not known, and a flag that lacks its value.
    """
    words, is_windows, is_typeset = read(line)
    dialect, at, n_program, image = _find(words)
    end = at + n_program
    result = Line(words[:at], words[at:end], words[end:], is_windows)
    if is_typeset:
        result.note("quotes and dashes of print → plain ones", "a shell knows no others")
    if image:
        move(result, image)
    dialect.modernise(result)
    if image and result.changes:
        result.remarks.append(f"These are the flags of {image.release}: the image must be as new as that.")
    return Translation(
        dialect.ENGINE,
        str(result),
        tuple(result.changes),
        tuple(result.remarks),
        result.compared_with,
        tuple(result.unknown),
    )


def _find(words: list[str]) -> Place:
    """The program, behind variables and behind what runs it."""
    first, at = behind(words)
    if first == len(words):
        raise InputError("There is no program in this command line.", f"Known are {KNOWN}.")
    if is_flag(words[first]):
        return _flags_alone(words, first)
    found = _program(words, at) if at < len(words) else None
    if found is None:
        raise _unknown(words[first:], is_wrapped=at != first)
    return found


def _program(words: list[str], at: int) -> Place | None:
    """The program at this place; None where none is known there."""
    if program_name(words[at]) in CONTAINERS:
        image = image_in(words, at)
        dialect = next(dialect for dialect in DIALECTS if image.engine == dialect.ENGINE)
        behind = words[image.at + 1 :]
        return Place(dialect, image.at + 1, dialect.recognise(behind) if behind else 0, image)
    for dialect in DIALECTS:
        if n_program := dialect.recognise(words[at:]):
            return Place(dialect, at, n_program)
    return None


def _flags_alone(words: list[str], at: int) -> Place:
    for dialect in DIALECTS:
        if dialect.claims(words[at:]):
            return Place(dialect, at, 0)
    raise InputError("These flags stand without a program, and none is known.", f"Begin with one of {KNOWN}.")


def _unknown(words: list[str], *, is_wrapped: bool) -> InputError:
    if is_wrapped:
        return InputError(f"No program whose flags are known stands behind {words[0]!r}.", f"Known are {KNOWN}.")
    is_module = program_name(words[0]).startswith("python") and words[1:2] == ["-m"]
    name = " ".join(words[: 3 if is_module else 1])
    return InputError(f"{name[:60]!r} is no program whose flags are known.", f"Known are {KNOWN}.")
