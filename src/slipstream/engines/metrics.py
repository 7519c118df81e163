"""Prometheus' text format, as the servers' `/metrics` give it: samples, and the counters of speculation in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from .checked import LONGEST_DRAFT, number, reading
from .protocol import Counters

_SAMPLE: Final = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?[ \t]+(\S+)")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


def samples(text: str) -> Iterator[Sample]:
    """The samples of an exposition, in its order; comments and lines that are none are passed over."""
    for line in text.splitlines():
        match = None if line.startswith("#") else _SAMPLE.match(line)
        if match is None:
            continue
        name, labels, value = match.groups()
        try:
            yield Sample(name, dict(_LABEL.findall(labels or "")), float(value))
        except ValueError:
            continue


def speculation(text: str, prefix: str) -> Counters | None:
    """The `spec_decode_*` counters of vLLM ("vllm:") and llama.cpp ("llamacpp:"); None where there are none.

    Those of several engines behind one server are added up. Neither exports drafts by position: a draft that was short
    is not told from one that was rejected. Raises EngineError for samples that are no counts.
    """
    totals: dict[str, float] = {}
    positions: dict[int, float] = {}
    for name, labels, value in samples(text):
        if not name.startswith(f"{prefix}spec_decode_"):
            continue
        kind = name[len(f"{prefix}spec_decode_") :].removesuffix("_total")
        with reading("/metrics", f"{name}{labels or ''} {value}"):
            if kind == "num_accepted_tokens_per_pos":
                at = _position(labels)
                positions[at] = positions.get(at, 0.0) + number(value)
            else:
                totals[kind] = totals.get(kind, 0.0) + number(value)
    if "num_draft_tokens" not in totals:
        return None
    return Counters(
        drafted=int(totals["num_draft_tokens"]),
        accepted=int(totals.get("num_accepted_tokens", 0)),
        drafts=int(totals["num_drafts"]) if "num_drafts" in totals else None,
        accepted_at=tuple(int(positions.get(i, 0)) for i in range(max(positions, default=-1) + 1)),
    )


def _position(labels: Mapping[str, str]) -> int:
    at = int(labels["position"])
    if not 0 <= at < LONGEST_DRAFT:
        raise ValueError(f"there is no position {at} in a draft")
    return at
