"""What layers without attention keep of a sequence (`n_embd_r`, `n_embd_s` in llama.cpp's llama-hparams.cpp)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

SNAPSHOTS: Final = (
    "bailingmoe3",
    "deepseek4",
    "kimi-k3",
    "lfm2",
    "lfm2moe",
    "nemotron_h",
    "nemotron_h_moe",
    "qwen35",
    "qwen35moe",
    "qwen4exp",
)
"""Architectures that llama.cpp keeps snapshots of, to take tokens back (`llm_arch_supports_rs_rollback`)."""


def keeps_snapshots(architecture: str) -> bool:
    return architecture in SNAPSHOTS


def state_widths(
    block: Collection[str], number: Callable[[str], int], at: Callable[[str, int], int]
) -> tuple[int, int]:
    """Numbers of the convolution's and of the recurrence's state of one sequence; zeros for plain attention.

    block: names of its tensors. number, at: read a number of the header, of the model or of one layer.
    """
    if "shortconv.conv.weight" in block:
        return number("embedding_length") * max(number("shortconv.l_cache") - 1, 0), 0
    if any(name.startswith("time_mix_") for name in block):
        head = number("wkv.head_size")
        return (number("token_shift_count") or 2) * number("embedding_length"), number("embedding_length") * head
    if not any(name.startswith("ssm_") for name in block):
        return 0, 0
    n_past = max(number("ssm.conv_kernel") - 1, 0)
    head = number("kda.head_dim")
    if head:
        n_head = at("attention.head_count", 0)
        return 3 * n_past * n_head * head, n_head * head * head
    inner, state = number("ssm.inner_size"), number("ssm.state_size")
    return n_past * (inner + 2 * number("ssm.group_count") * state), state * inner
