"""What verification says of a draft."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """The outcome of one draft.

    accepted: indices of the draft's accepted nodes, a path from the root down; empty if there is none.
    tokens:   what to commit: the tokens of that path, then the bonus token; always one more than accepted.
    """

    accepted: tuple[int, ...]
    tokens: tuple[int, ...]
