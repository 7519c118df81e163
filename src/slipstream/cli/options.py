"""Options that commands share, under the names that users know from llama.cpp."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_type_hints

import typer

from slipstream.errors import InputError

if TYPE_CHECKING:
    from slipstream.decoding.sampling import Sampling
    from slipstream.lab.trace import TraceWriter
    from slipstream.llm import LLM, Completion
    from slipstream.loading import WidthProbe

LOADING, SAMPLING, OUTPUT = "Model and machine", "Sampling", "Output"


def _option(panel: str, *names: str, help: str) -> typer.models.OptionInfo:
    return typer.Option(*names, help=help, rich_help_panel=panel)  # type: ignore[no-any-return]


Model = Annotated[str, typer.Argument(help="A path, smollm2, hf:org/repo[:quant], or a name from `slipstream models`.")]

Draft = Annotated[
    str, _option(LOADING, "--draft", "-md", help="auto, off, suffix, or a draft model, of any vocabulary.")
]
Exact = Annotated[
    bool | None,
    typer.Option(
        "--exact/--no-exact",
        help="Keep to widths of a pass that agree to the last bit; by default where that is known to cost nothing.",
        rich_help_panel=LOADING,
    ),
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
Corpus = Annotated[
    str,
    _option(
        LOADING, "--corpus", help="Where drafts find past requests: auto (those since loading), off, or a file to keep."
    ),
]
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
Verification = Annotated[
    str, _option(SAMPLING, "--verification", help="Above temperature 0: coupled, rejection or block.")
]
Seed = Annotated[int, _option(SAMPLING, "--seed", "-s", help="Same seed, same text; -1 draws one.")]
MaxTokens = Annotated[int, _option(SAMPLING, "--n-predict", "-n", "--max-tokens", help="-1: up to the context's end.")]
Stop = Annotated[list[str] | None, _option(SAMPLING, "--stop", "-r", help="A text that ends the answer; repeatable.")]

Logprobs = Annotated[
    int | None,
    _option(
        OUTPUT, "--logprobs", help="With --json: each token's log-probability and the N likeliest tokens (0 to 100)."
    ),
]
Template = Annotated[
    Path | None, _option(OUTPUT, "--template", help="A file with a chat template instead of the model's own.")
]
Think = Annotated[
    bool | None, typer.Option("--think/--no-think", help="For templates that know it.", rich_help_panel=OUTPUT)
]
System = Annotated[str | None, _option(OUTPUT, "--system", "-sys", help="The system message.")]
TraceFile = Annotated[
    Path | None,
    _option(OUTPUT, "--trace", help="A file to append every decision to: a JSON object a round, texts as token ids."),
]
Stats = Annotated[bool, _option(OUTPUT, "--stats", help="A live line of figures, and a table at the end.")]
ShowDrafts = Annotated[bool, _option(OUTPUT, "--show-drafts", help="Accepted draft tokens in another colour.")]


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are chosen."""

    temperature: Temperature = 0.8
    top_k: TopK = 40
    top_p: TopP = 0.95
    min_p: MinP = 0.05
    repeat_penalty: RepeatPenalty = 1.0
    presence_penalty: PresencePenalty = 0.0
    frequency_penalty: FrequencyPenalty = 0.0
    repeat_last_n: RepeatLastN = 64
    logit_bias: LogitBias = None
    verification: Verification = "coupled"
    seed: Seed = -1

    def sampling(self) -> Sampling:
        """The `Sampling` of these options; seed −1 becomes a drawn one. Raises InputError, naming the option."""
        from slipstream.decoding.sampling import Sampling

        given = {field.name: getattr(self, field.name) for field in fields(self)}
        given["logit_bias"] = dict(map(_bias, self.logit_bias or ()))
        given["seed"] = int.from_bytes(os.urandom(4), "little") if self.seed == -1 else self.seed
        try:
            return Sampling(**given)
        except InputError as error:
            raise InputError(_as_option(error.message), error.hint) from None


@dataclass(frozen=True)
class LoadingOptions:
    """Which drafters there are, and what the machine gives."""

    draft: Draft = "auto"
    exact: Exact = None
    ctx: Ctx = None
    threads: Threads = None
    batch: Batch = 512
    gpu_layers: GpuLayers = -1
    device: Device = None
    draft_gpu_layers: DraftGpuLayers = None
    draft_device: DraftDevice = None
    cache_type_k: CacheTypeK = "f16"
    cache_type_v: CacheTypeV = "f16"
    flash_attn: FlashAttention = "auto"
    corpus: Corpus = "auto"
    yes: Yes = False

    def open(
        self, model: str, template: Path | None = None, think: bool | None = None, width_probe: WidthProbe = "auto"
    ) -> LLM:
        """Loads the model with a progress bar on standard error. Raises what `slipstream.load` raises."""
        from slipstream.cli.progress import loading
        from slipstream.loading import load
        from slipstream.runtimes.llamacpp import ContextOptions, ModelOptions

        source = _read_template(template)
        if self.draft in ("auto", "off", "suffix") and (self.draft_device or self.draft_gpu_layers is not None):
            raise InputError("There is no draft model for --draft-device or --draft-gpu-layers.", "Name it by --draft.")
        draft_layers = self.gpu_layers if self.draft_gpu_layers is None else self.draft_gpu_layers
        with loading() as (progress, confirm):
            llm = load(
                model,
                draft=self.draft,
                target_options=ModelOptions(n_gpu_layers=self.gpu_layers, devices=_names(self.device)),
                context_options=ContextOptions(
                    n_ctx=self.ctx,
                    n_batch=self.batch,
                    n_threads=self.threads,
                    cache_type_k=self.cache_type_k,
                    cache_type_v=self.cache_type_v,
                    flash_attn=self.flash_attn,
                ),
                draft_options=ModelOptions(n_gpu_layers=draft_layers, devices=_names(self.draft_device or self.device)),
                template=source,
                exact=self.exact,
                width_probe=width_probe,
                corpus=self.corpus,
                confirm=_always if self.yes else confirm,
                progress=progress,
            )
        if self.draft != "off" and not llm.speculates:
            typer.echo("slipstream: this architecture cannot take tokens back; decoding plainly.", err=True)
        if think is not None and not (llm.template and llm.template.knows_thinking):
            llm.close()
            raise InputError("This model's chat template knows no thinking.", "Leave --think and --no-think away.")
        return llm


def warn_if_inexact(loading: LoadingOptions, completion: Completion, model: str) -> None:
    """Tells those who asked for exact mode where the probe has not shown it."""
    if loading.exact and not completion.statistics.exact:
        typer.echo(
            "slipstream: not shown to be exact: the context is longer than what the widths were compared for. "
            f"`slipstream verify {model} --probe` compares them all the way.",
            err=True,
        )


def tracing(path: Path | None, llm: LLM, model: str) -> AbstractContextManager[TraceWriter | None]:
    """Opens the trace that was asked for, if one was. Raises InputError where it can't be written."""
    from slipstream.lab.trace import TraceWriter

    return TraceWriter(path, llm, model) if path is not None else nullcontext()


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Lets a command take dataclasses of options: typer sees each of their fields as an option of the command."""
    groups: dict[str, type] = {}
    seen: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        group = parameter.annotation
        if is_dataclass(group):
            groups[parameter.name] = cast(type, group)
            hints = get_type_hints(group, include_extras=True)
            seen += [
                inspect.Parameter(f.name, parameter.kind, default=f.default, annotation=hints[f.name])
                for f in fields(group)
            ]
        else:
            seen.append(parameter)

    @functools.wraps(command)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{f.name: given.pop(f.name) for f in fields(group)})
        command(**given)

    # What typer reads: the flat list.
    run.__signature__ = inspect.Signature([p.replace(kind=p.KEYWORD_ONLY) for p in seen])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in seen}
    return run


def _as_option(message: str) -> str:
    """An error that begins with the name of a field, with that of the option instead."""
    name, _, rest = message.partition(" ")
    known = {field.name for field in fields(SamplingOptions)}
    option = "temp" if name == "temperature" else name.replace("_", "-")
    return f"--{option} {rest}" if name in known else message


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
