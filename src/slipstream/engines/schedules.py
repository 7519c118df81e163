"""Draft lengths by batch size, from measured speeds: vLLM's schedule and SGLang's adaptive file.

vLLM     `num_speculative_tokens_per_batch_size`: [[first, last, tokens], …] from batch size 1 on, without overlap;
         gaps and what lies behind belong to the range before (`vllm/v1/spec_decode/dynamic/utils.py`)
SGLang   `--speculative-adaptive-config FILE`: an object of {"smallest batch size": {"candidate_steps": [...]}}, among
         which it moves by accepted lengths (`sglang/srt/speculative/adaptive_spec_params.py`); EAGLE and EAGLE3 only
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from slipstream.errors import InputError

Speeds = Mapping[int, Mapping[int, float]]
"""Speed by batch size and by draft length, 0 for plain decoding: tokens a second of all requests, or a ratio to plain.
Within a batch size alone speeds are compared."""

Schedule = list[tuple[int, int, int]]
"""(first, last, tokens): the draft length for batch sizes from `first` to `last`, both included; ascending."""


def best_length(speeds: Mapping[int, float]) -> int:
    """The fastest draft length; the shortest of equals. Raises InputError where a speed is missing or is none."""
    if 0 not in speeds:
        raise InputError("A schedule needs the speed of plain decoding at every batch size.", "Give it as length 0.")
    bad = next((n for n, speed in speeds.items() if n < 0 or not 0 < speed < math.inf), None)
    if bad is not None:
        raise InputError(f"Draft length {bad} at speed {speeds[bad]}: neither can be.", "Measure it again.")
    return min(speeds, key=lambda n: (-speeds[n], n))


def vllm_schedule(speeds: Speeds, max_batch: int) -> Schedule:
    """Each batch size up to `max_batch` as the measured one nearest to it by ratio; neighbours alike are one range.

    Raises InputError for nothing measured, and for what `best_length` refuses.
    """
    starts = [(first, best_length(speeds[size])) for first, size in _starts(speeds) if first <= max_batch]
    starts = [start for i, start in enumerate(starts) if i == 0 or start[1] != starts[i - 1][1]]
    lasts = [*(first - 1 for first, _ in starts[1:]), max_batch]
    return [(first, last, n) for (first, n), last in zip(starts, lasts, strict=True)]


def with_schedule(config: Mapping[str, Any], schedule: Schedule) -> dict[str, Any] | None:
    """vLLM's speculative configuration with a schedule; None where it is never to speculate.

    vLLM obeys it with drafters that are models and with n-grams, slipstream's proposer by itself; its suffix drafter
    does not go with one. With data parallelism vLLM ignores it.
    """
    longest = max(n for _, _, n in schedule)
    if longest == 0:
        return None
    changes = {"num_speculative_tokens": longest}
    if len(schedule) > 1:
        return {**config, **changes, "num_speculative_tokens_per_batch_size": [list(entry) for entry in schedule]}
    return {**config, **changes}


def scheduled(schedule: Sequence[Sequence[int]] | None, batch: int, usual: int) -> int:
    """The draft length that a schedule gives a batch size; `usual` without one."""
    if not schedule:
        return usual
    return [n for first, _, n in sorted(map(tuple, schedule)) if first <= max(batch, 1)][-1]


def sglang_adaptive(speeds: Speeds) -> dict[str, Any]:
    """The content of SGLang's adaptive file: at each batch size the lengths that were no slower than plain decoding.

    SGLang knows no cost: it moves up and down among the candidates by how many drafted tokens were accepted, so what
    was measured as a loss must not be one of them. Where nothing gained, the only candidate is 0, no speculation,
    which older releases refuse. `--speculative-num-steps` must be one of the candidates: see `sglang_start`.
    """
    slots: dict[str, Any] = {}
    before: list[int] = []
    for first, size in _starts(speeds):
        plain = speeds[size][0] if best_length(speeds[size]) else math.inf
        candidates = [n for n, speed in sorted(speeds[size].items()) if n and speed >= plain] or [0]
        if candidates != before:
            slots[str(first)] = {"candidate_steps": candidates}
        before = candidates
    return slots


def sglang_start(speeds: Speeds) -> int:
    """`--speculative-num-steps` to go with `sglang_adaptive`: the best length at the smallest batch size."""
    return best_length(speeds[min(speeds)])


def _starts(speeds: Speeds) -> list[tuple[int, int]]:
    """(first batch size, measured one) of each range: cut at the geometric mean of two measured sizes."""
    sizes = sorted(speeds)
    if not sizes or sizes[0] < 1:
        raise InputError("A schedule needs speeds measured at batch sizes from 1 on.")
    cuts = [math.isqrt(a * b) + 1 for a, b in pairwise(sizes)]
    return list(zip([1, *cuts], sizes, strict=True))
