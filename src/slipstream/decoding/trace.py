"""What a trace tells of a round: what every drafter would have proposed, what was decided, what it cost and gave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .drafting import Asked
from .statistics import Round


@dataclass(frozen=True, kw_only=True)
class TracedRound(Round):
    """A round, and the full proposals at each place that it went past: one before every token that was committed.

    `predicted_s` is what control expected of the pass that took `pass_s`.
    """

    predicted_s: float
    proposals: tuple[tuple[Asked, ...], ...]

    def to_data(self) -> dict[str, Any]:
        """Plain data, for JSON, without what control has no use for. Times in seconds."""
        data = {name: value for name, value in vars(self).items() if name not in ("logprobs", "n_outputs")}
        data["proposals"] = [[_asked(asked) for asked in place] for place in self.proposals]
        return data


class Trace(Protocol):
    """Where a trace goes."""

    def request(self, prompt: Sequence[int], first: int) -> None:
        """A prompt (token ids) was read, and its answer begins with the token `first`."""

    def round(self, done: TracedRound) -> None:
        """A round was committed."""


def _asked(asked: Asked) -> dict[str, Any]:
    return {
        "drafter": asked.drafter,
        "tokens": asked.draft.tokens.tolist(),
        "survival": [round(s, 4) for s in asked.draft.survival.tolist()],
        "backlog": asked.backlog,
        "seconds": asked.seconds,
    }
