"""A server program of an engine: started, waited for, its last lines kept, stopped with all its children."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import httpx

from slipstream.errors import EngineError, InputError

N_LAST_LINES = 15
STOP_S = 10.0
ENDING_S = 0.5
"""From the break of a connection to the end of the program that broke it."""


def free_port() -> int:
    """A port on this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_port(port: int) -> None:
    """Raises InputError where someone listens on the port already."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise InputError(f"Port {port} is in use.", "Stop what listens there, or give another port.")


class ServerProcess:
    """One running program. Its output goes to a file of its own, so that no pipe fills up.

    name: of the engine, for messages. command: program and arguments. environment: added to that of this process.
    piped: `stdin` and `stdout` are pipes, and what goes to standard error alone is kept as its last lines.
    """

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None, piped: bool = False
    ) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile("w+b")  # noqa: SIM115  closed by `stop`
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else self._log,
                stderr=self._log,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # Ctrl-C is for us; `stop` ends its whole group
            )
        except OSError as error:
            self._log.close()
            raise EngineError(f"{name} cannot be run: {error}.", f"Is {Path(command[0]).name} installed?") from None
        self.stdin, self.stdout = self._process.stdin, self._process.stdout

    def wait_ready(self, url: str, timeout_s: float, progress: Callable[[str], None] = lambda line: None) -> None:
        """Returns when `url` answers with status 200. Raises EngineError where it ends or takes longer."""
        until = time.monotonic() + timeout_s
        with httpx.Client(trust_env=False, timeout=5.0) as client:
            while time.monotonic() < until:
                if not self.is_running:
                    raise self.error(f"{self.name} ended before it was ready (exit status {self._process.returncode}).")
                with contextlib.suppress(httpx.HTTPError):
                    if client.get(url).status_code == 200:
                        return
                lines = self.last_lines(1)
                progress(lines[-1] if lines else "")
                time.sleep(0.2)
        raise self.error(f"{self.name} was not ready after {timeout_s:.0f} s.")

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def last_lines(self, n: int = N_LAST_LINES) -> list[str]:
        if self._log.closed:
            return []
        size = os.fstat(self._log.fileno()).st_size
        tail = os.pread(self._log.fileno(), 65536, max(0, size - 65536))
        return [line for line in tail.decode(errors="replace").splitlines() if line.strip()][-n:]

    def error(self, message: str) -> EngineError:
        """An error with the program's last lines."""
        lines = self.last_lines()
        return EngineError(message, "Its last lines:\n" + "\n".join(lines) if lines else "It said nothing.")

    def explained(self, error: EngineError) -> EngineError:
        """An error of a request; with the program's last lines where it has ended, as it may right behind the error."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDING_S)
            status = self._process.returncode
            return self.error(f"{self.name} ended while it answered (exit status {status}): {error.message}")
        return error

    def stop(self) -> None:
        """Ends the program and what it started; harmless when done twice."""
        if self._log.closed:
            return  # the number of its group may be another's by now
        for how in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
        for pipe in (self.stdin, self.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._log.close()
