"""Outdated command lines of other engines, turned into today's: which program, its flags, what changed and why.

The tables stand in one file an engine. A flag that no table names is passed through untouched.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from slipstream.errors import InputError

from . import flags_llamacpp, flags_lmstudio, flags_mlx, flags_sglang, flags_vllm
from .command_line import Change, Line, check, is_flag, split


class Dialect(Protocol):
    """What a file of one engine's flags offers."""

    @property
    def ENGINE(self) -> str: ...

    def recognise(self, words: list[str]) -> int:
        """How many words name the program; 0 where it is another engine's. words: not empty."""

    def claims(self, words: list[str]) -> bool:
        """Whether flags without a program are this engine's."""

    def modernise(self, line: Line) -> None:
        """Changes the line to today's. Raises InputError where a flag lacks its value."""


# In this order flags without a program are asked for: the first engine that claims one has them.
DIALECTS: Final[tuple[Dialect, ...]] = (flags_lmstudio, flags_vllm, flags_llamacpp, flags_sglang, flags_mlx)
KNOWN = "llama-server, llama-cli, vllm serve, python -m sglang.launch_server, mlx_lm.server, lms"
WRAPPERS = ("sudo", "nohup", "time", "env", "exec")
VARIABLE = re.compile(r"[A-Za-z_]\w*=")


@dataclass(frozen=True)
class Translation:
    """A command line of today. remarks: what there is to know about it, though nothing was changed for it."""

    engine: str
    command: str
    changes: tuple[Change, ...]
    remarks: tuple[str, ...]


def translate(line: str | Sequence[str]) -> Translation:
    """Turns a line, as text or as the words that a shell made of it, into today's.

    Flags without a program are taken for those of the engine that has them. Raises InputError for quotes without an
    end, more than one command, a program that is not known, and a flag that lacks its value.
    """
    if isinstance(line, str):
        words, is_windows = split(line)
    else:
        words, is_windows = list(line), False
        check(words)
    n_before = _n_before(words)
    before, rest = words[:n_before], words[n_before:]
    dialect, n_program = _dialect(rest)
    result = Line(before, rest[:n_program], rest[n_program:], is_windows=is_windows)
    dialect.modernise(result)
    return Translation(dialect.ENGINE, str(result), tuple(result.changes), tuple(result.remarks))


def _n_before(words: Sequence[str]) -> int:
    """Words before the program: variables that are set for it, and what runs it."""
    n = 0
    while n < len(words) and (words[n] in WRAPPERS or VARIABLE.match(words[n])):
        n += 1
    return n


def _dialect(words: list[str]) -> tuple[Dialect, int]:
    """Whose program this is, and how many words name it."""
    if not words:
        raise InputError("There is no program in this command line.", f"Known are {KNOWN}.")
    if is_flag(words[0]):
        for dialect in DIALECTS:
            if dialect.claims(words):
                return dialect, 0
        raise InputError("These flags stand without a program, and none is known.", f"Begin with one of {KNOWN}.")
    for dialect in DIALECTS:
        if n := dialect.recognise(words):
            return dialect, n
    raise InputError(f"{words[0][:60]!r} is no program whose flags are known.", f"Known are {KNOWN}.")
