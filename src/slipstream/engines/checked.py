"""What servers say, checked: numbers and texts that can be read, answers that can be true."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Final

from slipstream.errors import EngineError

from .protocol import Answer, Request

N_SHOWN: Final = 200
LARGEST: Final = 10**15
"""Of all numbers that a server has reason to say, nanoseconds included."""

LONGEST_DRAFT: Final = 4096
"""Tokens; a longer one is not believed."""

N_PIECES: Final = 8
SPAN_S: Final = 0.2
"""Fewer pieces, or pieces within a shorter time, tell nothing against an engine's own clock."""

LEAST_TOKEN_S: Final = 1e-6

_UNREADABLE: Final = (TypeError, ValueError, LookupError, AttributeError, OverflowError, RecursionError)


@contextmanager
def reading(name: str, said: object) -> Iterator[None]:
    """Turns what goes wrong while a server's words are read into an EngineError that shows them.

    name: of the engine. said: what is read.
    """
    try:
        yield
    except _UNREADABLE:
        raise unreadable(name, said) from None


def unreadable(name: str, said: object) -> EngineError:
    return EngineError(f"{name} sent what cannot be read: {printable(said)}")


def printable(said: object, n: int = N_SHOWN) -> str:
    """Its first characters, with what would steer a terminal replaced."""
    return "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in str(said)[:n])


def whole(text: str) -> str:
    """The text with halves of surrogate pairs joined, or replaced where the other half is missing."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def number(said: Any) -> float:
    """A finite number from 0 on, of sane size. Raises TypeError or ValueError for anything else."""
    if isinstance(said, bool) or not isinstance(said, int | float):
        raise TypeError(f"{said!r} is no number")
    if not 0 <= said <= LARGEST:  # which NaN is not either
        raise ValueError(f"{said!r} is out of range")
    return float(said)


def count(said: Any) -> int:
    """A whole number from 0 on, of sane size. Raises TypeError or ValueError for anything else."""
    if not number(said).is_integer():
        raise ValueError(f"{said!r} is no whole number")
    return int(said)


def checked(answer: Answer, request: Request, name: str) -> Answer:
    """The answer, where its counts can be true.

    Some engines count the end of the text behind the last token that was asked for, so one token more is let pass; and
    an answer may be that one token and no text. Raises EngineError.
    """
    if answer.n_tokens > request.n_tokens + 1:
        what = f"{name} says that it wrote {answer.n_tokens} tokens of at most {request.n_tokens}"
        raise EngineError(f"{what}: its counts cannot be used.")
    if answer.n_tokens > 1 and not answer.text:
        raise EngineError(f"{name} says that it wrote {answer.n_tokens} tokens, and sent no text.")
    return answer


def check_clock(answer: Answer, name: str) -> None:
    """Raises EngineError where an engine's own decoding time, `answer.decode_s`, is far shorter than what was seen.

    The longest pause is left out of what was seen: a network may stop once. For a client that reads one answer at a
    time, since one that reads many may itself be late.
    """
    seconds = [s for s, _ in answer.arrivals]
    pauses = [later - earlier for earlier, later in pairwise(seconds)]
    seen_s = math.fsum(pauses) - max(pauses, default=0.0)
    is_late = len(seconds) >= N_PIECES and seen_s >= SPAN_S and answer.decode_s < seen_s / 2
    if is_late or answer.decode_s < (answer.n_tokens - 1) * LEAST_TOKEN_S:
        took = f"{answer.n_tokens} tokens in {answer.decode_s:.2g} s"
        raise EngineError(
            f"{name} says that it wrote {took}, and they came in {sum(pauses):.2g} s: its clock cannot be used."
        )
