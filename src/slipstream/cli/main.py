"""The command `slipstream`: wires the commands together and turns errors into one line and exit status 2."""

from __future__ import annotations

import sys

try:
    import errno
    import io
    import os
    from contextlib import suppress
    from typing import Any, NoReturn

    import typer

    from slipstream import __version__
    from slipstream.cli.chat import chat
    from slipstream.cli.check import check
    from slipstream.cli.flags import CONTEXT, flags
    from slipstream.cli.models import models, printable
    from slipstream.cli.pair import pair
    from slipstream.cli.plan import plan
    from slipstream.cli.pull import pull
    from slipstream.cli.run import run
    from slipstream.cli.simulate import simulate
    from slipstream.cli.tune import tune
    from slipstream.cli.verify import verify
    from slipstream.errors import EngineError, SlipstreamError
except KeyboardInterrupt:  # within the first moments
    sys.exit(130)

UsageError: Any = typer.BadParameter.__base__
"""The parser's error, which typer brings along without a name."""

app = typer.Typer(
    name="slipstream",
    help="Local GGUF models, faster and with the same text: lossless speculative decoding.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run)
app.command()(chat)
app.command()(models)
app.command()(pull)
app.command()(verify)
app.command()(simulate)
app.command()(check)
app.command()(pair)
app.command()(plan)
app.command(context_settings=CONTEXT)(flags)
app.command()(tune)


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
        _prepare_streams()
        sys.exit(app(standalone_mode=False))
    except EngineError as error:
        _fail(str(error), "\n")  # with the last lines of a program
    except SlipstreamError as error:
        _fail(str(error))
    except typer.Abort:
        sys.exit(130)
    except UsageError as error:
        if len(sys.argv) == 1:
            app(["--help"])
        command = error.ctx.command_path if error.ctx else "slipstream"
        _fail(f"{error.format_message().rstrip('.')}. See {command} --help.")
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            _fail(f"{str(error.filename)[:60]!r} is no usable path: {error.strerror}.")
        if error.filename is not None:
            raise
        sys.stdout = _nowhere("w")  # what is left in the other one cannot be written either
        _fail(f"The output cannot be written: {error.strerror or error}.")
    except SystemExit as left:
        # The reader of our output has left, for which click exits with 1: nothing is wrong, and nobody to be told.
        if isinstance(left.__context__, BrokenPipeError):
            sys.exit(0)
        raise


def _prepare_streams() -> None:
    """Standard streams that are closed become empty ones; what an encoding cannot write becomes a question mark."""
    for name, mode in ("stdin", "r"), ("stdout", "w"), ("stderr", "w"):
        if getattr(sys, name) is None:
            setattr(sys, name, _nowhere(mode))
    for stream in sys.stdout, sys.stderr:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _nowhere(mode: str) -> Any:
    return open(os.devnull, mode, encoding="utf-8")


def _fail(message: str, between: str | None = None) -> NoReturn:
    """between: what parts lines that are to stay lines."""
    lines = message.split(between) if between else [message]
    with suppress(OSError):
        typer.echo("slipstream: " + "\n".join(map(printable, lines)), err=True)
    sys.exit(2)
