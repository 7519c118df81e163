"""A file of JSON objects of some `kind`, one a line, written down at once: a sudden end leaves it whole."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Writes one line and waits until it is on the disk."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read(path: Path, kinds: Collection[str]) -> list[dict[str, Any]]:
    """The lines of a file, each of one of these kinds; none where there is no file.

    A last line that was cut off by the end of a process is removed from the file. Raises ValueError for a file of
    anything else, and leaves it as it is.
    """
    if not path.exists():
        return []
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    lines = [json.loads(line) for line in whole.decode().split("\n") if line]
    if not all(isinstance(line, dict) and line.get("kind") in kinds for line in lines):
        raise ValueError("lines of another kind")
    if len(whole) < len(text):
        os.truncate(path, len(whole))
    return lines
