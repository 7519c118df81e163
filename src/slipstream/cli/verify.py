"""`slipstream verify`: the same text with speculation as without, shown on prompts."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli import options
from slipstream.errors import InputError

if TYPE_CHECKING:
    from slipstream.decoding.widths import WidthClasses
    from slipstream.lab.verify import Comparison, Mode, Report


@options.grouped
def verify(
    model: options.Model,
    prompts: Annotated[
        Path | None, typer.Option("--prompts", help="One JSON object a line; else built-in ones.")
    ] = None,
    temperature: Annotated[
        list[float] | None, typer.Option("--temp", "--temperature", help="Repeatable; 0 and 0.8.")
    ] = None,
    tokens: Annotated[int, typer.Option("--n-predict", "-n", help="Tokens of each answer at most.")] = 48,
    seed: Annotated[int, typer.Option("--seed", "-s", help="The first prompt's; each has its own.")] = 0,
    probe: Annotated[bool, typer.Option("--probe", help="First compare all widths over the whole context.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The result as one JSON object.")] = False,
    template: options.Template = None,
    *,
    loading: options.LoadingOptions,
) -> None:
    """Compare speculative with plain decoding; exit status 0 if every divergence is explained, else 1.

    In normal mode the width of a pass may change a logit's last bits, and so a token: such a divergence is explained
    only if both arms' rows are computed again from a clean cache, bit for bit. In exact mode there must be none.
    """
    from slipstream.cli.progress import working
    from slipstream.decoding.sampling import Sampling
    from slipstream.lab import workload
    from slipstream.lab.verify import verify as compare

    if tokens < 2:
        raise InputError(f"--n-predict is {tokens}.", "It must be 2 or more: the first token comes with the prompt.")
    if loading.draft == "off":
        raise InputError("--draft off leaves nothing to compare.", "Leave it away, or name a draft.")
    modes: tuple[Mode, ...] = (
        ("normal", "exact") if loading.exact is None else ("exact" if loading.exact else "normal",)
    )
    temperatures = [Sampling(temperature=t, seed=seed).temperature for t in temperature or (0.0, 0.8)]
    chosen = workload.read(prompts) if prompts else workload.built_in()
    try:
        llm = loading.open(model, template, width_probe="whole" if probe else "short")
    except KeyboardInterrupt:
        typer.echo("slipstream: interrupted; the widths compared so far are kept for the next time.", err=True)
        raise
    with llm, working("comparing texts") as progress:
        report = compare(llm, chosen, temperatures, tokens, seed, modes, progress)
        classes = llm.classes
    if as_json:
        _print_json(model, report, classes)
    else:
        _print_tables(report, classes)
    raise typer.Exit(0 if report.passed else 1)


def _print_json(model: str, report: Report, classes: WidthClasses) -> None:
    import json

    result: dict[str, Any] = {
        "model": model,
        "passed": report.passed,
        "exact_cost": report.exact_cost,
        "exact_widths": classes.exact,
        "reach": classes.reach,
        "bands": [asdict(band) for band in classes.bands],
        "comparisons": [{**asdict(c), "passed": c.passed} for c in report.comparisons],
    }
    typer.echo(json.dumps(result, ensure_ascii=False))


def _print_tables(report: Report, classes: WidthClasses) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(box=None, pad_edge=False)
    for heading in ("temperature", "mode", "prompts", "same text", "same bits", "first parting", "drafted", "accepted"):
        table.add_column(heading, justify="left" if heading == "mode" else "right")
    for c in report.comparisons:
        first = min((d.position for d in c.divergences), default=None)
        cells = [c.prompts, c.identical, c.identical_rows, "–" if first is None else first, c.n_drafted, c.n_accepted]
        table.add_row(f"{c.temperature:g}", c.mode, *map(str, cells))
    console.print(table)
    for c in report.comparisons:
        _print_partings(c)
    typer.echo()
    _print_classes(classes)
    if classes.exact[:1] == (1,):
        typer.echo("Plain decoding in exact mode is plain decoding as ever: a token a pass.")
    elif report.exact_cost is not None:
        typer.echo(f"Plain decoding in exact mode takes {report.exact_cost:.2f} times as long as in normal mode.")
    if not any(c.n_drafted for c in report.comparisons):
        typer.echo("Nothing was drafted, so this shows nothing of speculation: take more tokens or other prompts.")
    typer.echo("Every divergence is explained." if report.passed else "NOT everything is explained.")


def _print_partings(comparison: Comparison) -> None:
    where = f"{comparison.mode} mode, temperature {comparison.temperature:g}"
    for d in comparison.divergences:
        verdict = "explained: passes of another width" if d.explained else f"NOT explained: {d.reason}"
        typer.echo(
            f"{where}, {d.prompt}: parts at token {d.position}, gap {d.gap:.3g} logits, "
            f"rows differ by up to {d.difference:.3g}; {verdict}"
        )
    for fault in comparison.faults:
        typer.echo(f"{where}, {fault}: NOT explained")


def _print_classes(classes: WidthClasses) -> None:
    if not classes.bands:
        typer.echo("Width classes are not known; --exact or --probe finds them.")
        return
    for band in classes.bands:
        groups = " | ".join(" ".join(map(str, group)) for group in band.classes)
        typer.echo(
            f"widths that agree from context {band.start} on: {groups}  (largest difference {band.difference:.2g}"
            f", arg-max flips in {band.flips} of {band.n_rows} rows)"
        )
    typer.echo(f"Known up to {classes.reach} tokens; exact mode uses {' '.join(map(str, classes.exact))}.")
