"""OpenAI's chat completions over HTTP, streamed and timed: what most servers speak."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from slipstream.errors import EngineError, InputError

from .protocol import Answer, Arrivals, Request

TIMEOUT_S = 600.0


def open_client(url: str) -> httpx.Client:
    """A client for a server on this machine or the user's network. No proxy is asked for either."""
    return httpx.Client(base_url=url, trust_env=False, timeout=httpx.Timeout(TIMEOUT_S, connect=10.0))


def client_at(url: str, usual: str) -> httpx.Client:
    """A client for a server by its address, with or without the `/v1` that its users know it by.

    Raises InputError for what is no URL; `usual`: what one looks like.
    """
    address = url.rstrip("/").removesuffix("/v1")
    if not address.startswith(("http://", "https://")):
        raise InputError(f"{url[:80]!r} is no URL.", f"Give it as {usual}.")
    try:
        return open_client(address)
    except httpx.InvalidURL as error:
        raise InputError(f"{url[:80]!r} is no URL: {error}.", f"Give it as {usual}.") from None


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
        raise EngineError(f"{title} answered status {response.status_code}: {said(response.text)}")
    return response


def ask_json(client: httpx.Client, title: str, usual: str, path: str, asked: Mapping[str, Any] | None = None) -> Any:
    """The JSON of an answer. Raises EngineError as `ask`, and for what is no JSON."""
    response = ask(client, title, usual, path, asked)
    try:
        return response.json()
    except ValueError:
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
    words, for an error status, an error within the stream, a broken connection, and a stream that is none.
    """
    arrivals = Arrivals(time.perf_counter)
    text: list[str] = []
    extra: dict[str, Any] = {}
    try:
        with client.stream("POST", path, json=dict(asked)) as response:
            if response.status_code != 200:
                response.read()
                raise EngineError(f"{name} answered status {response.status_code}: {said(response.text)}")
            for event in _events(response, name):
                if "error" in event:
                    raise EngineError(f"{name} answered an error: {said(json.dumps(event['error']))}")
                extra |= {key: value for key, value in event.items() if key not in ("choices",) and value is not None}
                piece = _piece(event)
                if piece:
                    text.append(piece)
                    arrivals.add(_n_new(event, arrivals))
    except httpx.HTTPError as error:
        raise EngineError(f"{name} does not answer: {type(error).__name__} {error}.".replace(" .", ".")) from None
    usage = extra.get("usage") or {}
    return arrivals.answer("".join(text), usage.get("completion_tokens")), extra


def said(text: str) -> str:
    """The message within a server's error, shortened."""
    try:
        data = json.loads(text)
    except ValueError:
        return text.strip()[:500]
    while isinstance(data, dict):
        inner = data.get("error", data.get("message", data.get("detail")))
        if inner is None:
            break
        data = inner
    return str(data)[:500]


def _events(response: httpx.Response, name: str) -> Iterator[dict[str, Any]]:
    finished = False
    for line in response.iter_lines():
        if not line.startswith("data:"):
            continue
        data = line[len("data:") :].strip()
        if data == "[DONE]":
            return
        try:
            event = json.loads(data)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            raise EngineError(f"{name} sent what is no event: {data[:200]}")
        finished = finished or any(choice.get("finish_reason") for choice in event.get("choices") or ())
        yield event
    if not finished:
        raise EngineError(f"{name} broke off, or sent no stream of events at all.")


def _n_new(event: Mapping[str, Any], arrivals: Arrivals) -> int:
    """The tokens that came with a piece: as the server counts them, where each event has its usage; else one."""
    total = (event.get("usage") or {}).get("completion_tokens")
    before = arrivals.times[-1][1] if arrivals.times else 0
    return max(total - before, 1) if isinstance(total, int) else 1


def _piece(event: Mapping[str, Any]) -> str:
    """The text that an event brings; reasoning counts, since it is decoded like the rest."""
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        return str(delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") or "")
    return ""
