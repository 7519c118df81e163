"""Estimates kept in the user's cache directory: measured once for a model on a machine, not at every load."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

FORMAT = 1

Kind = Literal["cost", "widths", "acceptance"]
"""What is kept: cost curves; width classes; what drafters and control learned of acceptance."""


def folder() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("slipstream", appauthor=False)


def load(kind: Kind, key: Mapping[str, object]) -> dict[str, Any] | None:
    """The data stored under this key, or None where there is none or the file is damaged."""
    try:
        data = json.loads(_file(kind, key).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        return None
    return data


def save(kind: Kind, key: Mapping[str, object], data: Mapping[str, Any]) -> None:
    """Stores plain data by rename, so that no reader sees half a file. A cache that can't be written is no error."""
    path = _file(kind, key)
    content = json.dumps({"format": FORMAT, "key": dict(key), **data}, indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            file.write(content)
        os.replace(file.name, path)
    except OSError:
        return


def _file(kind: Kind, key: Mapping[str, object]) -> Path:
    digest = hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()
    return folder() / kind / f"{digest[:32]}.json"
