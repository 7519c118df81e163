"""`slipstream models`: the models on this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated
from unicodedata import category

import typer

if TYPE_CHECKING:
    from slipstream.models.listing import Listed


def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array instead of a table.")] = False,
) -> None:
    """List the GGUF models of LM Studio, Ollama, llama.cpp, Hugging Face and slipstream itself."""
    import json

    from slipstream.models.listing import list_models

    if as_json:
        typer.echo(json.dumps([asdict(listed) for listed in list_models()], indent=2, ensure_ascii=False))
        return
    listed = list(list_models())
    if listed:
        _print_table(listed)
    else:
        typer.echo("No model on this machine yet. `slipstream pull smollm2` fetches a small one (98 MB).")


def _print_table(listed: list[Listed]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    def shown(text: str) -> str:
        return escape(printable(text))

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("Model", overflow="fold")
    table.add_column("Store")
    table.add_column("Architecture")
    for title in ("Parameters", "Quantisation", "Size", "Vocabulary"):
        table.add_column(title, justify="right")
    for model in listed:
        if model.problem is None:
            table.add_row(shown(model.name), model.store, *map(shown, _cells(model)))
    console.print(table)
    for model in listed:
        if model.problem is not None:
            console.print(f"[yellow]{shown(model.name)} ({model.store}): {shown(model.problem)}[/yellow]")


def printable(text: str) -> str:
    """The text with what would steer the terminal, or break the line, written as an escape."""
    steering = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return "".join(c.encode("unicode_escape").decode() if category(c) in steering else c for c in text)


def _cells(model: Listed) -> tuple[str, str, str, str, str]:
    return (
        model.architecture or "",
        _short(model.n_params or 0, "", "K", "M", "B"),
        model.quantization or "",
        _short(model.size_bytes or 0, " B", " kB", " MB", " GB"),
        f"{model.vocab_size:,}" if model.vocab_size is not None else "",
    )


def _short(number: int, *units: str) -> str:
    """Three digits and a unit of powers of 1000."""
    value, unit = float(number), 0
    while value >= 999.5 and unit < len(units) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.3g}{units[unit]}" if value < 1000 else f"{value:.0f}{units[unit]}"
