"""Sampling: what the user asks for, and the way from a row of logits to one token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sampling:
    """Sampling options with llama.cpp's names, defaults and order.

    Order: logit bias, penalties (repetition, presence, frequency over the last `repeat_last_n` tokens), top-k,
    top-p, min-p, temperature. `temperature` 0 takes the arg-max. `top_k` 0, `top_p` 1 and `min_p` 0 switch a
    filter off; `repeat_last_n` 0 switches the penalties off and −1 means the whole sequence.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int = 64
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
