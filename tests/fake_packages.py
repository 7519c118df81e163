"""Packages of engines that are not here, stood in for by a few lines of Python that a test writes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, version: str, files: Mapping[str, str]) -> None:
    """Makes a package look installed, to this process and to those that it starts, until the test ends."""
    information = folder / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA"
    information.parent.mkdir()
    information.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for path, text in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(Path(__file__).parent)]))
