"""Tiny GGUF models with random weights (a few hundred kB), one for each kind of cache that llama.cpp has.

They say nothing sensible, but their caches are real: `lfm2` (short convolutions and attention) can be rolled back by
snapshots, `mamba` (a state-space model) cannot, `gemma3` slides a window of 16 tokens, and `llama` keeps everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter

N_VOCAB = 64
N_EMBD = 64
N_FF = 64
N_LAYERS = 4
WINDOW = 16
LETTERS = tuple(chr(ord("A") + i) for i in range(N_VOCAB - 2))


class _Weights:
    """Adds random tensors to a file; shapes are numpy's, the reverse of ggml's."""

    def __init__(self, writer: Any, seed: int) -> None:
        self.writer = writer
        self.rng = np.random.default_rng(seed)

    def add(self, name: str, *shape: int, scale: float | None = None) -> None:
        scale = scale if scale is not None else 1.5 / shape[-1] ** 0.5
        self.writer.add_tensor(f"{name}.weight", (self.rng.standard_normal(shape) * scale).astype(np.float32))

    def norms(self, *names: str, size: int = N_EMBD) -> None:
        for name in names:
            self.writer.add_tensor(f"{name}.weight", np.ones(size, dtype=np.float32))

    def attention(self, block: str, *, norm_qk: bool) -> None:
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            self.add(f"{block}.{name}", N_EMBD, N_EMBD)
        if norm_qk:
            self.norms(f"{block}.attn_q_norm", f"{block}.attn_k_norm", size=N_EMBD // 2)

    def feed_forward(self, block: str) -> None:
        self.add(f"{block}.ffn_gate", N_FF, N_EMBD)
        self.add(f"{block}.ffn_up", N_FF, N_EMBD)
        self.add(f"{block}.ffn_down", N_EMBD, N_FF)

    def raw(self, name: str, values: Any) -> None:
        self.writer.add_tensor(name, np.ascontiguousarray(values, dtype=np.float32))


def write_tiny(path: Path, architecture: str, seed: int = 0, pieces: Sequence[str] = LETTERS) -> Path:
    """Writes a model of one of the architectures `llama`, `gemma3`, `lfm2`, `mamba`; returns its path.

    pieces: its tokens behind the two that begin and end a text, of one letter or two.
    """
    writer: Any = GGUFWriter(path, architecture)
    _hyperparameters(writer)
    _vocabulary(writer, pieces)
    weights = _Weights(writer, seed)
    weights.add("token_embd", N_VOCAB, N_EMBD, scale=1.0)
    {"llama": _llama, "gemma3": _gemma3, "lfm2": _lfm2, "mamba": _mamba}[architecture](writer, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _hyperparameters(writer: Any) -> None:
    writer.add_name("Tiny")
    writer.add_context_length(2048)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_FF)
    writer.add_block_count(N_LAYERS)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(N_VOCAB)


def _vocabulary(writer: Any, pieces: Sequence[str]) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["<s>", "</s>", *pieces])
    writer.add_token_types([3, 3] + [1] * len(pieces))
    writer.add_token_merges([" ".join(piece) for piece in pieces if len(piece) == 2] or ["A B"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)


def _llama(writer: Any, weights: _Weights) -> None:
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(N_EMBD // 2)
    weights.norms("output_norm")
    for i in range(N_LAYERS):
        weights.norms(f"blk.{i}.attn_norm", f"blk.{i}.ffn_norm")
        weights.attention(f"blk.{i}", norm_qk=False)
        weights.feed_forward(f"blk.{i}")


def _gemma3(writer: Any, weights: _Weights) -> None:
    writer.add_head_count_kv(2)
    writer.add_key_length(N_EMBD // 2)
    writer.add_value_length(N_EMBD // 2)
    writer.add_sliding_window(WINDOW)
    weights.norms("output_norm")
    for i in range(N_LAYERS):
        norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        weights.norms(*(f"blk.{i}.{name}" for name in norms))
        weights.attention(f"blk.{i}", norm_qk=True)
        weights.feed_forward(f"blk.{i}")


def _lfm2(writer: Any, weights: _Weights) -> None:
    """Layers of short convolutions, and of attention every second."""
    writer.add_head_count_kv([0, 2] * (N_LAYERS // 2))
    writer.add_shortconv_l_cache(3)
    writer.add_rope_freq_base(10_000.0)
    weights.norms("token_embd_norm")
    for i in range(N_LAYERS):
        weights.norms(f"blk.{i}.attn_norm", f"blk.{i}.ffn_norm")
        weights.feed_forward(f"blk.{i}")
        if i % 2:
            weights.attention(f"blk.{i}", norm_qk=True)
        else:
            weights.add(f"blk.{i}.shortconv.conv", N_EMBD, 3, scale=1.0)
            weights.add(f"blk.{i}.shortconv.in_proj", 3 * N_EMBD, N_EMBD)
            weights.add(f"blk.{i}.shortconv.out_proj", N_EMBD, N_EMBD)


def _mamba(writer: Any, weights: _Weights) -> None:
    inner, state, rank, kernel = 2 * N_EMBD, 16, 4, 4
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(rank)
    weights.norms("output_norm")
    for i in range(N_LAYERS):
        block = f"blk.{i}"
        weights.norms(f"{block}.attn_norm")
        weights.add(f"{block}.ssm_in", 2 * inner, N_EMBD)
        weights.add(f"{block}.ssm_conv1d", inner, kernel, scale=0.5)
        weights.raw(f"{block}.ssm_conv1d.bias", np.zeros(inner))
        weights.add(f"{block}.ssm_x", rank + 2 * state, inner)
        weights.add(f"{block}.ssm_dt", inner, rank)
        weights.raw(f"{block}.ssm_dt.bias", np.zeros(inner))
        weights.raw(f"{block}.ssm_a", np.tile(-np.arange(1.0, state + 1), (inner, 1)))
        weights.raw(f"{block}.ssm_d", np.ones(inner))
        weights.add(f"{block}.ssm_out", N_EMBD, inner)
