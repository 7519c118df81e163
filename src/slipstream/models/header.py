"""What a GGUF header says of a model: metadata, tensors, and the questions asked of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from slipstream.errors import ModelError
from slipstream.models.ggml_types import FILE_TYPES, GUESSED, TENSOR_TYPES

MAX_BLOCKS: Final = 512
"""LLAMA_MAX_LAYERS of llama.cpp."""


@dataclass(frozen=True)
class Skipped:
    """Stands in the metadata for an array of `count` values that was not read."""

    count: int


Value = int | float | bool | str | tuple["Value", ...] | Skipped


@dataclass(frozen=True)
class Tensor:
    """What a header says of one tensor. `offset` counts from the start of the tensor data."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int

    @property
    def n_params(self) -> int:
        return math.prod(self.shape)

    @property
    def type_name(self) -> str:
        return TENSOR_TYPES[self.type][0] if self.type in TENSOR_TYPES else f"type {self.type}"

    @property
    def size_bytes(self) -> int | None:
        """None if this program does not know the tensor's type."""
        if self.type not in TENSOR_TYPES:
            return None
        _, block, block_bytes = TENSOR_TYPES[self.type]
        return self.n_params // block * block_bytes


@dataclass(frozen=True, eq=False)
class GGUF:
    """One GGUF file as its header describes it. Of a split set it is one part."""

    path: Path
    metadata: Mapping[str, Value]
    tensors: tuple[Tensor, ...]
    size_bytes: int

    def text(self, key: str) -> str | None:
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None

    def integer(self, key: str) -> int | None:
        value = self.metadata.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def architecture(self) -> str:
        return self.text("general.architecture") or "unknown"

    @property
    def kind(self) -> str:
        """What the file is: 'model', or 'adapter', 'mmproj', 'imatrix' and the like."""
        return self.text("general.type") or "model"

    @property
    def name(self) -> str:
        return self.text("general.name") or self.path.stem

    @cached_property
    def n_params(self) -> int:
        return sum(tensor.n_params for tensor in self.tensors)

    @cached_property
    def quantization(self) -> str:
        """Such as 'Q4_K_M'; where the file does not say, the type that holds most parameters."""
        file_type = self.integer("general.file_type")
        if file_type is not None and file_type & ~GUESSED in FILE_TYPES:
            return FILE_TYPES[file_type & ~GUESSED]
        held: Counter[str] = Counter()
        for tensor in self.tensors:
            held[tensor.type_name] += tensor.n_params
        return held.most_common(1)[0][0] if held else "unknown"

    @property
    def context_length(self) -> int | None:
        """Tokens of context the model was trained for."""
        return self.integer(f"{self.architecture}.context_length")

    @property
    def vocab_size(self) -> int | None:
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        if isinstance(tokens, Skipped):
            return tokens.count
        if isinstance(tokens, tuple):
            return len(tokens)
        return self.integer(f"{self.architecture}.vocab_size")

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        """Text of every token, by id, as the file spells it. Empty if the file holds no vocabulary."""
        tokens = self.metadata.get("tokenizer.ggml.tokens", ())
        assert not isinstance(tokens, Skipped), "read the file with arrays=True to have its tokens"
        return tuple(str(token) for token in tokens) if isinstance(tokens, tuple) else ()

    @property
    def chat_template(self) -> str | None:
        return self.text("tokenizer.chat_template")

    @property
    def chat_templates(self) -> dict[str, str]:
        """Every chat template of the file by name; the main one is called 'default'."""
        prefix = "tokenizer.chat_template"
        named = {k[len(prefix) + 1 :]: v for k, v in self.metadata.items() if k.startswith(f"{prefix}.")}
        texts = {name: text for name, text in named.items() if isinstance(text, str)}
        return {"default": self.chat_template, **texts} if self.chat_template is not None else texts

    @property
    def bos_id(self) -> int | None:
        return self.integer("tokenizer.ggml.bos_token_id")

    @property
    def eos_id(self) -> int | None:
        return self.integer("tokenizer.ggml.eos_token_id")

    @property
    def n_splits(self) -> int:
        """Number of files of the set that this one belongs to; 1 if it stands alone."""
        return max(self.integer("split.count") or 1, 1)

    @property
    def is_split(self) -> bool:
        return self.n_splits > 1

    def token_text(self, token: int | None) -> str:
        """Text of one token; empty for None and for an id outside the vocabulary."""
        return self.tokens[token] if token is not None and 0 <= token < len(self.tokens) else ""


def check_model(gguf: GGUF) -> None:
    """Raises ModelError for a header on which llama.cpp would end the process, which is no exception to catch.

    The file must have been read with its arrays; of a split set it is the first part.
    """
    flaw = _flaw(gguf)
    if flaw is not None:
        raise ModelError(f"{gguf.path.name} cannot be run: {flaw}.", "Fetch the file again, or convert it anew.")


def _flaw(gguf: GGUF) -> str | None:
    tokens = gguf.metadata.get("tokenizer.ggml.tokens")
    tokenizer = gguf.text("tokenizer.ggml.model")
    if not isinstance(tokens, tuple) or not tokens or not isinstance(tokens[0], str) or tokenizer in (None, "none"):
        return "it holds no vocabulary"
    n_blocks = gguf.integer(f"{gguf.architecture}.block_count")
    if n_blocks is not None and not 1 <= n_blocks <= MAX_BLOCKS:
        return f"it claims {n_blocks:,} layers, where 1 to {MAX_BLOCKS} are possible"
    return _twin(gguf.tokens) or (_missing_byte(set(gguf.tokens)) if tokenizer == "llama" else None)


def _twin(tokens: Sequence[str]) -> str | None:
    """Two tokens of one text, as C reads it: up to a NUL. Bytes that are no UTF-8 all look alike here, and pass."""
    if len(set(tokens)) == len(tokens) and not any("\0" in text for text in tokens):
        return None
    seen: dict[str, int] = {}
    for token, text in enumerate(tokens):
        text = text.split("\0")[0]
        if text and "\ufffd" not in text and seen.setdefault(text, token) != token:
            return f"its tokens {seen[text]} and {token} have the same text, {text!r}"
    return None


def _missing_byte(tokens: set[str]) -> str | None:
    """SentencePiece falls back to the bytes of a character that is no token."""
    for byte in range(256):
        if f"<0x{byte:02X}>" not in tokens and (byte > 127 or chr(byte) not in tokens):
            return f"its tokenizer needs the token <0x{byte:02X}>, which is missing"
    return None
