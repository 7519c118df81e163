"""Which speculations vLLM has, since when, what each needs, and how it is written down."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from slipstream.errors import InputError, ModelError
from slipstream.models.describe import cached_folders
from slipstream.models.description import Description
from slipstream.models.hf_folder import Folder, describe_files, is_model_folder

from .attached import fixed_at_start, needs_draft, one_speculation
from .protocol import Option, Settings
from .vllm_program import Program

PROPOSER: Final = "slipstream.engines.vllm_proposer.SlipstreamProposer"


@dataclass(frozen=True)
class Kind:
    """One speculation. since: the first release known to take it as written here. n_max: lengths worth trying first.

    method: vLLM's word for it. more: what else its configuration holds.
    """

    name: str
    since: tuple[int, ...]
    n_max: tuple[int, ...]
    needs_draft: bool = False
    p_min: tuple[float, ...] = ()
    method: str = ""
    more: tuple[tuple[str, Any], ...] = ()


KINDS: Final = (
    # Where nothing is said of the n-gram, vLLM matches five tokens and no fewer.
    Kind("ngram", (0, 8, 3), (2, 4, 8), more=(("prompt_lookup_min", 2), ("prompt_lookup_max", 5))),
    Kind("suffix", (0, 12), (8, 16), p_min=(0.1, 0.4)),
    Kind("draft_model", (0, 15), (2, 4, 6), needs_draft=True),
    Kind("eagle3", (0, 9), (2, 3, 5), needs_draft=True),
    Kind("mtp", (0, 11), (1, 2, 3)),
    # The length is decided from pass to pass; this is only its bound.
    Kind("slipstream", (0, 23), (8, 16), method="custom_class", more=(("model", PROPOSER),)),
)
NAMES: Final = tuple(kind.name for kind in KINDS)


def speculative_config(settings: Settings) -> dict[str, Any] | None:
    """The object of `--speculative-config`, None for plain decoding. Raises InputError for what vLLM cannot do."""
    if settings.model.lower().endswith(".gguf"):
        raise InputError(f"vLLM does not run GGUF files ({settings.model}).", "Give a Hugging Face name or folder.")
    wanted = one_speculation(settings, "vLLM", NAMES)
    if wanted is None:
        return None
    kind = KINDS[NAMES.index(wanted.kind)]
    config: dict[str, Any] = {"method": kind.method or kind.name}
    if kind.needs_draft:
        config["model"] = needs_draft(settings, "vLLM", kind.name)
    config |= dict(kind.more)
    config["num_speculative_tokens"] = wanted.n_max or kind.n_max[len(kind.n_max) // 2]
    if wanted.p_min is not None:
        if not kind.p_min:
            raise InputError(f"vLLM's {kind.name} has no threshold of confidence, and p {wanted.p_min:g} is asked for.")
        config["suffix_decoding_min_token_prob"] = wanted.p_min
    return config


def kinds_here(program: Program, settings: Settings) -> tuple[Option, ...]:
    """Each kind for this release, its packages, the model and the draft, as far as these are on this machine."""
    target = _described(settings.model)
    draft = _described(settings.draft) if settings.draft else None
    return tuple(
        Option(kind.name, kind.n_max, kind.p_min, kind.needs_draft, _why_not(kind, program, settings, target, draft))
        for kind in KINDS
    )


def kinds_fixed() -> tuple[Option, ...]:
    """Each kind, as it cannot be had of a server that runs."""
    return tuple(
        Option(
            kind.name,
            needs_draft=kind.needs_draft,
            why_not=fixed_at_start("vLLM", f"--speculative-config for {kind.name}"),
        )
        for kind in KINDS
    )


def _why_not(
    kind: Kind, program: Program, settings: Settings, target: Description | None, draft: Description | None
) -> str:
    if program.release and program.release < kind.since:
        return f"vLLM {program.version} is too old: {kind.name} needs {'.'.join(map(str, kind.since))}"
    if kind.name == "suffix" and "arctic-inference" not in program.packages:
        return "it needs arctic-inference in vLLM's environment: pip install arctic-inference"
    if kind.name == "slipstream" and "slipstream" not in program.packages:
        return "slipstream is not installed in vLLM's environment: pip install slipstream there"
    if kind.name == "mtp":
        return _why_no_mtp(settings.model, target)
    if not kind.needs_draft:
        return ""
    if settings.draft is None:
        return "no EAGLE-3 head was given" if kind.name == "eagle3" else "no draft model was given"
    return _why_not_drafted(kind.name, settings.draft, draft)


def _why_no_mtp(model: str, target: Description | None) -> str:
    if target is None:
        return f"{model} is not on this machine, so whether it has layers for multi-token prediction is not known"
    return "" if target.n_mtp_layers else f"{model} has no layers for multi-token prediction"


def _why_not_drafted(kind: str, name: str, draft: Description | None) -> str:
    """Where the draft is not on this machine, its name tells a head from a model."""
    head = draft.head.method if draft and draft.head else ""
    if draft is None and "eagle3" in name.lower().replace("-", ""):
        head = "EAGLE-3"
    if kind == "eagle3":
        return "" if head == "EAGLE-3" else f"{name} is no EAGLE-3 head"
    return f"{name} is an {head} head, no model of its own" if head else ""


def _described(name: str) -> Description | None:
    """A model in Hugging Face form of this machine, by folder or by its name in the Hugging Face cache."""
    path: Path | None = Path(name)
    if path is None or not is_model_folder(path):
        path = next((folder for cached, folder in cached_folders() if cached == name), None)
    if path is None:
        return None
    try:
        return describe_files(Folder(path, name))
    except ModelError:
        return None
