"""What pairing asks of a model: its shape, its size, its vocabulary, and whether it is a head of another model.

Description    one model, from a GGUF header or a Hugging Face folder, local or remote
Head           what a drafter that reads its target's hidden states expects of that target
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from slipstream.models.header import GGUF, Value
from slipstream.models.vocabulary import Vocabulary

Method = Literal["MTP", "EAGLE-3", "DFlash"]
Form = Literal["GGUF", "Hugging Face"]

_GGUF_HEADS: Final[dict[str, Method]] = {
    "eagle3": "EAGLE-3",
    "dflash": "DFlash",
    "dspark": "DFlash",
    "gemma4-assistant": "MTP",
}
_EXPERTS: Final = re.compile(r"_exps?\b|\.experts\.")


@dataclass(frozen=True)
class Head:
    """A drafter that reads its target's hidden states. None and () where the files do not say.

    hidden_size: of the target. layers: those of the target whose states it reads, numbered as its files do.
    vocab_size: the target's rows that it was made for.
    """

    method: Method
    hidden_size: int | None
    layers: tuple[int, ...]
    vocab_size: int | None

    def __str__(self) -> str:
        return f"{'a' if self.method == 'DFlash' else 'an'} {self.method} head"


@dataclass(frozen=True, eq=False)
class Description:
    """One model. None where the files do not say.

    n_active_params: those that one token uses; of a dense model all. n_mtp_layers: layers for multi-token prediction
    inside the model itself. recurrent: it keeps a state that cannot be taken back token by token.
    path: the file on this machine, of a GGUF the first part. gguf: the header of a GGUF's first part.
    """

    name: str
    form: Form
    architecture: str
    n_params: int | None = None
    n_active_params: int | None = None
    size_bytes: int | None = None
    quantization: str | None = None
    hidden_size: int | None = None
    n_layers: int | None = None
    n_experts: int = 0
    n_experts_used: int = 0
    n_mtp_layers: int = 0
    recurrent: bool = False
    head: Head | None = None
    vocabulary: Vocabulary | None = None
    vocab_size: int | None = None
    path: Path | None = None
    gguf: GGUF | None = None

    @property
    def is_moe(self) -> bool:
        return self.n_experts > 1

    @property
    def n_rows(self) -> int | None:
        """Rows of the embedding: what engines that judge by size compare."""
        return self.vocabulary.n_rows if self.vocabulary is not None else self.vocab_size


def of_gguf(parts: Sequence[GGUF], name: str, path: Path | None) -> Description:
    """The description of a GGUF model, of which `parts` are the headers of all files, the first with its arrays."""
    first = parts[0]
    architecture, tensors = first.architecture, [tensor for part in parts for tensor in part.tensors]
    n_experts, n_used = (first.integer(f"{architecture}.{key}") or 0 for key in ("expert_count", "expert_used_count"))
    sizes = [(tensor.name, tensor.n_params) for tensor in tensors]
    n_layers = first.integer(f"{architecture}.block_count")
    n_mtp = first.integer(f"{architecture}.nextn_predict_layers") or 0
    head = _gguf_head(first, any(tensor.name.startswith("blk.0.") for tensor in tensors))
    return Description(
        name,
        "GGUF",
        architecture,
        n_params=sum(n for _, n in sizes),
        n_active_params=n_active(sizes, n_experts, n_used),
        size_bytes=sum(part.size_bytes for part in parts),
        quantization=first.quantization,
        hidden_size=first.integer(f"{architecture}.embedding_length"),
        n_layers=max(n_layers - n_mtp, 0) if n_layers is not None else None,
        n_experts=n_experts,
        n_experts_used=n_used,
        n_mtp_layers=0 if head else n_mtp,
        recurrent=any(f"{architecture}.{key}" in first.metadata for key in ("ssm.conv_kernel", "wkv.head_size")),
        head=head,
        vocabulary=Vocabulary.of_gguf(first) if first.tokens else None,
        vocab_size=first.vocab_size,
        path=path,
        gguf=first,
    )


def n_active(sizes: Iterable[tuple[str, int]], n_experts: int, n_used: int) -> int:
    """Parameters that one token uses, of (tensor name, parameters) pairs."""
    share = n_used / n_experts if 0 < n_used < n_experts else 1.0
    return round(sum(n * (share if _EXPERTS.search(name) else 1.0) for name, n in sizes))


def _gguf_head(gguf: GGUF, has_first_layer: bool) -> Head | None:
    """The keys are those that llama.cpp reads (src/models/eagle3.cpp, dflash.cpp, gemma4-assistant.cpp)."""
    architecture = gguf.architecture
    method = _GGUF_HEADS.get(architecture)
    if method is None:
        # A file of the layers for multi-token prediction alone, split off its model.
        if has_first_layer or not gguf.integer(f"{architecture}.nextn_predict_layers"):
            return None
        hidden_size = gguf.integer(f"{architecture}.embedding_length")
        return Head("MTP", hidden_size, (), gguf.vocab_size)
    key = "embedding_length_out" if method == "MTP" else "target_hidden_size"
    layers = integers(gguf.metadata.get(f"{architecture}.target_layers"))
    return Head(method, gguf.integer(f"{architecture}.{key}"), layers, gguf.vocab_size)


def integers(value: Value | object) -> tuple[int, ...]:
    """The whole numbers of a list from a file; () for anything else."""
    values = value if isinstance(value, list | tuple) else ()
    return tuple(v for v in values if isinstance(v, int) and not isinstance(v, bool))
