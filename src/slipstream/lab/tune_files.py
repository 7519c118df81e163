"""What a tuning run leaves in its folder: `tune.json` (read again here too), settings to copy, and `report.html`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path, PurePath

from slipstream.errors import InputError
from slipstream.lab import report
from slipstream.lab.plain_data import built
from slipstream.lab.tuned import FORMAT, EngineResult, Tuned, Written

RESULT, REPORT = "tune.json", "report.html"


def write(tuned: Tuned, folder: Path) -> list[Path]:
    """All files, in place of what an earlier part of the same run wrote, each whole or not at all; the settings last.

    Settings that somebody has changed since stay as they are: the new ones are written to NAME.new beside them.
    Raises InputError for a file or a folder that cannot be written.
    """
    result, page = folder / RESULT, folder / REPORT
    tuned = replace(tuned, engines=tuple(_named_apart(engine) for engine in tuned.engines))
    try:
        settings = _write_settings(_texts(tuned, folder), _earlier(result, folder))
        _replace(page, lambda part: report.write(tuned, part))
        # The last: until then the earlier one tells which settings nobody has changed.
        data = json.dumps(asdict(tuned), indent=1, allow_nan=False)
        _replace(result, lambda part: part.write_text(data, encoding="ascii"))
    except OSError as error:
        path = error.filename2 or error.filename or folder
        hint = "All measurements are kept: mend that, and go on with --resume."
        raise InputError(f"{path} cannot be written: {error.strerror}.", hint) from None
    return [result, page, *settings]


def read(path: Path) -> Tuned:
    """Raises InputError for a file that is no such result, or one of another release's format."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise InputError(f"{path} has format {data['format']}, not {FORMAT}.", "Run slipstream tune again.")
        tuned: Tuned = built(Tuned, data)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is no result of slipstream tune: {error}.") from None
    return tuned


def _write_settings(texts: Mapping[Path, bytes], earlier: Mapping[Path, bytes]) -> list[Path]:
    """Writes these, and removes the earlier ones that are no more; returns where they lie."""
    paths = []
    for path, text in texts.items():
        path.parent.mkdir(exist_ok=True)
        changed = path.exists() and path.read_bytes() not in (text, earlier.get(path))
        paths.append(_beside(path) if changed else path)
        _replace(paths[-1], partial(Path.write_bytes, data=text))
    for path, text in earlier.items():
        for left in (path, _beside(path)):
            if left not in paths and left.is_file() and left.read_bytes() == text:
                left.unlink()
        with suppress(OSError):
            path.parent.rmdir()  # succeeds where nothing is left in it
    return paths


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


def _earlier(result: Path, folder: Path) -> dict[Path, bytes]:
    """What an earlier part of the run wrote, by its result; nothing where there is none."""
    try:
        texts = _texts(read(result), folder)
    except InputError:
        return {}
    return {path: text for path, text in texts.items() if path.parent.parent == folder}


def _texts(tuned: Tuned, folder: Path) -> dict[Path, bytes]:
    """The settings as they lie on the disk."""
    return {
        folder / _settings_folder(engine, tuned.engines) / written.file_name: _encoded(written.text)
        for engine in tuned.engines
        for written in engine.settings
    }


def _encoded(text: str) -> bytes:
    """Names of files that are no UTF-8 as they were; a question mark for what no file can hold."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return text.encode(errors="replace")


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Puts a file in place of what is there, at once and as a whole. write: writes it elsewhere."""
    part = path.with_name(f"{path.name}.part")
    try:
        write(part)
        with part.open("r+b") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _named_apart(engine: EngineResult) -> EngineResult:
    """Settings of the same file name get a number; names that some systems take for the same one too."""
    taken: set[str] = set()
    return replace(engine, settings=tuple(_apart(written, taken) for written in engine.settings))


def _apart(written: Written, taken: set[str]) -> Written:
    name = PurePath(written.file_name)
    number, free = 1, str(name)
    while free.casefold() in taken:
        number += 1
        free = f"{name.stem}-{number}{name.suffix}"
    taken.add(free.casefold())
    return replace(written, file_name=free)


def _settings_folder(engine: EngineResult, engines: Iterable[EngineResult]) -> str:
    """One an engine, and a number of requests at once where there are several."""
    several = sum(other.name == engine.name for other in engines) > 1
    return f"settings-{engine.name}{f'-{engine.concurrency}' if several else ''}"
