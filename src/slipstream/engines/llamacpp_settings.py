"""Settings for llama.cpp written down: arguments of `llama-server`, fields of xllamacpp's `CommonParams`, both as text.

What runs is made of the same lists as what is rendered.
"""

from __future__ import annotations

import json
import shlex
from typing import Any

from .llamacpp_options import KINDS, P_MIN_FLAGS, Release, reads_draft
from .protocol import Rendering, Settings, Speculation

Fields = dict[str, Any]
"""Dotted names within `CommonParams` with their values; kinds of speculation by name, below `TYPES`."""

TYPES = "speculative.types"


def arguments(settings: Settings, release: Release) -> list[str]:
    """Of `llama-server`, by the names of this release."""
    words = ["-m", settings.model, "-c", str(settings.n_ctx * settings.parallel), "-np", str(settings.parallel)]
    words += ["-t", str(settings.n_threads)] if settings.n_threads else []
    named = [s.kind for s in settings.speculation if s.kind in release.named]
    words += ["--spec-type", ",".join(named)] if named else []
    words += ["-md", settings.draft] if settings.draft and reads_draft(settings) else []
    for speculation in settings.speculation:
        words += _flags(speculation, release)
    return words


def _flags(speculation: Speculation, release: Release) -> list[str]:
    words: list[str] = []
    flag = release.flag(KINDS[speculation.kind].flags)
    if speculation.n_max is not None and flag:
        words += [flag, str(speculation.n_max)]
        if speculation.kind == "ngram-mod":
            words += ["--spec-ngram-mod-n-min", str(shortest(speculation.n_max))]
    p_min_flag = release.flag(P_MIN_FLAGS)
    if speculation.p_min is not None and p_min_flag:
        words += [p_min_flag, f"{speculation.p_min:g}"]
    return words


def fields(settings: Settings) -> Fields:
    """Of `CommonParams`; what is not among them has llama.cpp's default."""
    found: Fields = {
        "model.path": settings.model,
        "n_ctx": settings.n_ctx * settings.parallel,
        "n_parallel": settings.parallel,
    }
    reads = reads_draft(settings)
    if settings.n_threads:
        # A program copies its number of threads to these others; the wheel does not.
        for place in ("", "speculative.draft.") if reads else ("",):
            found[f"{place}cpuparams.n_threads"] = found[f"{place}cpuparams_batch.n_threads"] = settings.n_threads
    if settings.speculation:
        found[TYPES] = [speculation.kind for speculation in settings.speculation]
    if reads:
        found["speculative.draft.mparams.path"] = settings.draft
    for speculation in settings.speculation:
        if speculation.n_max is not None:
            found[f"speculative.{KINDS[speculation.kind].field}"] = speculation.n_max
            if speculation.kind == "ngram-mod":
                found["speculative.ngram_mod.n_min"] = shortest(speculation.n_max)
        if speculation.p_min is not None:
            found["speculative.draft.p_min"] = speculation.p_min
    return found


def shortest(n_max: int) -> int:
    """ngram-mod throws away drafts of less than 48 tokens, three quarters of its maximum: of any other as well."""
    return n_max * 3 // 4


def parameters(library: Any, found: Fields) -> Any:
    """The `CommonParams` of these fields. library: the module xllamacpp."""
    params = library.CommonParams()
    for name, value in found.items():
        *places, last = name.split(".")
        at = params
        for place in places:
            at = getattr(at, place)
        if name == TYPES:
            value = [getattr(library.common_speculative_type, member(kind)) for kind in value]
        setattr(at, last, value)
    return params


def member(kind: str) -> str:
    """The name of a kind in xllamacpp's enumeration."""
    return f"COMMON_SPECULATIVE_TYPE_{kind.upper().replace('-', '_')}"


def command_line(program: str, settings: Settings, release: Release) -> Rendering:
    line = shlex.join([program, *arguments(settings, release)])
    return Rendering("Command line", "sh", f"{line}\n", "llama-server.sh")


def python(settings: Settings) -> Rendering:
    """A program for the xllamacpp wheel that serves until it is ended."""
    lines = ["import xllamacpp", "", "params = xllamacpp.CommonParams()"]
    for name, value in fields(settings).items():
        kinds = [f"xllamacpp.common_speculative_type.{member(kind)}" for kind in value] if name == TYPES else []
        lines.append(f"params.{name} = {'[' + ', '.join(kinds) + ']' if kinds else json.dumps(value)}")
    lines += ["server = xllamacpp.Server(params)", "print(server.listening_address)"]
    lines += ['input("Enter ends it. ")', ""]
    return Rendering("Python", "python", "\n".join(lines), "llama_server.py")
