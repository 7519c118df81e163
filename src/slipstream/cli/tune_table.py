"""What `slipstream tune` shows at its end: a table an engine, and the verdict in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from slipstream.cli.models import printable
from slipstream.lab.report.numbers import bounds, interval

if TYPE_CHECKING:
    from rich.table import Table

    from slipstream.lab.tuned import ArmResult, EngineResult, Tuned, Verdict

DISTURBED = "plain decoding before and after them hardly agreed"

LOOPS = "where drafts gain more than elsewhere"

COLUMNS = ("setting", "÷ plain", "95 %", "tokens\n/s", "plain\n/s", "accepted", "tokens\na pass", "same\ntext", "")


def show(tuned: Tuned) -> None:
    """Prints a title, a table and the verdicts of each engine."""
    from rich.console import Console

    console = Console()
    for engine in tuned.engines:
        shown = [arm for arm in engine.arms if not arm.reason.startswith("not run")]
        typer.echo(f"{_title(engine)}{_plain(engine)}{_measured(engine, sum(tuned.prompts.values()))}")
        if shown:
            console.print(_table(engine.verdict, shown), "")
        _say(engine)


def _table(verdict: Verdict, arms: Sequence[ArmResult]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, padding=0, show_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in ("setting", "") else "right", no_wrap=name != "setting")
    order = sorted(arms, key=lambda arm: (not arm.judged, -(arm.overall.value if arm.overall else 0.0)))
    for arm in order:
        style = "bold" if arm.arm == verdict.arm else "dim" if arm.state != "measured" else ""
        table.add_row(*_cells(arm), style=style)
    return table


def _cells(arm: ArmResult) -> tuple[str, ...]:
    return (
        _shown(arm.arm),
        f"{arm.overall.value:.2f}" if arm.overall else "–",
        bounds(arm.overall) if arm.overall else "",
        _number(arm.tokens_per_s, ".1f"),
        _number(arm.plain_tokens_per_s, ".1f"),
        "none made" if arm.n_drafted == 0 else _number(arm.acceptance_rate, ".0%"),
        _number(arm.mean_tokens_a_pass, ".2f"),
        f"{arm.n_same}/{arm.n_compared}" if arm.n_compared else "–",
        _state(arm),
    )


def _state(arm: ArmResult) -> str:
    if arm.state == "dropped" and arm.tokens_per_s is None:
        return "not measured"
    return "judged" if arm.judged else "" if arm.state == "measured" else arm.state


def _say(engine: EngineResult) -> None:
    for arm in engine.arms:
        if arm.state == "failed" or (arm.reason and arm.state == "measured"):
            typer.echo(f"{printable(arm.arm)}: {_lines(arm.reason)}")
    typer.echo(f"{_title(engine)}: {_answer(engine.verdict)}. {_lines(engine.verdict.reason)}")
    if engine.n_disturbed:
        typer.echo(f"  {engine.n_disturbed} of {engine.n_measured} measurements do not count: {DISTURBED}.")
    if engine.n_loops:
        typer.echo(
            f"  {engine.n_loops} of {sum(engine.prompts.values())} prompts: plain decoding repeats itself, {LOOPS}."
        )
    if engine.verdict.hint:
        typer.echo(f"  {printable(engine.verdict.hint)}")
    if len(engine.by_category) > 1:
        for category, verdict in engine.by_category.items():
            typer.echo(f"  {printable(category)}: {_answer(verdict)}")
    typer.echo()


def _title(engine: EngineResult) -> str:
    at_once = f", {engine.concurrency} requests at once" if engine.concurrency > 1 else ""
    return printable(f"{engine.name} {engine.version}".rstrip() + at_once)


def _plain(engine: EngineResult) -> str:
    speed = engine.plain_tokens_per_s
    return f", plain decoding {speed:.1f} tokens/s" if speed is not None else ""


def _measured(engine: EngineResult, n_given: int) -> str:
    n = sum(engine.prompts.values())
    return f", {n} of {n_given} prompts measured" if n < n_given else ""


def _lines(text: str) -> str:
    """With the last lines of an engine, where the text has some, on lines of their own."""
    return "\n".join(map(printable, text.split("\n")))


def _answer(verdict: Verdict) -> str:
    if verdict.arm is None:
        return "undecided"
    if verdict.arm == "plain":
        return "leave it off"
    found = verdict.ratio
    times = f", {found.value:.2f} {interval(found)} × plain decoding" if found else ""
    return f"use {printable(verdict.arm)}{times}"


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _shown(text: str) -> str:
    from rich.markup import escape

    return escape(printable(text))
