"""Lines of docker and podman: which image they run, and whose flags stand behind it."""

from __future__ import annotations

import re
from typing import NamedTuple

from slipstream.errors import InputError

from .command_line import Line, program_name

CONTAINERS = ("docker", "podman")
SHELLS = ("sh", "bash")

IMAGES = {
    "vllm/vllm-openai": ("vllm", "vLLM 0.33"),
    "ghcr.io/ggml-org/llama.cpp": ("llama.cpp", "llama.cpp b11549"),
    "ghcr.io/ggerganov/llama.cpp": ("llama.cpp", "llama.cpp b11549"),
    "lmsysorg/sglang": ("sglang", "SGLang 0.5.23"),
}
"""Image → its engine, and the release whose flags are known here."""

MOVED = {"ghcr.io/ggerganov/llama.cpp": "ghcr.io/ggml-org/llama.cpp"}
PARTS = re.compile(r"(?:docker\.io/)?(?P<name>[\w./-]+?)(?:-(?:rocm|xpu))?(?:[:@].*)?")


class Image(NamedTuple):
    """An image of an engine, and its place among the words of the line."""

    at: int
    name: str
    engine: str
    release: str


def image_in(words: list[str], at: int) -> Image:
    """The known image that the container program at this place runs. Raises InputError where there is none."""
    program = program_name(words[at])
    for i, word in enumerate(words[at:], at):
        parts = PARTS.fullmatch(word)
        if parts and parts["name"] in IMAGES:
            if {program_name(run) for run in [*words[i + 1 : i + 2], *_entrypoints(words[at:i])]} & set(SHELLS):
                raise InputError(f"A shell runs within this {program} line.", "Give the line within its quotes alone.")
            return Image(i, parts["name"], *IMAGES[parts["name"]])
    raise InputError(
        f"This {program} line runs no image whose flags are known.",
        f"Known are {', '.join(IMAGES)}; else give what stands behind the image alone.",
    )


def _entrypoints(options: list[str]) -> list[str]:
    return re.findall(r"--entrypoint[= ](\S+)", " ".join(options))


def move(line: Line, image: Image) -> None:
    """An image that is published under another name today."""
    if new := MOVED.get(image.name):
        word = line.before[image.at]
        start = word.index(image.name)
        line.before[image.at] = word[:start] + new + word[start + len(image.name) :]
        line.note(f"{image.name} → {new}", "the project moved, and publishes its images there", "llama.cpp #11801")
