"""The memory of this machine: its own and that of its GPUs. Where nothing is found there is nothing, and no error."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from slipstream.errors import InputError

GIB: Final = 1 << 30
MIB: Final = 1 << 20

GPU_RESERVE_BYTES: Final = 512 * MIB
"""What a driver's context, its kernels and the screen take of a GPU: a round figure, which differs by driver."""

UNITS: Final = {"": GIB, "g": GIB, "gib": GIB, "gb": 10**9, "m": MIB, "mib": MIB, "mb": 10**6}

X86_REPACKED: Final = {"Q4_0": 8, "Q4_K": 8, "IQ4_NL": 8, "MXFP4": 8}
ARM_REPACKED: Final = {"Q4_0": 4, "Q4_K": 8, "Q5_K": 8, "Q6_K": 8, "Q8_0": 4, "IQ4_NL": 4, "MXFP4": 4}
"""Types that llama.cpp's kernels for the CPU want in another order → rows that go together (repack.cpp)."""

_SIZE: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*([a-z]*)", re.IGNORECASE)
_SYSFS: Final = Path("/sys/class/drm")
_APPLE_SHARE: Final = 0.75


@dataclass(frozen=True)
class Device:
    """Memory that models can lie in. free_bytes: what nobody uses now. reserve_bytes: what our own driver will take.

    usable_bytes: what is left for models.
    """

    name: str
    total_bytes: int
    free_bytes: int
    reserve_bytes: int = 0

    @property
    def usable_bytes(self) -> int:
        return max(self.free_bytes - self.reserve_bytes, 0)


@dataclass(frozen=True)
class Machine:
    """Devices, the CPU's memory first. shared: the GPU has no memory of its own, and there is one device for both.

    repacked: types of tensors that the CPU gets in another order → rows that go together.
    """

    devices: tuple[Device, ...]
    shared: bool = False
    repacked: Mapping[str, int] = field(default_factory=dict)


def this_machine() -> Machine:
    """What there is here, found by psutil, NVIDIA's library, and AMD's files in /sys."""
    memory = _memory()
    if sys.platform == "darwin" and platform.machine() == "arm64":
        usable = int(memory.total_bytes * _APPLE_SHARE)
        return Machine((Device("unified memory", usable, min(usable, memory.free_bytes)),), shared=True)
    return Machine((memory, *(nvidia() or amd())), repacked=_repacked())


def with_gpus(text: str) -> Machine:
    """This machine, but with GPUs of these sizes, as in "24GiB,24GiB", all of them free; "auto" takes what is there.

    Raises InputError for text that names no sizes.
    """
    if text.strip().lower() == "auto":
        return this_machine()
    sizes = [_size(part.strip()) for part in text.split(",")]
    gpus = (Device(f"GPU{i}", size, size, GPU_RESERVE_BYTES) for i, size in enumerate(sizes))
    return Machine((_memory(), *gpus), repacked=_repacked())


def nvidia(library: Any = None) -> tuple[Device, ...]:
    """NVIDIA's cards; none without its library or driver."""
    try:
        library = library or _pynvml()
        library.nvmlInit()
    except Exception:  # of the library's own kind, where it is installed at all
        return ()
    try:
        return tuple(_nvidia_cards(library))
    except library.NVMLError:
        return ()
    finally:
        library.nvmlShutdown()


def amd(folder: Path = _SYSFS) -> tuple[Device, ...]:
    """AMD's cards, as Linux tells of them."""
    found: list[Device] = []
    for card in sorted(folder.glob("card[0-9]*/device/mem_info_vram_total")):
        total, used = _number(card), _number(card.with_name("mem_info_vram_used"))
        if total:
            found.append(Device(f"ROCm{len(found)}", total, max(total - used, 0), GPU_RESERVE_BYTES))
    return tuple(found)


def _pynvml() -> Any:
    import pynvml

    return pynvml


def _nvidia_cards(library: Any) -> Iterator[Device]:
    for i in _visible(library.nvmlDeviceGetCount()):
        memory = library.nvmlDeviceGetMemoryInfo(library.nvmlDeviceGetHandleByIndex(i))
        yield Device(f"CUDA{i}", int(memory.total), int(memory.free), GPU_RESERVE_BYTES)


def _visible(n_cards: int) -> list[int]:
    """The cards that CUDA shows to programs; names other than numbers are left alone."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if not re.fullmatch(r"-?\d+(,-?\d+)*", named):
        return list(range(n_cards))
    return [i for i in map(int, named.split(",")) if 0 <= i < n_cards]


def _memory() -> Device:
    import psutil

    memory = psutil.virtual_memory()
    return Device("CPU", int(memory.total), int(memory.available))


def _repacked() -> Mapping[str, int]:
    return {"x86_64": X86_REPACKED, "amd64": X86_REPACKED, "aarch64": ARM_REPACKED, "arm64": ARM_REPACKED}.get(
        platform.machine().lower(), {}
    )


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text)
    unit = UNITS.get(found[2].lower()) if found else None
    size = int(float(found[1]) * unit) if found and unit else 0
    if not MIB <= size < 1 << 50:
        raise InputError(f"--gpu {text[:40]!r} is no size of a GPU's memory.", "Write --gpu 24GiB,24GiB, or auto.")
    return size


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0
