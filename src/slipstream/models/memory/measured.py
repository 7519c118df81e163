"""What llama.cpp itself says a context takes, from a load that allocates neither weights nor caches (`no_alloc`)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from slipstream.errors import ModelError
from slipstream.models.ggml_types import TENSOR_TYPES

from .cache import Context

_MIB: Final = r"size = +([\d.]+) MiB"
_NUMBERS: Final = {name: number for number, (name, _, _) in TENSOR_TYPES.items()}


@dataclass(frozen=True)
class Measurement:
    """Bytes of all layers together, on the CPU, as the log has them: rounded to hundredths of a MiB."""

    kv_bytes: int
    state_bytes: int
    compute_bytes: int


def measure(library: Any, path: Path, context: Context) -> Measurement:
    """Asks llama.cpp, by the log of a load on the CPU. Takes about as long as reading the header.

    library: libllama, opened by cffi with its functions and structs declared. The file must have passed `check_model`:
    on some headers llama.cpp ends the process. Raises ModelError if it cannot load the file.
    """
    with collected_log() as lines:
        params = library.llama_model_default_params()
        params.no_alloc, params.load_mode, params.n_gpu_layers = True, 0, 0
        model = library.llama_model_load_from_file(os.fsencode(path), params)
        if not model:
            raise ModelError(f"{path.name} cannot be measured: {_reason(lines)}.", "Leave --measure away.")
        try:
            handle = library.llama_init_from_model(model, _asked(library, context))
            if not handle:
                raise ModelError(f"{path.name} cannot be measured: {_reason(lines)}.", "Leave --measure away.")
            library.llama_free(handle)
        finally:
            library.llama_model_free(model)
    return parse("".join(lines))


def parse(log: str) -> Measurement:
    """The figures of a log: sizes of KV caches, of recurrent states and of compute buffers, summed by kind."""
    return Measurement(
        kv_bytes=_sum(rf"^llama_kv_cache\w*: {_MIB} \(", log),
        state_bytes=_sum(rf"^llama_memory_recurrent: {_MIB} \(", log),
        compute_bytes=_sum(rf" compute buffer {_MIB}", log),
    )


def _asked(library: Any, context: Context) -> Any:
    params = library.llama_context_default_params()
    params.n_ctx = context.n_ctx * context.n_seq
    params.n_batch = params.n_ubatch = context.width
    params.n_seq_max, params.n_rs_seq = context.n_seq, context.n_rollback
    params.type_k, params.type_v = _NUMBERS[context.type_k], _NUMBERS[context.type_v]
    params.kv_unified, params.swa_full = True, context.swa_full
    return params


def _sum(pattern: str, log: str) -> int:
    return round(sum(float(mib) for mib in re.findall(pattern, log, re.MULTILINE)) * 2**20)


def _reason(lines: list[str]) -> str:
    failed = [line.strip() for line in lines if "error" in line or "fail" in line]
    return failed[0].rstrip(".") if failed else "llama.cpp gives no reason"


@contextmanager
def collected_log() -> Iterator[list[str]]:
    """Collects what llama.cpp logs; afterwards its log goes where it went before."""
    import xllamacpp.xllamacpp as extension
    from cffi import FFI

    ffi = FFI()
    ffi.cdef("void llama_log_get(void **log, void **user_data); void llama_log_set(void *log, void *user_data);")
    library = ffi.dlopen(extension.__file__)
    lines: list[str] = []

    def keep(level: int, text: Any, user_data: Any) -> None:
        lines.append(ffi.string(text).decode("utf-8", "replace"))

    callback = ffi.callback("void(int, const char *, void *)", keep)
    before, data = ffi.new("void **"), ffi.new("void **")
    library.llama_log_get(before, data)
    library.llama_log_set(callback, ffi.NULL)
    try:
        yield lines
    finally:
        library.llama_log_set(before[0], data[0])
