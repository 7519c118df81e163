"""A loaded model that answers: `generate` gives the whole text, `stream` its pieces as they are accepted."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Literal

from .decoding.choice import Sampler
from .decoding.control import Control
from .decoding.logprobs import MAX_TOP, TokenLogprob
from .decoding.protocols import Drafter, Runtime
from .decoding.ring import Ring, SequenceState
from .decoding.sampling import Sampling
from .decoding.statistics import Round, Statistics
from .decoding.trace import Trace
from .decoding.widths import WidthClasses
from .errors import InputError, TemplateError
from .models.template import ChatTemplate
from .runtimes.llamacpp import Tokenizer
from .text import Piece, TextStream

Messages = Sequence[Mapping[str, str]]
"""A conversation: messages with a `role` (system, user, assistant) and a `content`."""

FinishReason = Literal["stop", "length", "interrupted"]

Rounds = Generator[list[Piece], None, None]


@dataclass(frozen=True)
class Completion:
    """A finished answer.

    text: the answer. tokens: its token ids, the one that ended it included. finish_reason: "stop" (the model or a
    stop string ended it), "length" (`max_tokens` or the context is used up) or "interrupted". logprobs: one for each
    token, where they were asked for.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    statistics: Statistics
    logprobs: tuple[TokenLogprob, ...] = ()


class Generation:
    """An answer in the making: iterate over it for its `Piece`s as they are accepted.

    `statistics`, `tokens` and `logprobs` are up to date with the last round at each piece, `text` with the piece;
    `finish_reason` is None until the end. Leaving the loop early, or calling `close`, ends the answer as
    "interrupted" and leaves the model ready for the next.
    """

    def __init__(self, statistics: Statistics) -> None:
        self.statistics = statistics
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self._rounds: Rounds = _nothing()

    def __iter__(self) -> Iterator[Piece]:
        try:
            for pieces in self._rounds:
                for piece in pieces:
                    if self.finish_reason == "interrupted":
                        return
                    self.text += piece.text
                    yield piece
        finally:
            self.close()

    def close(self) -> None:
        self._rounds.close()
        if self.finish_reason is None:
            self.finish_reason = "interrupted"

    def completion(self) -> Completion:
        """The answer so far, finished or not."""
        reason = self.finish_reason or "interrupted"
        return Completion(self.text, tuple(self.tokens), reason, self.statistics, tuple(self.logprobs))


def _nothing() -> Rounds:
    yield from ()


class LLM:
    """A loaded model with its drafters. One answer at a time; the KV cache serves the next one where texts agree.

    Not thread-safe. Close it, or use it as a context manager, to free the memory.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        runtime: Runtime,
        control: Control,
        drafters: Sequence[Drafter],
        template: ChatTemplate | None = None,
        classes: WidthClasses | None = None,
        owned: ExitStack | None = None,
    ) -> None:
        """Puts loaded parts together; `slipstream.load` is the usual way. `owned` is closed with the LLM.

        `classes`: what the width probe has shown of the runtime.
        """
        self.runtime = runtime
        self.tokenizer = tokenizer
        self.template = template
        self.control = control
        self.drafters = tuple(drafters)
        self.classes = classes or WidthClasses()
        self.speculates = bool(drafters) and runtime.max_rollback != 0
        self._owned = owned or ExitStack()
        self._cached: list[int] = []
        self._cached_exactly = True
        self._busy: Generation | None = None
        self._closed = False

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the answer in the making and frees the models; harmless when done twice."""
        if self._busy is not None:
            self._busy.close()
        self._closed = True
        self._owned.close()

    def forget(self) -> None:
        """Empties the KV cache: the next prompt is read from its beginning."""
        self.runtime.keep(0, 0)
        self._cached = []

    def prompt_tokens(self, prompt: str | Messages, think: bool | None = None) -> list[int]:
        """Token ids of a prompt: a text as it is, or messages through the model's chat template.

        Raises TemplateError if the template can't be rendered, or there is none; InputError after `close`.
        """
        if self._closed:
            raise InputError("This model was closed.", "Load it again.")
        if not prompt:
            raise InputError("The prompt is empty.", "Give at least one character.")
        if isinstance(prompt, str):
            return self.tokenizer.tokenize(prompt, add_special=True, parse_special=True)
        if self.template is None:
            raise TemplateError(
                "This model has no chat template.", "Use --raw (in Python: give a text), or --template FILE."
            )
        text = self.template.render(prompt, enable_thinking=think)
        if self.tokenizer.add_bos and self.template.bos and text.startswith(self.template.bos):
            text = text[len(self.template.bos) :]
        return self.tokenizer.tokenize(text, add_special=True, parse_special=True)

    def generate(
        self,
        prompt: str | Messages,
        sampling: Sampling | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        think: bool | None = None,
        speculate: bool = True,
        logprobs: int | None = None,
    ) -> Completion:
        """The whole answer; parameters and errors as for `stream`."""
        generation = self.stream(prompt, sampling, max_tokens, stop, think, speculate, logprobs=logprobs)
        for _ in generation:
            pass
        return generation.completion()

    def stream(
        self,
        prompt: str | Messages,
        sampling: Sampling | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        think: bool | None = None,
        speculate: bool = True,
        ignore_end: bool = False,
        logprobs: int | None = None,
        trace: Trace | None = None,
    ) -> Generation:
        """Starts an answer.

        prompt: a text, or messages for the chat template. sampling: `Sampling()` unless given. max_tokens: None for
        as many as the context holds. stop: strings that end the answer and are not part of it. think: passed to
        templates that know it. speculate: False for plain decoding. ignore_end: goes on behind the end-of-text
        token, for measurements. logprobs: asks for each token's log-probability under the target's raw logits, and
        those of so many of the likeliest tokens at its place, 0 to 100. trace: told of every round, with what every
        drafter would have proposed at every place; see `slipstream.lab.trace`.

        Raises InputError if the prompt is empty or leaves no room in the context, or an option is out of range; what
        `prompt_tokens` raises.
        """
        began = time.perf_counter()
        if max_tokens is not None and (not isinstance(max_tokens, int) or max_tokens < 1):
            raise InputError(f"max_tokens is {max_tokens}.", "It must be a whole number, 1 or more.")
        if stop is None or isinstance(stop, str):
            raise InputError(f"stop is {stop!r}.", "Give a list of stop strings.")
        if any(not s for s in stop):
            raise InputError("A stop string is empty.", "Give at least one character.")
        if self._busy is not None:
            self._busy.close()
        if logprobs is not None and not (type(logprobs) is int and 0 <= logprobs <= MAX_TOP):
            raise InputError(f"logprobs is {logprobs!r}.", f"It must be a whole number from 0 to {MAX_TOP}.")
        tokens = self.prompt_tokens(prompt, think)
        self._check_length(tokens)
        sampler = Sampler(sampling or Sampling(), self.runtime.n_vocab)
        limit = self.runtime.n_ctx if max_tokens is None else min(self.runtime.n_ctx, len(tokens) + max_tokens)
        is_end = (lambda token: False) if ignore_end else self.tokenizer.is_eog
        state = SequenceState(0, sampler, is_end, limit, logprobs)
        text = TextStream(stop)
        ring = Ring(self.runtime, self.drafters if speculate else (), self.control, time.perf_counter, trace)
        statistics = Statistics(n_prompt=len(tokens), by_drafter={d.name: [0, 0] for d in ring.drafters})
        generation = Generation(statistics)
        generation._rounds = self._run(generation, ring, state, tokens, text, began)
        self._busy = generation
        return generation

    def _run(
        self,
        generation: Generation,
        ring: Ring,
        state: SequenceState,
        prompt: list[int],
        text: TextStream,
        began: float,
    ) -> Rounds:
        statistics = generation.statistics
        cached, self._cached = self._cached, []
        statistics.n_cached = self._reusable(cached, prompt)
        exactly = self._cached_exactly or not statistics.n_cached
        widths = set(self.control.widths[:1] or (1,))  # those of plain decoding
        try:
            done = ring.begin(state, prompt, statistics.n_cached)
            statistics.first(time.perf_counter() - began)
            statistics.exact = exactly
            yield self._show(generation, done, state, text)
            while not (state.ended or text.stopped):
                (done,) = ring.step([state])
                widths |= {done.width, done.n_outputs}
                statistics.exact = statistics.exact and self.classes.shows(widths, done.n_context + done.width)
                n_before = len(generation.tokens)
                pieces = self._show(generation, done, state, text)
                plain_s = self.control.plain_token_s(done.n_context)
                statistics.add(_head(done, len(generation.tokens) - n_before), plain_s)
                yield pieces
            is_stop = text.stopped or state.is_end(state.tokens[-1])
            generation.finish_reason = "stop" if is_stop else "length"
            yield text.finish()
        finally:
            self._cached = self._left(state, len(prompt) + len(generation.tokens), text.stopped)
            self._cached_exactly = statistics.exact
            self._busy = None

    def _left(self, state: SequenceState, n_tokens: int, stopped: bool) -> list[int]:
        """What the cache holds for the next prompt: all of the answer but its last token.

        Fewer where a pass was interrupted. Nothing behind a stop string, though a draft may have gone on: the next
        prompt must meet the cache that plain decoding would have left. A recurrent model cannot go back so far.
        """
        if stopped and self.runtime.max_rollback is not None:
            return []
        return state.tokens[: min(self.runtime.held(0), max(n_tokens - 1, 0))]

    def _show(self, generation: Generation, done: Round, state: SequenceState, text: TextStream) -> list[Piece]:
        pieces: list[Piece] = []
        for i, token in enumerate(done.tokens):
            if text.stopped:
                break
            generation.tokens.append(token)
            generation.logprobs += done.logprobs[i : i + 1]
            if not state.is_end(token):
                pieces += text.push(self.tokenizer.piece(token), i < done.accepted)
        return pieces

    def _check_length(self, tokens: Sequence[int]) -> None:
        if not tokens:
            raise InputError("The prompt is empty.", "Give at least one character.")
        if len(tokens) >= self.runtime.n_ctx:
            raise InputError(
                f"The prompt has {len(tokens)} tokens; the context holds {self.runtime.n_ctx}, the answer included.",
                "Shorten it, or load with a larger context (--ctx).",
            )

    def _reusable(self, cached: Sequence[int], prompt: Sequence[int]) -> int:
        """Tokens at the beginning of the prompt that the KV cache holds already; the last one is always read."""
        same = 0
        while same < min(len(cached), len(prompt) - 1) and cached[same] == prompt[same]:
            same += 1
        if self.control.widths and same < len(cached):
            # Read afresh, in the same pieces as ever: only a text that goes on has the cache of its own history.
            return 0
        return same if same >= self.runtime.floor(0) else 0


def _head(done: Round, n_tokens: int) -> Round:
    """The round as far as it went into the answer: a stop string may have ended it within."""
    if n_tokens == len(done.tokens):
        return done
    accepted = min(done.accepted, n_tokens)
    return replace(done, tokens=done.tokens[:n_tokens], drafted=accepted, accepted=accepted)
