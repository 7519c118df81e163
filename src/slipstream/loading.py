"""From names and options to a loaded `LLM`: target, drafters, cost curve, control."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from . import estimates
from .decoding.control import Control
from .decoding.cost import MAX_WIDTH, CostCurve
from .decoding.cost_probe import measure
from .decoding.protocols import Drafter
from .decoding.record import DraftCost
from .decoding.widths import SHORT_ROWS, WHOLE_ROWS, WidthClasses, probe, starts
from .drafters.corpus import N_TOKENS, Corpus
from .drafters.corpus_file import open_corpus
from .drafters.intersection import IntersectionDrafter
from .drafters.model import ModelDrafter
from .drafters.suffix import SuffixDrafter
from .drafters.text_drafter import TextDrafter
from .drafters.translation import twins
from .errors import InputError, PairError
from .llm import LLM
from .models.describe import describe_gguf
from .models.gguf import GGUF, read_gguf
from .models.pairing import n_draft_contexts
from .models.resolve import Confirm, resolve
from .models.template import ChatTemplate
from .runtimes.llamacpp import ContextOptions as ContextOptions
from .runtimes.llamacpp import LlamaModel, LlamaRuntime, ModelOptions

Progress = Callable[[str, float], None]
"""Told what is being done, and which fraction of it is."""

WidthProbe = Literal["auto", "short", "whole"]

PROBE_S = 4.0
DRAFT_PROBE_S = 1.0
WIDTHS_KEPT = 4
SMALL_BYTES = 3 << 29
"""Models of up to 1.5 GiB are probed for width classes at load; larger ones when exact mode is asked for."""

SHORT_BANDS = 2
PROBE_TEXT = (
    "The quick brown fox jumps over the lazy dog. In 1984 the river rose by 3.7 metres and flooded the old town; "
    "nobody was hurt. def area(width, height): return width * height  # in square metres. What does the function "
    "return for 3 and 4? It returns 12, since three times four is twelve."
)


def load(
    model: str | Path,
    *,
    draft: str | Path = "auto",
    target_options: ModelOptions | None = None,
    context_options: ContextOptions | None = None,
    draft_options: ModelOptions | None = None,
    template: str | None = None,
    probe_s: float = PROBE_S,
    exact: bool | None = None,
    width_probe: WidthProbe = "auto",
    corpus: str | Path = "auto",
    remember: bool = True,
    confirm: Confirm = lambda question: True,
    progress: Progress = lambda doing, done: None,
) -> LLM:
    """Loads a GGUF model and what drafts for it.

    model: a path, "smollm2", "hf:org/repo[:quant or file]", or a name that `slipstream models` lists.
    draft: "auto" or "suffix" (the suffix drafter, which needs no model), "off" (plain decoding), or a second model,
    named as the first; the suffix drafter stays beside it. A model of another vocabulary drafts in two ways, by text
    and by common tokens, each with a context of its own; whichever is measured faster is asked.
    target_options, draft_options: layers and devices of the two models. context_options: context length, threads,
    batch, KV cache types, flash attention; see `slipstream.runtimes.llamacpp`.
    template: a chat template (Jinja) instead of the model's own.
    probe_s: seconds that measuring t(w) may take where it is not known yet.
    exact: True keeps all passes to widths whose rows agree to the last bit, so that the text, and every
    log-probability, is that of plain decoding in this mode; False takes any width; None is True where the width
    probe has shown that all widths agree. See `decoding.widths`.
    width_probe: "short" compares widths at load if that was not done yet, "whole" over the whole context, which may
    take minutes and goes on where it was stopped; "auto" is "short" if the model is small or exact mode asked for.
    corpus: where the suffix drafter finds past requests: "auto" keeps those of this `LLM` in memory, "off" none, a
    path those of earlier runs too, in a file that is made if there is none.
    remember: whether what earlier runs learned of acceptance is used, and what this one learns kept.
    confirm: asked before anything is downloaded. progress: told what is going on.

    Raises ModelError, PairError, DownloadError, InputError, RuntimeLibraryError; see `slipstream.errors`.
    """
    path = resolve(str(model), confirm=confirm, progress=lambda done, of: progress("fetching", done / max(of, 1)))
    gguf = read_gguf(path)
    small = None if str(draft) in ("auto", "suffix", "off") else _read_draft(resolve(str(draft), confirm=confirm))
    speculate = str(draft) != "off"
    context = (context_options or ContextOptions()).with_rollback(speculate or bool(exact))
    with ExitStack() as opened:
        progress("loading", 0.0)
        target = opened.enter_context(LlamaModel(path, target_options, gguf))
        runtime = opened.enter_context(LlamaRuntime(target, context))
        drafters: list[Drafter] = []
        if speculate:
            suffix = SuffixDrafter(_corpus(corpus, gguf))
            opened.callback(suffix.end, 0)  # its last text belongs to the corpus
            drafters.append(suffix)
        costs: dict[str, DraftCost] = {}
        if small is not None:
            small_model = opened.enter_context(LlamaModel(small.path, draft_options or target_options, small))
            n_contexts = n_draft_contexts(gguf, small)
            small_runtimes = [opened.enter_context(LlamaRuntime(small_model, context)) for _ in range(n_contexts)]
            by_model = model_drafters(target, small_model, small_runtimes)
            curve = _cost(small_model, small_runtimes[0], min(probe_s, DRAFT_PROBE_S), progress)
            costs = {d.name: DraftCost(curve.time(1), curve.time(MAX_WIDTH) / MAX_WIDTH) for d in by_model}
            drafters += by_model
        cost = _cost(target, runtime, probe_s if speculate else 0.0, progress)
        classes = _classes(target, runtime, exact, speculate, width_probe, progress)
        widths = classes.exact if exact or (exact is None and classes.is_free) else ()
        chat = _template(gguf, template)
        control = Control(cost, costs, widths)
        if remember and speculate:
            key = {**_key(path, runtime), "draft": str(small.path if small else None)}
            _recall(key, control, drafters)
            opened.callback(_keep, key, control, drafters)
        return LLM(target.tokenizer, runtime, control, drafters, chat, classes, opened.pop_all())


def _template(gguf: GGUF, source: str | None) -> ChatTemplate | None:
    if source is not None:
        return ChatTemplate(source, gguf.token_text(gguf.bos_id), gguf.token_text(gguf.eos_id))
    return ChatTemplate.of(gguf) if gguf.chat_template else None


def model_drafters(
    target: LlamaModel, draft: LlamaModel, runtimes: Sequence[LlamaRuntime]
) -> list[ModelDrafter | TextDrafter]:
    """What drafts for the target over contexts of the draft model, as many as `pairing.n_draft_contexts` says.

    Over one context in the common vocabulary; over two in another one, by common tokens and by text. Raises PairError
    for a model that cannot draft, or where no token is common.
    """
    if runtimes[0].max_rollback is not None:
        # Snapshots reach back over one pass alone, and a draft takes one for each token.
        raise PairError(
            f"{draft.path.name} cannot draft: its architecture cannot take tokens back one by one.",
            "Choose a draft with attention only, or --draft suffix.",
        )
    if len(runtimes) == 1:
        return [ModelDrafter(runtimes[0], target.tokenizer.n_vocab)]
    vocabularies = target.tokenizer, draft.tokenizer
    common = twins(*vocabularies)
    by_common, by_text = runtimes
    return [IntersectionDrafter(by_common, *vocabularies, common), TextDrafter(by_text, *vocabularies, common)]


def _read_draft(path: Path) -> GGUF:
    draft = describe_gguf(path, path.name)
    if draft.head is not None:
        raise PairError(
            f"{path.name} cannot draft: it is {draft.head}, which reads the hidden states of its target.",
            "slipstream runs no heads. Choose a model that writes text, or --draft suffix.",
        )
    assert draft.gguf is not None
    return draft.gguf


def _corpus(corpus: str | Path, gguf: GGUF) -> Corpus:
    if str(corpus) in ("auto", "off"):
        return Corpus(0 if str(corpus) == "off" else N_TOKENS)
    tokens = gguf.metadata.get("tokenizer.ggml.tokens")
    names = "\n".join(map(str, tokens)) if isinstance(tokens, tuple) else ""
    n_vocab = len(tokens) if isinstance(tokens, tuple) else 0
    return open_corpus(Path(corpus), hashlib.sha256(names.encode()).hexdigest(), n_vocab)


def _recall(key: Mapping[str, object], control: Control, drafters: Sequence[Drafter]) -> None:
    """What earlier runs learned of how often drafts are accepted."""
    data = estimates.load("acceptance", key) or {}
    for drafter in drafters:
        for name, acceptance in drafter.acceptances.items():
            acceptance.restore(_entry(data, drafter.name, name))
    for name, record in control.records.items():
        record.restore(_entry(data, "records", name))
    control.probes.restore(_entry(data, "probes"))


def _entry(data: object, *names: str) -> object:
    for name in names:
        data = data.get(name) if isinstance(data, dict) else None
    return data


def _keep(key: Mapping[str, object], control: Control, drafters: Sequence[Drafter]) -> None:
    learned = {d.name: {name: a.to_data() for name, a in d.acceptances.items()} for d in drafters}
    records = {name: record.to_data() for name, record in control.records.items()}
    estimates.save("acceptance", key, {**learned, "records": records, "probes": control.probes.to_data()})


def _key(path: Path, runtime: LlamaRuntime) -> dict[str, object]:
    """What an estimate holds for: this file, this build, these options."""
    status = path.stat()
    return {
        "model": str(path.resolve()),
        "size": status.st_size,
        "time": status.st_mtime_ns,
        **runtime.cost_key,
    }


def _probe_text(model: LlamaModel) -> list[int]:
    """Of the text a small vocabulary may have no token at all."""
    return model.tokenizer.tokenize(PROBE_TEXT, add_special=True, parse_special=False) or [0]


def _cost(model: LlamaModel, runtime: LlamaRuntime, cap_s: float, progress: Progress) -> CostCurve:
    """The cost curve of a runtime: the stored one, or one measured now for `cap_s` seconds at most."""
    key = {**_key(model.path, runtime), "probe_s": cap_s}
    known = CostCurve.from_data(estimates.load("cost", key))
    if known is not None:
        return known
    doing = f"measuring {model.path.name}"
    curve = measure(runtime, _probe_text(model), time.perf_counter, cap_s, lambda done: progress(doing, done))
    if len(curve.measured) >= min(WIDTHS_KEPT, runtime.n_batch):
        # What a busy hour left time for is used now, and measured again by the next load.
        estimates.save("cost", key, curve.to_data())
    return curve


def _classes(
    model: LlamaModel,
    runtime: LlamaRuntime,
    exact: bool | None,
    speculate: bool,
    width_probe: WidthProbe,
    progress: Progress,
) -> WidthClasses:
    """The width classes of a runtime: those stored, or probed now where they are asked for and not known yet."""
    key = _key(model.path, runtime)
    known = WidthClasses.from_data(estimates.load("widths", key)) or WidthClasses()
    small = speculate and model.path.stat().st_size <= SMALL_BYTES
    whole = width_probe == "whole"
    if not (width_probe != "auto" or exact or (exact is None and small)):
        return known
    n_rows = WHOLE_ROWS if whole else SHORT_ROWS
    at = starts(runtime.n_ctx, n_rows)[: None if whole else SHORT_BANDS]
    if not at and exact:
        raise InputError(
            f"A context of {runtime.n_ctx} tokens is too short to compare the widths of passes.",
            "Use a larger --ctx, or leave --exact away.",
        )
    doing = f"comparing widths of {model.path.name}"
    text = _probe_text(model)
    try:
        for band in probe(runtime, text, known.missing(at, n_rows), n_rows, lambda done: progress(doing, done)):
            known = known.with_band(band)
            estimates.save("widths", key, known.to_data())
    finally:
        runtime.keep(0, 0)
    return known
