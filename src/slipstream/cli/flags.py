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
    """Turn outdated flags of llama.cpp, vLLM, SGLang, MLX-LM and LM Studio into today's, and say what changed.

    Changed are names of programs, flags of speculation and a few others. Every flag of llama-server, llama-cli and
    llama-speculative is compared with those of llama.cpp b11434, of vllm serve with those of vLLM 0.32.0; what is not
    among them is named and left. Of other programs only flags of speculation are looked at, and values only of these.
    """
    from slipstream.engines.flags import translate

    _refuse_options_behind(line)
    result = translate(line[0] if len(line) == 1 else line)
    if as_json:
        _print_json(result)
    else:
        _print(result)


def _refuse_options_behind(line: list[str]) -> None:
    """Raises InputError for an option of ours behind a line in quotes, where it would be a word of the line."""
    if " " in line[0].strip() and line[1:] == ["--json"]:
        from slipstream.errors import InputError

        raise InputError("--json stands behind the line.", 'Options go before it: slipstream flags --json "LINE".')


def _print(result: Translation) -> None:
    shown = "\n".join(map(printable, result.command.split("\n")))
    typer.echo(shown)
    typer.echo()
    for change in result.changes:
        since = f" ({change.since})" if change.since else ""
        typer.echo(f"- {printable(change.what)}: {change.why}{since}.")
    if not result.changes and result.compared_with:
        typer.echo("Nothing was changed.")
    for remark in result.remarks:
        typer.echo(f"  {printable(remark)}")
    if shown != result.command:
        typer.echo("  The line holds characters that a terminal cannot show, written as escapes here: --json gives it.")
    typer.echo(_looked_at(result))


def _looked_at(result: Translation) -> str:
    """What was looked at, since silence about the rest would be taken for approval."""
    if not result.compared_with and not result.changes:
        return "No outdated flag of speculation is known here; other flags were not looked at."
    if not result.compared_with:
        return "Flags that are not of speculation were not looked at."
    if result.unknown:
        return f"All flags were compared with those of {result.compared_with}; values only those of speculation."
    return f"{result.compared_with} takes all of these flags; values were looked at for speculation alone."


def _print_json(result: Translation) -> None:
    import json
    from dataclasses import asdict

    typer.echo(json.dumps(asdict(result), ensure_ascii=False))
