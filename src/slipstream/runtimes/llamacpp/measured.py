"""What llama.cpp itself says a context takes, from a load that allocates neither weights nor caches (`no_alloc`)."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from slipstream.errors import ModelError
from slipstream.models.memory import Context, Measurement

from .library import collected_log, ffi, open_library
from .options import CACHE_TYPES

_MIB: Final = r"size = +([\d.]+) MiB"


def measure(path: Path, context: Context) -> Measurement:
    """Asks llama.cpp, by the log of a load on the CPU. Takes about as long as reading the header.

    path: of a split set the first part. The file must have passed `check_model`: on some headers llama.cpp ends the
    process. Raises ModelError if it cannot load the file.
    """
    library = open_library()
    with collected_log() as log:
        params = library.llama_model_default_params()
        params.no_alloc, params.load_mode, params.n_gpu_layers = True, 0, 0
        model = library.llama_model_load_from_file(os.fsencode(path), params)
        if model == ffi.NULL:
            raise _failed(path, log)
        try:
            handle = library.llama_init_from_model(model, _asked(library, context))
            if handle == ffi.NULL:
                raise _failed(path, log)
            library.llama_free(handle)
        finally:
            library.llama_model_free(model)
    return parse("".join(log))


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
    params.type_k, params.type_v = (CACHE_TYPES[kind.lower()] for kind in (context.type_k, context.type_v))
    params.kv_unified, params.swa_full = True, context.swa_full
    return params


def _sum(pattern: str, log: str) -> int:
    return round(sum(float(mib) for mib in re.findall(pattern, log, re.MULTILINE)) * 2**20)


def _failed(path: Path, log: Sequence[str]) -> ModelError:
    said = [line.strip() for line in log if "error" in line or "fail" in line]
    reason = said[0].rstrip(".") if said else "llama.cpp gives no reason"
    return ModelError(f"{path.name} cannot be measured: {reason}.", "Leave --measure away.")
