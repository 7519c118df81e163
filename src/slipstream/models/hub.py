"""GGUF files of Hugging Face repositories: which one is meant, and fetching it into the usual cache."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from slipstream.errors import DownloadError, ModelError
from slipstream.models import stores

_REFERENCE: Final = re.compile(r"hf:([\w.-]+/[\w.-]+)(?::(.+))?")
_DEFAULT: Final = "Q4_K_M"


def fetch(reference: str, confirm: Callable[[str], bool]) -> Path:
    """The file that `hf:org/repo[:quantisation or file]` means; of a split set the first part.

    What lies complete in the Hugging Face cache is taken from there, without network.
    """
    repository, wanted = parse_reference(reference)
    return cached(repository, wanted) or _download(repository, wanted, confirm)


def parse_reference(reference: str) -> tuple[str, str | None]:
    """(org/repo, quantisation or file) of an `hf:` reference. Raises ModelError for what is none."""
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        hint = "Write hf:org/repo, hf:org/repo:Q4_K_M or hf:org/repo:file.gguf."
        raise ModelError(f"'{reference}' is no Hugging Face reference.", hint)
    return match[1], match[2]


def choose(repository: str, files: Sequence[str], wanted: str | None) -> str:
    """The one model among a repository's files that `wanted` means; without it Q4_K_M, else the first."""
    models = sorted(file for file in files if stores.is_model_file(file))
    if not models:
        raise ModelError(f"{repository} holds no GGUF model.", "Look for one whose name ends in -GGUF.")
    matches = matching(models, wanted or _DEFAULT)
    if len(matches) == 1:
        return matches[0]
    if not matches and wanted is None:
        return models[0]
    count = "several files" if matches else "no file"
    listed = ", ".join(matches or models)
    said = f"{repository} has {count} for '{wanted or _DEFAULT}': {listed}."
    raise ModelError(said, f"Write hf:{repository}:FILE with one of them.")


def matching(files: Sequence[str], wanted: str) -> list[str]:
    """Files of that path, else of that name, else of that quantisation."""
    lower = wanted.lower()
    if lower.endswith(".gguf"):
        exact = [file for file in files if file == wanted]
        return exact or [file for file in files if file.rsplit("/", 1)[-1].lower() == lower]
    quantization = re.compile(rf"(?:^|[-._/]){re.escape(lower)}(?:$|[-./])")
    return [file for file in files if quantization.search(file.lower())]


def cached(repository: str, wanted: str | None) -> Path | None:
    """The file of the Hugging Face cache that is meant, if it lies there complete; of a split set the first part."""
    prefix = f"{repository}/"
    here = {f.name[len(prefix) :]: f.path for f in stores.hugging_face() if f.name.startswith(prefix)}
    complete = [file for file, path in here.items() if all(p.is_file() for p in stores.part_paths(path))]
    matches = matching(complete, wanted or _DEFAULT)
    if not matches and wanted is None:
        matches = complete
    return here[matches[0]] if len(matches) == 1 else None


def _download(repository: str, wanted: str | None, confirm: Callable[[str], bool]) -> Path:
    try:
        from huggingface_hub import HfApi, hf_hub_download
    except ImportError:
        raise ModelError(
            f"{repository} is not on this machine, and fetching it needs huggingface_hub.",
            "Run pip install huggingface_hub.",
        ) from None
    try:
        siblings = HfApi().model_info(repository, files_metadata=True).siblings or []
        sizes = {file.rfilename: file.size or 0 for file in siblings}
        parts = stores.part_names(choose(repository, list(sizes), wanted))
        size = sum(sizes.get(part, 0) for part in parts)
        if not confirm(f"Fetch {repository}/{parts[0]} ({size / 1e9:.2f} GB) from Hugging Face?"):
            raise DownloadError(f"{repository} is not on this machine.", "It was not fetched, as you said.")
        paths = [Path(hf_hub_download(repository, part)) for part in parts]
        return paths[0]
    except (ModelError, DownloadError):
        raise
    except Exception as error:  # the library's errors share no base class
        raise explained(repository, error) from error


def explained(repository: str, error: Exception) -> DownloadError:
    """An error of huggingface_hub in words for a person."""
    name = type(error).__name__
    if name == "GatedRepoError":
        hint = f"Accept its terms at https://huggingface.co/{repository}, then run `hf auth login`."
        return DownloadError(f"{repository} is open only to those who accepted its terms.", hint)
    if name in ("RepositoryNotFoundError", "HFValidationError"):
        hint = "Check the spelling; a private one needs `hf auth login`."
        return DownloadError(f"Hugging Face has no repository {repository}.", hint)
    reason = " ".join(str(error).split())[:200] or name
    return DownloadError(f"{repository} cannot be fetched: {reason}.", "Check the network and try again.")
