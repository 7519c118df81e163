"""A llama.cpp context as a runtime: forward passes over the KV cache of several sequences."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from types import TracebackType
from typing import Any

import numpy as np

from slipstream.decoding.protocols import Logits, Pass, Rows
from slipstream.errors import InputError, ModelError, RuntimeLibraryError

from .library import RELEASE, abort, ffi, raise_interrupt, take_errors
from .model import LlamaModel, device_names, no_text
from .options import CACHE_TYPES, DEFAULT_MAX_CTX, FLASH_ATTENTION, MIN_CTX, ContextOptions
from .splits import splits

WIDE = 32
"""Passes wider than this ask on the way whether the user wants to stop."""

MAX_CELLS = 1 << 31


class LlamaRuntime:
    """Implements `decoding.protocols.Runtime`: one context, `n_seq_max` sequences in one KV cache.

    `n_ctx` is the length of each sequence. Attention caches drop any number of rows. For recurrent and hybrid models
    `max_rollback` is what llama.cpp grants of `n_rollback`, 0 where the architecture keeps no snapshots. Snapshots
    are of the last pass alone: see `floor`.

        0 …………… floor …………… held      keep(seq, n) works for n = 0 and for floor ≤ n ≤ held
    """

    def __init__(self, model: LlamaModel, options: ContextOptions | None = None) -> None:
        options = options or ContextOptions()
        self._lib = model.lib
        self._recurrent_only = model.is_recurrent_only
        self.n_vocab = model.tokenizer.n_vocab
        self.n_seq_max = options.n_seq_max
        self.n_ctx = options.n_ctx or _usual_ctx(model)
        self.n_batch = min(options.n_batch, self.n_ctx * self.n_seq_max)
        self.n_threads = options.threads
        self._handle = self._open(model, options)
        self.max_rollback = int(self._lib.llama_n_rs_seq(self._handle)) if model.is_recurrent else None
        self._memory = self._lib.llama_get_memory(self._handle)
        self._held = [0] * self.n_seq_max
        self._floor = [0] * self.n_seq_max
        self._unsettled: Sequence[Rows] = ()
        self._output, self._output_rows = ffi.NULL, np.empty((0, self.n_vocab), dtype=np.float32)
        self._make_batch()
        self.cost_key: dict[str, object] = {
            "build": RELEASE,
            "threads": self.n_threads,
            "devices": list(model.options.devices) or device_names(self._lib),
            "gpu_layers": model.options.n_gpu_layers,
            "cache": [options.cache_type_k, options.cache_type_v, options.flash_attn],
            "batch": self.n_batch,
            "rollback": self.max_rollback,
            "split": options.split_cache,
        }
        model.closes_with(self)

    def _open(self, model: LlamaModel, options: ContextOptions) -> Any:
        n_cells = self.n_ctx * self.n_seq_max
        if n_cells >= MAX_CELLS:
            raise InputError(
                f"--ctx {self.n_ctx} for {self.n_seq_max} sequences is {n_cells} tokens.",
                f"Together they must be fewer than {MAX_CELLS}.",
            )
        params = self._lib.llama_context_default_params()
        params.n_ctx = n_cells
        params.n_batch = params.n_ubatch = self.n_batch
        params.n_seq_max = self.n_seq_max
        params.n_rs_seq = options.n_rollback if model.is_recurrent else 0
        params.n_threads = params.n_threads_batch = self.n_threads
        params.type_k, params.type_v = CACHE_TYPES[options.cache_type_k], CACHE_TYPES[options.cache_type_v]
        params.flash_attn_type = FLASH_ATTENTION[options.flash_attn]
        params.kv_unified = not options.split_cache
        # A cache of the window alone forgets rows that a roll-back would need again.
        params.swa_full = True
        take_errors()
        handle = self._lib.llama_init_from_model(model.handle, params)
        if handle == ffi.NULL:
            raise_interrupt()
            reason = take_errors() or "not enough memory"
            raise RuntimeLibraryError(
                f"A context of {n_cells} tokens cannot be made: {reason}.",
                "Try a smaller --ctx, --cache-type-k q8_0 --cache-type-v q8_0, or fewer --gpu-layers.",
            )
        try:
            raise_interrupt()
            if not self._lib.llama_get_causal_attn(handle):
                raise no_text(model.path, model.architecture)
        except BaseException:
            self._lib.llama_free(handle)
            raise
        return handle

    def __enter__(self) -> LlamaRuntime:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Frees the context; harmless when done twice."""
        handle, self._handle, self._unsettled = self._handle, ffi.NULL, ()  # first, since Ctrl-C may strike again
        if handle != ffi.NULL:
            self._lib.llama_batch_free(self._batch)
            self._lib.llama_free(handle)

    def forward(self, rows: Sequence[Rows]) -> Pass:
        """See the protocol. All rows together must not exceed `n_batch`: they are computed in one pass.

        After a failed or interrupted pass recurrent and hybrid models hold nothing of its sequences: see `held`.
        """
        self._settle()
        width = self._fill(rows)
        self._unsettled = rows
        self._decode(width)
        logits = self._logits(rows)
        for r in rows:
            n = len(r.tokens) + r.n_padding
            self._held[r.seq] = r.start + n
            self._floor[r.seq] = 0 if self.max_rollback is None else r.start + n - min(self.max_rollback, n - 1)
        self._unsettled = ()
        return Pass(logits, (width,) if self.max_rollback is None or len(rows) == 1 else self._splits(rows))

    def keep(self, seq: int, n_tokens: int) -> None:
        """See the protocol. Raises RuntimeLibraryError where the cache cannot go back so far (below `floor`)."""
        self._settle()
        if n_tokens >= self._held[seq]:
            return
        # llama.cpp itself would grant more than its snapshots hold, and go on from a wrong state.
        if 0 < n_tokens < self._floor[seq]:
            raise RuntimeLibraryError(
                f"The cache of this model cannot go back from {self._held[seq]} to {n_tokens} tokens "
                f"(to {self._floor[seq]} at the furthest, or to 0)."
            )
        self._unsettled = (Rows(seq, (), n_tokens, 0),)
        done = self._lib.llama_memory_seq_rm(self._memory, seq, n_tokens, -1)
        if not done:
            raise RuntimeLibraryError(f"llama.cpp cannot keep {n_tokens} of {self._held[seq]} tokens in its cache.")
        self._held[seq] = n_tokens
        self._floor[seq] = 0 if self.max_rollback is None else n_tokens
        self._unsettled = ()

    def held(self, seq: int) -> int:
        """How many positions the cache of a sequence holds."""
        self._settle()
        return self._held[seq]

    def floor(self, seq: int) -> int:
        """The fewest positions, other than none, that `keep` can go back to now.

        Attention: 0. Recurrent and hybrid models: at most `max_rollback` rows may go, all of them of the last pass,
        of which one must stay, and only once until the next pass.
        """
        self._settle()
        return self._floor[seq]

    def _settle(self) -> None:
        """Takes back what an unfinished call left; here, since Ctrl-C may strike at any line of it."""
        for r in self._unsettled:
            n = r.start if self.max_rollback is None else 0
            self._lib.llama_memory_seq_rm(self._memory, r.seq, n, -1)
            self._held[r.seq], self._floor[r.seq] = n, 0
        self._unsettled = ()

    def _splits(self, rows: Sequence[Rows]) -> tuple[int, ...]:
        lengths = [(r.seq, len(r.tokens) + r.n_padding) for r in rows]
        return splits(lengths, tail=(self.max_rollback or 0) + 1, in_order=self._recurrent_only)

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
        self._lists = ffi.new("llama_seq_id *[]", n + 1)
        for i in range(n):
            self._lists[i] = self._seqs_memory + i

    def _fill(self, rows: Sequence[Rows]) -> int:
        """Writes the rows into the batch; returns their number."""
        assert len({r.seq for r in rows}) == len(rows), "one Rows a sequence"
        at = 0
        for r in rows:
            n, padded = len(r.tokens), len(r.tokens) + r.n_padding
            if r.start + padded > self.n_ctx:
                raise InputError(
                    f"{r.start + padded} tokens exceed the context of {self.n_ctx}.", "Use a larger --ctx."
                )
            assert 0 <= r.n_outputs <= n and n > 0 and r.n_padding >= 0, "outputs are of the last tokens"
            assert at + padded <= self.n_batch, f"a pass holds {self.n_batch} tokens at most"
            assert self._held[r.seq] == r.start, f"sequence {r.seq} holds {self._held[r.seq]} rows, not {r.start}"
            self._tokens[at : at + n] = r.tokens
            self._tokens[at + n : at + padded] = r.tokens[-1] if r.filler is None else r.filler
            self._positions[at : at + padded] = np.arange(r.start, r.start + padded)
            self._seqs[at : at + padded] = r.seq
            self._outputs[at : at + padded] = 0
            self._outputs[at + n - r.n_outputs : at + n] = 1
            at += padded
        return at

    def _decode(self, width: int) -> None:
        batch = ffi.new("llama_batch *", self._batch)
        batch.n_tokens = width
        batch.seq_id = self._lists
        if width <= WIDE:
            status = self._lib.llama_decode(self._handle, batch[0])
        else:
            status = self._decode_interruptibly(batch[0])
        raise_interrupt()
        if status != 0:
            reason = take_errors() or "no reason given"
            raise RuntimeLibraryError(
                f"llama.cpp failed in a pass over {width} tokens (status {status}): {reason}.",
                "Status 1 means that the KV cache is full: use a larger --ctx." if status == 1 else "",
            )

    def _decode_interruptibly(self, batch: Any) -> int:
        self._lib.llama_set_abort_callback(self._handle, abort, ffi.NULL)
        try:
            return int(self._lib.llama_decode(self._handle, batch))
        finally:
            self._lib.llama_set_abort_callback(self._handle, ffi.NULL, ffi.NULL)

    def _logits(self, rows: Sequence[Rows]) -> tuple[Logits, ...]:
        n_outputs = sum(r.n_outputs for r in rows)
        if n_outputs == 0:
            self._lib.llama_synchronize(self._handle)
            return tuple(np.empty((0, self.n_vocab), dtype=np.float32) for _ in rows)
        pointer = self._lib.llama_get_logits(self._handle)
        if pointer != self._output or n_outputs > len(self._output_rows):
            memory = ffi.buffer(pointer, n_outputs * self.n_vocab * 4)
            self._output, self._output_rows = pointer, np.frombuffer(memory, dtype=np.float32).reshape(-1, self.n_vocab)
            self._output_rows.flags.writeable = False
        logits = self._output_rows
        ends = accumulate(r.n_outputs for r in rows)
        return tuple(logits[end - r.n_outputs : end] for end, r in zip(ends, rows, strict=True))


def _usual_ctx(model: LlamaModel) -> int:
    """The context of a model where none was asked for."""
    if model.n_ctx_train < MIN_CTX:
        raise ModelError(
            f"{model.path.name} says that it was trained for a context of {model.n_ctx_train} tokens.",
            f"Give one of {MIN_CTX} or more with --ctx, if the model is any good.",
        )
    return min(model.n_ctx_train, DEFAULT_MAX_CTX)
