"""`slipstream pull`: fetch a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slipstream.errors import ModelError


def pull(
    model: Annotated[str, typer.Argument(help="smollm2, or hf:org/repo[:quantisation or file].")],
) -> None:
    """Fetch a model, unless it is on this machine, and print its path."""
    from slipstream.models import demo, hub
    from slipstream.models.resolve import check_demo_setting

    if model.lower() == demo.NAME:
        check_demo_setting()
        typer.echo(_pull_demo())
    elif model.startswith("hf:"):
        typer.echo(hub.fetch(model, confirm=lambda question: True))
    else:
        raise ModelError(f"'{model}' cannot be pulled.", "Write smollm2, hf:org/repo or hf:org/repo:Q4_K_M.")


def _pull_demo() -> Path:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from slipstream.models import demo

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(demo.NAME, total=demo.SIZE_BYTES)
        return demo.fetch_demo(lambda done, total: bar.update(task, completed=done, total=total))
