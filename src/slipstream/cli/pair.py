"""`slipstream pair`: which models could draft for one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli.models import printable
from slipstream.errors import InputError

if TYPE_CHECKING:
    from slipstream.models.candidates import Candidate, Search

_N_PROBLEMS = 5


def pair(
    target: Annotated[str, typer.Argument(help="As for check.")],
    folder: Annotated[list[Path] | None, typer.Option("--folder", help="Look here too; repeatable.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Look for drafters among the models on this machine and in a table of well-known ones, the best first.

    The speed-up is predicted where both models have been measured with the same options, by running them once.
    """
    import json

    from slipstream.models.candidates import search
    from slipstream.models.describe import describe

    for path in folder or ():
        if not path.is_dir():
            raise InputError(f"--folder {path} is no folder.", "Give one that holds models.")
    model = describe(target)
    found = search(model, folder or ())
    if as_json:
        typer.echo(json.dumps({"target": model.name, **asdict(found)}, indent=2, ensure_ascii=False))
        return
    if model.n_mtp_layers:
        typer.echo(f"{printable(model.name)} has {model.n_mtp_layers} layers for multi-token prediction of its own.")
    if found.candidates:
        _print_table(found.candidates)
    else:
        typer.echo("Nothing found. The suffix drafter needs no model: `slipstream run` uses it by itself.")
    for line in _notes(found):
        typer.echo(printable(line))


def _print_table(candidates: tuple[Candidate, ...]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 240
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("Drafter", "Where", "Method", "Verdict", "Size ratio", "Speed-up", "Engines or source"):
        table.add_column(title, overflow="fold")
    for candidate in candidates:
        table.add_row(*(escape(printable(cell)) for cell in _cells(candidate)))
    console.print(table)


def _cells(candidate: Candidate) -> tuple[str, ...]:
    speed_up = "rule of thumb"
    if candidate.speed_up is not None:
        drafted = f"{candidate.speed_up:.2f}×, {candidate.n_draft} a draft"
        speed_up = drafted if candidate.n_draft else "none: plain is faster"
    return (
        candidate.name,
        candidate.where,
        candidate.method,
        candidate.kind or "not checked",
        f"1/{1 / candidate.ratio:.1f}" if candidate.ratio else "",
        speed_up,
        ", ".join(candidate.engines) or candidate.source or "",
    )


def _notes(found: Search) -> list[str]:
    from slipstream.models.candidates import ACCEPTANCE

    notes = [f"{found.n_seen} models looked at, {found.n_misfits} of them of another shape, or no smaller."]
    if any(candidate.speed_up is not None for candidate in found.candidates):
        notes.append(f"Speed-up: by the measured t(w) of both models, at an assumed acceptance of {ACCEPTANCE:.0%}.")
    if any(candidate.kind == "different" for candidate in found.candidates):
        notes.append("Different: of another vocabulary; slipstream translates its drafts, of which fewer are accepted.")
    if any(candidate.kind is None for candidate in found.candidates):
        notes.append("Not checked: `slipstream check TARGET hf:ORG/REPO` reads its header.")
    notes += [f"Not read: {problem}" for problem in found.problems[:_N_PROBLEMS]]
    if len(found.problems) > _N_PROBLEMS:
        notes.append(f"and {len(found.problems) - _N_PROBLEMS} more that could not be read")
    return notes
