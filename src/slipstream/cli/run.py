"""`slipstream run`: one prompt, one answer."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli import options
from slipstream.errors import InputError

if TYPE_CHECKING:
    from slipstream.decoding.sampling import Sampling
    from slipstream.llm import Completion


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
    draft: options.Draft = "auto",
    ctx: options.Ctx = None,
    threads: options.Threads = None,
    batch: options.Batch = 512,
    gpu_layers: options.GpuLayers = -1,
    device: options.Device = None,
    draft_gpu_layers: options.DraftGpuLayers = None,
    draft_device: options.DraftDevice = None,
    cache_type_k: options.CacheTypeK = "f16",
    cache_type_v: options.CacheTypeV = "f16",
    flash_attn: options.FlashAttention = "auto",
    yes: options.Yes = False,
    temperature: options.Temperature = 0.8,
    top_k: options.TopK = 40,
    top_p: options.TopP = 0.95,
    min_p: options.MinP = 0.05,
    repeat_penalty: options.RepeatPenalty = 1.0,
    presence_penalty: options.PresencePenalty = 0.0,
    frequency_penalty: options.FrequencyPenalty = 0.0,
    repeat_last_n: options.RepeatLastN = 64,
    logit_bias: options.LogitBias = None,
    seed: options.Seed = -1,
    max_tokens: options.MaxTokens = -1,
    stop: options.Stop = None,
) -> None:
    """Answer one prompt."""
    text = _read_prompt(prompt, file)
    sampling = options.sampling(
        temperature, top_k, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty, repeat_last_n,
        logit_bias, seed,
    )  # fmt: skip
    n_max = options.max_tokens(max_tokens)
    if raw and (system or template):
        raise InputError("--raw uses no chat template.", "Leave --system and --template away, or --raw.")
    with options.open_model(
        model, draft, ctx, threads, batch, gpu_layers, device, draft_gpu_layers, draft_device, cache_type_k,
        cache_type_v, flash_attn, template, think, yes,
    ) as llm:  # fmt: skip
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": text})
        generation = llm.stream(text if raw else messages, sampling, n_max, stop or (), think)
        if as_json:
            try:
                for _ in generation:
                    pass
            except KeyboardInterrupt:
                generation.close()
            completion = generation.completion()
            _print_json(model, sampling, completion)
        else:
            from slipstream.cli.answer import show

            completion = show(generation, stats, show_drafts)
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


def _print_json(model: str, sampling: Sampling, completion: Completion) -> None:
    import json

    result = {
        "model": model,
        "text": completion.text,
        "tokens": completion.tokens,
        "finish_reason": completion.finish_reason,
        "sampling": {**asdict(sampling), "logit_bias": {t: _finite(b) for t, b in sampling.logit_bias.items()}},
        "statistics": completion.statistics.to_data(),
    }
    typer.echo(json.dumps(result, ensure_ascii=False, allow_nan=False))


def _finite(bias: float) -> float | str:
    """JSON has no infinity."""
    return bias if math.isfinite(bias) else str(bias)
