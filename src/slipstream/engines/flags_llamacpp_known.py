"""Flags that llama.cpp's programs refuse today, whatever they are for, and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from .command_line import Line, name_of, program_name
from .flags_known import flags_of

RELEASE: Final = "b11434"

PROGRAMS = {
    "llama-server": "llama-server",
    "llama-cli": "llama-cli",
    "llama-speculative": "llama-speculative",
    "llama-speculative-simple": "llama-speculative",
}
"""Programs whose flags are known, with the one in the list whose flags they share."""

COMMANDS = {"serve": "llama-server", "server": "llama-server", "cli": "llama-cli", "client": "llama-cli"}
"""Commands of `llama`, with the program that each is."""

IMAGE = "ghcr.io/ggml-org/llama.cpp"
IMAGES = {"server": "llama-server", "light": "llama-cli"}
"""What the tags of images begin with, and the program that runs in them."""

LOAD_MODE = "(llama.cpp #20834)"
SYSTEM_PROMPT = "llama-server reads a system prompt from each request, llama-cli from the file of -sysf"
INSTEAD = {
    "--mlock": f"write --load-mode mmap+mlock, or --load-mode mlock for --mlock --no-mmap {LOAD_MODE}",
    "--mmap": f"write --load-mode mmap {LOAD_MODE}",
    "--no-mmap": f"write --load-mode none, or --load-mode mlock for --mlock --no-mmap {LOAD_MODE}",
    "--direct-io": f"write --load-mode dio {LOAD_MODE}",
    "-dio": f"write --load-mode dio {LOAD_MODE}",
    "--dio": f"write --load-mode dio {LOAD_MODE}",
    "--no-direct-io": "leave it out",
    "-ndio": "leave it out",
    "--system-prompt-file": SYSTEM_PROMPT,
    "-spf": SYSTEM_PROMPT,
    "--logdir": "write --log-file FILE",
    "--memory-f32": "write --cache-type-k f32 --cache-type-v f32",
    "--slots-endpoint-disable": "write --no-slots",
}
"""Flags that are refused today, with what is to be written where that is known."""


def compare(line: Line) -> None:
    """Names every flag that the line's program does not take; looks at nothing where its flags are not known."""
    program = program_of(line)
    if not program:
        return
    listed = flags_of(f"flags_llamacpp_{RELEASE}")
    known = listed[PROGRAMS[program]]
    line.compared_with = f"{program} {RELEASE}"
    for word in _unknown(line.words, known):
        line.refused(word, INSTEAD.get(name_of(word)) or _takers(name_of(word), listed))


def program_of(line: Line) -> str:
    """The program that reads the flags; empty for one whose flags are not known.

    Flags alone are taken for llama-server's.
    """
    if line.program:
        name = program_name(line.program[0])
        return COMMANDS.get("".join(line.program[1:]), "") if name == "llama" else name if name in PROGRAMS else ""
    if line.before and line.before[-1].startswith(IMAGE):
        kind = re.split("[:@-]", line.before[-1].removeprefix(IMAGE))[1:2]
        return IMAGES.get("".join(kind), "")
    return "llama-server"


def _unknown(words: list[str], known: Mapping[str, int]) -> Iterator[str]:
    """Flags that are not known. A word that a flag takes for its value is none, however it begins."""
    at = 0
    while at < len(words):
        name = name_of(words[at])
        if name and name not in known:
            yield words[at]
        at += 1 + known.get(name, 0)


def _takers(name: str, listed: Mapping[str, Mapping[str, int]]) -> str:
    programs = [program for program, known in listed.items() if name in known]
    return f"it is a flag of {', '.join(sorted(programs))}" if programs else ""
