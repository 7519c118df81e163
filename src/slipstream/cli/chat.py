"""`slipstream chat`: a conversation that keeps its KV cache."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import typer

from slipstream.cli import options
from slipstream.cli.models import printable
from slipstream.errors import InputError, TemplateError

if TYPE_CHECKING:
    from slipstream.llm import Completion, Generation


@options.grouped
def chat(
    model: options.Model,
    system: options.System = None,
    template: options.Template = None,
    think: options.Think = None,
    stats: options.Stats = False,
    show_drafts: options.ShowDrafts = False,
    trace: options.TraceFile = None,
    max_tokens: options.MaxTokens = -1,
    stop: options.Stop = None,
    *,
    loading: options.LoadingOptions,
    choosing: options.SamplingOptions,
) -> None:
    """Talk with a model; an empty line or Ctrl-D ends the conversation, Ctrl-C an answer."""
    sampling = choosing.sampling()
    n_max = options.max_tokens(max_tokens)
    with loading.open(model, template, think) as llm, options.tracing(trace, llm, model) as traced:
        if llm.template is None:
            raise TemplateError("This model has no chat template.", "Give one with --template FILE.")
        messages = [{"role": "system", "content": system}] if system else []
        while True:
            line = _ask()
            if not line:
                return
            answer = partial(
                llm.stream, sampling=sampling, max_tokens=n_max, stop=stop or (), think=think, trace=traced
            )
            completion = _turn(answer, messages, line, stats, show_drafts)
            if completion is not None:
                options.warn_if_inexact(loading, completion, model)


def _ask() -> str:
    """The next line of the person; empty at the end of the conversation."""
    try:
        if not sys.stdin.isatty():
            return sys.stdin.readline().strip()
        return input("> ").strip()
    except (EOFError, KeyboardInterrupt):
        return ""
    except UnicodeDecodeError:
        raise InputError("The line is not UTF-8 text.", "Set the terminal to UTF-8.") from None


def _turn(
    answer: Callable[[list[dict[str, str]]], Generation],
    messages: list[dict[str, str]],
    line: str,
    stats: bool,
    show_drafts: bool,
) -> Completion | None:
    """Answers one line; None where it can't be."""
    from slipstream.cli.answer import show

    messages.append({"role": "user", "content": line})
    try:
        generation = answer(messages)
    except (InputError, TemplateError) as error:
        # The line is too long for the context, or none for the template: the person goes on, and nothing is lost.
        typer.echo(f"slipstream: {printable(str(error))}", err=True)
        messages.pop()
        if len(messages) > 2 and isinstance(error, InputError):
            typer.echo("The whole conversation counts; an empty line ends it, to begin anew.", err=True)
        return None
    completion = show(generation, stats, show_drafts)
    messages.append({"role": "assistant", "content": completion.text})
    return completion
