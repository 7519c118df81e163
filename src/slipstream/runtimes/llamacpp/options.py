"""What a model and its context can be told; checked when written down."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Final

from slipstream.errors import InputError

CACHE_TYPES: Final = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "iq4_nl": 20,
    "bf16": 30,
}
"""Names of K/V cache types with their numbers in ggml.h (enum ggml_type)."""

FLASH_ATTENTION: Final = {"auto": -1, "off": 0, "on": 1}

MIN_CTX: Final = 16

DEFAULT_MAX_CTX: Final = 8192
"""A context of the model's full training length may take more memory than anyone expects: this much unless asked."""


ROLLBACK = 16
"""Tokens that recurrent models can take back. With 24 snapshots and more, llama.cpp b11549 ends the process on LFM2
models of full depth (`ggml.c`: GGML_ASSERT(obj_new)): each of them adds to a graph of limited size."""


@dataclass(frozen=True)
class ModelOptions:
    """n_gpu_layers: layers kept on the GPU, −1 for all. devices: names of devices, none for llama.cpp's choice."""

    n_gpu_layers: int = -1
    devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check("gpu-layers", self.n_gpu_layers, -1, 10_000)


@dataclass(frozen=True)
class ContextOptions:
    """n_ctx: tokens a sequence; None for the training length, 8192 at most. n_threads: None for physical cores.

    n_batch: the most tokens of one pass. cache_type_k, cache_type_v: see `CACHE_TYPES`. flash_attn: auto, on, off.
    n_seq_max: sequences in the context. n_rollback: tokens that recurrent models must be able to take back.
    split_cache: a part of the KV cache for each sequence, so that no sequence changes a bit of another's rows. Without
    it they share all of it, and passes over uneven drafts stay whole.
    """

    n_ctx: int | None = None
    n_batch: int = 512
    n_threads: int | None = None
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attn: str = "auto"
    n_seq_max: int = 1
    n_rollback: int = 0
    split_cache: bool = False

    def __post_init__(self) -> None:
        if self.n_ctx is not None:
            _check("ctx", self.n_ctx, MIN_CTX, 1 << 24)
        _check("batch", self.n_batch, 1, 1 << 16)
        if self.n_threads is not None:
            _check("threads", self.n_threads, 1, 512)
        _check("n_seq_max", self.n_seq_max, 1, 256)
        _check("n_rollback", self.n_rollback, 0, 1024)
        _choose("cache-type-k", self.cache_type_k, CACHE_TYPES)
        _choose("cache-type-v", self.cache_type_v, CACHE_TYPES)
        _choose("flash-attn", self.flash_attn, FLASH_ATTENTION)
        if self.flash_attn == "off" and CACHE_TYPES[self.cache_type_v] not in (0, 1, 30):
            raise InputError(
                f"--cache-type-v {self.cache_type_v} needs flash attention, which is off.",
                "Use --flash-attn on, or --cache-type-v f16.",
            )

    def with_rollback(self, speculates: bool) -> ContextOptions:
        """With room to take back the longest draft of a recurrent model, if there are drafts at all."""
        return replace(self, n_rollback=ROLLBACK if speculates else 0)

    @property
    def threads(self) -> int:
        return self.n_threads or default_threads()


def default_threads() -> int:
    """The physical cores that this process may use: more threads than these only wait for each other."""
    import psutil

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(usable, psutil.cpu_count(logical=False) or usable))


def _check(option: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InputError(f"--{option} is {value}.", f"It must be from {low} to {high}.")


def _choose(option: str, value: str, known: dict[str, int]) -> None:
    if value not in known:
        raise InputError(f"--{option} is {value!r}.", f"It must be one of {', '.join(known)}.")
