"""libllama's C API, opened by cffi from the extension module of the `xllamacpp` wheel (ABI mode).

The declarations are those of llama.cpp b11549 (include/llama.h, ggml/include/ggml-backend.h) and of no other build:
structs are passed by value, so that a field more or less would be read as nonsense. `open_library` therefore refuses
another release, and structs whose known defaults don't read back.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from cffi import FFI

from slipstream.errors import RuntimeLibraryError

RELEASE: Final = "2026.10.11549"
"""The xllamacpp release; the last number is llama.cpp's build."""

ffi: Final = FFI()
ffi.cdef("""
typedef int32_t llama_token; typedef int32_t llama_pos; typedef int32_t llama_seq_id;
typedef struct { int32_t n_tokens; llama_token *token; float *embd; llama_pos *pos; int32_t *n_seq_id;
    llama_seq_id **seq_id; int8_t *logits; } llama_batch;
struct llama_model_params { void **devices; void *tensor_buft_overrides; int32_t n_gpu_layers; int split_mode,
    load_mode, lazy_mode; int32_t main_gpu; const float *tensor_split; void *progress_callback,
    *progress_callback_user_data, *kv_overrides; bool vocab_only, check_tensors, use_extra_bufts, no_host, no_alloc,
    load_mtp; };
struct llama_context_params { uint32_t n_ctx, n_batch, n_ubatch, n_seq_max, n_rs_seq, n_outputs_max,
    n_outputs_max_per_seq; int32_t n_threads, n_threads_batch; int ctx_type, rope_scaling_type, pooling_type,
    attention_type, flash_attn_type; float rope_freq_base, rope_freq_scale, yarn_ext_factor, yarn_attn_factor,
    yarn_beta_fast, yarn_beta_slow; uint32_t yarn_orig_ctx; float defrag_thold; void *cb_eval, *cb_eval_user_data;
    int type_k, type_v; size_t moe_cache_size; void *abort_callback, *abort_callback_data; bool embeddings,
    offload_kqv, no_perf, op_offload, swa_full, kv_unified; void *samplers; size_t n_samplers; void *ctx_other; };

void llama_log_set(void (*log)(int level, const char *text, void *user_data), void *user_data);
void llama_backend_init(void);
struct llama_model_params llama_model_default_params(void);
struct llama_context_params llama_context_default_params(void);

void *llama_model_load_from_file(const char *path, struct llama_model_params params);
void llama_model_free(void *model);
const void *llama_model_get_vocab(const void *model);
int32_t llama_model_n_ctx_train(const void *model);
bool llama_model_is_recurrent(const void *model);
bool llama_model_is_hybrid(const void *model);
bool llama_model_has_encoder(const void *model);
int32_t llama_model_desc(const void *model, char *buffer, size_t size);
int32_t llama_model_meta_val_str(const void *model, const char *key, char *buffer, size_t size);
uint64_t llama_model_n_params(const void *model);
uint64_t llama_model_size(const void *model);

int32_t llama_vocab_n_tokens(const void *vocab);
llama_token llama_vocab_bos(const void *vocab);
llama_token llama_vocab_eos(const void *vocab);
const char *llama_vocab_get_text(const void *vocab, llama_token token);
bool llama_vocab_get_add_bos(const void *vocab);
bool llama_vocab_is_eog(const void *vocab, llama_token token);
int32_t llama_tokenize(const void *vocab, const char *text, int32_t size, llama_token *tokens, int32_t n_max,
    bool add_special, bool parse_special);
int32_t llama_token_to_piece(const void *vocab, llama_token token, char *buffer, int32_t size, int32_t lstrip,
    bool special);

void *llama_init_from_model(void *model, struct llama_context_params params);
void llama_free(void *ctx);
uint32_t llama_n_rs_seq(const void *ctx);
void *llama_get_memory(const void *ctx);
bool llama_get_causal_attn(const void *ctx);
bool llama_memory_seq_rm(void *memory, llama_seq_id seq, llama_pos from, llama_pos to);
llama_batch llama_batch_init(int32_t n_tokens, int32_t embd, int32_t n_seq_max);
void llama_batch_free(llama_batch batch);
int32_t llama_decode(void *ctx, llama_batch batch);
void llama_synchronize(void *ctx);
float *llama_get_logits(void *ctx);
void llama_set_abort_callback(void *ctx, bool (*abort)(void *data), void *data);

void ggml_set_abort_callback(void (*callback)(const char *reason));
void *ggml_backend_dev_by_name(const char *name);
size_t ggml_backend_dev_count(void);
void *ggml_backend_dev_get(size_t index);
const char *ggml_backend_dev_name(void *device);
""")

MODEL_DEFAULTS: Final = {
    "n_gpu_layers": -1,
    "split_mode": 1,
    "load_mode": -1,
    "lazy_mode": 1,
    "main_gpu": 0,
    "devices": ffi.NULL,
    "tensor_buft_overrides": ffi.NULL,
    "tensor_split": ffi.NULL,
    "progress_callback": ffi.NULL,
    "kv_overrides": ffi.NULL,
    "vocab_only": False,
    "check_tensors": False,
    "use_extra_bufts": True,
    "no_host": False,
    "no_alloc": False,
    "load_mtp": False,
}
CONTEXT_DEFAULTS: Final = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "n_rs_seq": 0,
    "n_outputs_max": 0,
    "n_outputs_max_per_seq": 1,
    "n_threads": 4,
    "n_threads_batch": 4,
    "ctx_type": 0,
    "rope_scaling_type": -1,
    "pooling_type": -1,
    "attention_type": -1,
    "flash_attn_type": -1,
    "rope_freq_base": 0.0,
    "rope_freq_scale": 0.0,
    "yarn_ext_factor": -1.0,
    "yarn_attn_factor": -1.0,
    "yarn_beta_fast": -1.0,
    "yarn_beta_slow": -1.0,
    "yarn_orig_ctx": 0,
    "defrag_thold": -1.0,
    "cb_eval": ffi.NULL,
    "type_k": 1,
    "type_v": 1,
    "moe_cache_size": 0,
    "abort_callback": ffi.NULL,
    "embeddings": False,
    "offload_kqv": True,
    "no_perf": True,
    "op_offload": True,
    "swa_full": True,
    "kv_unified": False,
    "samplers": ffi.NULL,
    "n_samplers": 0,
    "ctx_other": ffi.NULL,
}

ERROR_LEVEL: Final = 4
_errors: list[str] = []


class _Struck(threading.local):
    """What was raised while llama.cpp ran: Python runs its signal handlers in our callbacks, and cffi lets none out."""

    def __init__(self) -> None:
        self.by: BaseException | None = None


_struck = _Struck()


def _remember(kind: Any, error: BaseException, at: Any) -> None:
    _struck.by = _struck.by or error


def raise_interrupt() -> None:
    """Raises what struck during the calls of this thread, such as Ctrl-C; to be called after any call that may last."""
    error, _struck.by = _struck.by, None
    if error is not None:
        raise error


@ffi.callback("bool(void *)", error=True, onerror=_remember)  # type: ignore[untyped-decorator]
def abort(data: Any) -> bool:
    """For llama.cpp to ask during a pass: whether to end it."""
    return _struck.by is not None


@ffi.callback("bool(float, void *)", error=False, onerror=_remember)  # type: ignore[untyped-decorator]
def go_on(done: float, data: Any) -> bool:
    """For llama.cpp to ask while it loads a model: whether to go on."""
    return _struck.by is None


@ffi.callback("void(const char *)")  # type: ignore[untyped-decorator]
def _give_up(reason: Any) -> None:
    """llama.cpp's last word: the process ends behind it, which no exception can prevent. One line, no core dump."""
    said = " ".join(ffi.string(reason).decode("utf-8", "replace").split())
    os.write(2, f"slipstream: llama.cpp gave up: {said}. Fetch the model again if it may be damaged.\n".encode())
    os._exit(2)


@ffi.callback("void(int, const char *, void *)", onerror=_remember)  # type: ignore[untyped-decorator]
def _log(level: int, text: Any, user_data: Any) -> None:
    """Keeps llama.cpp's last errors for our messages and the terminal free of its log."""
    if level == ERROR_LEVEL:
        _errors.append(ffi.string(text).decode("utf-8", "replace").strip())
        del _errors[:-8]


def take_errors() -> str:
    """What llama.cpp has said of errors since the last call, the first of them: the others follow from it."""
    first = _errors[0].splitlines()[0] if _errors and _errors[0] else ""
    _errors.clear()
    return first


@contextmanager
def collected_log() -> Iterator[list[str]]:
    """Collects all that llama.cpp logs within the block, in pieces; `take_errors` hears nothing of it."""
    lib, pieces = open_library(), list[str]()

    @ffi.callback("void(int, const char *, void *)")  # type: ignore[untyped-decorator]
    def collect(level: int, text: Any, user_data: Any) -> None:
        pieces.append(ffi.string(text).decode("utf-8", "replace"))

    lib.llama_log_set(collect, ffi.NULL)
    try:
        yield pieces
    finally:
        lib.llama_log_set(_log, ffi.NULL)


@cache
def open_library() -> Any:
    """The library, checked. Raises RuntimeLibraryError if it is missing, of another release or not exported."""
    check_release(_installed())
    # Where a C++ exception ends the process, llama.cpp would call a debugger first and fill the terminal.
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    import xllamacpp.xllamacpp as extension

    lib = ffi.dlopen(extension.__file__)
    check_exports(lib)
    check_defaults("llama_model_params", lib.llama_model_default_params(), MODEL_DEFAULTS)
    check_defaults("llama_context_params", lib.llama_context_default_params(), CONTEXT_DEFAULTS)
    lib.llama_log_set(_log, ffi.NULL)
    lib.ggml_set_abort_callback(_give_up)
    lib.llama_backend_init()
    return lib


def _installed() -> str:
    try:
        return version("xllamacpp")
    except PackageNotFoundError:
        hint = f"Install it: pip install xllamacpp=={RELEASE}"
        raise RuntimeLibraryError("The package xllamacpp, which holds llama.cpp, is not installed.", hint) from None


def check_release(installed: str) -> None:
    # GPU builds carry a local suffix (2026.10.11549+cu128) or none: the release is what stands before it.
    if installed.split("+")[0] != RELEASE:
        raise RuntimeLibraryError(
            f"xllamacpp {installed} is installed, and slipstream works with {RELEASE} only.",
            f"Install it: pip install xllamacpp=={RELEASE}",
        )


def check_exports(lib: Any) -> None:
    try:
        _ = lib.llama_decode
    except AttributeError:
        raise RuntimeLibraryError(
            f"This build of xllamacpp {RELEASE} exports no functions of llama.cpp (as on Windows).",
            "On Windows, run slipstream in WSL: https://learn.microsoft.com/windows/wsl",
        ) from None


def check_defaults(struct: str, values: Any, known: dict[str, Any]) -> None:
    for field, default in known.items():
        value = getattr(values, field)
        if value != default:
            raise RuntimeLibraryError(
                f"{struct}.{field} reads {value}, not {default}: xllamacpp {_installed()} holds another llama.cpp "
                f"than release {RELEASE}.",
                f"Install it afresh: pip install --force-reinstall xllamacpp=={RELEASE}",
            )
