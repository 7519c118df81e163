"""MLX-LM's programs of old and of 0.32: its flags are what they were, the way to call it is not."""

from __future__ import annotations

from typing import Final

from .command_line import Line, name_of, program_name

ENGINE: Final = "mlx-lm"
KNOWN = ("mlx_lm.COMMAND", "mlx_lm COMMAND", "python -m mlx_lm.COMMAND", "python -m mlx_lm COMMAND")
DRAFT, LENGTH = "--draft-model", "--num-draft-tokens"


def recognise(words: list[str]) -> int:
    """How many words name the program; 0 where it is another."""
    name = program_name(words[0])
    if name.startswith("mlx_lm."):
        return 1
    if name == "mlx_lm":
        return 2
    if name.startswith("python") and words[1:2] == ["-m"] and words[2:3]:
        return 4 if words[2] == "mlx_lm" else 3 if words[2].startswith("mlx_lm.") else 0
    return 0


def claims(words: list[str]) -> bool:
    """Whether flags without a program are this engine's."""
    return any(name_of(word) in (DRAFT, LENGTH) for word in words)


def modernise(line: Line) -> None:
    """Makes a line of MLX-LM one of 0.32."""
    if len(line.program) == 3:
        python, _, module = line.program
        command = module.removeprefix("mlx_lm.")
        line.program = [python, "-m", "mlx_lm", command]
        line.note(f"-m {module} → -m mlx_lm {command}", "calling the module itself is deprecated", "mlx-lm #71")
    if line.has(LENGTH) and not line.has(DRAFT):
        line.remarks.append(f"{LENGTH} does nothing without {DRAFT}.")
