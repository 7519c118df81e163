"""The engines by name; each is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Final

from slipstream.errors import InputError

from .protocol import Engine

ENGINES: Final = {
    "slipstream": ("own", "SlipstreamEngine"),
    "llama.cpp": ("llamacpp", "LlamaCppEngine"),
    "vllm": ("vllm", "VllmEngine"),
    "mlx-lm": ("mlx_lm", "MlxLmEngine"),
    "transformers": ("transformers", "TransformersEngine"),
    "openvino": ("openvino", "OpenVinoEngine"),
    "sglang": ("sglang", "SglangEngine"),
    "ollama": ("ollama", "OllamaEngine"),
    "lmstudio": ("lmstudio", "LmStudioEngine"),
}
"""Name → module of this package, and class."""


def engine_class(name: str) -> Callable[..., Engine]:
    """The class of an engine, for those that are made with options of their own.

    Raises InputError, with the names there are, for any other.
    """
    if name not in ENGINES:
        raise InputError(f"There is no engine {name!r}.", f"Choose one of {', '.join(ENGINES)}.")
    module, made = ENGINES[name]
    found: Callable[..., Engine] = getattr(import_module(f".{module}", __package__), made)
    return found


def make_engine(name: str) -> Engine:
    """An engine as it is found on this machine, not running. Raises InputError for a name that is none."""
    return engine_class(name)()
