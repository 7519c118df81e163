"""Where GGUF models lie on this machine: the folders of other people's tools, and our own.

    LM Studio    ~/.lmstudio/models, ~/.cache/lm-studio/models, or the folder set there
    Ollama       $OLLAMA_MODELS, ~/.ollama/models, /usr/share/ollama/.ollama/models
    llama.cpp    $LLAMA_CACHE, ~/.cache/llama.cpp; newer releases use the Hugging Face cache
    Hugging Face $HF_HUB_CACHE, $HF_HOME/hub, ~/.cache/huggingface/hub
    slipstream   the folder of models.demo

Only names and paths are read, never a model; what cannot be read is passed over.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slipstream.models import demo

HUGGING_FACE: Final = "Hugging Face"

_PART: Final = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)
_BLOB: Final = re.compile(r"sha256[:-]([0-9a-f]{64})")
_OLLAMA_MODEL: Final = "application/vnd.ollama.image.model"
_MAX_DEPTH: Final = 8


@dataclass(frozen=True)
class Found:
    """A model of a store, under the name that the store's own tool shows."""

    name: str
    path: Path
    store: str


def find_models() -> list[Found]:
    """Every model of every store, sorted by store and name. A name appears once in its store."""
    seen: dict[tuple[str, str], Found] = {}
    for found in (*_lm_studio(), *_ollama(), *_llama_cpp(), *hugging_face(), *_own()):
        seen.setdefault((found.store, found.name), found)
    return sorted(seen.values(), key=lambda found: (found.store, found.name.lower()))


def is_model_file(path: Path | str) -> bool:
    """Whether a file name is that of a model: no projector, no later part of a split set."""
    name = os.path.basename(path).lower()
    part = _PART.search(name)
    return name.endswith(".gguf") and "mmproj" not in name and (part is None or int(part[1]) == 1)


def part_names(name: str) -> list[str]:
    """Names of all files of the set that `name` belongs to; `name` alone if it is no part of one."""
    part = _PART.search(name)
    if part is None or not 1 <= int(part[2]) <= 9999:
        return [name]
    return [f"{name[: part.start()]}-{i:05d}-of-{part[2]}.gguf" for i in range(1, int(part[2]) + 1)]


def part_paths(path: Path) -> list[Path]:
    """Paths of all files of the set that `path` belongs to, whether they exist or not."""
    return [path.with_name(name) for name in part_names(path.name)]


def models_below(folder: Path) -> list[Path]:
    """Model files below a folder, links followed, sorted."""
    return sorted(path for path in _files_below(folder) if is_model_file(path))


def named_path(name: str) -> Path | None:
    """The path that a person or a setting names, ~ expanded; None for what is none: an unknown user, a NUL."""
    try:
        path = Path(name).expanduser()
        os.fsencode(path)
    except (RuntimeError, ValueError):
        return None
    return None if "\0" in name else path


def hugging_face() -> Iterator[Found]:
    """Models of the Hugging Face cache as org/repo/file, those of the newest known revision first."""
    for name, repository, current in cached_repositories():
        for snapshot in sorted(_entries(repository / "snapshots"), key=lambda s: s.name != current):
            for path in models_below(snapshot):
                yield Found(f"{name}/{path.relative_to(snapshot).as_posix()}", path, HUGGING_FACE)


def cached_repositories() -> Iterator[tuple[str, Path, str]]:
    """Repositories of models in the Hugging Face cache: org/repo, folder, the newest known revision or ""."""
    for folder in _entries(_hugging_face_folder()):
        kind, _, name = folder.name.partition("--")
        if kind == "models":
            yield name.replace("--", "/", 1), folder, _read_text(folder / "refs" / "main")


def _lm_studio() -> Iterator[Found]:
    for folder in _unique(_lm_studio_folders()):
        for path in models_below(folder):
            yield Found(path.relative_to(folder).as_posix(), path, "LM Studio")


def _lm_studio_folders() -> Iterator[Path]:
    user = _home()
    homes = [user / ".lmstudio", user / ".cache" / "lm-studio"]
    pointed = _setting(_read_text(user / ".lmstudio-home-pointer"))
    for home in [pointed, *homes] if pointed is not None else homes:
        folder = _setting(_read_json(home / "settings.json").get("downloadsFolder"))
        if folder is not None:
            yield folder
        yield home / "models"


def _ollama() -> Iterator[Found]:
    for folder in _unique(_ollama_folders()):
        manifests = folder / "manifests"
        for manifest in sorted(_files_below(manifests)):
            blob = _ollama_blob(folder, manifest)
            if blob is not None:
                yield Found(_ollama_name(manifest.relative_to(manifests).parts), blob, "Ollama")


def _ollama_folders() -> Iterator[Path]:
    named = _setting(os.environ.get("OLLAMA_MODELS"))
    if named is not None:
        yield named
    yield _home() / ".ollama" / "models"
    yield Path("/usr/share/ollama/.ollama/models")


def _ollama_blob(folder: Path, manifest: Path) -> Path | None:
    layers = _read_json(manifest).get("layers")
    for layer in layers if isinstance(layers, list) else []:
        if not isinstance(layer, dict) or layer.get("mediaType") != _OLLAMA_MODEL:
            continue
        digest = _BLOB.fullmatch(str(layer.get("digest")))
        blob = folder / "blobs" / f"sha256-{digest[1]}" if digest else None
        if blob is not None and _is_file(blob):
            return blob
    return None


def _ollama_name(parts: tuple[str, ...]) -> str:
    """registry.ollama.ai/library/llama3.2/1b is shown as llama3.2:1b."""
    *path, tag = parts
    if path[:1] == ["registry.ollama.ai"]:
        path = path[2:] if path[1:2] == ["library"] else path[1:]
    return f"{'/'.join(path)}:{tag}"


def _llama_cpp() -> Iterator[Found]:
    folder = _llama_cpp_folder()
    for path in models_below(folder):
        yield Found(path.relative_to(folder).as_posix(), path, "llama.cpp")


def _llama_cpp_folder() -> Path:
    named = _setting(os.environ.get("LLAMA_CACHE"))
    if named is not None:
        return named
    if sys.platform == "darwin":
        return _home() / "Library" / "Caches" / "llama.cpp"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or _home() / "AppData" / "Local") / "llama.cpp"
    return _user_cache() / "llama.cpp"


def _hugging_face_folder() -> Path:
    for variable, below in (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub")):
        named = _setting(os.environ.get(variable))
        if named is not None:
            return named / below
    return _user_cache() / "huggingface" / "hub"


def _user_cache() -> Path:
    return _setting(os.environ.get("XDG_CACHE_HOME")) or _home() / ".cache"


def _home() -> Path:
    """Unlike `Path.home`, it does not raise where there is none."""
    return Path(os.path.expanduser("~"))


def _setting(value: object) -> Path | None:
    return named_path(value) if isinstance(value, str) and value else None


def _own() -> Iterator[Found]:
    here = demo.demo_path()
    if here is not None:
        yield Found(demo.NAME, here, "slipstream")
    folder = demo.cache_folder()
    for path in models_below(folder):
        if path.name != demo.FILE_NAME:
            yield Found(path.relative_to(folder).as_posix(), path, "slipstream")


def _files_below(folder: Path) -> Iterator[Path]:
    """Files below a folder; links to folders are followed, each folder is entered once."""
    entered: set[str] = set()
    for parent, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(parent)
        if real in entered or len(Path(parent).relative_to(folder).parts) >= _MAX_DEPTH:
            folders.clear()
        if real in entered:
            continue
        entered.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent) / name for name in names if _is_file(Path(parent) / name))


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip() if path.stat().st_size < 1 << 20 else ""
    except OSError:
        return ""


def _read_json(path: Path) -> dict[str, object]:
    """The object in a JSON file; an empty one if there is none to read."""
    try:
        value = json.loads(_read_text(path))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _unique(folders: Iterable[Path]) -> list[Path]:
    return list({os.path.realpath(folder): folder for folder in reversed([*folders])}.values())[::-1]
