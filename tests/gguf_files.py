"""Writes small GGUF files for tests, with the writer of llama.cpp's own `gguf` package."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOKENS = ("<s>", "</s>", "a", "b", "Ġthe", "é")


def write_gguf(
    path: Path,
    *,
    tokens: Sequence[str] = TOKENS,
    token_types: Sequence[int] | None = None,
    template: str | None = CHATML,
    file_type: int | None = 15,
    pre: str = "smollm",
    extra: dict[str, str | int] | None = None,
) -> Path:
    """A file with one F32 tensor of 4×8 and one F16 tensor of 16, and the metadata of a small model."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer: Any = GGUFWriter(path, "llama")
    writer.add_name("Tiny")
    writer.add_context_length(512)
    if file_type is not None:
        writer.add_file_type(file_type)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(list(tokens))
    writer.add_token_types(list(token_types or [1] * len(tokens)))
    writer.add_token_merges(["a b", "b a"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    if template is not None:
        writer.add_chat_template(template)
    for key, value in (extra or {}).items():
        writer.add_string(key, value) if isinstance(value, str) else writer.add_uint32(key, value)
    writer.add_tensor("token_embd.weight", np.ones((8, 4), dtype=np.float32))
    writer.add_tensor("output_norm.weight", np.ones(16, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
