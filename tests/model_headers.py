"""Headers of models too large for a test: real shapes, and a hole in the file where the weights would be.

The sizes of published files check them: see `test_memory.py`. Written with the `gguf` package of llama.cpp.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter

Shape = tuple[int, ...]
Tensors = dict[str, tuple[Shape, str]]
"""Name → shape, fastest dimension first as in the file, and type."""

Metadata = Mapping[str, int | float | str | list[int] | list[bool]]


def write_header(path: Path, architecture: str, metadata: Metadata, tensors: Tensors, n_vocab: int = 0) -> Path:
    """A file with this header and no data. Keys of `metadata` stand below the architecture's name."""
    writer: Any = GGUFWriter(path, architecture)
    for name, value in {"vocab_size": n_vocab, **metadata}.items():
        key = f"{architecture}.{name}"
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_uint32(key, value)
    writer.add_tokenizer_model("none")
    end = 0
    for name, (shape, kind) in tensors.items():
        number = GGMLQuantizationType[kind]
        block, block_bytes = GGML_QUANT_SIZES[number]
        n_bytes = int(np.prod(shape, dtype=np.int64)) // block * block_bytes
        row = (*shape[:0:-1], shape[0] // block * block_bytes)
        writer.add_tensor_info(name, row, np.dtype(np.uint8), n_bytes, raw_dtype=number)
        end += -(-n_bytes // 32) * 32
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    os.truncate(path, path.stat().st_size + end + 32)
    return path


def more_bits(i: int, n: int) -> bool:
    """The layers that Q4_K_M gives more bits (llama.cpp, `use_more_bits`)."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


def ends(n_embd: int, n_vocab: int, tied: bool = False) -> Tensors:
    """What stands before and behind the layers."""
    output: Tensors = {} if tied else {"output.weight": ((n_embd, n_vocab), "Q6_K")}
    embeddings = ((n_embd, n_vocab), "Q6_K" if tied else "Q4_K")
    return {"token_embd.weight": embeddings, "output_norm.weight": ((n_embd,), "F32"), **output}


def attention(i: int, n_embd: int, n_q: int, n_k: int, n_v: int, value_type: str) -> Iterator[tuple[str, Shape, str]]:
    yield f"blk.{i}.attn_norm.weight", (n_embd,), "F32"
    yield f"blk.{i}.attn_q.weight", (n_embd, n_q), "Q4_K"
    yield f"blk.{i}.attn_k.weight", (n_embd, n_k), "Q4_K"
    yield f"blk.{i}.attn_v.weight", (n_embd, n_v), value_type
    yield f"blk.{i}.attn_output.weight", (n_q, n_embd), "Q4_K"


def feed_forward(i: int, n_embd: int, n_ff: int, down_type: str) -> Iterator[tuple[str, Shape, str]]:
    yield f"blk.{i}.ffn_norm.weight", (n_embd,), "F32"
    yield f"blk.{i}.ffn_gate.weight", (n_embd, n_ff), "Q4_K"
    yield f"blk.{i}.ffn_up.weight", (n_embd, n_ff), "Q4_K"
    yield f"blk.{i}.ffn_down.weight", (n_ff, n_embd), down_type


def transformer(
    path: Path,
    architecture: str,
    *,
    n_layer: int,
    n_embd: int,
    n_ff: int,
    n_head: int,
    n_head_kv: int,
    n_vocab: int,
    head: int = 128,
    n_ctx: int = 131072,
    tied: bool = False,
    extra_norms: Mapping[str, int] | None = None,
    metadata: Metadata | None = None,
) -> Path:
    """Attention and feed-forward in every layer, quantised as Q4_K_M. `extra_norms`: name in the layer → length."""
    tensors = ends(n_embd, n_vocab, tied)
    grouped = "Q5_K" if n_layer == 80 else "Q4_K"
    for i in range(n_layer):
        better = more_bits(i, n_layer)
        kv = head * n_head_kv
        rows = [
            *attention(i, n_embd, head * n_head, kv, kv, "Q6_K" if better else grouped),
            *feed_forward(i, n_embd, n_ff, "Q6_K" if better else "Q4_K"),
            *((f"blk.{i}.{name}.weight", (n,), "F32") for name, n in (extra_norms or {}).items()),
        ]
        tensors |= {name: (shape, kind) for name, shape, kind in rows}
    known: Metadata = {
        "context_length": n_ctx,
        "embedding_length": n_embd,
        "block_count": n_layer,
        "feed_forward_length": n_ff,
        "attention.head_count": n_head,
        "attention.head_count_kv": n_head_kv,
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": head,
    }
    return write_header(path, architecture, {**known, **(metadata or {})}, tensors, n_vocab)


def llama_8b(folder: Path) -> Path:
    path = folder / "Llama-3.1-8B-Instruct-Q4_K_M.gguf"
    return transformer(path, "llama", n_layer=32, n_embd=4096, n_ff=14336, n_head=32, n_head_kv=8, n_vocab=128256)


def llama_1b(folder: Path) -> Path:
    path = folder / "Llama-3.2-1B-Instruct-Q4_K_M.gguf"
    return transformer(
        path, "llama", n_layer=16, n_embd=2048, n_ff=8192, n_head=32, n_head_kv=8, n_vocab=128256, head=64, tied=True
    )


def llama_70b(folder: Path) -> Path:
    path = folder / "Llama-3.3-70B-Instruct-Q4_K_M.gguf"
    return transformer(path, "llama", n_layer=80, n_embd=8192, n_ff=28672, n_head=64, n_head_kv=8, n_vocab=128256)


def qwen3_32b(folder: Path) -> Path:
    path, norms = folder / "Qwen3-32B-Q4_K_M.gguf", {"attn_q_norm": 128, "attn_k_norm": 128}
    return transformer(
        path, "qwen3", n_layer=64, n_embd=5120, n_ff=25600, n_head=64, n_head_kv=8, n_vocab=151936, extra_norms=norms
    )


def gemma3_27b(folder: Path) -> Path:
    """Five layers with a window of 1024 to one without."""
    norms = {"attn_q_norm": 128, "attn_k_norm": 128, "post_attention_norm": 5376, "post_ffw_norm": 5376}
    return transformer(
        folder / "gemma-3-27b-it-Q4_K_M.gguf",
        "gemma3",
        n_layer=62,
        n_embd=5376,
        n_ff=21504,
        n_head=32,
        n_head_kv=16,
        n_vocab=262208,
        tied=True,
        extra_norms=norms,
        metadata={"attention.sliding_window": 1024},
    )


def deepseek_v2_lite(folder: Path) -> Path:
    """Multi-head latent attention: one row of 512 + 64 numbers a token and layer, which holds K and V."""
    n_layer, n_embd, n_head, n_vocab = 27, 2048, 16, 102400
    tensors = ends(n_embd, n_vocab)
    for i in range(n_layer):
        tensors |= {
            f"blk.{i}.attn_norm.weight": ((n_embd,), "F32"),
            f"blk.{i}.attn_q.weight": ((n_embd, 192 * n_head), "Q4_K"),
            f"blk.{i}.attn_kv_a_mqa.weight": ((n_embd, 512 + 64), "Q8_0"),
            f"blk.{i}.attn_kv_a_norm.weight": ((512,), "F32"),
            f"blk.{i}.attn_k_b.weight": ((128, 512, n_head), "Q8_0"),
            f"blk.{i}.attn_v_b.weight": ((512, 128, n_head), "Q8_0"),
            f"blk.{i}.attn_output.weight": ((128 * n_head, n_embd), "Q4_K"),
            f"blk.{i}.ffn_norm.weight": ((n_embd,), "F32"),
        }
        if i == 0:
            tensors |= {name: (shape, kind) for name, shape, kind in feed_forward(i, n_embd, 10944, "Q8_0")}
            tensors[f"blk.{i}.ffn_gate.weight"] = tensors[f"blk.{i}.ffn_up.weight"] = ((n_embd, 10944), "Q4_K")
        else:
            tensors |= {
                f"blk.{i}.ffn_gate_inp.weight": ((n_embd, 64), "F32"),
                f"blk.{i}.ffn_gate_exps.weight": ((n_embd, 1408, 64), "Q4_K"),
                f"blk.{i}.ffn_up_exps.weight": ((n_embd, 1408, 64), "Q4_K"),
                f"blk.{i}.ffn_down_exps.weight": ((1408, n_embd, 64), "Q5_0"),
                f"blk.{i}.ffn_gate_shexp.weight": ((n_embd, 2816), "Q4_K"),
                f"blk.{i}.ffn_up_shexp.weight": ((n_embd, 2816), "Q4_K"),
                f"blk.{i}.ffn_down_shexp.weight": ((2816, n_embd), "Q4_K"),
            }
    metadata: Metadata = {
        "context_length": 163840,
        "embedding_length": n_embd,
        "block_count": n_layer,
        "feed_forward_length": 10944,
        "leading_dense_block_count": 1,
        "expert_count": 64,
        "expert_used_count": 6,
        "expert_shared_count": 2,
        "expert_feed_forward_length": 1408,
        "expert_weights_scale": 1.0,
        "attention.head_count": n_head,
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": 512,
        "attention.key_length": 576,
        "attention.value_length": 512,
        "attention.key_length_mla": 192,
        "attention.value_length_mla": 128,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": 64,
    }
    return write_header(folder / "DeepSeek-V2-Lite-Q4_K_M.gguf", "deepseek2", metadata, tensors, n_vocab)


def lfm2_1b(folder: Path) -> Path:
    """A hybrid: ten layers of short convolutions, which keep two rows of state, and six of attention."""
    n_layer, n_embd, n_ff, n_vocab, attends = 16, 2048, 8192, 65536, (2, 5, 8, 10, 12, 14)
    tensors: Tensors = {
        "token_embd.weight": ((n_embd, n_vocab), "Q6_K"),
        "token_embd_norm.weight": ((n_embd,), "F32"),
    }
    for i in range(n_layer):
        rows = list(feed_forward(i, n_embd, n_ff, "Q6_K"))
        if i in attends:
            norms = [(f"blk.{i}.attn_{x}_norm.weight", (64,), "F32") for x in "qk"]
            rows += [*attention(i, n_embd, n_embd, 512, 512, "Q6_K"), *norms]
        else:
            rows += [
                (f"blk.{i}.attn_norm.weight", (n_embd,), "F32"),
                (f"blk.{i}.shortconv.conv.weight", (3, n_embd), "F32"),
                (f"blk.{i}.shortconv.in_proj.weight", (n_embd, 3 * n_embd), "Q4_K"),
                (f"blk.{i}.shortconv.out_proj.weight", (n_embd, n_embd), "Q4_K"),
            ]
        tensors |= {name: (shape, kind) for name, shape, kind in rows}
    metadata: Metadata = {
        "context_length": 128000,
        "embedding_length": n_embd,
        "block_count": n_layer,
        "feed_forward_length": n_ff,
        "attention.head_count": 32,
        "attention.head_count_kv": [8 if i in attends else 0 for i in range(n_layer)],
        "attention.layer_norm_rms_epsilon": 1e-5,
        "shortconv.l_cache": 3,
        "rope.freq_base": 1e6,
    }
    return write_header(folder / "LFM2-1.2B-Q4_K_M.gguf", "lfm2", metadata, tensors, n_vocab)


def qwen35(folder: Path, n_mtp: int = 1) -> Path:
    """A hybrid: three gated delta nets to one layer of attention; behind them layers for multi-token prediction."""
    n_layer, n_embd, n_ff, n_vocab, inner, state, n_group, n_value_head = 4, 2048, 6144, 151936, 4096, 128, 16, 32
    channels = inner + 2 * n_group * state
    tensors = ends(n_embd, n_vocab)
    for i in range(n_layer + n_mtp):
        rows = [row for row in feed_forward(i, n_embd, n_ff, "Q6_K") if "ffn_norm" not in row[0]]
        rows.append((f"blk.{i}.post_attention_norm.weight", (n_embd,), "F32"))
        if i % 4 == 3 or i >= n_layer:
            rows += attention(i, n_embd, 2 * 16 * 256, 512, 512, "Q6_K")  # each query has a gate beside it
            rows.append((f"blk.{i}.attn_output.weight", (16 * 256, n_embd), "Q4_K"))
            rows += [(f"blk.{i}.attn_{x}_norm.weight", (256,), "F32") for x in "qk"]
        else:
            rows += [
                (f"blk.{i}.attn_norm.weight", (n_embd,), "F32"),
                (f"blk.{i}.attn_qkv.weight", (n_embd, channels), "Q4_K"),
                (f"blk.{i}.attn_gate.weight", (n_embd, inner), "Q4_K"),
                (f"blk.{i}.ssm_conv1d.weight", (4, channels), "F32"),
                (f"blk.{i}.ssm_dt.bias", (n_value_head,), "F32"),
                (f"blk.{i}.ssm_a", (n_value_head,), "F32"),
                (f"blk.{i}.ssm_beta.weight", (n_embd, n_value_head), "F32"),
                (f"blk.{i}.ssm_alpha.weight", (n_embd, n_value_head), "F32"),
                (f"blk.{i}.ssm_norm.weight", (inner // n_value_head,), "F32"),
                (f"blk.{i}.ssm_out.weight", (inner, n_embd), "Q4_K"),
            ]
        if i >= n_layer:
            rows.append((f"blk.{i}.nextn.eh_proj.weight", (2 * n_embd, n_embd), "Q4_K"))
            rows += [(f"blk.{i}.nextn.{x}.weight", (n_embd,), "F32") for x in ("enorm", "hnorm", "shared_head_norm")]
        tensors |= {name: (shape, kind) for name, shape, kind in rows}
    metadata: Metadata = {
        "context_length": 32768,
        "embedding_length": n_embd,
        "block_count": n_layer + n_mtp,
        "nextn_predict_layers": n_mtp,
        "feed_forward_length": n_ff,
        "full_attention_interval": 4,
        "attention.head_count": 16,
        "attention.head_count_kv": 2,
        "attention.key_length": 256,
        "attention.value_length": 256,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": 64,
        "rope.dimension_sections": [11, 11, 10, 0],
        "ssm.conv_kernel": 4,
        "ssm.inner_size": inner,
        "ssm.state_size": state,
        "ssm.time_step_rank": n_value_head,
        "ssm.group_count": n_group,
    }
    return write_header(folder / "hybrid-with-mtp.gguf", "qwen35", metadata, tensors, n_vocab)
