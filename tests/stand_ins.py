"""A server that answers as a test says: the programs that cannot be had here are stood in for by their protocol."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Handler = Callable[[dict[str, Any]], "Reply"]


@dataclass(frozen=True)
class Reply:
    """What a server answers: pieces go out one by one, as a stream does."""

    pieces: tuple[str, ...]
    status: int = 200
    kind: str = "application/json"


def as_json(data: Any, status: int = 200) -> Reply:
    return Reply((json.dumps(data),), status)


def events(*data: dict[str, Any]) -> Reply:
    """Server-sent events, as OpenAI's API streams them."""
    pieces = [f"data: {json.dumps(event)}\n\n" for event in data]
    return Reply((*pieces, "data: [DONE]\n\n"), kind="text/event-stream")


def lines(*data: dict[str, Any]) -> Reply:
    """JSON objects, one a line, as Ollama streams them."""
    return Reply(tuple(json.dumps(event) + "\n" for event in data), kind="application/x-ndjson")


def delta(text: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}}]}


@dataclass
class StandIn:
    """What it answers to ("GET", path), and all that it was asked: method, path, body."""

    routes: dict[tuple[str, str], Handler]
    url: str = ""
    asked: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)

    def bodies(self, path: str) -> list[dict[str, Any]]:
        return [body for _, asked, body in self.asked if asked == path]


@contextmanager
def standing_in(stand_in: StandIn, port: int = 0) -> Iterator[StandIn]:
    """Serves until the block ends; on a port of its own, unless one is given."""

    class Handling(BaseHTTPRequestHandler):
        def answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"{}")
            stand_in.asked.append((self.command, self.path, body))
            handler = stand_in.routes.get((self.command, self.path))
            reply = handler(body) if handler else as_json({"error": f"no {self.path} here"}, 404)
            self.send_response(reply.status)
            self.send_header("Content-Type", reply.kind)
            self.end_headers()
            for piece in reply.pieces:
                self.wfile.write(piece.encode())
                self.wfile.flush()

        do_GET = do_POST = answer

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handling)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    stand_in.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield stand_in
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
