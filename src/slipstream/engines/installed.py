"""In which environment an engine's Python package is installed, and of which version. It is never imported."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from dataclasses import dataclass

from slipstream.errors import EngineError

_ASK = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"


@dataclass(frozen=True)
class Installed:
    """A package of an environment. title: of the engine, for messages. version: "" where it is not installed.

    how: the command that installs it.
    """

    title: str
    how: str
    program: str | None
    version: str

    def python(self) -> str:
        """The interpreter to run it with. Raises EngineError where it is not installed."""
        if not self.version:
            hint = f"Install it in an environment of its own ({self.how}) and name that environment's python."
            raise EngineError(f"{self.title} is not installed here.", hint)
        return self.program or sys.executable


def find_installed(title: str, package: str, how: str, program: str | None) -> Installed:
    """The package in the environment of the interpreter `program`, or in this one where none is given.

    Raises EngineError where the interpreter that is given cannot be run or lacks the package.
    """
    if program is None:
        return Installed(title, how, None, _version_here(package))
    found = shutil.which(program)
    if found is None:
        raise EngineError(f"{program} cannot be run.", f"Give the python of an environment with {title}: {how}")
    version = _version_there(found, package)
    if not version:
        raise EngineError(f"{title} is not installed in the environment of {program}.", f"Install it: {how}")
    return Installed(title, how, found, version)


def _version_here(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _version_there(python: str, package: str) -> str:
    command = [python, "-I", "-c", _ASK, package]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    except (OSError, UnicodeDecodeError, subprocess.TimeoutExpired):
        return ""
    return ran.stdout.strip() if ran.returncode == 0 else ""
