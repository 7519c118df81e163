"""What a shell makes of a line: its words. Lines are those of sh, cmd or PowerShell.

Nothing is put in for variables: a word that holds one keeps it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from slipstream.errors import InputError

from .command_line import is_flag
from .flags_word import Part, Word

PROMPT = re.compile(
    r"\s*(?:\([\w.-]+\)\s*)?"
    r"(?:[$%>]\s|\[?[\w.-]+@[\w.-]+(?:[:\s][^\s$#%]*)?[$#%]\s|PS [^>\n]*>|[A-Za-z]:\\[^>\s]*>)\s*"
)
"""What a terminal shows before a line, and is copied with it: an environment, who and where, a sign."""

CONTINUED = r"(?:[\\^`][^\S\n]*\n|(?<=\s)\\(?:\s+|$))"
"""The end of a line that goes on; some pages lose the end and keep the backslash."""

WINDOWS = re.compile(r"(?i:(?:^|[\s\"'=])(?:[A-Z]:|\.{1,2}|%\w+%)\\|\.exe\b|\\\w[^\s\"'\\]*\.gguf\b)", re.MULTILINE)
"""Paths of Windows, where a backslash stands for itself."""

QUOTES = re.compile(r"""'[^']*'|"(?:\\"|[^"])*\"""")
TYPESET = r"|[“”„](?P<typeset>[^“”„]*)[“”„]|‘(?P<typeset_single>[^‘’]*)’"
DASHES = re.compile(r"[\u2010-\u2015\u2212]+(?=[A-Za-z])")

SH_VARIABLE = r"\$\{[^{}]*\}|\$[A-Za-z_][A-Za-z0-9_]*|\$[0-9@*#?$!-]"
SH_OUTPUT = r"\$\([^()]*\)|`[^`]*`"
WINDOWS_VARIABLE = r"%\w+%|\$\{[^{}]*\}|\$[A-Za-z_][\w:]*"

SH_PIECE = rf"""'(?P<single>[^']*)'|"(?P<double>(?:\\.|[^"\\])*)"|(?P<output>{SH_OUTPUT})|\\(?P<escaped>.)""" + TYPESET
WINDOWS_PIECE = r"""'(?P<single>[^']*)'|"(?P<double>(?:\\"|[^"])*)"|\\(?P<escaped>")""" + TYPESET
"""The parts of a word that are more than their letters."""


class Syntax(NamedTuple):
    """How a shell reads.

    token: a word, a comment, or the end of a line. piece: a part of a word that is more than its letters. bare, double:
    what does not stand for itself outside of quotes, and within double ones.
    """

    token: re.Pattern[str]
    piece: re.Pattern[str]
    bare: re.Pattern[str]
    double: re.Pattern[str]


def _syntax(piece: str, letter: str, variable: str, output: str, escaped: str) -> Syntax:
    gap = rf"#(?P<comment>[^\n]*)|(?P<continued>{CONTINUED})|(?P<end>\n)"
    return Syntax(
        re.compile(rf"{gap}|(?:(?!{CONTINUED})(?:{piece}|{letter}))+", re.DOTALL),
        re.compile(piece, re.DOTALL),
        re.compile(rf"(?P<expands>{variable}|(?:\A|(?<==))~(?=/))"),
        re.compile(rf"\\(?P<escaped>{escaped})|(?P<expands>{variable}{output})"),
    )


SH = _syntax(SH_PIECE, r"[^\s'\"\\`]", SH_VARIABLE, "|" + SH_OUTPUT, r'["\\$`]|\r?\n')
CMD = _syntax(WINDOWS_PIECE, r"[^\s'\"]", WINDOWS_VARIABLE, "", '"')

PLACEHOLDER = re.compile(r"<[\w./-]+>")
"""`<model>`, as documents have it."""


class Reading(NamedTuple):
    """What a line says. words: each a `Word` where it was a text. is_typeset: it had quotes or dashes of print."""

    words: list[str]
    is_windows: bool
    is_typeset: bool


def read(line: str | Sequence[str]) -> Reading:
    """The words of a line, which is a text or the words that a shell made of one.

    Raises InputError for nothing, for quotes without an end, and for more than one command.
    """
    if isinstance(line, str):
        reading = _read_text(line)
    else:
        reading = Reading(list(line), any(WINDOWS.search(_first_word(word)) for word in line), False)
    if not reading.words:
        raise InputError("There is no command line.", "Give one in quotes.")
    return reading


def _first_word(text: str) -> str:
    """What stands before a blank: a path of Windows begins there, and a text that names one rarely does."""
    return re.split(r"\s", text, maxsplit=1)[0]


def _read_text(line: str) -> Reading:
    is_windows = WINDOWS.search(QUOTES.sub(lambda quote: _first_word(quote[0]), line)) is not None
    syntax = CMD if is_windows else SH
    prompt = PROMPT.match(line)
    text = line[prompt.end() :] if prompt else line
    if left := syntax.token.sub("", text).strip():
        raise InputError(f"This is no command line: {left[0]} has no end.", "Check its quotes.")
    words: list[str] = []
    is_typeset = ends = False
    for token in syntax.token.finditer(text):
        if token["end"]:
            ends = bool(words)
        elif token["comment"] is None and not token["continued"]:
            word = _word(token[0], syntax)
            _one_command(token[0], word, syntax, is_behind_end=ends)
            words.append(word)
            is_typeset = is_typeset or not word.written
            ends = False
    return Reading(words, is_windows, is_typeset)


def _one_command(written: str, word: str, syntax: Syntax, *, is_behind_end: bool) -> None:
    """Raises InputError for what a shell takes for the end of a command, or for a file.

    A flag that begins a line is the command's before: some pages keep line ends and lose the backslashes.
    """
    if re.search(r"[;&|<>]", PLACEHOLDER.sub("", syntax.piece.sub("", written))):
        raise InputError(f"{written!r} joins commands or sends output elsewhere.", "Give one command alone.")
    if is_behind_end and not is_flag(word):
        hint = "Give one command alone; where it goes on in the next line, the line ends with \\."
        raise InputError(f"{written[:60]!r} begins a line, and so a second command.", hint)


def _word(written: str, syntax: Syntax) -> Word:
    """The word without its quotes; one in print is written anew."""
    word = Word(_parts(written, syntax), written)
    if dashes := DASHES.match(written):
        name = word[dashes.end() :]
        return Word([Part("-" if len(name) == 1 else "--", False)]) + name
    is_typeset = any((found.lastgroup or "").startswith("typeset") for found in syntax.piece.finditer(written))
    return Word(word.parts) if is_typeset else word


def _parts(written: str, syntax: Syntax) -> Iterator[Part]:
    at = 0
    for found in syntax.piece.finditer(written):
        yield from _split(syntax.bare, written, at, found.start())
        kind = found.lastgroup or ""
        if kind in ("double", "typeset"):
            yield from _split(syntax.double, found[kind], 0, len(found[kind]))
        else:
            yield Part(found[kind], kind == "output")
        at = found.end()
    yield from _split(syntax.bare, written, at, len(written))


def _split(pattern: re.Pattern[str], text: str, start: int, end: int) -> Iterator[Part]:
    """The text between start and end, parted at what the shell puts in, and without what escapes."""
    at = start
    for found in pattern.finditer(text, start, end):
        yield Part(text[at : found.start()], False)
        if found.lastgroup == "expands":
            yield Part(found[0], True)
        else:
            yield Part(found["escaped"].strip("\r\n"), False)  # a line end that is escaped is none
        at = found.end()
    yield Part(text[at:end], False)
