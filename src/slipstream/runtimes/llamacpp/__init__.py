"""llama.cpp, as shipped in the prebuilt `xllamacpp` wheel, behind the protocol of `decoding.protocols`."""

from .context import LlamaRuntime
from .model import LlamaModel
from .options import ContextOptions, ModelOptions
from .tokenizer import Tokenizer

__all__ = ["ContextOptions", "LlamaModel", "LlamaRuntime", "ModelOptions", "Tokenizer"]
