"""An engine in a process of its own, spoken to by one JSON object a line: both ends of the pipe.

The engine's end needs nothing but Python: it runs in an environment that has the engine and not slipstream.
It answers {"arms": […], "versions": {…}} when it is ready, then a request {"arm", "prompt" (token ids), "n_tokens",
"banned" (token ids)} with {"tokens", "n_decoded", "decode_s"} or {"error"}.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Request = dict[str, Any]
Reply = dict[str, Any]


def serve(open_engine: Callable[[], tuple[dict[str, Callable[[Request], Reply]], dict[str, str]]]) -> None:
    """Loads the engine and answers until standard input ends. What libraries print goes to standard error."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    arms, versions = open_engine()
    print(json.dumps({"arms": list(arms), "versions": versions}), file=out, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = arms[request["arm"]](request)
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=out, flush=True)


class Engine:
    """The benchmark's end. Raises RuntimeLibraryError where the process ends or reports an error."""

    def __init__(self, python: str, script: Path, arguments: Sequence[str]) -> None:
        from slipstream.errors import InputError

        self.name = script.stem
        try:
            self._process = subprocess.Popen(
                [python, str(script), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        except OSError as error:
            raise InputError(f"{python} cannot be run: {error}.", "Give the interpreter of an environment.") from None
        self.versions: dict[str, str] = self._read()["versions"]

    def ask(self, request: Request) -> Reply:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # reading tells that it ended
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """Ends the process, by the end of its input."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _read(self) -> Reply:
        from slipstream.errors import RuntimeLibraryError

        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeLibraryError(f"{self.name} ended.", "Its messages stand above.")
        reply: Reply = json.loads(line)
        if "error" in reply:
            raise RuntimeLibraryError(f"{self.name}: {reply['error']}")
        return reply
