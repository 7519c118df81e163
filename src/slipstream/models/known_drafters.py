"""The table of well-known drafters that ships with slipstream (`known_drafters.json`).

A row: `target`, a regular expression over a target's name as `plain` writes it; `drafter`, a Hugging Face repository;
`method`; `gguf`, a repository with it as GGUF, if known; `n_params`; and `source`, where the pair was seen.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class KnownDrafter:
    """A drafter that others use for a family of targets. Repositories are names on Hugging Face."""

    target: str
    drafter: str
    method: str
    source: str
    gguf: str | None = None
    n_params: int | None = None

    def drafts_for(self, names: str) -> bool:
        """Whether it was named for a target of one of these names, as `plain` writes them."""
        return re.search(rf"(?<![a-z0-9])(?:{self.target})(?![a-z0-9])", names) is not None


@cache
def known_drafters() -> tuple[KnownDrafter, ...]:
    text = files("slipstream.models").joinpath("known_drafters.json").read_text(encoding="utf-8")
    return tuple(KnownDrafter(**row) for row in json.loads(text))


def plain(*names: str) -> str:
    """Names in lower case, of letters, digits and single hyphens, so that spellings of one model agree."""
    return " ".join(re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") for name in names)
