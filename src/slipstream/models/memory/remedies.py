"""What to do where a plan does not fit: changes of it that do, each planned anew, and one sentence that sums it up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from slipstream.models.hardware import GIB

from .cache import CELLS, Context
from .planning import Load, MemoryPlan, Setup, plan

MIN_CTX: Final = 2048
"""A shorter context is no remedy."""

MIN_DRAFT_BYTES: Final = 1 << 28
"""A smaller draft is no draft."""

WORTH_MORE: Final = 1.5
"""A dearer change must leave so many times the context, or the layers on GPUs, that a milder one leaves."""

QUANTIZED_OPTIONS: Final = "--cache-type-k q8_0 --cache-type-v q8_0"


@dataclass(frozen=True)
class Remedy:
    """A change after which it fits: in words, as options of `slipstream run`; and the bytes then used in all."""

    change: str
    options: str
    total_bytes: int


@dataclass(frozen=True)
class Advice:
    """verdict: "fits", "fits with changes" or "doesn't fit"; sentence: the same for a person; notes: what else to know.

    Each remedy is enough by itself; they come in the order of what they cost.
    """

    verdict: str
    sentence: str
    remedies: tuple[Remedy, ...] = ()
    notes: tuple[str, ...] = ()


def advise(setup: Setup) -> Advice:
    """The verdict on a setup.

    Where the target has room alone and only a draft is too much, it says so: a draft gains less than a coarser target
    loses.
    """
    whole, notes = plan(setup), tuple(_notes(setup))
    if whole.fits:
        return Advice("fits", f"Fits: {_free(whole)}.", (), notes)
    too_much = f"{_gib(whole.missing_bytes)} too much"
    remedies = _remedies(setup)
    if not remedies:
        said = f"Doesn't fit: {too_much}, and no change of options helps. Take a coarser or a smaller target."
        return Advice("doesn't fit", said, (), notes)
    said = f"Fits with changes: {too_much} as it is, and each of these mends it, as options of `slipstream run`."
    if setup.drafts and plan(_without_draft(setup)).fits:
        said += " The target has room alone: take no coarser one for a draft."
    return Advice("fits with changes", said, remedies, notes)


# Which changes are tried


def _remedies(asked: Setup) -> tuple[Remedy, ...]:
    """The remedies of the mildest kind that has any."""
    return next(filter(None, map(tuple, _kinds(asked))), ())


def _kinds(asked: Setup) -> Iterator[Iterator[Remedy]]:
    """By what they cost: nothing; one change, then two; a shorter context or layers off the GPU; both of these.

    None has a longer context than the target was trained for.
    """
    start = _shorter(asked, asked.target.shape.n_ctx_train or asked.target.context.n_ctx)
    yield _tried(asked, [start])
    one = _one_change(start)
    yield _one(asked, start, one)
    two = [_quantized(setup) for setup in one if setup.target == start.target] if _is_plain(start) else []
    yield _tried(asked, two)
    every = [start, *one, *two]
    yield _less(asked, every)
    yield _most(asked, [_layers(setup, 0) for setup in every if _may_leave(setup)], _longest)


def _one_change(setup: Setup) -> list[Setup]:
    """A quantised cache; the draft on the CPU; no draft, for n-grams draft without memory."""
    changed = [_quantized(setup)] if _is_plain(setup) else []
    if setup.draft and setup.draft.n_gpu_layers and len(setup.machine.devices) > 1:
        changed.append(replace(setup, draft=replace(setup.draft, n_gpu_layers=0)))
    return [*changed, _without_draft(setup)] if setup.drafts else changed


def _one(asked: Setup, start: Setup, changed: Sequence[Setup]) -> Iterator[Remedy]:
    yield from _tried(asked, changed)
    if start.draft is not None:
        yield from _smaller_draft(asked, start)


def _less(asked: Setup, setups: Sequence[Setup]) -> Iterator[Remedy]:
    yield from _most(asked, setups, _longest)
    for drafts in (True, False):  # a draft on the CPU may gain nothing
        yield from _most(asked, [s for s in setups if s.drafts is drafts and _may_leave(s)], _most_layers)


def _most(
    asked: Setup, setups: Sequence[Setup], search: Callable[[Setup], tuple[int, Setup] | None]
) -> Iterator[Remedy]:
    """What is left after each setup, the mildest first, where it is worth more than what a milder one leaves."""
    best: int | None = None
    for found in filter(None, map(search, setups)):
        if best is None or (found[0] > best and found[0] >= WORTH_MORE * best):
            best = found[0]
            yield from _tried(asked, [found[1]])


def _longest(setup: Setup) -> tuple[int, Setup] | None:
    """The longest context that fits, in tokens a sequence."""
    low, high = MIN_CTX // CELLS, (setup.target.context.n_ctx - 1) // CELLS
    if high < low or not plan(_shorter(setup, low * CELLS)).fits:
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if plan(_shorter(setup, middle * CELLS)).fits else (low, middle - 1)
    return low * CELLS, _shorter(setup, low * CELLS)


def _most_layers(setup: Setup) -> tuple[int, Setup] | None:
    counts = reversed(range(_n_layers(setup)))
    return next(((n, _layers(setup, n)) for n in counts if plan(_layers(setup, n)).fits), None)


def _may_leave(setup: Setup) -> bool:
    """Whether layers of the target may leave the GPU: never for a draft that stays there."""
    return len(setup.machine.devices) > 1 and (setup.draft is None or setup.draft.n_gpu_layers == 0)


def _smaller_draft(asked: Setup, start: Setup) -> Iterator[Remedy]:
    """What the GPUs, or the machine's memory, have left beside the target, if it is room for any draft."""
    alone = plan(_without_draft(start))
    devices = start.machine.devices[1:] or start.machine.devices
    room = sum(device.usable_bytes - alone.used_bytes(device.name) for device in devices)
    if alone.fits and room >= MIN_DRAFT_BYTES:
        change = f"a smaller draft, of {_gib(room)} at most with its cache and buffers"
        yield _told([(change, "--draft MODEL"), *_differences(asked, start)], alone.total_bytes + room)


# How a setup is changed


def _without_draft(setup: Setup) -> Setup:
    return replace(setup, draft=None, mtp=False)


def _is_plain(setup: Setup) -> bool:
    """Whether the caches are not quantised yet."""
    return setup.target.context.type_k == setup.target.context.type_v == "F16"


def _quantized(setup: Setup) -> Setup:
    return _changed(setup, lambda context: replace(context, type_k="Q8_0", type_v="Q8_0"))


def _shorter(setup: Setup, n_ctx: int) -> Setup:
    if n_ctx >= setup.target.context.n_ctx:
        return setup
    return _changed(setup, lambda context: replace(context, n_ctx=n_ctx))


def _layers(setup: Setup, n: int) -> Setup:
    return replace(setup, target=replace(setup.target, n_gpu_layers=n))


def _n_layers(setup: Setup) -> int:
    """Those that `--gpu-layers` counts: the output is one."""
    return len(setup.target.shape.layers) + 1


def _changed(setup: Setup, change: Callable[[Context], Context]) -> Setup:
    """The setup with other contexts, of which nothing was measured."""

    def changed(load: Load) -> Load:
        return replace(load, context=change(load.context), measured=None)

    return replace(setup, target=changed(setup.target), draft=setup.draft and changed(setup.draft))


# What is said of it


def _tried(asked: Setup, setups: Sequence[Setup]) -> Iterator[Remedy]:
    for setup in setups:
        after = plan(setup)
        if after.fits:
            yield _told(list(_differences(asked, setup)), after.total_bytes)


def _told(differences: Sequence[tuple[str, str]], total_bytes: int) -> Remedy:
    *first, last = (change for change, _ in differences)
    change = f"{', '.join(first)} and {last}" if first else last
    return Remedy(change, " ".join(options for _, options in differences), total_bytes)


def _differences(asked: Setup, setup: Setup) -> Iterator[tuple[str, str]]:
    """Each change of what was asked for, in words and as options."""
    before, after = asked.target, setup.target
    n_ctx, n, n_all = after.context.n_ctx, after.n_gpu_layers, _n_layers(asked)
    if asked.drafts and not setup.drafts:
        yield "n-gram drafting instead of the draft", "--draft suffix"
    if asked.draft and setup.draft and asked.draft.n_gpu_layers != setup.draft.n_gpu_layers:
        yield "the draft on the CPU", "--draft-gpu-layers 0"
    if _is_plain(asked) and not _is_plain(setup):
        yield "a quantised KV cache", QUANTIZED_OPTIONS
    if n_ctx != before.context.n_ctx:
        yield f"a context of {n_ctx:,} tokens", f"--ctx {n_ctx}"
    if n != before.n_gpu_layers:
        where = f"{n} of the target's {n_all} layers on the GPU" if n else "the target on the CPU"
        yield f"{where}, which is slower", f"--gpu-layers {n}"


def _notes(setup: Setup) -> Iterator[str]:
    for role, load, loss in ("target", setup.target, "writes"), ("draft", setup.draft, "drafts"):
        n_trained = load.shape.n_ctx_train if load else 0
        if load and 0 < n_trained < load.context.n_ctx:
            yield f"The {role} was trained for {n_trained:,} tokens of context; beyond them it {loss} worse."


def _free(whole: MemoryPlan) -> str:
    """What is left of each device, the GPUs first."""
    cpu, *gpus = whole.machine.devices
    left = [(_gib(d.usable_bytes - whole.used_bytes(d.name)), d.name) for d in (*gpus, cpu)]
    return ", ".join(f"{n} {'on' if i else 'stay free on'} {name}" for i, (n, name) in enumerate(left))


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / GIB:.1f} GiB"
