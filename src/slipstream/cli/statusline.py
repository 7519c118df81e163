"""A line of figures that stays at the bottom of the terminal while text scrolls above it."""

from __future__ import annotations

import shutil
from types import TracebackType
from typing import TextIO


class StatusLine:
    """Takes the terminal's last row out of its scrolling region (DECSTBM) and writes there.

    Used as a context manager; the region is whole again afterwards, whatever happened.
    """

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal
        self._rows = 0

    def __enter__(self) -> StatusLine:
        self.show("")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._write(f"\x1b7\x1b[{self._rows};1H\x1b[2K\x1b[r\x1b8")

    def show(self, text: str) -> None:
        columns, rows = shutil.get_terminal_size()
        if rows != self._rows:
            # A new line and back makes sure that the cursor isn't on the last row; setting a region moves it home.
            self._write(f"\n\x1b[A\x1b7\x1b[1;{max(rows - 1, 1)}r\x1b8")
            self._rows = rows
        self._write(f"\x1b7\x1b[{rows};1H\x1b[2K\x1b[2m{text[: columns - 1]}\x1b[0m\x1b8")

    def _write(self, text: str) -> None:
        self._terminal.write(text)
        self._terminal.flush()
