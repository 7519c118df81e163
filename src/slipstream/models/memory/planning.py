"""Which part of which model lies on which device, as llama.cpp shares it out, and whether that is room enough."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from slipstream.models.hardware import Machine

from .buffers import PIPELINED, compute_bytes, input_bytes, output_bytes
from .cache import Context, kv_bytes, state_bytes
from .shape import Layer, Shape

CPU: Final = 0
OF_A_CONTEXT: Final = ("KV cache", "recurrent state", "compute buffers", "outputs")
"""Parts that each context of a model has; they share the weights."""


@dataclass(frozen=True)
class Part:
    """One line of the plan: what it is, of which model ("target", "draft" or "mtp"), on which device."""

    model: str
    name: str
    device: str
    n_bytes: int


@dataclass(frozen=True)
class Measurement:
    """Bytes of all layers together, on the CPU, as llama.cpp's log has them: rounded to hundredths of a MiB."""

    kv_bytes: int
    state_bytes: int
    compute_bytes: int


@dataclass(frozen=True)
class Load:
    """A model, the context it gets, and the layers to be kept on GPUs, −1 for all.

    measured: replaces estimates of one context. n_contexts: how many such contexts it gets.
    """

    shape: Shape
    context: Context
    n_gpu_layers: int = -1
    measured: Measurement | None = None
    n_contexts: int = 1


@dataclass(frozen=True)
class Setup:
    """What is to be loaded where. mtp: a second context of the target, for its own layers of multi-token prediction."""

    machine: Machine
    target: Load
    draft: Load | None = None
    mtp: bool = False

    @property
    def drafts(self) -> bool:
        """Whether anything that takes memory drafts."""
        return self.draft is not None or self.mtp


@dataclass(frozen=True)
class MemoryPlan:
    """What lies where. `devices` are those of the machine, the CPU's memory first."""

    parts: tuple[Part, ...]
    machine: Machine

    def used_bytes(self, device: str) -> int:
        return sum(part.n_bytes for part in self.parts if part.device == device)

    @property
    def missing_bytes(self) -> int:
        """By how much devices are too small, all together; 0 if everything fits."""
        return sum(max(self.used_bytes(d.name) - d.usable_bytes, 0) for d in self.machine.devices)

    @property
    def fits(self) -> bool:
        return self.missing_bytes == 0

    @property
    def total_bytes(self) -> int:
        return sum(part.n_bytes for part in self.parts)


def plan(setup: Setup) -> MemoryPlan:
    """Where a target and what drafts for it would lie.

    Layers go to GPUs in proportion to the memory that is free on each when the model is loaded, the target first.
    Without a GPU everything lies in the machine's memory.
    """
    machine = setup.machine
    free = [device.usable_bytes for device in machine.devices]
    parts = list(_parts("target", setup.target, machine, free, setup.mtp))
    if setup.draft is not None:
        used = MemoryPlan(tuple(parts), machine)
        left = [max(n - used.used_bytes(d.name), 0) for n, d in zip(free, machine.devices, strict=True)]
        parts += _parts("draft", setup.draft, machine, left, False)
    return MemoryPlan(tuple(part for part in parts if part.n_bytes), machine)


def _parts(model: str, load: Load, machine: Machine, free_bytes: Sequence[int], mtp: bool) -> Iterator[Part]:
    shape, context, known = load.shape, load.context, load.measured
    layers = [*shape.layers, *(shape.mtp_layers if mtp else ())]
    where = place(len(layers), free_bytes, load.n_gpu_layers)
    caches = [kv_bytes(layer, shape, context) for layer in layers]
    states = [state_bytes(layer, shape, context) for layer in shape.layers]
    n = len(shape.layers)
    sizes = {
        "weights": _by_device(where, _weights(shape, layers, where)),
        # Memory that GPU and CPU share is computed on by the GPU, which repacks nothing.
        "repacked weights": {CPU: 0 if machine.shared else _repacked(shape, layers, where)},
        "KV cache": _by_device(where, _scaled(caches[:n], known.kv_bytes if known else None)),
        "recurrent state": _by_device(where, _scaled(states, known.state_bytes if known else None)),
        "compute buffers": _buffers(load, where),
        "outputs": {CPU: output_bytes(shape, context)},
    }
    own = {
        "KV cache": _by_device(where[n:], caches[n:]),
        "compute buffers": {where[-1]: compute_bytes(shape, context)},
        "outputs": {CPU: output_bytes(shape, context)},
    }
    for owner, table in ((model, sizes), *((("mtp", own),) if mtp else ())):
        for name, by_device in table.items():
            n = load.n_contexts if name in OF_A_CONTEXT else 1
            for device, n_bytes in by_device.items():
                yield Part(owner, name, machine.devices[device].name, n * n_bytes)


def place(n_layer: int, free_bytes: Sequence[int], n_gpu_layers: int) -> list[int]:
    """The device of each layer, 0 being the CPU, and last that of the output (llama.cpp, `load_tensors`).

    free_bytes: of each device, the CPU first.
    """
    total = sum(free_bytes[1:])
    n_gpu = n_layer + 1 if n_gpu_layers < 0 else min(n_gpu_layers, n_layer + 1)
    if len(free_bytes) == 1 or not n_gpu:
        return [CPU] * (n_layer + 1)
    if not total:
        free_bytes, total = [0, *(1 for _ in free_bytes[1:])], len(free_bytes) - 1
    ends = [end / total for end in accumulate(free_bytes[1:])]
    start = n_layer + 1 - n_gpu
    last = len(ends) - 1
    return [CPU if i < start else 1 + min(bisect_right(ends, (i - start) / n_gpu), last) for i in range(n_layer + 1)]


def _weights(shape: Shape, layers: Sequence[Layer], where: Sequence[int]) -> list[int]:
    copied = shape.tied_bytes if where[-1] != CPU else 0
    return [*(layer.weights_bytes for layer in layers), shape.output_bytes + copied, shape.input_bytes]


def _repacked(shape: Shape, layers: Sequence[Layer], where: Sequence[int]) -> int:
    sizes = [*(layer.repacked_bytes for layer in layers), shape.output_repacked_bytes]
    return sum(size for size, device in zip(sizes, where, strict=True) if device == CPU)


def _buffers(load: Load, where: Sequence[int]) -> dict[int, int]:
    shape, context = load.shape, load.context
    used = sorted(set(where))
    if used == [CPU] and load.measured:
        return {CPU: load.measured.compute_bytes}
    n_copies = PIPELINED if len(used) > 1 and CPU not in used else 1
    host = {} if CPU in used else {CPU: input_bytes(shape, context)}
    return host | {
        device: compute_bytes(shape, context, has_output=device == where[-1], n_copies=n_copies) for device in used
    }


def _by_device(where: Sequence[int], sizes: Sequence[int]) -> dict[int, int]:
    """Sums by device. Of more sizes than places the last, the input's, lies on the CPU; fewer leave out the output."""
    devices = [*where, CPU][: len(sizes)]
    return {
        device: sum(size for size, at in zip(sizes, devices, strict=True) if at == device)
        for device in sorted(set(devices))
    }


def _scaled(sizes: Sequence[int], total: int | None) -> list[int]:
    """Sizes in the same proportion that make up a total that was measured."""
    held = sum(sizes)
    return [size * total // held for size in sizes] if total is not None and held else list(sizes)
