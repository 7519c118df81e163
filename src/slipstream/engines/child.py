"""An engine that is a library: loaded by a small program in the engine's own environment, spoken to over a pipe.

Never in this process: two libraries with OpenMP threads slow each other down for good. `children/` has the other end.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from slipstream.errors import EngineError, InputError

from .chat_client import TIMEOUT_S
from .installed import Installed
from .process import ServerProcess
from .protocol import Answer, Counters, Request, Settings

READY_S: Final = 1800.0
FOLDER: Final = Path(__file__).parent / "children"


class Child:
    """A program of `children/` that runs.

    title: of the engine, for messages. options: what it loads, as plain data.
    """

    def __init__(
        self, title: str, python: str, script: str, options: Mapping[str, Any], environment: Mapping[str, str]
    ) -> None:
        self._title = title
        command = [python, str(FOLDER / script), json.dumps(dict(options))]
        unbuffered = {"PYTHONUNBUFFERED": "1"}  # else what it printed last is lost where it crashes
        self._process = ServerProcess(title, command, {**environment, **unbuffered}, piped=True)
        assert self._process.stdout is not None
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._reader = threading.Thread(target=_read_into, args=(self._process.stdout, self._lines), daemon=True)
        self._reader.start()

    def wait_ready(self, timeout_s: float, progress: Callable[[str], None]) -> None:
        """Returns when all is loaded. Raises EngineError where it ends, fails or takes longer."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            with contextlib.suppress(queue.Empty):
                self._said(self._lines.get(timeout=0.2))
                return
            lines = self._process.last_lines(1)
            progress(lines[-1] if lines else "")
        raise self._process.error(f"{self._title} was not ready after {timeout_s:.0f} s.")

    def ask(self, request: Request) -> Answer:
        """Raises EngineError where it ends, reports an error, or says nothing for too long."""
        assert self._process.stdin is not None
        asked = {
            "messages": [dict(message) for message in request.messages],
            "n_tokens": request.n_tokens,
            "temperature": request.temperature,
            "seed": request.seed,
        }
        with contextlib.suppress(OSError, ValueError):  # that it ended, reading tells
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            self._process.stdin.flush()
        rounds: list[tuple[float, int]] = []
        while True:
            try:
                said = self._said(self._lines.get(timeout=TIMEOUT_S))
            except queue.Empty:
                error = self._process.error(f"{self._title} said nothing for {TIMEOUT_S:.0f} s.")
                self.stop()  # what it would still say belongs to this request
                raise error from None
            if "text" in said:
                return answer_of(said, rounds)
            rounds.append((float(said["s"]), int(said["n"])))

    def stop(self) -> None:
        """Ends the program; harmless when done twice."""
        self._process.stop()
        self._reader.join()

    def _said(self, line: bytes) -> dict[str, Any]:
        if not line:
            self._lines.put(line)  # for whoever asks again
            raise self._process.error(f"{self._title} ended.")
        said: dict[str, Any] = json.loads(line)
        if "error" in said:
            raise EngineError(f"{self._title}: {said['error']}".rstrip(".") + ".")
        return said


class ChildEngine(ABC):
    """What the engines that are libraries have in common; a subclass implements `protocol.Engine` with it.

    name, title: for programs and for people. script: of `children/`. installed: where the engine is, set by a subclass
    before it calls this constructor.
    """

    name = ""
    title = ""
    script = ""
    concurrent = False
    installed: Installed

    def __init__(self) -> None:
        self.version = self.installed.version
        self._child: Child | None = None
        self._total: Counters | None = None

    def start(self, settings: Settings, progress: Callable[[str], None] = lambda line: None) -> None:
        """Loads the models in a process of their own."""
        assert self._child is None, "stop comes first"
        if settings.parallel > 1:
            raise InputError(f"{self.title} answers one request at a time, not {settings.parallel}.")
        options, environment = self._options(settings), self._environment(settings)
        self._child = Child(self.title, self.installed.python(), self.script, options, environment)
        self._total = None
        try:
            self._child.wait_ready(READY_S, progress)
        except BaseException:
            self.stop()
            raise

    def attach(self, url: str) -> None:
        """Raises InputError: a library is no server."""
        raise InputError(f"{self.title} is a library: there is nothing to attach to at {url}.", "Leave the URL away.")

    def complete(self, request: Request) -> Answer:
        """Answers one request; times by the clock of the process that computes."""
        assert self._child is not None, "start comes first"
        try:
            answer = self._child.ask(request)
        except EngineError:
            raise
        except BaseException:
            self.stop()  # else the rest of this answer would be taken for the next one
            raise
        if answer.counters is not None:
            self._total = answer.counters + self._total if self._total is not None else answer.counters
        return answer

    def counters(self) -> Counters | None:
        """Totals since the start; None where none were given with an answer yet."""
        return self._total

    def stop(self) -> None:
        """Ends the process; harmless when done twice."""
        if self._child is not None:
            self._child.stop()
        self._child = None

    @abstractmethod
    def _options(self, settings: Settings) -> dict[str, Any]:
        """What the program loads. Raises InputError for settings that the engine cannot take."""

    def _environment(self, settings: Settings) -> dict[str, str]:
        """Threads as the settings say, and nothing asked of the network for models that are on this machine."""
        threads = {} if settings.n_threads is None else {"OMP_NUM_THREADS": str(settings.n_threads)}
        models = [name for name in (settings.model, settings.draft) if name is not None]
        return threads | ({"HF_HUB_OFFLINE": "1"} if all(Path(name).exists() for name in models) else {})


def answer_of(said: Mapping[str, Any], rounds: Sequence[tuple[float, int]]) -> Answer:
    """An answer of its rounds: (seconds since the request, tokens so far).

    The first round may bring several tokens at once. Decoding is timed over those behind it, and its time a token is
    what `decode_s` says of all but one, so that a long first draft makes no speed.
    """
    counted = said.get("counters")
    counters = None if counted is None else Counters(**{name: _frozen(value) for name, value in counted.items()})
    n_tokens = int(said["n_tokens"])
    (first_s, n_first), (last_s, n_last) = (rounds[0], rounds[-1]) if rounds else ((0.0, 0), (0.0, 0))
    n_behind = n_last - n_first
    decode_s = (last_s - first_s) * (n_tokens - 1) / n_behind if n_behind else 0.0
    return Answer(str(said["text"]), n_tokens, first_s, decode_s, tuple(rounds), counters)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _read_into(pipe: IO[bytes], lines: queue.Queue[bytes]) -> None:
    """Each line, and an empty one at the end."""
    with contextlib.suppress(OSError, ValueError):
        for line in pipe:
            lines.put(line)
    lines.put(b"")
