"""Lossless speculative decoding that always pays, for GGUF models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .decoding.sampling import Sampling as Sampling
    from .llm import LLM as LLM
    from .loading import load as load

__version__ = "0.1.0"
__all__ = ["LLM", "Sampling", "__version__", "load"]


def __getattr__(name: str) -> Any:
    """Imports the engine at first use, so that `import slipstream` stays cheap (PEP 562)."""
    if name == "LLM":
        from .llm import LLM

        return LLM
    if name == "load":
        from .loading import load

        return load
    if name == "Sampling":
        from .decoding.sampling import Sampling

        return Sampling
    raise AttributeError(f"module 'slipstream' has no attribute {name!r}")
