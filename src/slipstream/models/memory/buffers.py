"""Compute and output buffers, by formulas that were fitted to what llama.cpp b11549 reserves with flash attention.

Graph allocation reuses memory, so that the buffer is as large as its fullest moment: about five rows of activations and
the attention mask at any time, and beside them the logits, a feed-forward layer, its experts, or a recurrence.
"""

from __future__ import annotations

from typing import Final

from .cache import Context, n_states
from .shape import Shape

ROWS: Final = 5
FEED_FORWARD: Final = 3
"""Gate, up, and their product."""

PIPELINED: Final = 4
"""Copies of the inputs where several GPUs work on passes one behind the other (GGML_SCHED_MAX_COPIES)."""


def mask_bytes(shape: Shape, context: Context) -> int:
    """The attention mask in float16, one for each kind of cache."""
    windows = {layer.windowed for layer in shape.layers if layer.k_width}
    n_cells = [context.n_window_cells(shape.window) if windowed else context.n_cells for windowed in windows]
    return 2 * context.width * sum(n_cells)


def compute_bytes(shape: Shape, context: Context, *, has_output: bool = True, n_copies: int = 1) -> int:
    """The compute buffer of one device. has_output: whether it computes the logits; n_copies: of the inputs."""
    widest = max(
        shape.n_vocab if has_output else 0,
        FEED_FORWARD * shape.n_ff,
        (2 * shape.n_expert_used + 1) * shape.n_embd if shape.n_expert_used else 0,
    )
    moment = max(4 * context.width * widest, _recurrence_bytes(shape, context))
    return n_copies * mask_bytes(shape, context) + 4 * context.width * ROWS * shape.n_embd + moment


def input_bytes(shape: Shape, context: Context) -> int:
    """What the host prepares of a pass for the GPUs: mask and embeddings."""
    return mask_bytes(shape, context) + 4 * context.width * shape.n_embd


def output_bytes(shape: Shape, context: Context) -> int:
    """Logits in float32, in the host's memory."""
    return 4 * shape.n_vocab * max(context.n_seq, context.n_outputs)


def _recurrence_bytes(shape: Shape, context: Context) -> int:
    state = max((layer.state_width for layer in shape.layers), default=0)
    past = max((layer.conv_width for layer in shape.layers if layer.state_width), default=0)
    # Of the three rows that convolutions of four look back to, as many as two are computed at a time.
    return 4 * (context.n_seq * n_states(shape, context) * state + context.width * past * 2 // 3)
