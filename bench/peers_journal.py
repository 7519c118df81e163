"""What bench/peers.py writes down: one JSON object a line, each measurement as soon as it is made.

A line of kind "run" (settings, versions) opens the file and every continuation of it; "measurement" is one prompt in
one arm, "left out" a prompt that does not fit. A prompt counts once all arms have measured it in the same run, with
nothing else at work on the machine; of several lines of one prompt and arm the last counts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slipstream.errors import InputError
from slipstream.lab import json_lines
from slipstream.lab.loops import repeats_itself

MAX_OTHERS = 0.1
"""Of one core: where other processes took more while an arm answered, the prompt is measured again, or left out."""

MAX_PERIOD = 32

ANOTHER_OUT = "Give another --out, or the same options as before."


@dataclass(frozen=True)
class Settings:
    """All that a figure depends on and that was chosen. Models and prompt files by name, with bytes or SHA-256.

    tuned: what the arm of that name speculates with.
    """

    model: str
    model_bytes: int
    draft: str | None
    draft_bytes: int
    prompts: tuple[str, ...]
    per_category: int
    n_tokens: int
    n_threads: int
    n_ctx: int
    temperature: float
    seed: int
    arms: tuple[str, ...]
    tuned: str | None = None

    def __post_init__(self) -> None:
        for option, value, low in (
            ("per-category", self.per_category, 1),
            ("tokens", self.n_tokens, 2),
            ("threads", self.n_threads, 1),
            ("ctx", self.n_ctx, 64),
        ):
            if value < low:
                raise InputError(f"--{option} is {value}.", f"It must be {low} or more.")


@dataclass(frozen=True)
class Answer:
    """One answer in one arm.

    n_decoded: the tokens behind the first. decode_s: seconds from the first token to the last, index_s included:
    those in which drafters indexed the prompt. n_drafted, n_accepted: None where the engine does not tell.
    """

    tokens: tuple[int, ...]
    n_decoded: int
    decode_s: float
    index_s: float = 0.0
    n_drafted: int | None = None
    n_accepted: int | None = None


@dataclass(frozen=True)
class Measurement:
    """A line of the journal. loop: whether this answer is one; run: of which run, from 0.

    others: what other processes took of the processors meanwhile, in cores.
    """

    id: str
    category: str
    arm: str
    n_prompt: int
    loop: bool
    run: int
    answer: Answer
    others: float = 0.0


def is_loop(tokens: Sequence[int]) -> bool:
    """Whether at least 90 % of the last half of the tokens equal the token p places before, for a p of at most 32."""
    return repeats_itself(tokens, MAX_PERIOD)


def fingerprint(path: Path) -> str:
    """A prompt file's name and the beginning of its SHA-256. Raises InputError if it cannot be read."""
    try:
        return f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
    except OSError as error:
        raise InputError(f"The prompts cannot be read: {error}.") from None


class Journal:
    """The file, read when opened and appended to line by line. Raises InputError for a file that is no journal."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs: list[dict[str, Any]] = []
        self.left_out: dict[str, str] = {}
        self._measured: dict[tuple[str, str], Measurement] = {}
        for line in self._whole_lines():
            self._take(line)

    @property
    def settings(self) -> Settings:
        """Those of the file; raises InputError if it is empty or not there."""
        if not self.runs:
            raise InputError(f"{self.path} holds no measurements.", "Measure first, without --report.")
        data = self.runs[0]["settings"]
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
        return Settings(**values)

    def require_same(self, settings: Settings, versions: dict[str, str]) -> None:
        """Raises InputError, with the first difference, if the file is of other settings or versions."""
        if self.runs:
            new = json.loads(json.dumps({"settings": asdict(settings), "versions": versions}))
            for part in ("settings", "versions"):
                _require_same(self.path, self.runs[0][part], new[part])

    def begin(self, settings: Settings, versions: dict[str, str], about: dict[str, str]) -> None:
        """Opens a run: the first one, or one that goes on where an earlier one stopped."""
        self.require_same(settings, versions)
        self._append({"kind": "run", "settings": asdict(settings), "versions": versions, **about})

    def measured(self, measurement: Measurement) -> None:
        self._append({"kind": "measurement", **asdict(measurement)})

    def leave_out(self, prompt_id: str, category: str, reason: str) -> None:
        self._append({"kind": "left out", "id": prompt_id, "category": category, "reason": reason})

    def complete(self) -> dict[str, dict[str, Measurement]]:
        """Prompts that all arms have measured undisturbed in one run, in the order of their beginning, each by arm."""
        whole = self._whole_prompts()
        return {p: m for p, m in whole.items() if all(a.others <= MAX_OTHERS for a in m.values())}

    @property
    def n_disturbed(self) -> int:
        """How many prompts were measured while others were at work, and are left out for it."""
        return len(self._whole_prompts()) - len(self.complete())

    def _whole_prompts(self) -> dict[str, dict[str, Measurement]]:
        if not self.runs:
            return {}
        by_prompt: dict[str, dict[str, Measurement]] = {}
        for (prompt, arm), measurement in self._measured.items():
            by_prompt.setdefault(prompt, {})[arm] = measurement
        arms = set(self.settings.arms)
        return {p: m for p, m in by_prompt.items() if set(m) == arms and len({a.run for a in m.values()}) == 1}

    def _append(self, line: dict[str, Any]) -> None:
        json_lines.append(self.path, line)
        self._take(json.loads(json.dumps(line)))

    def _take(self, line: dict[str, Any]) -> None:
        kind = line.pop("kind")
        if kind == "run":
            self.runs.append(line)
        elif kind == "left out":
            self.left_out[line["id"]] = line["reason"]
        else:
            answer = line.pop("answer")
            answer["tokens"] = tuple(answer["tokens"])
            key = line["id"], line["arm"]
            self._measured[key] = Measurement(**line, answer=Answer(**answer))

    def _whole_lines(self) -> list[dict[str, Any]]:
        try:
            return json_lines.read(self.path, ("run", "measurement", "left out"))
        except ValueError:
            raise InputError(f"{self.path} is no journal of this benchmark.", "Give another --out.") from None


def _require_same(path: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    for name in dict.fromkeys([*old, *new]):
        if old.get(name) != new.get(name):
            raise InputError(
                f"{path} was measured with {name} {old.get(name)!r}, now it is {new.get(name)!r}.", ANOTHER_OUT
            )
