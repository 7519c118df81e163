"""The engine's end of a pipe, one JSON object a line; `engines/child.py` has the other end.

First it says {"ready": true}, or {"error"}. To each request it answers {"s", "n"} a round: seconds since the request
and tokens so far. Then comes {"text", "n_tokens", "counters"}, or {"error"}. Needs nothing but Python.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Asked = dict[str, Any]
Answer = Callable[[Asked, "Rounds"], dict[str, Any]]
"""Answers a request, telling the rounds on the way; returns the text, how many tokens it has, and the counters."""


class Rounds:
    """Tells when tokens came. n_tokens: so far."""

    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        self._tell = tell
        self._began = time.perf_counter()
        self.n_tokens = 0

    def came(self, n_new: int) -> None:
        self.n_tokens += n_new
        self._tell({"s": time.perf_counter() - self._began, "n": self.n_tokens})


def serve(load: Callable[[dict[str, Any]], Answer]) -> None:
    """Loads with the options of the command line, a JSON object, and answers until standard input ends."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries that print do not print into the pipe

    def tell(said: dict[str, Any]) -> None:
        print(json.dumps(said), file=out, flush=True)

    try:
        answer = load(json.loads(sys.argv[1]))
    except Exception as error:
        tell({"error": _said(error)})
        raise
    tell({"ready": True})
    for line in sys.stdin:
        try:
            tell(answer(json.loads(line), Rounds(tell)))
        except Exception as error:
            tell({"error": _said(error)})


def _said(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:500]}" if text else type(error).__name__
