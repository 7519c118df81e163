"""`slipstream flags`: an outdated command line of another engine as it is written today."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli.models import printable

if TYPE_CHECKING:
    from slipstream.engines.flags import Translation

# The line has options of its own: what comes behind its first word, -h among it, is never ours.
CONTEXT = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": ["--help"]}


def flags(
    line: Annotated[
        list[str],
        typer.Argument(help="A command line of another engine, in quotes or as separate words; options go before it."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="The result as one JSON object.")] = False,
) -> None:
    """Turn outdated flags of llama.cpp, vLLM, SGLang, MLX-LM and LM Studio into today's, and say what changed."""
    from slipstream.engines.flags import translate

    result = translate(line[0] if len(line) == 1 else line)
    if as_json:
        _print_json(result)
    else:
        _print(result)


def _print(result: Translation) -> None:
    typer.echo("\n".join(map(printable, result.command.split("\n"))))
    typer.echo()
    for change in result.changes:
        since = f" ({change.since})" if change.since else ""
        typer.echo(f"- {printable(change.what)}: {change.why}{since}.")
    if not result.changes:
        typer.echo("Nothing here is known to be outdated.")
    for remark in result.remarks:
        typer.echo(f"  {printable(remark)}")


def _print_json(result: Translation) -> None:
    import json
    from dataclasses import asdict

    typer.echo(json.dumps(asdict(result), ensure_ascii=False))
