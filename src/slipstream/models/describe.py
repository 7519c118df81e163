"""From what a person calls a model to its description, without fetching any: see `resolve` for the names.

In addition to GGUF files, a folder with a `config.json` is described, and so is what an `hf:` reference means where it
is not on this machine: by the headers of the remote files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from slipstream.errors import ModelError
from slipstream.models import stores
from slipstream.models.description import Description, of_gguf
from slipstream.models.gguf import read_gguf
from slipstream.models.hf_folder import Folder, describe_files, is_model_folder
from slipstream.models.hub import cached, parse_reference
from slipstream.models.remote import Repository, read_remote_gguf
from slipstream.models.resolve import resolve


def describe(name: str) -> Description:
    """Raises ModelError, DownloadError or InputError for what cannot be found, reached or read."""
    if name.startswith("hf:"):
        return _of_reference(name)
    path = stores.named_path(name)
    if path is not None and is_model_folder(path):
        return describe_files(Folder(path, name))
    return describe_gguf(resolve(name, confirm=lambda question: False), name)


def describe_gguf(path: Path, name: str) -> Description:
    """The model of a GGUF file on this machine, all parts of a split set included. Raises ModelError."""
    paths = stores.part_paths(path)
    missing = next((part for part in paths if not part.exists()), None)
    if missing is not None:
        hint = "A split model needs all its parts in one folder."
        raise ModelError(f"{missing.name}, a part of {path.name}, is missing.", hint)
    parts = [read_gguf(part, arrays=part == paths[0]) for part in paths]
    if parts[0].n_splits != len(parts):
        said = f"{paths[0].name} is one of {parts[0].n_splits} parts, which its name does not say"
        raise ModelError(f"{said}.", "Give it back the name it was published under.")
    if parts[0].kind != "model":
        raise ModelError(f"{paths[0].name} is no model but of the kind '{parts[0].kind}'.", "Give the model itself.")
    return of_gguf(parts, name, paths[0])


def cached_folders() -> Iterator[tuple[str, Path]]:
    """Models in Hugging Face form in the Hugging Face cache, as (org/repo, folder), the current revision alone."""
    for name, repository, current in stores.cached_repositories():
        folder = repository / "snapshots" / current
        if current and is_model_folder(folder):
            yield name, folder


def folders_below(folder: Path) -> Iterator[Path]:
    """Folders that hold a model in Hugging Face form, `folder` itself included."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if "config.json" in names:
            yield Path(parent)


def _of_reference(reference: str) -> Description:
    repository, wanted = parse_reference(reference)
    here = cached(repository, wanted)
    if here is not None:
        return describe_gguf(here, reference)
    folder = next((path for name, path in cached_folders() if name == repository), None)
    if folder is not None and wanted is None:
        return describe_files(Folder(folder, reference))
    with Repository(repository) as files:
        if wanted is None and not any(stores.is_model_file(name) for name in files.names()):
            return describe_files(files)
        return of_gguf(read_remote_gguf(files, wanted), reference, None)
