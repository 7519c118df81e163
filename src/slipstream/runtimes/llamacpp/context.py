"""A llama.cpp context as a runtime: forward passes over the KV cache of several sequences."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np

from slipstream.decoding.protocols import Logits, Pass, Rows
from slipstream.errors import InputError, RuntimeLibraryError

from .library import RELEASE, ffi, take_errors
from .model import LlamaModel
from .options import CACHE_TYPES, DEFAULT_MAX_CTX, FLASH_ATTENTION, ContextOptions

WIDE = 32
"""Passes wider than this ask on the way whether the user wants to stop."""

PAD_CTX = 256
ABORTED = 2


class LlamaRuntime:
    """Implements `decoding.protocols.Runtime`: one context, `n_seq_max` sequences in a unified KV cache.

    `n_ctx` is the length of each sequence. For recurrent and hybrid models `max_rollback` is what llama.cpp grants
    of `n_rollback` (0 where the architecture keeps no snapshots); attention caches drop any number of rows.
    """

    def __init__(self, model: LlamaModel, options: ContextOptions | None = None) -> None:
        options = options or ContextOptions()
        self._lib = model.lib
        self.n_vocab = model.tokenizer.n_vocab
        self.n_seq_max = options.n_seq_max
        self.n_ctx = options.n_ctx or min(model.n_ctx_train, DEFAULT_MAX_CTX)
        self.n_batch = min(options.n_batch, self.n_ctx * self.n_seq_max)
        self.n_threads = options.threads
        params = self._lib.llama_context_default_params()
        params.n_ctx = self.n_ctx * self.n_seq_max
        params.n_batch = params.n_ubatch = self.n_batch
        params.n_seq_max = self.n_seq_max
        params.n_rs_seq = options.n_rollback if model.is_recurrent else 0
        params.n_threads = params.n_threads_batch = self.n_threads
        params.type_k, params.type_v = CACHE_TYPES[options.cache_type_k], CACHE_TYPES[options.cache_type_v]
        params.flash_attn_type = FLASH_ATTENTION[options.flash_attn]
        params.kv_unified = True
        take_errors()
        self._handle = self._lib.llama_init_from_model(model.handle, params)
        if self._handle == ffi.NULL:
            reason = take_errors() or "not enough memory"
            raise RuntimeLibraryError(
                f"A context of {params.n_ctx} tokens cannot be made: {reason}.",
                "Try a smaller --ctx, --cache-type-k q8_0 --cache-type-v q8_0, or fewer --gpu-layers.",
            )
        self.max_rollback = int(self._lib.llama_n_rs_seq(self._handle)) if model.is_recurrent else None
        self._memory = self._lib.llama_get_memory(self._handle)
        self._n_held = [0] * self.n_seq_max
        self._make_batch()
        self.cost_key: dict[str, object] = {
            "build": RELEASE,
            "threads": self.n_threads,
            "devices": list(model.options.devices),
            "gpu_layers": model.options.n_gpu_layers,
            "cache": [options.cache_type_k, options.cache_type_v, options.flash_attn],
            "batch": self.n_batch,
        }

    def __enter__(self) -> LlamaRuntime:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Frees the context; harmless when done twice."""
        if self._handle != ffi.NULL:
            self._lib.llama_batch_free(self._batch)
            self._lib.llama_free(self._handle)
            self._handle = ffi.NULL

    def forward(self, rows: Sequence[Rows]) -> Pass:
        """See the protocol. All rows together must not exceed `n_batch`: they are computed in one pass."""
        width = self._fill(rows)
        n_outputs = sum(r.n_outputs for r in rows)
        self._decode(rows, width)
        for r in rows:
            self._n_held[r.seq] = r.start + len(r.tokens) + r.n_padding
        return Pass(self._logits(rows, n_outputs), (width,))

    def keep(self, seq: int, n_tokens: int) -> None:
        """See the protocol. Raises RuntimeLibraryError where the cache cannot go back so far."""
        if n_tokens >= self._n_held[seq]:
            return
        if not self._lib.llama_memory_seq_rm(self._memory, seq, n_tokens, -1):
            raise RuntimeLibraryError(
                f"The cache cannot go back from {self._n_held[seq]} to {n_tokens} tokens (at most {self.max_rollback})."
            )
        self._n_held[seq] = n_tokens

    def _make_batch(self) -> None:
        """One batch for all passes, with numpy views of its arrays."""
        n = self.n_batch
        self._batch = self._lib.llama_batch_init(n, 0, 1)

        def view(pointer: Any, dtype: Any) -> Any:
            return np.frombuffer(ffi.buffer(pointer, n * np.dtype(dtype).itemsize), dtype=dtype)

        self._tokens = view(self._batch.token, np.int32)
        self._positions = view(self._batch.pos, np.int32)
        view(self._batch.n_seq_id, np.int32)[:] = 1
        self._outputs = view(self._batch.logits, np.int8)
        # Each row has a list of sequences; ours are of length one, and lie one behind the other in this array.
        self._seqs_memory = ffi.new("llama_seq_id[]", n)
        self._seqs = view(self._seqs_memory, np.int32)
        self._own_lists = [self._batch.seq_id[i] for i in range(n)]
        self._lists = ffi.new("llama_seq_id *[]", n + 1)
        for i in range(n):
            self._lists[i] = self._seqs_memory + i

    def _fill(self, rows: Sequence[Rows]) -> int:
        at = 0
        for r in rows:
            n, padded = len(r.tokens), len(r.tokens) + r.n_padding
            if r.start + padded > self.n_ctx:
                raise InputError(
                    f"{r.start + padded} tokens exceed the context of {self.n_ctx}.", "Use a larger --ctx."
                )
            assert at + padded <= self.n_batch, f"a pass holds {self.n_batch} tokens at most"
            assert self._n_held[r.seq] == r.start, f"sequence {r.seq} holds {self._n_held[r.seq]} rows, not {r.start}"
            self._tokens[at : at + n] = r.tokens
            self._tokens[at + n : at + padded] = r.tokens[-1]
            self._positions[at : at + padded] = np.arange(r.start, r.start + padded)
            self._seqs[at : at + padded] = r.seq
            self._outputs[at : at + padded] = 0
            self._outputs[at + n - r.n_outputs : at + n] = 1
            at += padded
        return at

    def _decode(self, rows: Sequence[Rows], width: int) -> None:
        batch = ffi.new("llama_batch *", self._batch)
        batch.n_tokens = width
        batch.seq_id = self._lists
        if width > WIDE:
            status, interrupt = self._decode_interruptibly(batch[0])
        else:
            status, interrupt = self._lib.llama_decode(self._handle, batch[0]), None
        if status == 0 and interrupt is None:
            return
        for r in rows:
            self._lib.llama_memory_seq_rm(self._memory, r.seq, r.start, -1)
        if interrupt is not None:
            raise interrupt
        raise RuntimeLibraryError(
            f"llama.cpp failed in a pass over {width} tokens (status {status}): {take_errors() or 'no reason given'}.",
            "Status 1 means that the KV cache is full: use a larger --ctx." if status == 1 else "",
        )

    def _decode_interruptibly(self, batch: Any) -> tuple[int, BaseException | None]:
        """A decode that Ctrl-C ends: Python runs its signal handlers within the callback, in the main thread."""
        caught: list[BaseException] = []

        def on_error(kind: Any, error: BaseException, at: Any) -> bool:
            caught.append(error)
            return True

        @ffi.callback("bool(void *)", onerror=on_error)  # type: ignore[untyped-decorator]
        def abort(data: Any) -> bool:
            return bool(caught)

        self._lib.llama_set_abort_callback(self._handle, abort, ffi.NULL)
        try:
            status = self._lib.llama_decode(self._handle, batch)
        finally:
            self._lib.llama_set_abort_callback(self._handle, ffi.NULL, ffi.NULL)
        return status, caught[0] if caught else None

    def _logits(self, rows: Sequence[Rows], n_outputs: int) -> tuple[Logits, ...]:
        if n_outputs == 0:
            self._lib.llama_synchronize(self._handle)
            return tuple(np.empty((0, self.n_vocab), dtype=np.float32) for _ in rows)
        memory = ffi.buffer(self._lib.llama_get_logits(self._handle), n_outputs * self.n_vocab * 4)
        logits = np.frombuffer(memory, dtype=np.float32).reshape(n_outputs, self.n_vocab)
        logits.flags.writeable = False
        ends = np.cumsum([r.n_outputs for r in rows])
        return tuple(logits[end - r.n_outputs : end] for end, r in zip(ends, rows, strict=True))
