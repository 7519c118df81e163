"""What a shell makes of a line: its words, and how a word is written for it. Lines are those of sh, cmd or PowerShell.

Nothing is put in for variables: a word that holds one keeps it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from slipstream.errors import InputError

PROMPT = re.compile(r"\s*(?:[$%>]\s|PS [^>\n]*>|[A-Za-z]:\\[^>\s]*>)\s*")
"""What a terminal shows before a line, and is copied with it."""

CONTINUED = re.compile(r"[\\^`][^\S\n]*\n|(?<=\s)\\(?:\s+|$)")
"""The end of a line that goes on; some pages lose the end and keep the backslash."""

WINDOWS = re.compile(r"(?i:(?:^|[\s\"'=])(?:[A-Z]:|\.{1,2}|%\w+%)\\|\.exe\b|\\\w[^\s\"'\\]*\.gguf\b)", re.MULTILINE)
"""Paths of Windows, where a backslash stands for itself."""

TYPESET = r"|[“”„](?P<typeset>[^“”„]*)[“”„]|‘(?P<typeset_single>[^‘’]*)’"
DASHES = re.compile(r"[–—]+(?=[A-Za-z])")

SH_PIECE = re.compile(
    r"""'(?P<single>[^']*)'|"(?P<double>(?:\\.|[^"\\])*)"|(?P<output>\$\([^()]*\)|`[^`]*`)|\\(?P<escaped>.)"""
    + TYPESET,
    re.DOTALL,
)
WINDOWS_PIECE = re.compile(r"""'(?P<single>[^']*)'|"(?P<double>(?:\\"|[^"])*)"|\\(?P<escaped>")""" + TYPESET)
"""The parts of a word that are more than their letters."""

COMMENT = r"#(?P<comment>[^\n]*)"
SH_WORD = re.compile(rf"{COMMENT}|(?:{SH_PIECE.pattern}|[^\s'\"\\`])+", re.DOTALL)
WINDOWS_WORD = re.compile(rf"{COMMENT}|(?:{WINDOWS_PIECE.pattern}|[^\s'\"])+")

PLACEHOLDER = re.compile(r"<[\w./-]+>")
"""`<model>`, as documents have it."""


class Reading(NamedTuple):
    """What a line says. written: a word → how it stood in the text. is_typeset: it had quotes or dashes of print."""

    words: list[str]
    written: dict[str, str]
    is_windows: bool
    is_typeset: bool


def read(line: str | Sequence[str]) -> Reading:
    """The words of a line, which is a text or the words that a shell made of one.

    Raises InputError for nothing, for quotes without an end, and for more than one command.
    """
    if isinstance(line, str):
        reading = _read_text(line)
    else:
        reading = Reading(list(line), {}, any(map(WINDOWS.search, line)), False)
    if not reading.words:
        raise InputError("There is no command line.", "Give one in quotes.")
    return reading


def _read_text(line: str) -> Reading:
    is_windows = WINDOWS.search(line) is not None
    piece, word = (WINDOWS_PIECE, WINDOWS_WORD) if is_windows else (SH_PIECE, SH_WORD)
    prompt = PROMPT.match(line)
    text = CONTINUED.sub(" ", line[prompt.end() :] if prompt else line)
    if left := word.sub("", text).strip():
        raise InputError(f"This is no command line: {left[0]} has no end.", "Check its quotes.")
    found = [match[0] for match in word.finditer(text) if match["comment"] is None]
    for written in found:
        _one_command(written, piece)
    values = [_value(written, piece) for written in found]
    typeset = {written for written in found if _is_typeset(written, piece)}
    kept = {value: written for value, written in zip(values, found, strict=True) if written not in typeset}
    return Reading(values, kept, is_windows, bool(typeset))


def _one_command(written: str, piece: re.Pattern[str]) -> None:
    """Raises InputError for what a shell takes for the end of a command, or for a file."""
    if re.search(r"[;&|<>]", PLACEHOLDER.sub("", piece.sub("", written))):
        raise InputError(f"{written!r} joins commands or sends output elsewhere.", "Give one command alone.")


def _value(written: str, piece: re.Pattern[str]) -> str:
    """The word without its quotes."""
    value = piece.sub(lambda found: _unquoted(found, piece), written)
    if dashes := DASHES.match(written):
        name = value[dashes.end() :]
        return ("-" if len(name) == 1 else "--") + name
    return value


def _unquoted(found: re.Match[str], piece: re.Pattern[str]) -> str:
    kind = found.lastgroup or ""
    if kind == "double":
        return re.sub(r'\\(["\\$`\n])' if piece is SH_PIECE else r'\\(")', r"\1", found[kind])
    return found[kind]


def _is_typeset(written: str, piece: re.Pattern[str]) -> bool:
    kinds = [found.lastgroup or "" for found in piece.finditer(written)]
    return DASHES.match(written) is not None or any(kind.startswith("typeset") for kind in kinds)


def quoted(word: str, *, expands: bool) -> str:
    """The word for sh. expands: whether a variable in it, or the home before it, is the shell's to put in."""
    name, is_set, value = word.partition("=")
    if is_set and name.isidentifier():
        return f"{name}={quoted(value, expands=expands)}"
    if expands and word.startswith("~/"):
        return "~/" + quoted(word[2:], expands=True)
    if expands and "$" in word:
        return '"' + re.sub(r'([\\"`])', r"\\\1", word) + '"'
    return shlex.quote(word)
