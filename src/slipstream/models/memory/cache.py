"""The KV cache and the recurrent state of one layer (llama.cpp, llama-kv-cache.cpp and llama-memory-recurrent.cpp)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from slipstream.models.ggml_types import TENSOR_TYPES

from .shape import Layer, Shape

CELLS: Final = 256
"""Caches are as long as a multiple of this many tokens."""

_BLOCKS: Final = {name: (block, block_bytes) for name, block, block_bytes in TENSOR_TYPES.values()}


@dataclass(frozen=True)
class Context:
    """What a context is asked for. n_ctx: tokens of each of n_seq sequences. n_batch: the most tokens of one pass.

    type_k, type_v: ggml's names of the cache's types, in capitals as in a header. n_rollback: tokens that recurrent
    models must be able to take back; n_outputs: the most rows of logits of one pass. swa_full: layers with a window
    keep all tokens all the same, since a roll-back may need them again.
    """

    n_ctx: int
    n_seq: int = 1
    n_batch: int = 512
    type_k: str = "F16"
    type_v: str = "F16"
    n_rollback: int = 0
    n_outputs: int = 1
    swa_full: bool = True

    @property
    def width(self) -> int:
        """The most tokens of one pass."""
        return min(self.n_batch, self.n_ctx * self.n_seq)

    @property
    def n_cells(self) -> int:
        """Tokens that all sequences together may hold."""
        return _padded(self.n_ctx * self.n_seq)

    def n_window_cells(self, window: int) -> int:
        """Tokens that a layer with a window holds."""
        if self.swa_full or not window:
            return self.n_cells
        return min(_padded(window * self.n_seq + self.width), self.n_cells)


def kv_bytes(layer: Layer, shape: Shape, context: Context) -> int:
    """K and V of one layer."""
    n_cells = context.n_window_cells(shape.window) if layer.windowed else context.n_cells
    return n_cells * (_row_bytes(context.type_k, layer.k_width) + _row_bytes(context.type_v, layer.v_width))


def state_bytes(layer: Layer, shape: Shape, context: Context) -> int:
    """The recurrent state of one layer in float32, with a snapshot for each token that may be taken back."""
    return 4 * (layer.conv_width + layer.state_width) * context.n_seq * n_states(shape, context)


def n_states(shape: Shape, context: Context) -> int:
    """States of one sequence: the present one and the snapshots."""
    return 1 + (context.n_rollback if shape.keeps_snapshots and shape.is_recurrent else 0)


def _row_bytes(kind: str, width: int) -> int:
    block, block_bytes = _BLOCKS[kind]
    return -(-width // block) * block_bytes


def _padded(n_tokens: int) -> int:
    return -(-n_tokens // CELLS) * CELLS
