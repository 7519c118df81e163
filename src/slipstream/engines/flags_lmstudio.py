"""LM Studio's `lms load`: what a line lacks for its draft model to be used."""

from __future__ import annotations

from typing import Final

from .command_line import Line, name_of, program_name

ENGINE: Final = "lmstudio"
KNOWN = ("lms",)
PREFIX = "--speculative-draft-"
MODEL, SIMPLE, MTP = PREFIX + "model", PREFIX + "simple", PREFIX + "mtp"
OWN = {SIMPLE, MTP, *(PREFIX + name for name in ("max-tokens", "min-tokens", "min-continue-probability"))}


def recognise(words: list[str]) -> int:
    """How many words name the program; 0 where it is another."""
    if program_name(words[0]) != "lms":
        return 0
    return 2 if len(words) > 1 and not words[1].startswith("-") else 1


def claims(words: list[str]) -> bool:
    """Whether flags without a program are this engine's."""
    return any(name_of(word) in OWN for word in words)


def modernise(line: Line) -> None:
    """Makes a line of `lms load` one that uses its draft; other commands of lms stay as they are."""
    if line.program[1:] not in ([], ["load"]):
        return
    if (found := line.take("--draft-model")) is not None:
        line.put(MODEL, found.value, at=found.at)
        line.note(f"{found.name} → {MODEL}", "lms load has no such flag")
    is_on = line.has(MTP, SIMPLE)
    if line.has(MODEL) and not is_on:
        line.put(SIMPLE, at=line.index(MODEL))
        line.note(f"{SIMPLE} added", "a draft model is used with it")
    elif not is_on and any(name_of(word) in OWN for word in line.words):
        line.remarks.append(f"The lengths need {MTP}, or {SIMPLE} with a draft model.")
