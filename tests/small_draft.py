"""A real draft model made out of another: the same file with fewer layers, its tensors copied as they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gguf import GGUFReader, GGUFValueType, GGUFWriter


def write_small_draft(source: Path, path: Path, layers: Sequence[int]) -> Path:
    """Keeps these layers alone, in this order; same vocabulary, same quantisation. Returns `path`."""
    reader = GGUFReader(source)
    architecture = reader.get_field("general.architecture").contents()
    writer: Any = GGUFWriter(path, architecture)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        value = len(layers) if field.name == f"{architecture}.block_count" else field.contents()
        inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, value, field.types[0], inner)
    place = {old: new for new, old in enumerate(layers)}
    for tensor in reader.tensors:
        block = re.match(r"blk\.(\d+)\.(.*)", tensor.name)
        if block is None:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        elif int(block[1]) in place:
            name = f"blk.{place[int(block[1])]}.{block[2]}"
            writer.add_tensor(name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
