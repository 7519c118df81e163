"""`slipstream run`: one prompt, one answer."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli import options
from slipstream.errors import InputError

if TYPE_CHECKING:
    from slipstream.decoding.sampling import Sampling
    from slipstream.llm import Completion


@options.grouped
def run(
    model: options.Model,
    prompt: Annotated[str | None, typer.Argument(help="The prompt; standard input if there is none.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="A file with the prompt.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="The prompt as it is, without a chat template.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Result and statistics as one JSON object.")] = False,
    system: options.System = None,
    template: options.Template = None,
    think: options.Think = None,
    stats: options.Stats = False,
    show_drafts: options.ShowDrafts = False,
    logprobs: options.Logprobs = None,
    trace: options.TraceFile = None,
    max_tokens: options.MaxTokens = -1,
    stop: options.Stop = None,
    *,
    loading: options.LoadingOptions,
    choosing: options.SamplingOptions,
) -> None:
    """Answer one prompt."""
    text = _read_prompt(prompt, file)
    if not text.strip():
        raise InputError("The prompt is empty.", "Give at least one character.")
    sampling = choosing.sampling()
    n_max = options.max_tokens(max_tokens)
    if raw and (system or template):
        raise InputError("--raw uses no chat template.", "Leave --system and --template away, or --raw.")
    if logprobs is not None and not as_json:
        raise InputError("--logprobs are given in the JSON object.", "Add --json.")
    with loading.open(model, template, think) as llm, options.tracing(trace, llm, model) as traced:
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": text})
        given = text if raw else messages
        generation = llm.stream(given, sampling, n_max, stop or (), think, logprobs=logprobs, trace=traced)
        if as_json:
            try:
                for _ in generation:
                    pass
            except KeyboardInterrupt:
                generation.close()
            completion = generation.completion()
            _print_json(model, sampling, completion, llm.tokenizer.piece)
        else:
            from slipstream.cli.answer import show

            completion = show(generation, stats, show_drafts)
    options.warn_if_inexact(loading, completion, model)
    if completion.finish_reason == "interrupted":
        raise typer.Exit(130)


def _read_prompt(prompt: str | None, file: Path | None) -> str:
    if prompt is not None and file is not None:
        raise InputError("There are two prompts, an argument and --file.", "Give one of them.")
    try:
        if file is not None:
            return file.read_text(encoding="utf-8")
        return sys.stdin.read() if prompt is None or prompt == "-" else prompt
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"The prompt cannot be read: {error}.", "Give a UTF-8 text file.") from None


def _print_json(model: str, sampling: Sampling, completion: Completion, piece: Callable[[int], bytes]) -> None:
    import json

    def named(token: int, logprob: float) -> dict[str, object]:
        text = piece(token).decode("utf-8", errors="replace")
        return {"token": token, "text": text, "logprob": _finite(logprob)}

    result = {
        "model": model,
        "text": completion.text,
        "tokens": completion.tokens,
        "finish_reason": completion.finish_reason,
        "sampling": {**asdict(sampling), "logit_bias": {t: _finite(b) for t, b in sampling.logit_bias.items()}},
        "statistics": completion.statistics.to_data(),
    }
    if completion.logprobs:
        result["logprobs"] = [
            {**named(said.token, said.logprob), "top": [named(*likely) for likely in said.top]}
            for said in completion.logprobs
        ]
    typer.echo(json.dumps(result, ensure_ascii=False, allow_nan=False))


def _finite(number: float) -> float | str:
    """JSON has no infinity."""
    return number if math.isfinite(number) else str(number)
