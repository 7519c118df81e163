"""A GGUF model loaded by llama.cpp."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from slipstream.errors import InputError, ModelError
from slipstream.models.gguf import GGUF, read_gguf
from slipstream.models.header import check_model

from .library import ffi, go_on, open_library, raise_interrupt, take_errors
from .options import ModelOptions
from .tokenizer import Tokenizer


class _Closeable(Protocol):
    def close(self) -> None: ...


class LlamaModel:
    """The weights and the vocabulary; several contexts may share them. Closing it closes its contexts first.

    architecture, description, n_params, size_bytes, n_ctx_train: what llama.cpp says of it. is_recurrent: it keeps a
    state that is overwritten as it reads, alone or beside attention (hybrid).
    """

    def __init__(self, path: Path, options: ModelOptions | None = None, gguf: GGUF | None = None) -> None:
        """Loads the file, whose header may have been read before.

        Raises ModelError if that cannot be done, InputError for an unknown device.
        """
        self.lib = open_library()
        self.path = path
        self._contexts: weakref.WeakSet[_Closeable] = weakref.WeakSet()
        self.handle = ffi.NULL
        check_model(gguf or read_gguf(path))
        self.options = options or ModelOptions()
        self.handle = self._load()
        try:
            raise_interrupt()
            self._describe()
        except BaseException:
            self.close()
            raise

    def _load(self) -> Any:
        params = self.lib.llama_model_default_params()
        params.n_gpu_layers = self.options.n_gpu_layers
        params.progress_callback = ffi.cast("void *", go_on)
        devices = _devices(self.lib, self.options.devices)
        if devices is not None:
            params.devices = devices
        take_errors()
        handle = self.lib.llama_model_load_from_file(os.fsencode(self.path), params)
        if handle == ffi.NULL:
            raise_interrupt()
            reason = take_errors() or "llama.cpp gives no reason"
            raise ModelError(
                f"{self.path} cannot be loaded: {reason.rstrip('.')}.",
                "Fetch the file again if it is damaged; a newer architecture needs a newer slipstream.",
            )
        return handle

    def _describe(self) -> None:
        self.tokenizer = Tokenizer(self.lib, self.handle)
        self.n_ctx_train = int(self.lib.llama_model_n_ctx_train(self.handle))
        is_hybrid = bool(self.lib.llama_model_is_hybrid(self.handle))
        self.is_recurrent_only = bool(self.lib.llama_model_is_recurrent(self.handle)) and not is_hybrid
        self.is_recurrent = self.is_recurrent_only or is_hybrid
        self.n_params = int(self.lib.llama_model_n_params(self.handle))
        self.size_bytes = int(self.lib.llama_model_size(self.handle))
        buffer = ffi.new("char[]", 256)
        self.lib.llama_model_desc(self.handle, buffer, 256)
        self.description = ffi.string(buffer).decode("utf-8", "replace")
        self.lib.llama_model_meta_val_str(self.handle, b"general.architecture", buffer, 256)
        self.architecture = ffi.string(buffer).decode("utf-8", "replace")
        if self.lib.llama_model_has_encoder(self.handle):
            raise no_text(self.path, self.architecture)

    def __enter__(self) -> LlamaModel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def closes_with(self, context: _Closeable) -> None:
        """Registers a context, which must not outlive the model."""
        self._contexts.add(context)

    def close(self) -> None:
        """Frees the model and its contexts; harmless when done twice."""
        for context in list(self._contexts):
            context.close()
        handle, self.handle = self.handle, ffi.NULL  # first, since Ctrl-C may strike again
        if handle != ffi.NULL:
            self.lib.llama_model_free(handle)


def no_text(path: Path, architecture: str) -> ModelError:
    return ModelError(
        f"{path.name} ({architecture}) does not write text: it is an encoder, such as embeddings come from.",
        "Give a model that generates text, token by token.",
    )


def device_names(lib: Any) -> list[str]:
    """The devices that this build of llama.cpp sees."""
    devices = map(lib.ggml_backend_dev_get, range(lib.ggml_backend_dev_count()))
    return [ffi.string(lib.ggml_backend_dev_name(device)).decode() for device in devices]


def _devices(lib: Any, names: tuple[str, ...]) -> Any:
    """A null-terminated array of the devices, which must outlive the load; None for llama.cpp's own choice."""
    if not names:
        return None
    found = [lib.ggml_backend_dev_by_name(name.encode()) for name in names]
    for name, device in zip(names, found, strict=True):
        if device == ffi.NULL:
            known = ", ".join(device_names(lib))
            raise InputError(f"--device {name} is not on this machine.", f"llama.cpp sees: {known}.")
    return ffi.new("void *[]", [*found, ffi.NULL])
