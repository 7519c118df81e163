"""What `slipstream tune` shows at its end: a table an engine, and the verdict in words."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from slipstream.cli.models import printable

if TYPE_CHECKING:
    from rich.table import Table

    from slipstream.lab.tuned import ArmResult, EngineResult, Ratio, Tuned, Verdict

COLUMNS = ("setting", "÷ plain", "95 %", "tokens/s", "accepted", "a pass", "same", "")


def show(tuned: Tuned) -> None:
    """Prints the tables and verdicts of a run."""
    from rich.console import Console

    console = Console()
    for engine in tuned.engines:
        shown = [arm for arm in engine.arms if not arm.reason.startswith("not run")]
        if shown:
            console.print(_table(engine, shown))
        _say(engine)


def _table(engine: EngineResult, arms: Sequence[ArmResult]) -> Table:
    from rich import box
    from rich.table import Table

    speeds = [arm.plain_tokens_per_s for arm in arms if arm.plain_tokens_per_s is not None]
    plain = f", plain decoding {statistics.median(speeds):.1f} tokens/s" if speeds else ""
    table = Table(title=f"{_title(engine)}{plain}", box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in ("setting", "") else "right", no_wrap=True)
    order = sorted(arms, key=lambda arm: -(arm.overall.value if arm.overall else 0.0))
    for arm in order:
        style = "bold" if arm.arm == engine.verdict.arm else "dim" if arm.state != "measured" else ""
        table.add_row(*_cells(arm), style=style)
    return table


def _cells(arm: ArmResult) -> tuple[str, ...]:
    return (
        _shown(arm.arm),
        f"{arm.overall.value:.2f}" if arm.overall else "–",
        _interval(arm.overall),
        _number(arm.tokens_per_s, ".1f"),
        _number(arm.acceptance_rate, ".0%"),
        _number(arm.mean_tokens_a_pass, ".2f"),
        f"{arm.n_same}/{arm.n_compared}" if arm.n_compared else "–",
        "" if arm.state == "measured" else arm.state,
    )


def _say(engine: EngineResult) -> None:
    for arm in engine.arms:
        if arm.state == "failed" or (arm.reason and arm.state == "measured"):
            typer.echo(f"{printable(arm.arm)}: {_lines(arm.reason)}")
    typer.echo(f"{_title(engine)}: {_lines(engine.verdict.reason)}")
    if engine.verdict.hint:
        typer.echo(f"  {printable(engine.verdict.hint)}")
    if len(engine.by_category) > 1:
        for category, verdict in engine.by_category.items():
            typer.echo(f"  {printable(category)}: {_answer(verdict)}")
    typer.echo()


def _title(engine: EngineResult) -> str:
    at_once = f", {engine.concurrency} requests at once" if engine.concurrency > 1 else ""
    return printable(f"{engine.name} {engine.version}".rstrip() + at_once)


def _lines(text: str) -> str:
    """With the last lines of an engine, where the text has some, on lines of their own."""
    return "\n".join(map(printable, text.split("\n")))


def _answer(verdict: Verdict) -> str:
    if verdict.arm is None:
        return "undecided"
    if verdict.arm == "plain":
        return "leave it off"
    return f"{printable(verdict.arm)}, {verdict.ratio.value:.2f} {_interval(verdict.ratio)}" if verdict.ratio else ""


def _interval(found: Ratio | None) -> str:
    if found is None:
        return ""
    return f"{found.low:.2f}–{found.high:.2f}" if found.high < 100 else f"{found.low:.2f}–many"


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _shown(text: str) -> str:
    from rich.markup import escape

    return escape(printable(text))
