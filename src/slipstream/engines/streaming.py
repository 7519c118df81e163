"""Lines of a server's streamed answer, as they come; an answer without end is ended."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping
from typing import Any, Final

import httpx

from slipstream.errors import EngineError

from .refusals import answered

ANSWER_S: Final = 1800.0
"""For one answer: no engine that anybody waits for is as slow."""

LINES_A_TOKEN: Final = 16
MORE_LINES: Final = 256
"""An event has a line or two and an empty one; where a server sends letters, a token is a few events."""

LONGEST_LINE_BYTES: Final = 2**24
ERROR_BYTES: Final = 2**16


def posted_lines(
    client: httpx.Client, name: str, path: str, asked: Mapping[str, Any], n_tokens: int
) -> Generator[str, None, None]:
    """The lines of the answer to a POST. name: of the engine. n_tokens: asked for at most.

    Raises EngineError for an error status, with the server's own words, for a connection that breaks, and for an answer
    that goes on for too long.
    """
    try:
        with client.stream("POST", path, json=dict(asked)) as response:
            if response.status_code != 200:
                raise answered(name, response, _beginning(response))
            yield from _limited(_lines(response, name), name, LINES_A_TOKEN * n_tokens + MORE_LINES)
    except httpx.HTTPError as error:
        message = f"{name} does not answer: {type(error).__name__} {error}".rstrip(" .")
        raise EngineError(f"{message}.") from None


def _lines(response: httpx.Response, name: str) -> Iterator[str]:
    """Split at line feeds alone: what else ends a line may stand within a text."""
    until = time.monotonic() + ANSWER_S
    rest = b""
    for chunk in response.iter_bytes():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace").rstrip("\r")
        if time.monotonic() > until:
            raise EngineError(f"{name} was not done with its answer after {ANSWER_S:.0f} s.")
        if len(rest) > LONGEST_LINE_BYTES:
            raise EngineError(f"{name} sent a line of more than {LONGEST_LINE_BYTES} bytes.")
    if rest:
        yield rest.decode(errors="replace")


def _limited(lines: Iterator[str], name: str, n_most: int) -> Iterator[str]:
    for n, line in enumerate(lines, 1):
        if n > n_most:
            raise EngineError(f"{name} does not end its answer: it sent more than {n_most} lines.")
        yield line


def _beginning(response: httpx.Response) -> str:
    """Of the text behind an error status, which may be without end as well."""
    found = b""
    for chunk in response.iter_bytes():
        found += chunk
        if len(found) >= ERROR_BYTES:
            break
    return found.decode(errors="replace")
