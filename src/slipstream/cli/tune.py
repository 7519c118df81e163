"""`slipstream tune`: whether speculation pays, which setting of which engine, measured on one's own prompts."""

from __future__ import annotations

import math
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli.models import printable
from slipstream.errors import InputError

if TYPE_CHECKING:
    from slipstream.engines.protocol import Engine

USUAL = ("slipstream", "llama.cpp")
"""Engines that come along, and read GGUF files."""

SECONDS = {"s": 1, "m": 60, "h": 3600}

LINE_S = 10.0
"""Between two lines of progress where there is no terminal."""

PROMPTS_HELP = "One JSON object a line: prompts, chat messages, or a log of requests; else built-in ones."
URL_HELP = "Of a server that runs already: ENGINE=URL, or URL with one engine. Repeatable: one plain, others not."
PROGRAM_HELP = "An engine's own program or interpreter: ENGINE=PATH, or PATH with one engine. Repeatable."


def tune(
    model: Annotated[str, typer.Argument(help="As the engine takes it; GGUF files also by their `slipstream` names.")],
    engine: Annotated[
        list[str] | None, typer.Option("--engine", "-e", help="Repeatable; slipstream and llama.cpp if not given.")
    ] = None,
    prompts: Annotated[Path | None, typer.Option("--prompts", help=PROMPTS_HELP)] = None,
    draft: Annotated[str | None, typer.Option("--draft", "-md", help="A draft model or a head.")] = None,
    budget: Annotated[str, typer.Option("--budget", help="Time to measure: 90s, 10m, 2h; of all engines.")] = "10m",
    concurrency: Annotated[str, typer.Option("--concurrency", help="Requests at once, such as 1,4.")] = "1",
    tokens: Annotated[int, typer.Option("--n-predict", "-n", help="Tokens of each answer at most.")] = 128,
    url: Annotated[list[str] | None, typer.Option("--url", help=URL_HELP)] = None,
    program: Annotated[list[str] | None, typer.Option("--program", help=PROGRAM_HELP)] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="A new folder; named after model and time if not given.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="The folder of a run to go on with; only --budget may differ.")
    ] = None,
) -> None:
    """Measure plain decoding and speculation of your engine on your prompts; say what pays, and write the settings.

    Every setting is measured between two measurements of plain decoding. All goes to a folder: the journal, tune.json,
    report.html and the settings to copy. After Ctrl-C the same command with --resume FOLDER goes on.
    """
    from slipstream.cli.tune_table import show
    from slipstream.lab import tune_files, workload
    from slipstream.lab.tune import Asked
    from slipstream.lab.tune import tune as measure

    names = _engine_names(engine)
    urls = _by_engine("--url", url, names)
    programs = _programs(program, names)
    engines = _engines(names, programs, urls)
    seconds, sizes = _seconds(budget), _numbers(concurrency)
    chosen = workload.read(prompts) if prompts else workload.built_in_for_tuning()
    reads_files = any(name in USUAL and name not in urls for name in names)
    if reads_files:
        model, draft = _file(model), _file(draft) if draft else None
    asked = Asked(model, draft, tokens, seconds, sizes, urls, programs)
    folder = _folder(out, resume, model)
    command = shlex.join(["slipstream", *sys.argv[1:]])
    try:
        with _ending_as_by_ctrl_c(), _watched() as watch:
            tuned = measure(asked, engines, chosen, folder, command, watch=watch)
    except KeyboardInterrupt:
        typer.echo(f"slipstream: stopped. {_how_to_go_on(folder)}", err=True)
        raise
    finally:
        with suppress(OSError):
            folder.rmdir()  # succeeds where nothing was measured, and so nothing written
    show(tuned)
    paths = tune_files.write(tuned, folder)
    typer.echo("Written: " + ", ".join(str(path.relative_to(folder)) for path in paths) + f" in {folder}")


def _engine_names(given: Sequence[str] | None) -> list[str]:
    names = list(given or USUAL)
    if len(set(names)) < len(names):
        raise InputError("--engine names an engine twice.", "Give each once.")
    return names


def _by_engine(option: str, given: Sequence[str] | None, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Values by engine: each names its own, unless there is one engine."""
    found: dict[str, tuple[str, ...]] = {}
    for text in given or ():
        name, _, value = text.partition("=")
        if name not in names or not value:
            if len(names) > 1 or name in USUAL:
                hint = f"Write {option} ENGINE=VALUE, with one of {', '.join(names)}."
                raise InputError(f"{option} {text} names no engine of this run.", hint)
            name, value = names[0], text
        if value in found.get(name, ()):
            raise InputError(f"{option} {value} is given twice for {name}.", "Give it once.")
        found[name] = (*found.get(name, ()), value)
    return found


def _programs(given: Sequence[str] | None, names: Sequence[str]) -> dict[str, str]:
    found = _by_engine("--program", given, names)
    for name, programs in found.items():
        if len(programs) > 1:
            raise InputError(f"--program is given twice for {name}.", "Give it once.")
    return {name: programs[0] for name, programs in found.items()}


def _engines(names: Sequence[str], programs: Mapping[str, str], urls: Mapping[str, Sequence[str]]) -> list[Engine]:
    """Raises InputError for a name that is no engine, and for a program of one that has none."""
    import inspect

    from slipstream.engines.several import SeveralServers

    made: list[Engine] = []
    for name in names:
        build = _builder(name)
        if len(urls.get(name, ())) > 1:
            made.append(SeveralServers(build, urls[name]))
        elif name not in programs:
            made.append(build())
        elif "program" in inspect.signature(build).parameters:
            made.append(build(program=programs[name]))
        else:
            raise InputError(f"{name} is run without a program of its own.", "Leave --program away for it.")
    return made


def _builder(name: str) -> Callable[..., Engine]:
    from slipstream.engines.registry import engine_class

    return engine_class(name)


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d{1,7}(?:\.\d{1,3})?)\s*([smh])", text.strip().lower())
    seconds = float(found[1]) * SECONDS[found[2]] if found else 0.0
    if not seconds:
        raise InputError(f"--budget {text!r} is no time.", "Write it with its unit: 90s, 10m or 2h.")
    return seconds


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--concurrency {text!r} is not understood.", "Give numbers, such as 1,4.") from None


def _file(model: str) -> str:
    """The path of a GGUF file, by whatever name `slipstream` knows it."""
    from slipstream.cli.progress import loading
    from slipstream.models.resolve import resolve

    with loading() as (progress, confirm):
        return str(resolve(model, confirm=confirm, progress=lambda done, total: progress("fetching", done / total)))


def _folder(out: Path | None, resume: Path | None, model: str) -> Path:
    """The folder of a run that goes on, or a new one. Raises InputError rather than write over something."""
    from slipstream.lab.tune import JOURNAL

    if resume is not None:
        if out is not None:
            raise InputError("--resume names the folder already.", "Leave --out away.")
        if not (resume / JOURNAL).is_file():
            raise InputError(f"{resume} holds no tuning run to go on with.", "Give the folder that one wrote.")
        return resume
    folder = out or Path(f"tune-{_stem(model)}-{datetime.now():%Y-%m-%d-%H%M}")
    if folder.exists():
        go_on = f", or go on with what is there by --resume {shlex.quote(str(folder))}"
        hint = f"Give another --out{go_on if (folder / JOURNAL).is_file() else ''}."
        raise InputError(f"{folder} exists, and is not written over.", hint)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be made: {error.strerror}.", "Name another folder by --out.") from None
    return folder


def _stem(model: str) -> str:
    """The last part of a path or a name, fit for a file's."""
    last = model.rstrip("/").replace("\\", "/").rpartition("/")[2].removesuffix(".gguf")
    return re.sub(r"[^\w.-]+", "-", last)[:60] or "model"


def _how_to_go_on(folder: Path) -> str:
    from slipstream.lab.tune import JOURNAL

    if not (folder / JOURNAL).is_file():
        return "Nothing was measured yet."
    return f"All answers but the last one are kept. To go on: {_going_on(folder)}"


def _going_on(folder: Path) -> str:
    command, *words = sys.argv[1:]
    if not any(word.partition("=")[0] == "--resume" for word in words):
        words = ["--resume", str(folder), *words]
    if "--out" in words:
        at = words.index("--out")
        words = words[:at] + words[at + 2 :]
    return shlex.join(["slipstream", command, *(word for word in words if not word.startswith("--out="))])


@contextmanager
def _ending_as_by_ctrl_c() -> Iterator[None]:
    """Who ends this program, or closes its terminal, ends the engines that it has started, too."""
    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {name: signal.signal(getattr(signal, name), signal.default_int_handler) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)


@contextmanager
def _watched() -> Iterator[Callable[[str, float], None]]:
    """A bar on standard error with what is measured and the time left; lines where that is no terminal."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines()
        return
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=1.0)
        yield lambda doing, done: bar.update(task, description=escape(printable(doing)), completed=min(done, 1.0))


def _lines() -> Callable[[str, float], None]:
    """Writes down now and then what is measured, for logs."""
    last = -math.inf

    def watch(doing: str, done: float) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_S:
            last = time.monotonic()
            typer.echo(f"{min(done, 1.0):4.0%} {printable(doing)}", err=True)

    return watch
