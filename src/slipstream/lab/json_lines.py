"""A file of JSON objects of some `kind`, one a line, written down at once: a sudden end leaves it whole."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, BinaryIO


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Writes one line, in ASCII so that any text can be kept, and waits until it is on the disk.

    A last line that was cut off by the end of a process is removed before. Raises ValueError for a file without a whole
    line, which is somebody else's.
    """
    text = json.dumps(line) + "\n"
    with path.open("a+b") as file:
        _drop_cut_line(file)
        file.write(text.encode("ascii"))
        file.flush()
        os.fsync(file.fileno())


def read(path: Path, kinds: Collection[str]) -> list[dict[str, Any]]:
    """The lines of a file, each of one of these kinds; none where there is no file. The file is left as it is.

    A last line that was cut off by the end of a process is left out. Raises ValueError, with the number of the line,
    for a file of anything else, or one without a whole line.
    """
    if not path.exists():
        return []
    *whole, rest = path.read_bytes().split(b"\n")
    if rest and not whole:
        raise ValueError("line 1 has no end")
    return [_object(text, number, kinds) for number, text in enumerate(whole, start=1)]


def _object(text: bytes, number: int, kinds: Collection[str]) -> dict[str, Any]:
    try:
        line = json.loads(text.decode())
    except (ValueError, RecursionError):
        raise ValueError(f"line {number} is no JSON") from None
    if not isinstance(line, dict) or line.get("kind") not in kinds:
        raise ValueError(f"line {number} is of another kind")
    return line


def _drop_cut_line(file: BinaryIO) -> None:
    n_bytes = file.seek(0, os.SEEK_END)
    file.seek(max(n_bytes - 1, 0))
    if file.read() in (b"", b"\n"):
        return
    file.seek(0)
    n_whole = file.read().rfind(b"\n") + 1
    if not n_whole:
        raise ValueError("line 1 has no end")
    file.truncate(n_whole)
