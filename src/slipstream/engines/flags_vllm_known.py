"""Flags that `vllm serve` refuses today, whatever they are for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from .command_line import Line, name_of
from .flags_known import flags_of

RELEASE: Final = "0.32.0"


def compare(line: Line) -> None:
    """Names every flag of the line that vLLM does not take."""
    known = flags_of(f"flags_vllm_{RELEASE}")["vLLM"]
    line.compared_with = f"vLLM {RELEASE}"
    for word in line.words:
        if name_of(word) and not _is_taken(name_of(word), known):
            line.refused(word)


def _is_taken(name: str, known: Mapping[str, int]) -> bool:
    """Whether vLLM reads the flag: by its name, by a beginning that no other flag has, or with a key behind a point."""
    name = re.split("[.=]", name)[0]
    if name in known or sum(flag.startswith(name) for flag in known) == 1:
        return True
    return not name.startswith("--") and (name[:2] in known or name.startswith("-O"))
