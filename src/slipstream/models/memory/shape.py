"""From a header to the numbers that decide what a model needs, block by block.

What a block keeps is read from its tensors rather than from the name of the architecture: a K projection says how wide
a row of the K cache is, whatever the heads are called, and a block without one has no such cache.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from slipstream.errors import ModelError
from slipstream.models.header import GGUF, MAX_BLOCKS, Tensor

from .recurrent import keeps_snapshots, state_widths

Block = Mapping[str, Tensor]
"""Tensors of one block by the rest of their name, such as `attn_k.weight`."""

INPUT: Final = ("token_embd.", "per_layer_token_embd.", "token_types.", "position_embd.")
"""Tensors that rows are fetched from. llama.cpp keeps them in the host's memory."""

WINDOW_EVERY: Final = {"cohere2": 4, "exaone4": 4, "gemma2": 2, "gemma3": 6, "gemma3n": 5, "gpt-oss": 2}
"""Architecture → of so many layers one, the last, has no window, where the file doesn't say (llama.cpp)."""

GEMMA3N_CACHED: Final = 20
"""Its later layers read the caches of these."""

_MAX_NUMBER: Final = 1 << 24
_BLOCK: Final = re.compile(r"blk\.(\d{1,4})\.(.+)")


@dataclass(frozen=True)
class Layer:
    """One block. `k_width`, `v_width`: numbers that a token leaves in the K and the V cache.

    windowed: its attention looks back over the model's window only. conv_width, state_width: numbers of 4 bytes that a
    sequence keeps, whatever its length.
    """

    weights_bytes: int
    repacked_bytes: int
    k_width: int = 0
    v_width: int = 0
    windowed: bool = False
    conv_width: int = 0
    state_width: int = 0


@dataclass(frozen=True)
class Shape:
    """A model as planning sees it. `…repacked_bytes`: what llama.cpp copies in another order where it lies on the CPU.

    layers: the blocks that decoding uses; mtp_layers: those that only multi-token prediction uses.
    tied_bytes: of the token embeddings where they are the output matrix too, of which a GPU gets a copy.
    """

    name: str
    n_embd: int
    n_ff: int
    n_expert_used: int
    n_vocab: int
    n_ctx_train: int
    window: int
    layers: tuple[Layer, ...]
    mtp_layers: tuple[Layer, ...]
    input_bytes: int
    output_bytes: int
    output_repacked_bytes: int
    tied_bytes: int
    keeps_snapshots: bool

    @property
    def is_recurrent(self) -> bool:
        return any(layer.conv_width or layer.state_width for layer in self.layers)

    @property
    def weights_bytes(self) -> int:
        """Of the tensors that decoding uses, each counted once."""
        return self.input_bytes + self.output_bytes + sum(layer.weights_bytes for layer in self.layers)


def read_shape(parts: Sequence[GGUF], repacked: Mapping[str, int]) -> Shape:
    """The shape of a model, whose files of a split set are given in order; the first was read with its arrays.

    repacked: types of tensors that this machine's CPU has in another order, with the rows that go together.
    Raises ModelError for a file that is no language model, or whose numbers cannot be true.
    """
    return _Reader(parts, repacked).read()


class _Reader:
    def __init__(self, parts: Sequence[GGUF], repacked: Mapping[str, int]) -> None:
        self.gguf = parts[0]
        self.repacked = repacked
        self.blocks: dict[int, dict[str, Tensor]] = {}
        self.others: dict[str, Tensor] = {}
        for tensor in (tensor for part in parts for tensor in part.tensors):
            found = _BLOCK.fullmatch(tensor.name)
            if found:
                self.blocks.setdefault(int(found[1]), {})[found[2]] = tensor
            else:
                self.others[tensor.name] = tensor

    def read(self) -> Shape:
        embeddings = self.others.get("token_embd.weight")
        n_layer = self.number("block_count")
        if self.gguf.kind != "model" or embeddings is None or len(embeddings.shape) != 2 or not n_layer:
            raise ModelError(f"{self.gguf.path.name} holds no language model.", "Give a GGUF model that writes text.")
        if n_layer > MAX_BLOCKS:
            raise self.untrue("block_count", n_layer)
        n_mtp = min(self.number("nextn_predict_layers"), n_layer - 1)
        inputs = [tensor for name, tensor in self.others.items() if name.startswith(INPUT)]
        outputs = [tensor for name, tensor in self.others.items() if not name.startswith(INPUT)]
        tied = [] if "output.weight" in self.others else [embeddings]
        return Shape(
            name=self.gguf.name,
            n_embd=embeddings.shape[0],
            n_ff=self.widest_ff(),
            n_expert_used=self.number("expert_used_count"),
            n_vocab=embeddings.shape[1],
            n_ctx_train=self.number("context_length"),
            window=self.number("attention.sliding_window"),
            layers=tuple(self.layer(i, n_layer - n_mtp) for i in range(n_layer - n_mtp)),
            mtp_layers=tuple(self.layer(i, n_layer) for i in range(n_layer - n_mtp, n_layer)),
            input_bytes=sum(map(self.size, inputs)),
            output_bytes=sum(map(self.size, outputs)),
            output_repacked_bytes=sum(map(self.repacked_size, [*outputs, *tied])),
            tied_bytes=sum(map(self.size, tied)),
            keeps_snapshots=keeps_snapshots(self.gguf.architecture),
        )

    def layer(self, i: int, n_layer: int) -> Layer:
        block = self.blocks.get(i, {})
        k_width, v_width = self.cache_widths(i, block) if self.has_cache(i, n_layer) else (0, 0)
        conv_width, state_width = state_widths(block, self.number, self.at)
        return Layer(
            weights_bytes=sum(map(self.size, block.values())),
            repacked_bytes=sum(map(self.repacked_size, block.values())),
            k_width=k_width,
            v_width=v_width,
            windowed=self.is_windowed(i),
            conv_width=conv_width,
            state_width=state_width,
        )

    def cache_widths(self, i: int, block: Block) -> tuple[int, int]:
        latent = block.get("attn_kv_a_mqa.weight")
        if latent is not None and "attn_k_b.weight" in block:
            return _width(latent), 0  # V is a part of the K row
        n_head = self.at("attention.head_count", i)
        if latent is not None:
            return n_head * self.number("attention.key_length"), n_head * self.number("attention.value_length")
        if "attn_k.weight" in block:
            k = _width(block["attn_k.weight"])
            return k, _width(block["attn_v.weight"]) if "attn_v.weight" in block else k
        # Gated delta nets too call their projection attn_qkv.
        if "attn_qkv.weight" not in block or _any(block, "ssm_"):
            return 0, 0
        n_head_kv = self.at("attention.head_count_kv", i) or n_head
        usual = self.number("embedding_length") // max(n_head, 1)
        key, value = (self.number(f"attention.{kind}_length") or usual for kind in ("key", "value"))
        return n_head_kv * key, n_head_kv * value

    def has_cache(self, i: int, n_layer: int) -> bool:
        if self.gguf.architecture == "gemma3n":
            return i < GEMMA3N_CACHED
        return i < n_layer - self.number("attention.shared_kv_layers")

    def is_windowed(self, i: int) -> bool:
        if not self.number("attention.sliding_window"):
            return False
        key = f"{self.gguf.architecture}.attention.sliding_window_pattern"
        said = self.gguf.metadata.get(key)
        if isinstance(said, tuple):
            return i < len(said) and bool(said[i])
        every = self.gguf.integer(key) or WINDOW_EVERY.get(self.gguf.architecture, 1)
        return every > 1 and i % every < every - 1

    def widest_ff(self) -> int:
        """Numbers a token in the widest of the feed-forward layers, where several experts count as one."""
        dense = max((self.at("feed_forward_length", i) for i in self.blocks), default=0)
        experts = self.number("expert_feed_forward_length") * self.number("expert_used_count")
        is_dense = any("ffn_up.weight" in block for block in self.blocks.values())
        return max(dense if is_dense or not experts else 0, experts)

    def at(self, key: str, i: int) -> int:
        """A number of layer `i`, where the file has one for each layer or one for all."""
        value = self.gguf.metadata.get(f"{self.gguf.architecture}.{key}")
        if isinstance(value, tuple):
            value = value[i] if i < len(value) else 0
        return self.checked(key, value)

    def number(self, key: str) -> int:
        return self.checked(key, self.gguf.integer(f"{self.gguf.architecture}.{key}"))

    def checked(self, key: str, value: object) -> int:
        if value is None:
            return 0
        if not isinstance(value, int) or not 0 <= value <= _MAX_NUMBER:
            raise self.untrue(key, value)
        return value

    def untrue(self, key: str, value: object) -> ModelError:
        said = f"{self.gguf.path.name} is damaged: {self.gguf.architecture}.{key} is {str(value)[:40]}."
        return ModelError(said, "Fetch the file again.")

    def size(self, tensor: Tensor) -> int:
        size = tensor.size_bytes
        if size is None:
            said = f"{self.gguf.path.name} holds the unknown tensor {tensor.type_name}."
            raise ModelError(said, "A newer release of slipstream may know it.")
        return size

    def repacked_size(self, tensor: Tensor) -> int:
        """Matrices that activations are multiplied with; of three dimensions only those of experts."""
        rows = self.repacked.get(tensor.type_name)
        n_dimensions = 3 if "_exps." in tensor.name else 2
        fits = rows and len(tensor.shape) == n_dimensions and tensor.shape[1] % rows == 0
        return self.size(tensor) if fits else 0


def _width(projection: Tensor) -> int:
    return projection.shape[-1] if projection.shape else 0


def _any(names: Collection[str], prefix: str) -> bool:
    return any(name.startswith(prefix) for name in names)
