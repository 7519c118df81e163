"""What to do where a plan does not fit: changes of it that do, each planned anew, and one sentence that sums it up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from slipstream.models.hardware import GIB

from .cache import CELLS, Context
from .planning import Load, MemoryPlan, Setup, plan

MIN_CTX: Final = 2048
"""A shorter context is no remedy."""

MIN_DRAFT_BYTES: Final = 1 << 28
"""A smaller draft is no draft."""


@dataclass(frozen=True)
class Remedy:
    """A change after which it fits: in words, as options of `slipstream run`; and the bytes then used in all."""

    change: str
    options: str
    total_bytes: int


@dataclass(frozen=True)
class Advice:
    """verdict: "fits", "fits with changes" or "doesn't fit"; sentence: the same for a person."""

    verdict: str
    sentence: str
    remedies: tuple[Remedy, ...] = ()


def advise(setup: Setup) -> Advice:
    """The verdict on a setup. Each remedy is enough by itself; they come in the order in which to think of them.

    Where the target has room alone and only a draft is too much, drafting without a model comes first: a draft gains
    less than a coarser target loses.
    """
    whole = plan(setup)
    if whole.fits:
        return Advice("fits", f"Fits: {_tightest(whole)}.")
    remedies = tuple(_remedies(setup))
    too_much = f"{_gib(whole.missing_bytes)} too much"
    if not remedies:
        said = f"Doesn't fit: {too_much}, and no change of options helps. Take a coarser or a smaller target."
        return Advice("doesn't fit", said)
    said = f"Fits with changes: {too_much} as it is, and each of these mends it."
    if setup.drafts and plan(_without_draft(setup)).fits:
        said += " The target has room alone: take no coarser one for a draft."
    return Advice("fits with changes", said, remedies)


def _remedies(setup: Setup) -> Iterator[Remedy]:
    alone = _without_draft(setup)
    if setup.drafts:
        yield from _tried("n-gram drafting instead of the draft", "--draft suffix", alone)
    if setup.draft is not None:
        yield from _smaller_draft(setup, setup.draft)
    if _is_plain(setup):
        yield from _tried("a quantised KV cache", QUANTIZED_OPTIONS, _quantized(setup))
    yield from _shorter_context("a context of {} tokens", "", setup)
    yield from _fewer_layers(setup)
    if setup.drafts and not plan(alone).fits:
        yield from _shorter_context("n-gram drafting and a context of {} tokens", "--draft suffix ", alone)
    if _is_plain(setup) and not plan(_quantized(alone)).fits:
        change = "n-gram drafting, a quantised KV cache and a context of {} tokens" if setup.drafts else SHORT_QUANTIZED
        options = f"{'--draft suffix ' if setup.drafts else ''}{QUANTIZED_OPTIONS} "
        yield from _shorter_context(change, options, _quantized(alone))


QUANTIZED_OPTIONS: Final = "--cache-type-k q8_0 --cache-type-v q8_0"
SHORT_QUANTIZED: Final = "a quantised KV cache and a context of {} tokens"


def _tried(change: str, options: str, changed: Setup) -> Iterator[Remedy]:
    after = plan(changed)
    if after.fits:
        yield Remedy(change, options, after.total_bytes)


def _smaller_draft(setup: Setup, draft: Load) -> Iterator[Remedy]:
    """What the GPUs, or the machine's memory, have left beside the target, if it is room for any draft."""
    alone = plan(_without_draft(setup))
    devices = setup.machine.devices[1:] or setup.machine.devices
    room = sum(device.usable_bytes - alone.used_bytes(device.name) for device in devices)
    if alone.fits and room >= MIN_DRAFT_BYTES:
        change = f"a smaller draft, of {_gib(room)} at most with its cache and buffers"
        yield Remedy(change, "--draft MODEL", alone.total_bytes + room)


def _shorter_context(change: str, options: str, setup: Setup) -> Iterator[Remedy]:
    """The longest context that fits, in tokens a sequence."""
    low, high = MIN_CTX // CELLS, (setup.target.context.n_ctx - 1) // CELLS
    if high < low or not plan(_shorter(setup, low * CELLS)).fits:
        return
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if plan(_shorter(setup, middle * CELLS)).fits else (low, middle - 1)
    n_ctx = low * CELLS
    yield from _tried(change.format(n_ctx), f"{options}--ctx {n_ctx}", _shorter(setup, n_ctx))


def _fewer_layers(setup: Setup) -> Iterator[Remedy]:
    n_all = len(setup.target.shape.layers) + 1
    if len(setup.machine.devices) == 1:
        return
    for n in reversed(range(n_all)):
        changed = replace(setup, target=replace(setup.target, n_gpu_layers=n))
        if plan(changed).fits:
            change = f"{n} of the target's {n_all} layers on the GPU, which is slower"
            options = f"--gpu-layers {n}" + (" --draft-gpu-layers -1" if setup.draft else "")
            yield from _tried(change, options, changed)
            return


def _without_draft(setup: Setup) -> Setup:
    return replace(setup, draft=None, mtp=False)


def _is_plain(setup: Setup) -> bool:
    """Whether the caches are not quantised yet."""
    return setup.target.context.type_k == setup.target.context.type_v == "F16"


def _quantized(setup: Setup) -> Setup:
    return _changed(setup, lambda context: replace(context, type_k="Q8_0", type_v="Q8_0"))


def _shorter(setup: Setup, n_ctx: int) -> Setup:
    return _changed(setup, lambda context: replace(context, n_ctx=min(n_ctx, context.n_ctx)))


def _changed(setup: Setup, change: Callable[[Context], Context]) -> Setup:
    """The setup with other contexts, of which nothing was measured."""

    def changed(load: Load) -> Load:
        return replace(load, context=change(load.context), measured=None)

    return replace(setup, target=changed(setup.target), draft=setup.draft and changed(setup.draft))


def _tightest(whole: MemoryPlan) -> str:
    left, name = min((d.usable_bytes - whole.used_bytes(d.name), d.name) for d in whole.machine.devices)
    return f"{_gib(left)} stay free on {name}"


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / GIB:.1f} GiB"
