"""Options that `run` and `chat` share, under the names that users know from llama.cpp."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.errors import InputError

if TYPE_CHECKING:
    from slipstream.decoding.sampling import Sampling
    from slipstream.llm import LLM

LOADING, SAMPLING, OUTPUT = "Model and machine", "Sampling", "Output"


def _option(panel: str, *names: str, help: str) -> typer.models.OptionInfo:
    return typer.Option(*names, help=help, rich_help_panel=panel)  # type: ignore[no-any-return]


Model = Annotated[str, typer.Argument(help="A path, smollm2, hf:org/repo[:quant], or a name from `slipstream models`.")]

Draft = Annotated[
    str, _option(LOADING, "--draft", "-md", help="auto, off, suffix, or a draft model (the suffix drafter stays).")
]
Ctx = Annotated[
    int | None, _option(LOADING, "--ctx", "-c", help="Context length; the model's, at most 8192, by default.")
]
Threads = Annotated[int | None, _option(LOADING, "--threads", "-t", help="CPU threads; physical cores if not given.")]
Batch = Annotated[int, _option(LOADING, "--batch", "-b", help="Tokens of the prompt read in one pass.")]
GpuLayers = Annotated[int, _option(LOADING, "--gpu-layers", "-ngl", help="Layers kept on the GPU; -1 for all.")]
Device = Annotated[str | None, _option(LOADING, "--device", "-dev", help="Devices to use, separated by commas.")]
DraftGpuLayers = Annotated[
    int | None, _option(LOADING, "--draft-gpu-layers", "-ngld", help="As --gpu-layers, for the draft model.")
]
DraftDevice = Annotated[
    str | None, _option(LOADING, "--draft-device", "-devd", help="As --device, for the draft: a second card.")
]
CacheTypeK = Annotated[str, _option(LOADING, "--cache-type-k", "-ctk", help="Type of the K cache: f16, q8_0, …")]
CacheTypeV = Annotated[str, _option(LOADING, "--cache-type-v", "-ctv", help="Type of the V cache: f16, q8_0, …")]
FlashAttention = Annotated[str, _option(LOADING, "--flash-attn", "-fa", help="auto, on or off.")]
Yes = Annotated[bool, _option(LOADING, "--yes", "-y", help="Download without asking.")]

Temperature = Annotated[float, _option(SAMPLING, "--temp", "--temperature", help="0 always takes the likeliest token.")]
TopK = Annotated[int, _option(SAMPLING, "--top-k", help="Keep the k likeliest tokens; 0 keeps all.")]
TopP = Annotated[float, _option(SAMPLING, "--top-p", help="Keep the likeliest tokens up to this mass; 1 keeps all.")]
MinP = Annotated[float, _option(SAMPLING, "--min-p", help="Keep tokens of this share of the likeliest's; 0 keeps all.")]
RepeatPenalty = Annotated[float, _option(SAMPLING, "--repeat-penalty", help="1 is off.")]
PresencePenalty = Annotated[float, _option(SAMPLING, "--presence-penalty", help="0 is off.")]
FrequencyPenalty = Annotated[float, _option(SAMPLING, "--frequency-penalty", help="0 is off.")]
RepeatLastN = Annotated[int, _option(SAMPLING, "--repeat-last-n", help="Tokens the penalties look at; -1 for all.")]
LogitBias = Annotated[
    list[str] | None, _option(SAMPLING, "--logit-bias", "-l", help="TOKEN_ID+BIAS or TOKEN_ID-BIAS; repeatable.")
]
Seed = Annotated[int, _option(SAMPLING, "--seed", "-s", help="Same seed, same text; -1 draws one.")]
MaxTokens = Annotated[int, _option(SAMPLING, "--n-predict", "-n", "--max-tokens", help="-1: up to the context's end.")]
Stop = Annotated[list[str] | None, _option(SAMPLING, "--stop", "-r", help="A text that ends the answer; repeatable.")]

Template = Annotated[
    Path | None, _option(OUTPUT, "--template", help="A file with a chat template instead of the model's own.")
]
Think = Annotated[
    bool | None, typer.Option("--think/--no-think", help="For templates that know it.", rich_help_panel=OUTPUT)
]
System = Annotated[str | None, _option(OUTPUT, "--system", "-sys", help="The system message.")]
Stats = Annotated[bool, _option(OUTPUT, "--stats", help="A live line of figures, and a table at the end.")]
ShowDrafts = Annotated[bool, _option(OUTPUT, "--show-drafts", help="Accepted draft tokens in another colour.")]


def sampling(
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    repeat_penalty: float,
    presence_penalty: float,
    frequency_penalty: float,
    repeat_last_n: int,
    logit_bias: list[str] | None,
    seed: int,
) -> Sampling:
    """The `Sampling` of these options; seed −1 becomes a drawn one."""
    from slipstream.decoding.sampling import Sampling

    return Sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repeat_penalty=repeat_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        repeat_last_n=repeat_last_n,
        logit_bias=dict(map(_bias, logit_bias or ())),
        seed=secrets.randbits(32) if seed == -1 else seed,
    )


def _bias(text: str) -> tuple[int, float]:
    sign = next((i for i, character in enumerate(text) if character in "+-"), 0)
    try:
        return int(text[:sign]), float(text[sign:])
    except ValueError:
        raise InputError(
            f"--logit-bias {text!r} is not understood.", "Write it as 1234+1.5, 1234-2 or 1234-inf."
        ) from None


def max_tokens(n: int) -> int | None:
    if n != -1 and n < 1:
        raise InputError(f"--n-predict is {n}.", "It must be 1 or more, or -1 for as many as the context holds.")
    return None if n == -1 else n


def open_model(
    model: str,
    draft: str,
    ctx: int | None,
    threads: int | None,
    batch: int,
    gpu_layers: int,
    device: str | None,
    draft_gpu_layers: int | None,
    draft_device: str | None,
    cache_type_k: str,
    cache_type_v: str,
    flash_attn: str,
    template: Path | None,
    think: bool | None,
    yes: bool,
) -> LLM:
    """Loads the model with a progress bar on standard error. Raises what `slipstream.load` raises."""
    from slipstream.cli.progress import loading
    from slipstream.loading import load
    from slipstream.runtimes.llamacpp import ContextOptions, ModelOptions

    source = _read_template(template)
    with loading() as (progress, confirm):
        llm = load(
            model,
            draft=draft,
            target_options=ModelOptions(n_gpu_layers=gpu_layers, devices=_names(device)),
            context_options=ContextOptions(
                n_ctx=ctx,
                n_batch=batch,
                n_threads=threads,
                cache_type_k=cache_type_k,
                cache_type_v=cache_type_v,
                flash_attn=flash_attn,
            ),
            draft_options=ModelOptions(
                n_gpu_layers=gpu_layers if draft_gpu_layers is None else draft_gpu_layers,
                devices=_names(draft_device or device),
            ),
            template=source,
            confirm=_always if yes else confirm,
            progress=progress,
        )
    if draft != "off" and not llm.speculates:
        typer.echo("slipstream: this architecture cannot take tokens back; decoding plainly.", err=True)
    if think is not None and not (llm.template and llm.template.knows_thinking):
        llm.close()
        raise InputError("This model's chat template knows no thinking.", "Leave --think and --no-think away.")
    return llm


_always: Callable[[str], bool] = lambda question: True  # noqa: E731


def _names(devices: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in devices.split(",") if name.strip()) if devices else ()


def _read_template(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"--template {path} cannot be read: {error}.", "Give a text file with a Jinja template."
        ) from None
