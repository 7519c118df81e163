"""llama.cpp's variables of the environment, before the program or among a container's options: of old and of b11549."""

from __future__ import annotations

from typing import Final

from .command_line import Line
from .flags_word import behind_equals

PREFIX: Final = "LLAMA_ARG_"

REFUSED = {"DRAFT_MAX": "SPEC_DRAFT_N_MAX", "DRAFT_MIN": "SPEC_DRAFT_N_MIN"}
UNREAD = {
    "MODEL_DRAFT": "SPEC_DRAFT_MODEL",
    "HFD_REPO": "SPEC_DRAFT_HF_REPO",
    "DRAFT_P_MIN": "SPEC_DRAFT_P_MIN",
    "DRAFT_P_SPLIT": "SPEC_DRAFT_P_SPLIT",
    "CACHE_TYPE_K_DRAFT": "SPEC_DRAFT_CACHE_TYPE_K",
    "CACHE_TYPE_V_DRAFT": "SPEC_DRAFT_CACHE_TYPE_V",
}
"""Names without their prefix, with today's."""


def rename(line: Line) -> None:
    """Variables of old, to today's names."""
    for at, word in enumerate(line.before):
        name, is_set, _ = word.partition("=")
        old = name.removeprefix(PREFIX)
        new = REFUSED.get(old) or UNREAD.get(old)
        if is_set and new and name.startswith(PREFIX):
            line.before[at] = f"{PREFIX}{new}=" + behind_equals(word)
            why = "refused today" if old in REFUSED else "today's name; the old one is not read"
            line.note(f"{name} → {PREFIX}{new}", why)


def set_variable(line: Line, name: str, value: str) -> None:
    """Gives a variable that is set another value. name: without its prefix."""
    start = f"{PREFIX}{name}="
    if value != variable(line, name):
        line.before[:] = [start + value if word.startswith(start) else word for word in line.before]


def variable(line: Line, name: str) -> str:
    """The value of a variable; empty where it is not set. name: without its prefix."""
    start = f"{PREFIX}{name}="
    return next((behind_equals(word) for word in line.before if word.startswith(start)), "")
