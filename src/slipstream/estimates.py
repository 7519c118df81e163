"""Cost curves kept in the user's cache directory: measured once for a model on a machine, not at every load."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from .decoding.cost import CostCurve

FORMAT = 1


def folder() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("slipstream", appauthor=False) / "cost"


def load_cost(key: Mapping[str, object]) -> CostCurve | None:
    """The curve stored under this key, or None where there is none or the file is damaged."""
    try:
        data = json.loads(_file(key).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        return None
    return CostCurve.from_data(data)


def save_cost(key: Mapping[str, object], curve: CostCurve) -> None:
    """Stores the curve by rename, so that no reader sees half a file. A cache that can't be written is no error."""
    path = _file(key)
    content = json.dumps({"format": FORMAT, "key": dict(key), **curve.to_data()}, indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            file.write(content)
        os.replace(file.name, path)
    except OSError:
        return


def _file(key: Mapping[str, object]) -> Path:
    digest = hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()
    return folder() / f"{digest[:32]}.json"
