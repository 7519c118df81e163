"""Prompts to measure and to verify with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from slipstream.errors import InputError

FORMS = (
    'It needs "messages" with role and content, "prompt", "turns", or one of these within "body" or "request" '
    "as request logs have it; texts only."
)


@dataclass(frozen=True)
class Prompt:
    """One request: `messages` with a role and a content each, as chat templates take them."""

    id: str
    category: str
    messages: tuple[Mapping[str, str], ...]


def built_in() -> list[Prompt]:
    """The short prompts that come with the project, one or two of each category: enough to verify with."""
    return _shipped("prompts.jsonl")


def built_in_for_tuning() -> list[Prompt]:
    """The prompts of usual lengths that come with the project, six of each category: what tuning measures with."""
    return _shipped("tune_prompts.jsonl")


def read(path: Path) -> list[Prompt]:
    """Prompts of a file with one JSON object a line: prompts, conversations, or a log of requests.

    Each has `turns` (texts; the first is used), `messages` (role and content) or `prompt` (a text), itself or within
    `body` or `request`, as OpenAI's batch files and the logs of proxies have it; `id` (or `custom_id`) and `category`
    if it likes. Contents may be lists of text parts. What an assistant said last is the answer, and left out. Raises
    InputError, with the line, for anything else, and for an empty file.
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


def _shipped(name: str) -> list[Prompt]:
    return _parse(files("slipstream.lab").joinpath(name).read_text(encoding="utf-8"), f"built-in {name}")


def _parse(text: str, name: str) -> list[Prompt]:
    # Not splitlines: a JSON text may hold U+2028 and its like as they are.
    lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    return [_prompt(line, f"{name}, line {n}", str(n)) for n, line in lines]


def _prompt(line: str, where: str, number: str) -> Prompt:
    try:
        data = json.loads(line)
    except json.JSONDecodeError as error:
        message = f"{where}, character {error.colno}: {error.msg}."
        raise InputError(message, "Each line must be one JSON object.") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: {error}.", "Each line must be one JSON object.") from None
    for place in _places(data):
        messages = _messages(place)
        if messages:
            return Prompt(str(data.get("id", data.get("custom_id", number))), _category(data), messages)
    raise InputError(f"{where}: no prompt.", FORMS)


def _category(data: Mapping[str, Any]) -> str:
    return str(data.get("category", "prompts"))


def _places(data: Any) -> list[Mapping[str, Any]]:
    """The objects of a line that may hold the prompt; logs often keep a request's body as a text of its own."""
    found: list[Mapping[str, Any]] = []
    waiting = [data]
    while waiting and len(found) < 4:
        place = waiting.pop(0)
        if isinstance(place, str):
            try:
                place = json.loads(place)
            except (ValueError, RecursionError):
                continue
        if isinstance(place, dict):
            found.append(place)
            waiting += [place[key] for key in ("body", "request") if key in place]
    return found if isinstance(data, dict) else []


def _messages(data: Mapping[str, Any]) -> tuple[Mapping[str, str], ...] | None:
    turns, messages, prompt = data.get("turns"), data.get("messages"), data.get("prompt")
    if isinstance(turns, list) and turns and isinstance(turns[0], str) and turns[0]:
        return ({"role": "user", "content": turns[0]},)
    if isinstance(messages, list) and messages:
        return _conversation(messages)
    if isinstance(prompt, str) and prompt:
        return ({"role": "user", "content": prompt},)
    return None


def _conversation(messages: list[Any]) -> tuple[Mapping[str, str], ...] | None:
    """Up to what is to be answered; None where a message is none, or holds more than text."""
    found: list[Mapping[str, str]] = []
    for message in messages:
        content = _text(message.get("content")) if isinstance(message, dict) else None
        if content is None or not isinstance(message.get("role"), str):
            return None
        found.append({"role": message["role"], "content": content})
    while found and found[-1]["role"] == "assistant":
        found.pop()
    return tuple(found) or None


def _text(content: Any) -> str | None:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        return None
    texts = [part.get("text") if isinstance(part, dict) else None for part in content]
    return "\n".join(map(str, texts)) if all(isinstance(text, str) for text in texts) else None
