"""Why an engine that compares sizes should not be given a pair, as far as the files on this machine tell."""

from __future__ import annotations

from pathlib import Path

from slipstream.errors import ModelError
from slipstream.models.describe import cached_folders, describe_gguf
from slipstream.models.description import Description
from slipstream.models.hf_folder import Folder, describe_files, is_model_folder
from slipstream.models.judges import judge
from slipstream.models.pairing import verdict

from .protocol import Settings


def why_no_pair(title: str, settings: Settings) -> str:
    """In words; empty where the pair fits, and where either model is not here to be read.

    title: the engine's name in `models.judges`.
    """
    if settings.draft is None:
        return "no draft model was given"
    target, draft = _described(settings.model), _described(settings.draft)
    if target is None or draft is None:
        return ""
    try:
        found = verdict(target, draft)
    except ModelError as error:
        return error.message
    judgement = next(one for one in judge(target, draft, found) if one.engine == title)
    different = found.comparison is not None and found.comparison.n_different > 0
    if judgement.takes is False:
        return judgement.reason
    return f"{judgement.reason}. {judgement.warning}".strip() if different else ""


def _described(name: str) -> Description | None:
    """A GGUF file, a folder in Hugging Face form, or a name in the Hugging Face cache."""
    path = Path(name)
    try:
        if path.is_file():
            return describe_gguf(path, path.name)
        folder = path if is_model_folder(path) else dict(cached_folders()).get(name)
        return describe_files(Folder(folder, path.name)) if folder else None
    except (ModelError, OSError):
        return None
