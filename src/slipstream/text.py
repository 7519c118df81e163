"""From tokens to text as it may be shown: whole characters only, and nothing of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Piece:
    """A piece of the answer; `drafted` tells whether its last token was an accepted draft token."""

    text: str
    drafted: bool


class TextStream:
    """Takes the bytes of tokens one by one and gives the text that is certain by now.

    Bytes that do not form a whole UTF-8 character yet are held back, and so is text that may be the beginning of
    a stop string. Once a stop string is complete, `stopped` is true, and the text before it was the last.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self.stopped = False
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held: list[Piece] = []

    def push(self, data: bytes, drafted: bool) -> list[Piece]:
        """The pieces that a further token completes."""
        return self._release(self._decoder.decode(data), drafted)

    def finish(self) -> list[Piece]:
        """What was held back when the answer ended otherwise; broken bytes show as U+FFFD."""
        pieces = self._release(self._decoder.decode(b"", final=True), False)
        held, self._held = self._held, []
        return pieces + ([] if self.stopped else held)

    def _release(self, text: str, drafted: bool) -> list[Piece]:
        if self.stopped:
            return []
        if not self._stop:  # nothing is ever held back: a token's usual way
            return [Piece(text, drafted)] if text else []
        if text:
            self._held.append(Piece(text, drafted))
        whole = "".join(piece.text for piece in self._held)
        found = [at for at in map(whole.find, self._stop) if at >= 0]
        self.stopped = bool(found)
        n_certain = min(found) if found else len(whole) - self._n_possible_stop(whole)
        pieces, self._held = _split(self._held, n_certain)
        return pieces

    def _n_possible_stop(self, text: str) -> int:
        """The length of the longest end of `text` that is the beginning of a stop string."""
        longest = max(map(len, self._stop), default=0)
        for n in range(min(longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-n:]) for stop in self._stop):
                return n
        return 0


def _split(pieces: Sequence[Piece], n: int) -> tuple[list[Piece], list[Piece]]:
    """The pieces' first `n` characters, and the rest."""
    head: list[Piece] = []
    tail: list[Piece] = []
    for piece in pieces:
        cut = min(n, len(piece.text))
        n -= cut
        if piece.text[:cut]:
            head.append(Piece(piece.text[:cut], piece.drafted))
        if piece.text[cut:]:
            tail.append(Piece(piece.text[cut:], piece.drafted))
    return head, tail
