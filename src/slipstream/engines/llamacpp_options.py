"""What llama.cpp can speculate with: its kinds, their settings in each release, and why one cannot be had.

Names and defaults are those of b11549 (`common/arg.cpp`, `common/speculative.cpp`); older names of a flag stand behind
today's, for programs whose `--help` still has them.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

from slipstream.errors import EngineError, InputError, SlipstreamError
from slipstream.models.describe import describe_gguf
from slipstream.models.description import Description, Method
from slipstream.models.judges import judge
from slipstream.models.pairing import verdict

from .protocol import Option, Settings, Speculation

HELP_S: Final = 30.0
P_MIN_FLAGS: Final = ("--spec-draft-p-min", "--draft-p-min")
_DRAFT_FLAGS: Final = ("--spec-draft-n-max", "--draft-max")
_MAP_FLAGS: Final = ("--spec-ngram-size-m",)


@dataclass(frozen=True)
class Kind:
    """One speculation. n_max, p_min: values worth trying first, none where there is no such setting.

    field: where xllamacpp's `CommonParamsSpeculative` holds the length of drafts. flags: what `llama-server` calls it,
    today's name first. drafts: whether a model or a head writes the drafts. head: the head it takes, None for a model.
    """

    n_max: tuple[int, ...] = ()
    p_min: tuple[float, ...] = ()
    field: str = ""
    flags: tuple[str, ...] = ()
    drafts: bool = False
    head: Method | None = None


def _head(method: Method, *n_max: int) -> Kind:
    return Kind(n_max, (), "draft.n_max", _DRAFT_FLAGS, True, method)


def _map(name: str) -> Kind:
    flags = (f"--spec-{name}-size-m", *_MAP_FLAGS)
    return Kind((4, 8, 16, 48), field=f"{name.replace('-', '_')}.size_m", flags=flags)


KINDS: Final = {
    "draft-simple": Kind((2, 4, 8, 16), (0.3, 0.5, 0.75), "draft.n_max", _DRAFT_FLAGS, True),
    "draft-mtp": _head("MTP", 1, 2, 3, 4, 6),
    "draft-eagle3": _head("EAGLE-3", 2, 3, 5, 8),
    "draft-dflash": _head("DFlash", 2, 4, 8, 16),
    "ngram-simple": _map("ngram-simple"),
    "ngram-map-k": _map("ngram-map-k"),
    "ngram-map-k4v": _map("ngram-map-k4v"),
    "ngram-mod": Kind((16, 32, 64), field="ngram_mod.n_max", flags=("--spec-ngram-mod-n-max",)),
    "ngram-cache": Kind(),
}


@dataclass(frozen=True)
class Release:
    """One llama.cpp. version: "b11549", "" where it does not say. kinds: of `KINDS`, those it has.

    named: those that its `--spec-type` takes; where that lacks draft-simple, `-md` alone turns it on. flags: all that
    its help lists, None for those of today.
    """

    version: str
    kinds: tuple[str, ...] = tuple(KINDS)
    named: tuple[str, ...] = tuple(KINDS)
    flags: frozenset[str] | None = None

    def flag(self, names: Sequence[str]) -> str | None:
        """What this release calls a setting that has had these names, today's first; None where it has none."""
        return next((name for name in names if self.flags is None or name in self.flags), None)


def wheel_version() -> str:
    """llama.cpp's build in the xllamacpp wheel: the last part of its version."""
    return f"b{version('xllamacpp').rpartition('.')[2]}"


def release_of_wheel() -> Release:
    """That of the xllamacpp wheel, by its enumeration of kinds."""
    import xllamacpp

    prefix = "COMMON_SPECULATIVE_TYPE_"
    names = [name[len(prefix) :].lower().replace("_", "-") for name in xllamacpp.common_speculative_type.__members__]
    kinds = tuple(name for name in KINDS if name in names)
    return Release(wheel_version(), kinds, kinds)


def release_of_program(program: str) -> Release:
    """That of a `llama-server`, by what it says of itself. Raises EngineError where it is none."""
    said = _told(program, "--version")
    text = _told(program, "--help")
    if "--spec-type" not in text and "--model-draft" not in text:
        raise EngineError(f"{program} is no llama-server: its help names no speculation.", "Give its path.")
    flags = frozenset(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", text))
    listed = re.split(r"\n[ \t]{0,3}-", text.partition("--spec-type")[2], maxsplit=1)[0]
    words = re.findall(r"[a-z0-9]+(?:-[a-z0-9]+)*", listed)
    named = tuple(kind for kind in KINDS if kind in words)
    kinds = named if "draft-simple" in named else ("draft-simple", *named)
    return Release(_version(said), kinds, named, flags)


def _version(said: str) -> str:
    """The build, as "b11549"; where it was built outside a repository its number is 0, and the version must do."""
    found = re.search(r"version: (\S+)(?: \(build (\d+))?", said)
    if found is None:
        return ""
    build = found[2] or (found[1] if found[1].isdigit() else "0")
    if build != "0":
        return f"b{build}"
    return "" if found[1] == "0" else found[1]


def _told(program: str, asked: str) -> str:
    try:
        done = subprocess.run([program, asked], capture_output=True, timeout=HELP_S, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise EngineError(f"{program} cannot be run: {error}.", "Give the path of a llama-server.") from None
    except subprocess.TimeoutExpired:
        raise EngineError(f"{program} {asked} says nothing for {HELP_S:.0f} s.", "Is it a llama-server?") from None
    return (done.stdout + done.stderr).decode(errors="replace")


def check(settings: Settings, release: Release) -> None:
    """Raises InputError for settings that this release cannot take, as far as they say themselves."""
    for speculation in settings.speculation:
        _check_one(speculation, release)
    models = [s.kind for s in settings.speculation if KINDS[s.kind].drafts]
    if len({s.kind for s in settings.speculation}) < len(settings.speculation) or len(models) > 1:
        raise InputError(f"llama.cpp cannot run {settings.arm}.", "Kinds must differ, and one of them may use a draft.")
    if settings.draft is None and models and models != ["draft-mtp"]:
        raise InputError(f"llama.cpp's {models[0]} needs a draft.", "Name one with --draft.")


def _check_one(speculation: Speculation, release: Release) -> None:
    kind, named = KINDS.get(speculation.kind), f"llama.cpp {release.version}".rstrip()
    if kind is None or speculation.kind not in release.kinds:
        hint = f"It has {', '.join(release.kinds)}."
        raise InputError(f"{named} knows no speculation {speculation.kind!r}.", hint)
    if speculation.n_max is not None and (speculation.n_max < 1 or release.flag(kind.flags) is None):
        raise InputError(f"{named} cannot run {speculation.kind} with drafts of {speculation.n_max} tokens.")
    p_min = speculation.p_min
    if p_min is not None and not (kind.drafts and 0 <= p_min <= 1 and release.flag(P_MIN_FLAGS)):
        raise InputError(f"{named} cannot run {speculation.kind} with a threshold of {p_min:g}.")


def options(settings: Settings, release: Release) -> tuple[Option, ...]:
    """Each kind for this release, the model and the draft. Raises ModelError for files that cannot be read."""
    target = describe_gguf(Path(settings.model), settings.model)
    draft = describe_gguf(Path(settings.draft), settings.draft) if settings.draft else None
    return tuple(
        Option(
            name,
            KINDS[name].n_max if release.flag(KINDS[name].flags) else (),
            KINDS[name].p_min if release.flag(P_MIN_FLAGS) else (),
            needs_draft=_needs_draft(name, target),
            why_not=why_not(name, target, draft),
            combines=name in release.named,
        )
        for name in release.kinds
    )


def _needs_draft(name: str, target: Description) -> bool:
    return KINDS[name].drafts and not (name == "draft-mtp" and target.n_mtp_layers)


def why_not(name: str, target: Description, draft: Description | None) -> str:
    """Why a model and a draft cannot be run with a kind; "" where they can, as far as their files tell."""
    if not _needs_draft(name, target):
        return ""
    wanted = f"{KINDS[name].head} head" if KINDS[name].head else "draft model"
    if draft is None:
        own = f"{target.name} has no layers for multi-token prediction, and " if name == "draft-mtp" else ""
        return f"{own}no {wanted} is given"
    if (draft.head.method if draft.head else None) != KINDS[name].head:
        return f"{draft.name} is {draft.head or 'a model that writes text'}, no {wanted}"
    try:
        ruling = next(j for j in judge(target, draft, verdict(target, draft)) if j.engine == "llama.cpp")
    except SlipstreamError as error:
        return error.message
    return ruling.reason if ruling.takes is False else ""


def reads_draft(settings: Settings) -> bool:
    """Whether the draft is loaded: layers for multi-token prediction may be the target's own."""
    kinds = [KINDS[s.kind] for s in settings.speculation if KINDS[s.kind].drafts]
    if settings.draft is None or not kinds:
        return False
    return kinds[0].head != "MTP" or describe_gguf(Path(settings.draft), settings.draft).head is not None
