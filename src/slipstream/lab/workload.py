"""Prompts to measure and to verify with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from slipstream.errors import InputError


@dataclass(frozen=True)
class Prompt:
    """One request: `messages` with a role and a content each, as chat templates take them."""

    id: str
    category: str
    messages: tuple[Mapping[str, str], ...]


def built_in() -> list[Prompt]:
    """The prompts that come with the project: one or two of each category, short ones."""
    return _parse(files("slipstream.lab").joinpath("prompts.jsonl").read_text(encoding="utf-8"), "built-in prompts")


def read(path: Path) -> list[Prompt]:
    """Prompts of a file with one JSON object a line.

    Each has `turns` (texts; the first is used), `messages` (role and content) or `prompt` (a text); `id` and
    `category` if it likes. Raises InputError, with the line, for anything else, and for an empty file.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"The prompts cannot be read: {error}.", "Give a UTF-8 file with one JSON object a line."
        ) from None
    prompts = _parse(text, str(path))
    if not prompts:
        raise InputError(f"{path} holds no prompts.", "Give a file with one JSON object a line.")
    return prompts


def _parse(text: str, name: str) -> list[Prompt]:
    # Not splitlines: a JSON text may hold U+2028 and its like as they are.
    lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    return [_prompt(line, f"{name}, line {n}", str(n)) for n, line in lines]


def _prompt(line: str, where: str, number: str) -> Prompt:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: {error}.", "Each line must be one JSON object.") from None
    messages = _messages(data) if isinstance(data, dict) else None
    if messages is None:
        raise InputError(f"{where}: no prompt.", 'It needs "turns", "messages" with role and content, or "prompt".')
    return Prompt(str(data.get("id", number)), str(data.get("category", "prompts")), messages)


def _messages(data: Mapping[str, Any]) -> tuple[Mapping[str, str], ...] | None:
    turns, messages, prompt = data.get("turns"), data.get("messages"), data.get("prompt")
    if isinstance(turns, list) and turns and isinstance(turns[0], str) and turns[0]:
        return ({"role": "user", "content": turns[0]},)
    if isinstance(messages, list) and messages and all(map(_is_message, messages)):
        return tuple({"role": m["role"], "content": m["content"]} for m in messages)
    if isinstance(prompt, str) and prompt:
        return ({"role": "user", "content": prompt},)
    return None


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))
