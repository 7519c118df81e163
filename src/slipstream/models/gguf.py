"""Reads GGUF headers: metadata and the list of tensors, never the weights.

Read here rather than with the `gguf` package, whose GGUFReader visits every token of the vocabulary
as an array of its own and so takes 2 to 8 seconds on files that this reader knows in about 0.1.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Final

from slipstream.errors import ModelError
from slipstream.models.header import GGUF, Skipped, Tensor, Value

__all__ = ["GGUF", "Skipped", "Tensor", "Value", "parse_header", "read_gguf"]

_MAX_HEADER_BYTES: Final = 1 << 28
_MAX_ARRAY: Final = 1 << 24
_MAX_NESTING: Final = 3
_MAX_DIMENSIONS: Final = 4
_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING: Final = 8
_ARRAY: Final = 9
_UNREAD: Final = frozenset({"tokenizer.ggml.merges"})
_CUT_SHORT: Final = "The download was probably cut short: fetch the file again."


def read_gguf(path: Path, *, arrays: bool = True) -> GGUF:
    """Read a file's header. Without `arrays`, those of the metadata are `Skipped`, which is quicker.

    Raises ModelError for a file that is missing, no GGUF, of another version or byte order, or damaged,
    also when the file ends before its last tensor does.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size == 0:
                raise ModelError(f"{path.name} is empty.", _CUT_SHORT)
            with mmap.mmap(file.fileno(), min(size, _MAX_HEADER_BYTES), access=mmap.ACCESS_READ) as data:
                return parse_header(path, data, size, arrays=arrays)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        hint = "Check the path and its permissions."
        raise ModelError(f"{path} cannot be read: {reason}.", hint) from error


def parse_header(path: Path, data: mmap.mmap, size_bytes: int, *, arrays: bool = True) -> GGUF:
    """The header at the beginning of a file, of which `data` holds the first bytes and `size_bytes` is the size.

    Arrays and errors as in `read_gguf`; the path only gives the name.
    """
    return _Reader(path, data, size_bytes).read(arrays)


class _Damaged(Exception):
    """A number in the header that cannot be true."""


class _Reader:
    def __init__(self, path: Path, data: mmap.mmap, size: int) -> None:
        self.path, self.data, self.size, self.at = path, data, size, 0

    def read(self, arrays: bool) -> GGUF:
        self._check_magic()
        try:
            n_tensors, n_values = self._take("<QQ")
            self._room(n_tensors, 24, "tensors")
            self._room(n_values, 13, "metadata entries")
            metadata = dict(self._entry(arrays) for _ in range(n_values))
            tensors = tuple(self._tensor() for _ in range(n_tensors))
        except (struct.error, OverflowError):
            raise ModelError(f"{self.path.name} ends inside its header.", _CUT_SHORT) from None
        except _Damaged as error:
            raise ModelError(f"{self.path.name} is damaged: {error}.", "Fetch the file again.") from None
        gguf = GGUF(self.path, metadata, tensors, self.size)
        self._check_data(gguf)
        return gguf

    def _check_magic(self) -> None:
        name, start = self.path.name, self.data[:8]
        if start[:4] != b"GGUF":
            if self.data[:24] == b"version https://git-lfs.":
                raise ModelError(f"{name} is a Git LFS pointer, not the model.", "Run `git lfs pull`.")
            hint = "Give a .gguf file; `slipstream models` lists those on this machine."
            raise ModelError(f"{name} is not a GGUF file.", hint)
        if len(start) < 8:
            raise ModelError(f"{name} ends inside its header.", _CUT_SHORT)
        self.at = 8
        little, big = (int.from_bytes(start[4:], order) for order in ("little", "big"))
        if little in (2, 3):
            return
        if big < 1 << 16 <= little:
            raise ModelError(f"{name} is a big-endian GGUF file.", "Convert it for little-endian machines.")
        hint = "Convert it anew." if little < 2 else "A newer release of slipstream may read it."
        raise ModelError(f"{name} has GGUF version {little}; versions 2 and 3 can be read.", hint)

    def _check_data(self, gguf: GGUF) -> None:
        alignment = gguf.integer("general.alignment") or 32
        if alignment <= 0:
            raise ModelError(f"{self.path.name} is damaged: alignment {alignment}.", "Fetch the file again.")
        start = -(-self.at // alignment) * alignment
        ends = (t.offset + size for t in gguf.tensors if (size := t.size_bytes) is not None)
        end = start + max(ends, default=-start)
        if end > self.size:
            said = f"{self.path.name} is truncated: {self.size:,} bytes of at least {end:,}."
            raise ModelError(said, _CUT_SHORT)

    def _take(self, layout: str) -> tuple[int, ...]:
        values = struct.unpack_from(layout, self.data, self.at)
        self.at += struct.calcsize(layout)
        return values

    def _room(self, count: int, least_bytes: int, what: str) -> None:
        if count > _MAX_ARRAY or count * least_bytes > len(self.data) - self.at:
            raise _Damaged(f"it claims {count:,} {what}, more than can be in it")

    def _string(self) -> str:
        (length,) = self._take("<Q")
        self._room(length, 1, "characters in one string")
        self.at += length
        return str(self.data[self.at - length : self.at], "utf-8", "replace")

    def _entry(self, arrays: bool) -> tuple[str, Value]:
        key = self._string()
        (kind,) = self._take("<I")
        if kind == _STRING:
            return key, self._string()
        if kind == _ARRAY:
            return key, self._array(arrays and key not in _UNREAD)
        if kind not in _SCALARS:
            raise _Damaged(f"{key[:80]!r} is of the unknown type {kind}")
        return key, self._take("<" + _SCALARS[kind])[0]

    def _array(self, keep: bool, depth: int = 1) -> Value:
        kind, count = self._take("<IQ")
        if kind in _SCALARS:
            width = struct.calcsize(_SCALARS[kind])
            self._room(count, width, "values in one array")
            if keep:
                return self._take(f"<{count}{_SCALARS[kind]}")
            self.at += count * width
            return Skipped(count)
        if kind == _STRING:
            self._room(count, 8, "strings in one array")
            return self._strings(count) if keep else self._skip_strings(count)
        if kind != _ARRAY or depth == _MAX_NESTING:
            raise _Damaged(f"an array holds the unknown type {kind}, or is nested too deep")
        self._room(count, 12, "arrays in one array")
        inner = tuple(self._array(keep, depth + 1) for _ in range(count))
        return inner if keep else Skipped(count)

    def _strings(self, count: int) -> tuple[str, ...]:
        data, at, unpack = self.data, self.at, struct.Struct("<Q").unpack_from
        texts: list[str] = []
        for _ in range(count):
            at += 8
            end = at + unpack(data, at - 8)[0]
            texts.append(str(data[at:end], "utf-8", "replace"))
            at = end
        self._move(at)
        return tuple(texts)

    def _skip_strings(self, count: int) -> Skipped:
        data, at, unpack = self.data, self.at, struct.Struct("<Q").unpack_from
        for _ in range(count):
            at += 8 + unpack(data, at)[0]
        self._move(at)
        return Skipped(count)

    def _move(self, at: int) -> None:
        if at > len(self.data):
            raise _Damaged("a string reaches beyond its end")
        self.at = at

    def _tensor(self) -> Tensor:
        name = self._string()
        (n_dimensions,) = self._take("<I")
        if n_dimensions > _MAX_DIMENSIONS:
            raise _Damaged(f"tensor {name[:80]!r} has {n_dimensions} dimensions")
        shape = self._take(f"<{n_dimensions}Q")
        kind, offset = self._take("<IQ")
        return Tensor(name, shape, kind, offset)
