"""Reads a model in Hugging Face form: `config.json`, `tokenizer.json` and the headers of its safetensors files.

The files may lie in a folder or in a remote repository, see `Files`. Weights are never read.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol

from slipstream.errors import ModelError
from slipstream.models.description import Description, Head, Method, integers, n_active
from slipstream.models.vocabulary import MAX_TOKENS, Vocabulary

MAX_JSON_BYTES: Final = 1 << 27
MAX_HEADER_BYTES: Final = 100_000_000
"""The largest header that the safetensors format allows."""

MAX_VALUES: Final = 1 << 53
"""Far more than any tensor has."""

_FIRST_BYTES: Final = 1 << 16
_HINT: Final = "Fetch the folder again."
_BITS: Final = {"U8": 8, "I8": 8, "I16": 16, "I32": 32, "U32": 32, "I64": 64}
_RECURRENT: Final = ("linear_conv_kernel_dim", "mamba_d_state", "ssm_state_size", "ssm_cfg")
_MTP_COUNTS: Final = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
_LAYERS: Final = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids", "target_layer_ids")


class Files(Protocol):
    """The files of one model. Names are relative paths with slashes."""

    name: str
    path: Path | None

    def names(self) -> list[str]: ...

    def read(self, name: str, n_bytes: int) -> bytes:
        """The first `n_bytes` of a file, or all of it where it is shorter."""
        ...

    def size_bytes(self, name: str) -> int:
        """Asked only after something of the file was read."""
        ...


class Folder:
    """A folder on this machine."""

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.path: Path | None = path
        self.name = name or path.name
        self._folder = path

    def names(self) -> list[str]:
        return sorted(file.name for file in self._folder.iterdir() if file.is_file())

    def read(self, name: str, n_bytes: int) -> bytes:
        try:
            with (self._folder / name).open("rb") as file:
                return file.read(n_bytes)
        except OSError as error:
            raise ModelError(f"{self._folder / name} cannot be read: {error.strerror}.", _HINT) from None

    def size_bytes(self, name: str) -> int:
        return (self._folder / name).stat().st_size


def is_model_folder(path: Path) -> bool:
    return (path / "config.json").is_file()


def describe_files(files: Files) -> Description:
    """The description of a model in Hugging Face form.

    A head may lack a tokenizer, since it uses its target's. Raises ModelError for what is missing or damaged.
    """
    names = files.names()
    if "config.json" not in names:
        raise ModelError(f"{files.name} holds no config.json.", "Give the folder or repository of one model.")
    outer = _object(files, "config.json")
    config = {**outer, **_inner(outer, "text_config")}
    architecture = next((a for a in _texts(outer.get("architectures"))), str(outer.get("model_type") or "unknown"))
    head = _head(architecture, outer)
    n_rows = _integer(config, "vocab_size")
    if n_rows is not None and not 0 < n_rows <= MAX_TOKENS:
        raise ModelError(f"config.json of {files.name} claims {n_rows:,} tokens.", _HINT)
    shards = _shards(files, names)
    n_experts = max((_integer(config, key) or 0) for key in ("num_local_experts", "num_experts", "n_routed_experts"))
    n_used = _integer(config, "num_experts_per_tok") or 0
    sizes = list(_sizes(shards, outer))
    return Description(
        files.name,
        "Hugging Face",
        architecture,
        n_params=sum(n for _, n in sizes) or None,
        n_active_params=n_active(sizes, n_experts, n_used) or None,
        size_bytes=sum(files.size_bytes(name) for name in shards) or None,
        quantization=_quantization(outer, shards),
        hidden_size=_integer(config, "hidden_size"),
        n_layers=_integer(config, "num_hidden_layers"),
        n_experts=n_experts,
        n_experts_used=n_used,
        n_mtp_layers=0 if head else max((_integer(config, key) or 0) for key in _MTP_COUNTS),
        recurrent=any(key in config for key in _RECURRENT),
        head=head,
        vocabulary=_vocabulary(files, names, config, n_rows, head is not None),
        vocab_size=n_rows,
        path=files.path,
    )


def _vocabulary(
    files: Files, names: list[str], config: Mapping[str, object], n_rows: int | None, may_lack: bool
) -> Vocabulary | None:
    if "tokenizer.json" not in names:
        if may_lack:
            return None
        hint = "Save it with transformers' AutoTokenizer, which writes one, or give the GGUF file."
        raise ModelError(f"{files.name} holds no tokenizer.json.", hint)
    settings = _object(files, "tokenizer_config.json") if "tokenizer_config.json" in names else {}
    return Vocabulary.of_tokenizer(files.name, _object(files, "tokenizer.json"), settings, config, n_rows)


def _head(architecture: str, config: Mapping[str, object]) -> Head | None:
    method = _method(architecture, config)
    if method is None:
        return None
    inner = {**config, **_inner(config, "transformer_layer_config")}
    nested = [config, *(_inner(config, key) for key in ("eagle_config", "dflash_config"))]
    hidden_size = next(
        (n for key in ("target_hidden_size", "backbone_hidden_size") if (n := _integer(config, key)) is not None),
        _integer(inner, "hidden_size"),
    )
    layers = next((found for key in _LAYERS for place in nested if (found := integers(place.get(key)))), ())
    vocab_size = _integer({**inner, **_inner(config, "text_config")}, "vocab_size")
    return Head(method, hidden_size, layers, vocab_size)


def _method(architecture: str, config: Mapping[str, object]) -> Method | None:
    kind = f"{architecture} {config.get('speculators_model_type')}".lower()
    if "eagle3" in kind:
        return "EAGLE-3"
    if "dflash" in kind or "dspark" in kind or "dflash_config" in config:
        return "DFlash"
    return "MTP" if "assistant" in kind or "mtp" in kind else None


def _shards(files: Files, names: list[str]) -> dict[str, dict[str, Mapping[str, object]]]:
    """Header by file: tensor name → what is said of it."""
    return {name: _safetensors(files, name) for name in names if name.endswith(".safetensors") and "/" not in name}


def _safetensors(files: Files, name: str) -> dict[str, Mapping[str, object]]:
    start = files.read(name, _FIRST_BYTES)
    n_bytes = int.from_bytes(start[:8], "little")
    if len(start) < 8 or not 2 <= n_bytes <= min(MAX_HEADER_BYTES, files.size_bytes(name) - 8):
        raise ModelError(f"{name} of {files.name} is no safetensors file, or is cut short.", _HINT)
    text = start[8 : 8 + n_bytes] if len(start) >= 8 + n_bytes else files.read(name, 8 + n_bytes)[8:]
    entries = _parsed(text, f"The header of {name} of {files.name}")
    tensors: dict[str, Mapping[str, object]] = {
        key: value for key, value in entries.items() if key != "__metadata__" and isinstance(value, dict)
    }
    for tensor in tensors.values():
        shape = integers(tensor.get("shape"))
        if any(n < 0 for n in shape) or math.prod(shape) > MAX_VALUES:
            raise ModelError(f"The header of {name} of {files.name} is damaged: no tensor has such a shape.", _HINT)
    return tensors


def _sizes(
    shards: Mapping[str, Mapping[str, Mapping[str, object]]], config: Mapping[str, object]
) -> Iterator[tuple[str, int]]:
    """(tensor name, parameters); packed integers count as the weights they hold."""
    settings = {**_inner(config, "quantization"), **_inner(config, "quantization_config")}
    bits = _integer(settings, "bits")
    for tensors in shards.values():
        for name, tensor in tensors.items():
            n_values = math.prod(integers(tensor.get("shape")))
            packed = _BITS.get(str(tensor.get("dtype")))
            yield name, n_values * packed // bits if bits and 0 < bits <= 8 and packed else n_values


def _quantization(config: Mapping[str, object], shards: Mapping[str, Mapping[str, Mapping[str, object]]]) -> str | None:
    settings = {**_inner(config, "quantization"), **_inner(config, "quantization_config")}
    if settings:
        bits = _integer(settings, "bits")
        method = str(settings.get("quant_method") or "mlx").upper()
        return f"{method} {bits}-bit" if bits else method
    held: Counter[str] = Counter()
    for tensors in shards.values():
        for tensor in tensors.values():
            held[str(tensor.get("dtype"))] += math.prod(integers(tensor.get("shape")))
    return held.most_common(1)[0][0] if held else None


def _object(files: Files, name: str) -> dict[str, object]:
    content = files.read(name, MAX_JSON_BYTES + 1)
    if len(content) > MAX_JSON_BYTES:
        raise ModelError(f"{name} of {files.name} is larger than {MAX_JSON_BYTES >> 20} MiB.", _HINT)
    return _parsed(content, f"{name} of {files.name}")


def _parsed(content: bytes, what: str) -> dict[str, object]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ModelError(f"{what} is damaged.", _HINT)
    return value


def _inner(config: Mapping[str, object], key: str) -> dict[str, object]:
    value = config.get(key)
    return value if isinstance(value, dict) else {}


def _integer(config: Mapping[str, object], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _texts(value: object) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []
