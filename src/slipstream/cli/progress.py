"""What a person sees while a model loads: a bar on standard error, and a question before a download."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer


@contextmanager
def loading() -> Iterator[tuple[Callable[[str, float], None], Callable[[str], bool]]]:
    """Gives (progress, confirm) as `slipstream.load` takes them; the bar is gone when the block ends."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    console = Console(stderr=True)
    # Where nobody watches, rich would still leave an empty line.
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task("loading", total=1.0)

    def progress(doing: str, done: float) -> None:
        bar.update(task, description=doing, completed=done)

    def confirm(question: str) -> bool:
        if not sys.stdin.isatty():
            return False
        bar.stop()
        try:
            return typer.confirm(question, default=True, err=True)
        finally:
            bar.start()

    with bar:
        yield progress, confirm


@contextmanager
def working(doing: str) -> Iterator[Callable[[float], None]]:
    """Gives a function that takes the fraction done; a bar with the time left on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(doing, total=1.0)
        yield lambda done: bar.update(task, completed=done)
