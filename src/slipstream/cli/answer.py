"""Shows an answer while it is written, and its figures."""

from __future__ import annotations

import os
import sys
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from slipstream.decoding.statistics import Statistics
    from slipstream.llm import Completion, Generation

REFRESH_S = 0.1


def show(generation: Generation, stats: bool, show_drafts: bool) -> Completion:
    """Streams the answer to standard output; Ctrl-C ends it. Figures go to standard error."""
    from slipstream.cli.statusline import StatusLine

    terminal = sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
    in_colour = terminal and show_drafts and not os.environ.get("NO_COLOR")
    shown_at = 0.0
    try:
        with StatusLine(sys.stdout) if stats and terminal else nullcontext() as line:
            for piece in generation:
                sys.stdout.write(typer.style(piece.text, fg="green") if in_colour and piece.drafted else piece.text)
                sys.stdout.flush()
                if line is not None and time.monotonic() - shown_at > REFRESH_S:
                    line.show(summary(generation.statistics))
                    shown_at = time.monotonic()
    except KeyboardInterrupt:
        generation.close()
    sys.stdout.write("\n")
    sys.stdout.flush()
    completion = generation.completion()
    if stats:
        print_table(completion.statistics)
    elif completion.finish_reason == "interrupted":
        typer.echo(f"interrupted: {summary(completion.statistics)}", err=True)
    return completion


def summary(statistics: Statistics) -> str:
    """The figures in one line, short enough for 80 columns."""
    return " · ".join(
        (
            f"first token {statistics.ttft_s:.2f} s",
            f"{_number(statistics.tokens_per_second, '{:.1f}')} tokens/s",
            f"accepted {_number(statistics.acceptance_rate, '{:.0%}')}",
            f"{_number(statistics.mean_tokens_per_pass, '{:.2f}')} a pass",
            f"speed-up {_number(_speed_up(statistics), '{:.2f}×')}",
        )
    )


def print_table(statistics: Statistics) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    prompt = f"{statistics.n_prompt} ({statistics.n_cached} from the cache)"
    for name, value in (("prompt tokens", prompt), ("tokens", str(statistics.n_tokens)), *_figures(statistics)):
        table.add_row(name, value)
    table.add_row("exact to the last bit", "yes" if statistics.exact else "not shown")
    for drafter, (drafted, accepted) in statistics.by_drafter.items():
        table.add_row(f"{drafter}: accepted of drafted", f"{accepted} / {drafted}")
    Console(stderr=True).print(table)


def _figures(statistics: Statistics) -> list[tuple[str, str]]:
    return [
        ("first token", f"{statistics.ttft_s:.2f} s"),
        ("tokens/s", _number(statistics.tokens_per_second, "{:.1f}")),
        ("acceptance rate", _number(statistics.acceptance_rate, "{:.0%}")),
        ("tokens a pass", _number(statistics.mean_tokens_per_pass, "{:.2f}")),
        ("speed-up (predicted)", _number(_speed_up(statistics), "{:.2f}×")),
    ]


def _speed_up(statistics: Statistics) -> float | None:
    """None for plain decoding, which has nothing to be compared with."""
    return statistics.predicted_speedup if statistics.by_drafter else None


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
