"""`slipstream plan`: whether a model and its draft have room on this machine, or on another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from slipstream.cli.models import printable
from slipstream.cli.options import Ctx, Model
from slipstream.errors import InputError, ModelError

if TYPE_CHECKING:
    from slipstream.models.header import GGUF
    from slipstream.models.memory import Advice, Context, Load, MemoryPlan, Setup, Shape
    from slipstream.runtimes.llamacpp import ContextOptions

GIB: Final = 1 << 30
BAR: Final = 32
"""Characters of a bar of what is used and free."""


def plan(
    model: Model,
    draft: Annotated[
        str, typer.Option("--draft", "-md", help="auto, off, suffix, mtp (layers of the file), or a draft model.")
    ] = "auto",
    ctx: Ctx = None,
    parallel: Annotated[int, typer.Option("--parallel", "-np", help="Sequences, each of the context length.")] = 1,
    kv_type: Annotated[str, typer.Option("--kv-type", help="Type of the KV cache, or of K and V: q8_0,f16.")] = "f16",
    gpu: Annotated[str, typer.Option("--gpu", help="auto, or sizes of GPUs: 24GiB,24GiB.")] = "auto",
    measure: Annotated[
        bool, typer.Option("--measure", help="Ask llama.cpp for caches and buffers; no weights are loaded.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The result as one JSON object.")] = False,
) -> None:
    """Tell from the files' headers what a model and its draft take of memory, and whether they fit.

    A draft of another vocabulary drafts in two ways, by common tokens and by text, with a context for each.
    """
    from slipstream.models.hardware import with_gpus
    from slipstream.models.memory import Setup, advise
    from slipstream.models.memory import plan as planned
    from slipstream.models.pairing import n_draft_contexts
    from slipstream.runtimes.llamacpp import ContextOptions

    type_k, type_v = _types(kv_type)
    asked = ContextOptions(n_ctx=ctx, cache_type_k=type_k, cache_type_v=type_v, n_seq_max=_sequences(parallel))
    machine = with_gpus(gpu)
    speculates = draft != "off"
    parts = _read(model)
    target = _load(parts, asked, speculates, machine.repacked, measure)
    small = None
    if draft not in ("auto", "off", "suffix", "mtp"):
        others = _read(draft)
        small = _load(others, asked, speculates, machine.repacked, measure)
        small = replace(small, n_contexts=n_draft_contexts(parts[0], others[0]))
    if draft == "mtp" and not target.shape.mtp_layers:
        hint = "Name a draft model, or leave --draft away."
        raise ModelError(f"{target.shape.name} holds no layers for multi-token prediction.", hint)
    setup = Setup(machine, target, small, mtp=draft == "mtp")
    if as_json:
        _print_json(setup, planned(setup), advise(setup))
    else:
        _print_tables(setup, planned(setup), advise(setup))


def _read(name: str) -> list[GGUF]:
    """The headers of all parts of a model, the first with its arrays."""
    from slipstream.cli.progress import loading
    from slipstream.models.gguf import read_gguf
    from slipstream.models.resolve import resolve
    from slipstream.models.stores import part_paths

    with loading() as (progress, confirm):
        path = resolve(name, confirm=confirm, progress=lambda done, of: progress("fetching", done / max(of, 1)))
    first, *others = part_paths(path)
    return [read_gguf(first), *(read_gguf(other, arrays=False) for other in others)]


def _load(
    parts: list[GGUF], asked: ContextOptions, speculates: bool, repacked: Mapping[str, int], measured: bool
) -> Load:
    from slipstream.models.header import check_model
    from slipstream.models.memory import Load, read_shape

    shape = read_shape(parts, repacked)
    context = _context(shape, parts[0].path, asked, speculates)
    if not measured:
        return Load(shape, context)
    from slipstream.runtimes.llamacpp.measured import measure

    check_model(parts[0])
    return Load(shape, context, measured=measure(parts[0].path, context))


def _context(shape: Shape, path: Path, asked: ContextOptions, speculates: bool) -> Context:
    """What loading would ask of llama.cpp."""
    from slipstream.decoding.cost import MAX_WIDTH
    from slipstream.models.memory import Context
    from slipstream.runtimes.llamacpp.context import MAX_CELLS
    from slipstream.runtimes.llamacpp.options import DEFAULT_MAX_CTX, MIN_CTX, ROLLBACK

    n_ctx = asked.n_ctx or min(shape.n_ctx_train, DEFAULT_MAX_CTX)
    if n_ctx < MIN_CTX:
        said = f"{path.name} says that it was trained for a context of {n_ctx} tokens."
        raise ModelError(said, f"Give one of {MIN_CTX} or more with --ctx.")
    if n_ctx * asked.n_seq_max >= MAX_CELLS:
        said = f"--ctx {n_ctx} for {asked.n_seq_max} sequences is {n_ctx * asked.n_seq_max} tokens."
        raise InputError(said, f"Together they must be fewer than {MAX_CELLS}.")
    return Context(
        n_ctx=n_ctx,
        n_seq=asked.n_seq_max,
        n_batch=asked.n_batch,
        type_k=asked.cache_type_k.upper(),
        type_v=asked.cache_type_v.upper(),
        n_rollback=ROLLBACK if speculates else 0,
        n_outputs=MAX_WIDTH if speculates else 1,
    )


def _sequences(n: int) -> int:
    if not 1 <= n <= 256:
        raise InputError(f"--parallel is {n}.", "It must be from 1 to 256.")
    return n


def _types(text: str) -> tuple[str, str]:
    from slipstream.runtimes.llamacpp.options import CACHE_TYPES

    names = [name.strip().lower() for name in text.split(",")]
    if len(names) > 2 or not all(name in CACHE_TYPES for name in names):
        known = ", ".join(CACHE_TYPES)
        raise InputError(f"--kv-type is {text[:40]!r}.", f"It must be one of {known}, or two for K and V: q8_0,f16.")
    return names[0], names[-1]


def _print_json(setup: Setup, result: MemoryPlan, advice: Advice) -> None:
    import json

    devices = [
        {**asdict(device), "usable_bytes": device.usable_bytes, "used_bytes": result.used_bytes(device.name)}
        for device in result.machine.devices
    ]
    loads = {"target": setup.target, **({"draft": setup.draft} if setup.draft else {})}
    shown = {
        "models": {
            key: {
                "name": load.shape.name,
                "measured": load.measured is not None,
                "n_contexts": load.n_contexts,
                **asdict(load.context),
            }
            for key, load in loads.items()
        },
        "devices": devices,
        "parts": [asdict(part) for part in result.parts],
        "total_bytes": result.total_bytes,
        **asdict(advice),
    }
    typer.echo(json.dumps(shown, ensure_ascii=False))


def _print_tables(setup: Setup, result: MemoryPlan, advice: Advice) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120
    for role, load in ("target", setup.target), ("draft", setup.draft):
        if load is not None:
            console.print(f"{role}: {_described(load)}", markup=False)
    console.print()
    devices = [device.name for device in result.machine.devices if result.used_bytes(device.name)]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("GiB", *devices, "all"):
        table.add_column(heading, justify="left" if heading == "GiB" else "right")
    for model, name in dict.fromkeys((part.model, part.name) for part in result.parts):
        sizes = [
            sum(p.n_bytes for p in result.parts if (p.model, p.name, p.device) == (model, name, device))
            for device in devices
        ]
        table.add_row(f"{model}: {name}", *map(_cell, sizes), _cell(sum(sizes)))
    table.add_row("all", *(_cell(result.used_bytes(device)) for device in devices), _cell(result.total_bytes))
    console.print(table)
    console.print()
    _print_bars(result)
    typer.echo(f"\n{advice.sentence}")
    for remedy in advice.remedies:
        typer.echo(f"  {remedy.change}: {remedy.options}  ({remedy.total_bytes / GIB:.1f} GiB in all)")
    for note in advice.notes:
        typer.echo(note)


def _described(load: Load) -> str:
    context = load.context
    types = context.type_k if context.type_k == context.type_v else f"{context.type_k} and {context.type_v}"
    sequences = f"{context.n_seq} sequences of " if context.n_seq > 1 else ""
    source = ", measured" if load.measured else ""
    name = printable(load.shape.name)
    twice = f", {load.n_contexts} contexts (another vocabulary)" if load.n_contexts > 1 else ""
    return f"{name}, {sequences}{context.n_ctx:,} tokens of context, KV cache {types.lower()}{twice}{source}"


def _print_bars(result: MemoryPlan) -> None:
    width = max(len(device.name) for device in result.machine.devices)
    for device in result.machine.devices:
        used = result.used_bytes(device.name)
        usable, reserve = device.usable_bytes, device.reserve_bytes
        filled = min(round(BAR * used / max(usable, 1)), BAR)
        over = "" if used <= usable else f", {(used - usable) / GIB:.1f} GiB too much"
        bar = "█" * filled + "░" * (BAR - filled)
        held = f" ({reserve / GIB:.1f} left to the driver)" if reserve else ""
        free = f"{used / GIB:.1f} of {usable / GIB:.1f} GiB"
        typer.echo(f"{device.name:<{width}}  {bar}  {free}{held}{over}")


def _cell(n_bytes: int) -> str:
    return f"{n_bytes / GIB:.2f}" if n_bytes else ""
