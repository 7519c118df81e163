"""From what a person calls a model to the path of its file.

a path           ./model.gguf, or a folder that holds one model
smollm2          the built-in demo, fetched when first asked for
hf:org/repo[:x]  a file of a Hugging Face repository; x is a quantisation or a file name
a name           as `slipstream models` lists it, or an unambiguous part of one
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from slipstream.errors import DownloadError, InputError, ModelError
from slipstream.models import demo, hub, stores

Confirm = Callable[[str], bool]
"""Asked before anything is downloaded, with a question for a person."""

_LIST = "`slipstream models` lists the models of this machine."
_MAX_LISTED = 8


def resolve(
    model: str,
    *,
    confirm: Confirm = lambda question: True,
    progress: demo.Progress = lambda done, total: None,
) -> Path:
    """The model's file; of a split set the first part. Downloads only after `confirm`.

    Raises ModelError if nothing or too much is meant, DownloadError if it cannot be fetched, InputError for no name.
    """
    if not model:
        raise InputError("The name of the model is empty.", _LIST)
    path = stores.named_path(model)
    if path is not None and _is(path, Path.is_file):
        return _first_part(path)
    if model.lower() == demo.NAME:
        check_demo_setting()
        return demo.demo_path() or _fetch_demo(confirm, progress)
    if model.startswith("hf:"):
        return hub.fetch(model, confirm)
    if path is not None and _is(path, Path.is_dir):
        return _only_model_in(path)
    return _named(model)


def check_demo_setting() -> None:
    """Raises ModelError where the environment names a file for the demo model that is not there."""
    named = os.environ.get(demo.ENVIRONMENT_VARIABLE)
    if named and not _is(Path(named), Path.is_file):
        hint = f"Set it to a copy of {demo.FILE_NAME}, or unset it."
        raise ModelError(f"{demo.ENVIRONMENT_VARIABLE} names {named}, where there is no file.", hint)


def _fetch_demo(confirm: Confirm, progress: demo.Progress) -> Path:
    if not confirm(f"Fetch the demo model {demo.NAME} ({demo.SIZE_BYTES / 1e6:.0f} MB)?"):
        hint = f"`slipstream pull {demo.NAME}` fetches it; or give the path of a GGUF file."
        raise DownloadError(f"The demo model {demo.NAME} is not on this machine.", hint)
    return demo.fetch_demo(progress)


def _is(path: Path, test: Callable[[Path], bool]) -> bool:
    try:
        return test(path)
    except OSError:  # such as a name too long
        return False


def _first_part(path: Path) -> Path:
    parts = stores.part_paths(path)
    for part in parts:
        if not part.is_file():
            hint = "A split model needs all its parts in one folder."
            raise ModelError(f"{part.name}, a part of {path.name}, is missing.", hint)
    return parts[0]


def _only_model_in(folder: Path) -> Path:
    models = stores.models_below(folder)
    if len(models) == 1:
        return _first_part(models[0])
    if not models:
        raise ModelError(f"The folder {folder} holds no GGUF model.", _LIST)
    names = _listed([path.relative_to(folder).as_posix() for path in models])
    raise ModelError(f"The folder {folder} holds {len(models)} models: {names}.", "Give the path of one.")


def _named(model: str) -> Path:
    found = stores.find_models()
    wanted = model.lower()
    matches = (
        [f for f in found if f.name == model]
        or [f for f in found if f.name.lower() == wanted]
        or [f for f in found if wanted and wanted in f.name.lower()]
    )
    files = {os.path.realpath(f.path) for f in matches}
    if len(files) == 1:
        return _first_part(matches[0].path)
    if files:
        names = _listed([f"{f.name} ({f.store})" for f in matches])
        raise ModelError(f"'{model}' may be any of {len(files)} models: {names}.", "Write more of its name.")
    raise _nothing(model, [f.name for f in found])


def _nothing(model: str, names: Sequence[str]) -> ModelError:
    close = difflib.get_close_matches(model, {*names, demo.NAME}, n=3, cutoff=0.5)
    hint = f"Close to it: {', '.join(close)}." if close else _LIST
    if model.lower().endswith(".gguf") or model.startswith((".", "~", "/")) or os.sep in model:
        return ModelError(f"There is no file {model}.", hint)
    return ModelError(f"No model on this machine is called '{model}'.", hint)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MAX_LISTED
    return ", ".join(names[:_MAX_LISTED]) + (f" and {more} more" if more > 0 else "")
