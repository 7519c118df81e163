"""A server's answer with an error status, in words."""

from __future__ import annotations

import json

import httpx

from slipstream.errors import EngineError

from .checked import printable

N_WORDS = 500


def answered(name: str, response: httpx.Response, text: str) -> EngineError:
    """The status, and what stands behind it: where it sends to, the server's own words, the URL where there are none.

    name: of the engine. text: of the response.
    """
    words, location = said(text), response.headers.get("location", "")
    place = f" at {response.url}" if location or not words else ""
    place += f", which sends to {printable(location)}" if location else ""
    message = f"{name} answered status {response.status_code}{place}"
    hint = "Give the URL of the server itself." if location else ""
    return EngineError(f"{message}: {words}" if words else f"{message}.", hint)


def said(text: str) -> str:
    """The message within a server's error, shortened."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return printable(text.strip(), N_WORDS)
    while isinstance(data, dict):
        inner = data.get("error", data.get("message", data.get("detail")))
        if inner is None:
            break
        data = inner
    return printable(data, N_WORDS)
