"""The arms of bench/peers.py: slipstream in this process, llama.cpp's servers and other engines in ones of their own.

Two engines in one process would slow each other down: where a process has more OpenMP threads than there are cores,
libgomp's barriers put them to sleep instead of spinning, and every arm runs at half its speed.

All arms count the same tokens over the same span: those behind the first token, from the moment that the first is
chosen to the moment that the last is.

- llama.cpp: `timings.predicted_ms` runs from the choice of the first token (`update_prompt_last`, called when one
  token is generated, behind `common_speculative_begin`) to the last verification (`update_gen_last`); `predicted_n`
  counts the first token too (tools/server: server-context.cpp, `server_slot_stats`). So n_decoded = predicted_n − 1,
  as in its own `predicted_per_second`. What happens between passes (detokenising, filling batches) is within.
- slipstream: wall time of the whole request less its time to first token, so what happens between rounds is within
  here too. The time to first token holds the drafters' indexing of the prompt (and of the text before it, which joins
  the corpus), which is added again (`index_s`); llama.cpp indexes before its span begins, or reads in each draft. A
  draft model reads the prompt when it is first asked, within the span; llama.cpp's reads it before. Both differences
  are to slipstream's disadvantage.

llama.cpp ignores the end of the text by banning its tokens; slipstream gets the same bans, so that texts agree.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from peers_journal import Answer, Settings
from peers_process import Engine

from slipstream import LLM, Sampling, load
from slipstream.engines.llamacpp_settings import fields
from slipstream.engines.protocol import Settings as EngineSettings
from slipstream.engines.protocol import Speculation
from slipstream.errors import InputError, RuntimeLibraryError
from slipstream.lab import tune_files
from slipstream.runtimes.llamacpp import ContextOptions

HERE = Path(__file__).parent
SLIPSTREAM = ("plain", "auto", "auto+draft")
NGRAM = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
TUNED = "tuned"
LLAMA: dict[str, tuple[Speculation, ...]] = {
    "none": (),
    **{kind: (Speculation(kind),) for kind in NGRAM},
    **{f"draft-simple-{n}": (Speculation("draft-simple", n),) for n in (2, 4, 8)},
}
"""llama.cpp's own: what each arm speculates with."""

ENGINES = {"transformers": ("transformers", "transformers+lookup"), "openvino": ("openvino", "openvino+lookup")}

WARM_UP = "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich."
N_WARM_UP = 8

CTX_MARGIN = 8
"""Cells left free behind the last token: llama.cpp shortens drafts where the context ends."""


@dataclass(frozen=True)
class Request:
    """messages: for slipstream; tokens: the same prompt as token ids. banned: the tokens that end a text."""

    messages: Sequence[Mapping[str, str]]
    tokens: list[int]
    n_tokens: int
    temperature: float
    seed: int
    banned: tuple[int, ...]


class Arm(Protocol):
    def answer(self, request: Request) -> Answer:
        """Raises RuntimeLibraryError where the engine fails or counts other prompt tokens."""


class SlipstreamArm:
    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self._index_s = 0.0
        for drafter in llm.drafters:
            drafter.begin = self._timed(drafter.begin)  # type: ignore[method-assign]

    def answer(self, request: Request) -> Answer:
        self.llm.forget()
        for drafter in self.llm.drafters:
            if drafter.name == "model":
                drafter.end(0)  # its KV cache is a prompt cache too
        bias = dict.fromkeys(request.banned, -math.inf)
        sampling = Sampling(temperature=request.temperature, seed=request.seed, logit_bias=bias)
        self._index_s = 0.0
        began = time.perf_counter()
        generation = self.llm.stream(request.messages, sampling, request.n_tokens, ignore_end=True)
        for _ in generation:
            pass
        took = time.perf_counter() - began
        done = generation.statistics
        decode_s = took - done.ttft_s + self._index_s
        drafted = (done.n_drafted, done.n_accepted) if self.llm.speculates else (None, None)
        return Answer(tuple(generation.tokens), done.n_decoded, decode_s, self._index_s, *drafted)

    def _timed(self, begin: Callable[..., None]) -> Callable[..., None]:
        def timed(seq: int, tokens: Sequence[int]) -> None:
            began = time.perf_counter()
            begin(seq, tokens)
            self._index_s += time.perf_counter() - began

        return timed


class LlamaCppArm:
    """A server of its own, in a process of its own: what its n-gram drafters have seen stays from prompt to prompt."""

    def __init__(self, name: str, engine: Engine) -> None:
        self.name, self._engine = name, engine

    def answer(self, request: Request) -> Answer:
        asked = {"prompt": request.tokens, "n_tokens": request.n_tokens, "banned": request.banned}
        reply = self._engine.ask({"arm": self.name, **asked, "temperature": request.temperature, "seed": request.seed})
        if reply["prompt_n"] != len(request.tokens):
            raise RuntimeLibraryError(
                f"llama.cpp's server ({self.name}) read {reply['prompt_n']} prompt tokens of {len(request.tokens)}."
            )
        drafted = (None, None) if self.name == "none" else (reply["n_drafted"], reply["n_accepted"])
        return Answer(tuple(reply["tokens"]), reply["n_decoded"], reply["decode_s"], 0.0, *drafted)


@dataclass(frozen=True)
class ProcessArm:
    name: str
    engine: Engine

    def answer(self, request: Request) -> Answer:
        asked = {"prompt": request.tokens, "n_tokens": request.n_tokens, "banned": request.banned}
        reply = self.engine.ask({"arm": self.name, **asked})
        return Answer(tuple(reply["tokens"]), reply["n_decoded"], reply["decode_s"])


def tuned_speculation(path: Path) -> tuple[Speculation, ...]:
    """llama.cpp's setting for one request at a time that `slipstream tune` decided for, by its tune.json.

    Raises InputError for another file, and where nothing was decided.
    """
    for engine in tune_files.read(path).engines:
        if engine.name == "llama.cpp" and engine.concurrency == 1 and engine.verdict.arm is not None:
            return next((arm.speculation for arm in engine.arms if arm.arm == engine.verdict.arm), ())
    raise InputError(f"{path} decides nothing for llama.cpp.", "Tune longer, with --engine llama.cpp.")


def arm_names(draft: bool, engines: Sequence[str], asked: Sequence[str] = (), tuned: bool = False) -> tuple[str, ...]:
    """The arms to run: all that can be, or those asked for and what they are compared with.

    Raises InputError for a name that is not among them.
    """
    possible = [name for name in (*SLIPSTREAM, *LLAMA) if draft or ("draft" not in name)]
    possible += [TUNED] if tuned else []
    possible += [name for engine in engines for name in ENGINES[engine]]
    for name in asked:
        if name not in possible:
            raise InputError(f"--arms: {name} is not an arm here.", f"There are {', '.join(possible)}.")
    wanted = {*asked, *map(baseline, asked), "plain"} if asked else set(possible)
    return tuple(name for name in possible if name in wanted)


def baseline(arm: str) -> str:
    """The arm that an arm is compared with: plain decoding of the same arithmetic where there is one."""
    engine = arm.removesuffix("+lookup")
    return engine if engine != arm else "plain"


def open_arms(
    settings: Settings,
    model: Path,
    draft: Path | None,
    engines: Mapping[str, Engine],
    opened: ExitStack,
    tuned: tuple[Speculation, ...] = (),
) -> dict[str, Arm]:
    """Loads every arm; `opened` closes them. Raises what `slipstream.load` raises, and RuntimeLibraryError."""
    context = ContextOptions(n_ctx=settings.n_ctx, n_threads=settings.n_threads)
    drafts: dict[str, str | Path | None] = {"plain": "off", "auto": "auto", "auto+draft": draft}
    arms: dict[str, Arm] = {}
    for name in settings.arms:
        if name in drafts:
            # Like llama.cpp's n-gram drafters, these begin the run without what an earlier one learned.
            llm = load(model, draft=drafts[name] or "auto", context_options=context, remember=False)
            arms[name] = SlipstreamArm(opened.enter_context(llm))
        elif name in LLAMA or name == TUNED:
            small = str(draft) if draft else None
            speculation = LLAMA.get(name, tuned)
            asked = EngineSettings(str(model), speculation, small, settings.n_ctx, settings.n_threads)
            engine = Engine(sys.executable, HERE / "peers_llamacpp.py", (name, json.dumps(fields(asked))))
            opened.callback(engine.close)
            arms[name] = LlamaCppArm(name, engine)
        else:
            arms[name] = ProcessArm(name, engines[name.removesuffix("+lookup")])
    return arms


def end_tokens(llm: LLM) -> tuple[int, ...]:
    return tuple(token for token in range(llm.runtime.n_vocab) if llm.tokenizer.is_eog(token))
