"""Trace files: written while a model answers, read for simulation. One JSON object a line, the text as token ids.

The first line says of what (`kind` "run"): model, cost curve, widths of exact mode. Each prompt has a line of kind
"request", each round one of kind "round" with the fields of `decoding.trace.TracedRound`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from slipstream.decoding.cost import MAX_WIDTH, CostCurve
from slipstream.decoding.trace import TracedRound
from slipstream.errors import InputError
from slipstream.llm import LLM

FORMAT = 1
MAX_VOCAB = 1 << 24


class TraceWriter:
    """Implements `decoding.trace.Trace` by a file. A context manager; `category` is written with each request.

    A trace that is there already is gone on with, behind its last whole line. Raises InputError where the path holds
    something else or can't be written.
    """

    def __init__(self, path: Path, llm: LLM, model: str) -> None:
        self.category = ""
        head = {
            "kind": "run",
            "slipstream_trace": FORMAT,
            "model": model,
            "drafters": [drafter.name for drafter in llm.drafters],
            "cost": llm.control.cost.to_data(),
            "draft_costs": {name: [r.token_s, r.read_s] for name, r in llm.control.records.items()},
            "widths": llm.control.widths,
        }
        try:
            if path.exists() and path.stat().st_size:
                if not _is_trace(path):
                    raise InputError(f"{path} is not a trace.", "Choose another path; this file was left as it is.")
                _drop_cut_line(path)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise InputError(f"The trace {path} cannot be written: {error.strerror}.", "Choose another path.") from None
        self._write(head)

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def request(self, prompt: Sequence[int], first: int) -> None:
        self._write({"kind": "request", "category": self.category, "prompt": list(prompt), "first": first})

    def round(self, done: TracedRound) -> None:
        self._write({"kind": "round", **done.to_data()})
        self._file.flush()

    def _write(self, data: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(data) + "\n")


@dataclass(frozen=True)
class Said:
    """What a drafter proposed at a place: tokens and survival, and the seconds that it took."""

    tokens: tuple[int, ...]
    survival: tuple[float, ...]
    seconds: float


@dataclass
class TracedRequest:
    """A request as it went: prompt and answer (token ids), and by drafter what it said at each place of the answer.

    `said[name][i]` is what stood to follow `answer[: i + 1]`. `predicted` and `measured` are seconds of the passes.
    """

    category: str
    prompt: list[int]
    answer: list[int]
    said: dict[str, dict[int, Said]] = field(default_factory=dict)
    predicted: list[float] = field(default_factory=list)
    measured: list[float] = field(default_factory=list)


@dataclass
class TracedRun:
    """Requests to one loaded model. `draft_costs`: by drafter that costs time, seconds a token drafted and read."""

    model: str
    cost: CostCurve
    draft_costs: dict[str, tuple[float, float]]
    widths: tuple[int, ...]
    requests: list[TracedRequest] = field(default_factory=list)


def read(path: Path) -> list[TracedRun]:
    """The runs of a trace. Raises InputError, with the line, where it isn't one; a last line cut short is left out."""
    if path.exists() and not path.is_file():
        raise InputError(f"The trace {path} is no file.", "Give a file written by --trace.")
    try:
        lines = path.read_text(encoding="utf-8").rstrip().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"The trace {path} cannot be read: {error}.", "Give a file written by --trace.") from None
    runs: list[TracedRun] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            _take(runs, json.loads(line))
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
            if number == len(lines) and runs:
                break
            raise InputError(f"{path}, line {number}: no line of a trace.", "Give a file written by --trace.") from None
    if not any(len(request.answer) > 1 for run in runs for request in run.requests):
        raise InputError(f"{path} holds no rounds.", "Write one with `slipstream run MODEL --trace FILE`.")
    return runs


def _take(runs: list[TracedRun], data: dict[str, Any]) -> None:
    """One line more; raises whatever comes of a line that is no part of a trace."""
    if data["kind"] == "run":
        cost = CostCurve.from_data(data["cost"])
        if cost is None or data["slipstream_trace"] != FORMAT:
            raise ValueError("another format")
        costs = {str(name): (_above_0(token), _number(read)) for name, (token, read) in data["draft_costs"].items()}
        widths = tuple(data["widths"])
        if any(type(w) is not int or not 1 <= w <= MAX_WIDTH for w in widths) or list(widths) != sorted(set(widths)):
            raise ValueError("widths, ascending")
        runs.append(TracedRun(str(data["model"]), cost, costs, widths))
    elif data["kind"] == "request":
        prompt = list(map(_token, data["prompt"]))
        if not prompt:
            raise ValueError("an empty prompt")
        runs[-1].requests.append(TracedRequest(str(data["category"]), prompt, [_token(data["first"])]))
    elif data["kind"] == "round":
        _take_round(runs[-1].requests[-1], data)
    else:
        raise ValueError("another kind of line")


def _take_round(request: TracedRequest, data: dict[str, Any]) -> None:
    tokens = list(map(_token, data["tokens"]))
    predicted_s, pass_s = _above_0(data["predicted_s"]), _number(data["pass_s"])
    for place, proposals in enumerate(data["proposals"], len(request.answer) - 1):
        for asked in proposals:
            survival = tuple(_number(share, 1.0) for share in asked["survival"])
            if list(survival) != sorted(survival, reverse=True):
                raise ValueError("survival, never rising")
            said = Said(tuple(map(_token, asked["tokens"])), survival, _number(asked["seconds"]))
            request.said.setdefault(str(asked["drafter"]), {})[place] = said
    request.answer += tokens
    request.predicted.append(predicted_s)
    request.measured.append(pass_s)


def _token(value: object) -> int:
    if type(value) is not int or not 0 <= value < MAX_VOCAB:
        raise ValueError("a token id")
    return value


def _number(value: object, most: float = 1e9) -> float:
    if not isinstance(value, int | float) or not 0.0 <= value <= most:
        raise ValueError("a number")
    return float(value)


def _above_0(value: object) -> float:
    if value == 0:
        raise ValueError("a number above 0")
    return _number(value)


def _drop_cut_line(path: Path) -> None:
    """Of a program that was killed: what is written next must begin a line."""
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)


def _is_trace(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.readline(1 << 16)
    try:
        return bool(json.loads(head)["slipstream_trace"] == FORMAT)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
