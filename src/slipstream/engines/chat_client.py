"""OpenAI's chat completions over HTTP, streamed and timed: what most servers speak."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import httpx

from slipstream.errors import EngineError, InputError

from .checked import count, printable, reading, whole
from .protocol import Answer, Arrivals, Request
from .refusals import answered, said
from .streaming import posted_lines

TIMEOUT_S = 600.0


def open_client(url: str) -> httpx.Client:
    """A client for a server on this machine or the user's network, for as many requests at once as there are.

    No proxy is asked for either.
    """
    timeout = httpx.Timeout(TIMEOUT_S, connect=10.0)
    return httpx.Client(base_url=url, trust_env=False, timeout=timeout, limits=httpx.Limits())


def client_at(url: str, usual: str) -> httpx.Client:
    """A client for a server by its address, with or without the `/v1` that its users know it by.

    Raises InputError for what is no URL; `usual`: what one looks like.
    """
    address = url.rstrip("/").removesuffix("/v1")
    if not address.startswith(("http://", "https://")):
        raise InputError(f"{url[:80]!r} is no URL.", f"Give it as {usual}.")
    try:
        client = open_client(address)
        _check_address(client.base_url)
    except (httpx.InvalidURL, ValueError) as error:
        reason = str(error)[:80].rstrip(".")
        raise InputError(f"{url[:80]!r} is no URL: {reason}.", f"Give it as {usual}.") from None
    return client


def _check_address(url: httpx.URL) -> None:
    """Raises ValueError for what would fail only when it is asked."""
    if not url.host:  # of which reading fails for a name that is no international one
        raise ValueError("it names no host")
    url.host.encode("idna")  # as the name is asked for: no empty labels, none too long
    if url.port is not None and not 0 < url.port < 2**16:
        raise ValueError(f"there is no port {url.port}")


def ask(
    client: httpx.Client, title: str, usual: str, path: str, asked: Mapping[str, Any] | None = None
) -> httpx.Response:
    """One request that is not streamed: GET, or POST of what is asked. title: of the engine; usual: its usual URL.

    Raises EngineError where nobody answers, and, with the server's own words, for an error status.
    """
    try:
        response = client.get(path) if asked is None else client.post(path, json=dict(asked))
    except httpx.HTTPError as error:
        raise silent(client, title, usual, error) from None
    if response.status_code != 200:
        raise answered(title, response, response.text)
    return response


def ask_json(client: httpx.Client, title: str, usual: str, path: str, asked: Mapping[str, Any] | None = None) -> Any:
    """The JSON of an answer. Raises EngineError as `ask`, and for what is no JSON."""
    response = ask(client, title, usual, path, asked)
    try:
        return response.json()
    except (ValueError, RecursionError):
        raise no_engine(client, title, response.text) from None


def silent(client: httpx.Client, title: str, usual: str, error: httpx.HTTPError) -> EngineError:
    """Nobody answers at the URL."""
    message = f"{title} does not answer at {client.base_url}: {type(error).__name__} {error}".rstrip(" .")
    return EngineError(f"{message}.", f"Is it running? It usually is at {usual}.")


def no_engine(client: httpx.Client, title: str, text: str = "") -> EngineError:
    """Somebody else answers at the URL."""
    found = f": {text[:200]!r}" if text else "."
    return EngineError(f"What answers at {client.base_url} is not {title}{found}")


def body(request: Request, model: str, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The JSON of a request; `more` adds or replaces fields of one engine's own."""
    return {
        "model": model,
        "messages": [dict(message) for message in request.messages],
        "max_tokens": request.n_tokens,
        "temperature": request.temperature,
        "seed": request.seed,
        "stream": True,
        "stream_options": {"include_usage": True},
        **(more or {}),
    }


def stream_chat(
    client: httpx.Client, name: str, asked: Mapping[str, Any], path: str = "/v1/chat/completions"
) -> tuple[Answer, dict[str, Any]]:
    """Asks and reads to the end: the answer by arrival, and the last fields of its own that the server sent.

    These are `usage`, `timings`, `stats` and the like, each as it came last. Raises EngineError, with the server's own
    words, for an error status, an error within the stream, a broken connection, a stream that is none or has no end,
    and for what cannot be read.
    """
    arrivals = Arrivals(time.perf_counter)
    text: list[str] = []
    extra: dict[str, Any] = {}
    with closing(posted_lines(client, name, path, asked, int(asked["max_tokens"]))) as lines:
        for event in _events(lines, name):
            if "error" in event:
                raise EngineError(f"{name} answered an error: {said(json.dumps(event['error']))}")
            extra |= {key: value for key, value in event.items() if key not in ("choices",) and value is not None}
            with reading(name, event):
                piece = _piece(event)
                if piece:
                    text.append(piece)
                    arrivals.add(_n_new(event, arrivals))
    with reading(name, extra):
        return arrivals.answer(whole("".join(text)), _n_tokens(extra)), extra


def behind_first_round(answer: Answer) -> Answer:
    """An answer timed by arrival, of an engine whose first token comes together with all of its first draft.

    Those tokens took no time that is counted, so `decode_s` is stretched to what all but one of the answer take at the
    speed of the others. Together is what comes within half of the mean time a piece: no pass is that short.
    """
    if len(answer.arrivals) < 2:
        return answer
    (first_s, first_n), (last_s, last_n) = answer.arrivals[0], answer.arrivals[-1]
    within_s = answer.decode_s / (len(answer.arrivals) - 1) / 2
    n_first = max(n for s, n in answer.arrivals if s - first_s <= within_s)
    if n_first == last_n:
        return answer
    return replace(answer, decode_s=(last_s - first_s) * (last_n - first_n) / (last_n - n_first))


def _events(lines: Iterator[str], name: str) -> Iterator[dict[str, Any]]:
    finished = False
    for line in lines:
        if not line.startswith("data:"):
            continue
        data = line[len("data:") :].strip()
        if data == "[DONE]":
            return
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict):
            raise EngineError(f"{name} sent what is no event: {printable(data)}")
        with reading(name, data):
            finished = finished or any(choice.get("finish_reason") for choice in event.get("choices") or ())
        yield event
    if not finished:
        raise EngineError(f"{name} broke off, or sent no stream of events at all.")


def _n_new(event: Mapping[str, Any], arrivals: Arrivals) -> int:
    """The tokens that came with a piece: as the server counts them, where each event has its usage; else one."""
    total = _n_tokens(event)
    before = arrivals.times[-1][1] if arrivals.times else 0
    return 1 if total is None else max(total - before, 1)


def _n_tokens(event: Mapping[str, Any]) -> int | None:
    """As the server counts them, None where it does not say."""
    total = (event.get("usage") or {}).get("completion_tokens")
    return None if total is None else count(total)


def _piece(event: Mapping[str, Any]) -> str:
    """The text that an event brings; reasoning counts, since it is decoded like the rest."""
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        return _text(delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") or "")
    return ""


def _text(said: Any) -> str:
    if not isinstance(said, str):
        raise TypeError(f"{said!r} is no text")
    return said
