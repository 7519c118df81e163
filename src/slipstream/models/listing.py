"""What a list of models says of each, from its header; damaged ones are told, not hidden."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from slipstream.errors import ModelError
from slipstream.models.gguf import read_gguf
from slipstream.models.stores import Found, find_models, part_paths


@dataclass(frozen=True)
class Listed:
    """One line of the list. With `problem`, why the file cannot be used, the rest is unknown."""

    name: str
    store: str
    path: str
    architecture: str | None = None
    n_params: int | None = None
    quantization: str | None = None
    size_bytes: int | None = None
    vocab_size: int | None = None
    context_length: int | None = None
    problem: str | None = None


def list_models() -> Iterator[Listed]:
    """Every model of this machine's stores. Adapters, projectors and the like are left out."""
    for found in find_models():
        listed = _listed(found)
        if listed is not None:
            yield listed


def _listed(found: Found) -> Listed | None:
    name, store, path = found.name, found.store, str(found.path)
    try:
        first, *others = [read_gguf(part, arrays=False) for part in part_paths(found.path)]
    except ModelError as error:
        return Listed(name, store, path, problem=error.message)
    if first.kind != "model":
        return None
    return Listed(
        name,
        store,
        path,
        first.architecture,
        sum(part.n_params for part in (first, *others)),
        first.quantization,
        sum(part.size_bytes for part in (first, *others)),
        first.vocab_size,
        first.context_length,
    )
