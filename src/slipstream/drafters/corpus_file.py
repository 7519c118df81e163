"""A corpus that outlives the program: a file with one past text a line, as token ids of one vocabulary."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from slipstream.errors import InputError

from .corpus import N_TOKENS, Corpus

KIND = "slipstream corpus 1"


def open_corpus(path: Path, vocabulary: str, n_vocab: int, n_tokens: int = N_TOKENS) -> Corpus:
    """The corpus kept in a file, which is made if there is none; what is added to it is appended at once.

    `vocabulary` names the `n_vocab` tokens that the ids stand for. A file that holds twice `n_tokens` is cut to the
    newest. Texts that are damaged, or hold other ids, are left out.
    Raises InputError where the path holds something else, or the corpus of another vocabulary.
    """
    try:
        path = path.resolve()  # a link stays one when the file is written anew
        is_other = path.exists() and not path.is_file()
    except (OSError, RuntimeError, ValueError) as error:  # a name that is too long, a link to itself, a NUL
        raise InputError(f"The corpus {str(path)[:80]!r} cannot be read: {error}.", "Choose another path.") from None
    if is_other:
        raise InputError(f"The corpus {path} is no file.", "Choose another path.")
    texts, is_whole = _read(path, vocabulary, n_vocab)
    newest: list[list[int]] = []
    n_kept = 0
    while texts and n_kept < n_tokens:
        newest.append(texts.pop())
        n_kept += len(newest[-1])
    newest.reverse()
    if not is_whole or sum(map(len, texts)) > n_tokens:
        _write(path, vocabulary, newest)
    corpus = Corpus(n_tokens)
    for text in newest:
        corpus.add(text)
    corpus.on_add = lambda tokens: _append(path, tokens)
    return corpus


def _read(path: Path, vocabulary: str, n_vocab: int) -> tuple[list[list[int]], bool]:
    """The texts, and whether the file is there with its last line."""
    try:
        head, _, body = path.read_text(encoding="utf-8").partition("\n")
    except FileNotFoundError:
        return [], False
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"The corpus {path} cannot be read: {error}.", "Choose another path.") from None
    if not head and not body:
        return [], False
    said = _parsed(head)
    if not isinstance(said, dict) or said.get("kind") != KIND:
        raise InputError(f"{path} is no corpus of slipstream.", "Choose another path; this file was left as it is.")
    if said.get("vocabulary") != vocabulary:
        raise InputError(f"{path} is the corpus of a model with another vocabulary.", "Choose another path.")
    lines = map(_parsed, body.splitlines())
    texts = [line for line in lines if isinstance(line, list) and line and all(_is_token(t, n_vocab) for t in line)]
    return texts, body.endswith("\n") or not body


def _is_token(value: object, n_vocab: int) -> bool:
    return type(value) is int and 0 <= value < n_vocab


def _parsed(line: str) -> object:
    """None for a line that is damaged: the last one, where a program was killed."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _write(path: Path, vocabulary: str, texts: Sequence[Sequence[int]]) -> None:
    """By rename: no reader sees half a file."""
    lines = [json.dumps({"kind": KIND, "vocabulary": vocabulary}), *(json.dumps(text) for text in texts)]
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        os.replace(file.name, path)
    except OSError as error:
        raise InputError(f"The corpus {path} cannot be written: {error.strerror}.", "Choose another path.") from None


def _append(path: Path, tokens: Sequence[int]) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(list(tokens)) + "\n")
    except OSError:
        return  # an answer is worth more than its memory
