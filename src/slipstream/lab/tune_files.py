"""What a tuning run leaves in its folder: `tune.json` (read again here too), settings to copy, and `report.html`."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from slipstream.errors import InputError
from slipstream.lab import report
from slipstream.lab.tuned import FORMAT, EngineResult, Tuned

RESULT, REPORT = "tune.json", "report.html"


def write(tuned: Tuned, folder: Path) -> list[Path]:
    """All files, in place of what an earlier part of the same run wrote; the settings last."""
    result, page = folder / RESULT, folder / REPORT
    result.write_text(json.dumps(asdict(tuned), ensure_ascii=False, indent=1, allow_nan=False), encoding="utf-8")
    report.write(tuned, page)
    paths = [result, page]
    for engine in tuned.engines:
        for written in engine.settings:
            path = folder / _settings_folder(engine, tuned.engines) / written.file_name
            path.parent.mkdir(exist_ok=True)
            path.write_text(written.text, encoding="utf-8")
            paths.append(path)
    return paths


def read(path: Path) -> Tuned:
    """Raises InputError for a file that is no such result, or one of another release's format."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise InputError(f"{path} has format {data['format']}, not {FORMAT}.", "Run slipstream tune again.")
        tuned: Tuned = _built(Tuned, data)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is no result of slipstream tune: {error}.") from None
    return tuned


def _settings_folder(engine: EngineResult, engines: Sequence[EngineResult]) -> str:
    """One an engine, and a number of requests at once where there are several."""
    several = sum(other.name == engine.name for other in engines) > 1
    return f"settings-{engine.name}{f'-{engine.concurrency}' if several else ''}"


def _built(kind: Any, data: Any) -> Any:
    """Plain data as what a field's type says."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return None if data is None else _built(next(k for k in inner if k is not type(None)), data)
    if origin is tuple:
        kinds = [inner[0]] * len(data) if inner[-1] is Ellipsis else inner
        return tuple(_built(k, item) for k, item in zip(kinds, data, strict=True))
    if origin is not None and origin is not Literal and issubclass(origin, Mapping):
        return {key: _built(inner[1], item) for key, item in data.items()}
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        known = {f.name for f in fields(kind)}
        return kind(**{name: _built(hints[name], item) for name, item in data.items() if name in known})
    return data
