"""slipstream itself as an engine, in this process."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from slipstream import __version__
from slipstream.decoding.cost import CostCurve
from slipstream.decoding.sampling import Sampling
from slipstream.decoding.statistics import Statistics
from slipstream.errors import EngineError, InputError, SlipstreamError
from slipstream.llm import LLM
from slipstream.models.describe import describe_gguf
from slipstream.models.judges import judge
from slipstream.models.pairing import verdict

from .protocol import Answer, Arrivals, Counters, Option, Rendering, Request, Settings

KINDS: Final = ("auto", "suffix", "model")
"""The suffix drafter with the draft model, if there is one; the suffix drafter alone; the draft model alone."""


class SlipstreamEngine:
    """Implements `protocol.Engine`.

    Nothing learned comes from earlier runs or stays for later ones, but for t(w) and the width classes of the model,
    which are measured once. The corpus is that of a user: texts since `start` may be found by later drafts.
    """

    name = "slipstream"
    version = __version__
    concurrent = False

    def __init__(self) -> None:
        self.cost: CostCurve | None = None
        """t(w) as it was last known while speculating; None before."""
        self._llm: LLM | None = None
        self._counted = Counters(drafts=0)

    def speculative_options(self, settings: Settings) -> tuple[Option, ...]:
        """Each kind. Lengths are slipstream's own to choose. Raises ModelError for files that cannot be read."""
        reason = _why_no_draft(settings)
        if settings.draft is None:
            same = Option("suffix", why_not="without a draft model it is the same as auto")
            return Option("auto"), same, Option("model", needs_draft=True, why_not=reason)
        return (
            Option("auto", needs_draft=True, why_not=reason),
            Option("suffix"),
            Option("model", needs_draft=True, why_not=reason),
        )

    def start(self, settings: Settings, progress: Callable[[str], None] = lambda line: None) -> None:
        """Loads the models; t(w) and width classes are measured where they are not known yet."""
        assert self._llm is None, "stop comes first"
        _check(settings)
        from slipstream.loading import ContextOptions, load

        try:
            self._llm = load(
                settings.model,
                draft=_draft(settings),
                context_options=ContextOptions(n_ctx=settings.n_ctx, n_threads=settings.n_threads),
                remember=False,
                confirm=lambda question: False,
                progress=lambda doing, done: progress(f"{doing} {done:.0%}"),
            )
        except InputError:
            raise
        except SlipstreamError as error:
            raise EngineError(error.message, error.hint) from None
        self._counted = Counters(drafts=0)
        if _kind(settings) == "model":
            self._llm.drafters = tuple(drafter for drafter in self._llm.drafters if drafter.name != "suffix")
        if settings.speculation and not self._llm.speculates:
            self.stop()
            raise EngineError(f"{settings.model} cannot take tokens back: slipstream decodes it plainly.")
        self.cost = self._llm.control.cost if settings.speculation else self.cost

    def attach(self, url: str) -> None:
        """Raises InputError: slipstream runs in this process."""
        raise InputError(f"slipstream is not attached to ({url}).", "Leave the URL away: it runs in this process.")

    def complete(self, request: Request) -> Answer:
        """Answers one request, without what the caches hold of earlier ones."""
        assert self._llm is not None, "start comes first"
        try:
            return self._answer(self._llm, request)
        except SlipstreamError as error:
            raise EngineError(error.message, error.hint) from None

    def _answer(self, llm: LLM, request: Request) -> Answer:
        llm.forget()
        for drafter in llm.drafters:
            if drafter.name != "suffix":
                drafter.end(0)  # the KV cache of a draft model is a prompt cache, too
        sampling = Sampling(temperature=request.temperature, seed=request.seed)
        arrivals = Arrivals(time.perf_counter)
        generation = llm.stream(request.messages, sampling, request.n_tokens)
        statistics = generation.statistics
        n_arrived = 0
        for _ in generation:
            if statistics.n_tokens > n_arrived:
                arrivals.add(statistics.n_tokens - n_arrived)
                n_arrived = statistics.n_tokens
        decode_s = time.perf_counter() - arrivals.began - statistics.ttft_s
        counters = counted(statistics)
        self._counted += counters
        times = tuple(arrivals.times)
        return Answer(generation.text, statistics.n_tokens, statistics.ttft_s, decode_s, times, counters)

    def counters(self) -> Counters | None:
        """Totals of all requests since `start`."""
        return self._counted

    def render(self, settings: Settings) -> tuple[Rendering, ...]:
        """The command line, and Python. No option of the command line leaves the suffix drafter away."""
        _check(settings)
        rendered = Rendering("Python", "python", _python(settings), "slipstream_settings.py")
        if _kind(settings) == "model":
            return (rendered,)
        return Rendering("Command line", "sh", f"{_command_line(settings)}\n", "slipstream.sh"), rendered

    def stop(self) -> None:
        """Frees the models."""
        if self._llm is not None:
            self._llm.close()
        self._llm = None


def counted(statistics: Statistics) -> Counters:
    """The counters of one answer. Each place of a draft counts as drafted where it was reached."""
    drafts = statistics.reached[0] if statistics.reached else 0
    accepted_at = statistics.accepted + [0] * (len(statistics.reached) - len(statistics.accepted))
    return Counters(statistics.n_drafted, statistics.n_accepted, drafts, tuple(accepted_at), tuple(statistics.reached))


def _kind(settings: Settings) -> str:
    return settings.speculation[0].kind if settings.speculation else ""


def _draft(settings: Settings) -> str:
    kind = _kind(settings)
    if kind in ("auto", "model") and settings.draft is not None:
        return settings.draft
    return kind or "off"


def _check(settings: Settings) -> None:
    if len(settings.speculation) > 1:
        raise InputError(f"slipstream does not run {settings.arm}.", "auto joins what there is.")
    for speculation in settings.speculation:
        if speculation.kind not in KINDS:
            hint = f"It has {', '.join(KINDS)}."
            raise InputError(f"slipstream knows no speculation {speculation.kind!r}.", hint)
        if speculation.n_max is not None or speculation.p_min is not None:
            raise InputError(f"slipstream chooses the length of drafts itself, and {speculation} is asked for.")
        if speculation.kind == "model" and settings.draft is None:
            raise InputError("slipstream's model needs a draft.", "Name one with --draft.")
    if settings.parallel > 1:
        raise InputError(f"slipstream answers one request at a time, not {settings.parallel}.")


def _why_no_draft(settings: Settings) -> str:
    if settings.draft is None:
        return "no draft model is given"
    target = describe_gguf(Path(settings.model), settings.model)
    draft = describe_gguf(Path(settings.draft), settings.draft)
    try:
        ruling = next(j for j in judge(target, draft, verdict(target, draft)) if j.engine == "slipstream")
    except SlipstreamError as error:
        return error.message
    return ruling.reason if ruling.takes is False else ""


def _command_line(settings: Settings) -> str:
    words = ["slipstream", "run", settings.model, "--ctx", str(settings.n_ctx)]
    words += ["--threads", str(settings.n_threads)] if settings.n_threads else []
    words += ["--draft", _draft(settings)] if _draft(settings) != "auto" else []
    return shlex.join([*words, "Why is the sky blue?"])


def _python(settings: Settings) -> str:
    threads = f", n_threads={settings.n_threads}" if settings.n_threads else ""
    draft = f"draft={json.dumps(_draft(settings))}, " if _draft(settings) != "auto" else ""
    lines = [
        "from slipstream import load",
        "from slipstream.runtimes.llamacpp import ContextOptions",
        "",
        f"context = ContextOptions(n_ctx={settings.n_ctx}{threads})",
        f"with load({json.dumps(settings.model)}, {draft}context_options=context) as llm:",
    ]
    if _kind(settings) == "model":
        lines.append('    llm.drafters = tuple(drafter for drafter in llm.drafters if drafter.name != "suffix")')
    lines.append('    print(llm.generate([{"role": "user", "content": "Why is the sky blue?"}]).text)')
    return "\n".join([*lines, ""])
