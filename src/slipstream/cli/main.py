"""The command `slipstream`: wires the commands together and turns errors into one line and exit status 2."""

from __future__ import annotations

import sys

import typer

from slipstream import __version__
from slipstream.cli.chat import chat
from slipstream.cli.models import models
from slipstream.cli.pull import pull
from slipstream.cli.run import run
from slipstream.errors import SlipstreamError

app = typer.Typer(
    name="slipstream",
    help="Local GGUF models, faster and with the same text: lossless speculative decoding.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run)
app.command()(chat)
app.command()(models)
app.command()(pull)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"slipstream {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None: ...


def main() -> None:
    """The entry point: errors meant for a person become one line on standard error and exit status 2."""
    try:
        app()
    except SlipstreamError as error:
        typer.echo(f"slipstream: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output has left: nothing is wrong, and nobody is there to be told.
        sys.stderr.close()
        sys.exit(0)
