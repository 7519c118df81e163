"""What every engine looks like from outside: started or attached to, asked, counted, its settings written down."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from slipstream.errors import InputError

Messages = Sequence[Mapping[str, str]]
"""A conversation: messages with a `role` and a `content`."""


@dataclass(frozen=True)
class Speculation:
    """One way to speculate.

    kind: the engine's own word for it ("ngram-simple", "draft_model", "EAGLE3" …). n_max: tokens a draft may have.
    p_min: the drafter's probability below which a draft ends. Both None where the engine's default stands.
    """

    kind: str
    n_max: int | None = None
    p_min: float | None = None

    def __str__(self) -> str:
        parts = [self.kind]
        parts += [f"n {self.n_max}"] if self.n_max is not None else []
        parts += [f"p {self.p_min:g}"] if self.p_min is not None else []
        return " ".join(parts)


@dataclass(frozen=True)
class Settings:
    """How an engine runs.

    model: a path or a name as the engine takes it. speculation: nothing for plain decoding; more than one where the
    engine combines them. draft: the small model, or the head, that a speculation asks for. n_ctx: tokens of context a
    sequence. n_threads: None for the engine's own choice. parallel: sequences served at once.

    Raises InputError for names with line breaks or control characters: settings are written down, one a line.
    """

    model: str
    speculation: tuple[Speculation, ...] = ()
    draft: str | None = None
    n_ctx: int = 4096
    n_threads: int | None = None
    parallel: int = 1

    def __post_init__(self) -> None:
        for name in (self.model, self.draft or ""):
            if any(unicodedata.category(char) in ("Cc", "Zl", "Zp") for char in name):
                raise InputError(f"{name[:80]!r} is no model: its name has a control character.", "Rename it.")

    @property
    def arm(self) -> str:
        """A name for tables and journals: "plain", "ngram-mod", "draft-simple n 4 + ngram-simple" …"""
        return " + ".join(map(str, self.speculation)) or "plain"


@dataclass(frozen=True)
class Option:
    """A kind of speculation that this engine and version has for a model and a draft.

    n_max, p_min: values worth trying first, ascending; empty where the kind has no such setting. why_not: the reason
    why it cannot be run here; empty where it can. combines: whether the engine runs it together with another such kind.
    is_fixed: whether there are no other values than these, as with servers that run already.
    """

    kind: str
    n_max: tuple[int, ...] = ()
    p_min: tuple[float, ...] = ()
    needs_draft: bool = False
    why_not: str = ""
    combines: bool = False
    is_fixed: bool = False


@dataclass(frozen=True)
class Counters:
    """What an engine counted, in the house's words; `later - earlier` is what came between.

    drafts: rounds with a draft, None where the engine does not say. drafted, accepted: tokens, the bonus token in
    neither. accepted_at[i], drafted_at[i]: drafts whose token i (from 0) was accepted, and that had one; empty where
    the engine does not say. An engine that knows in how many drafts token i was reached gives these as drafted_at.
    """

    drafted: int = 0
    accepted: int = 0
    drafts: int | None = None
    accepted_at: tuple[int, ...] = ()
    drafted_at: tuple[int, ...] = ()

    def __sub__(self, earlier: Counters) -> Counters:
        return self._with(earlier, -1)

    def __add__(self, other: Counters) -> Counters:
        return self._with(other, 1)

    def _with(self, other: Counters, sign: int) -> Counters:
        def each(mine: tuple[int, ...], theirs: tuple[int, ...]) -> tuple[int, ...]:
            n = max(len(mine), len(theirs))
            padded = zip(mine + (0,) * (n - len(mine)), theirs + (0,) * (n - len(theirs)), strict=True)
            return tuple(a + sign * b for a, b in padded)

        drafts = None if self.drafts is None or other.drafts is None else self.drafts + sign * other.drafts
        return Counters(
            self.drafted + sign * other.drafted,
            self.accepted + sign * other.accepted,
            drafts,
            each(self.accepted_at, other.accepted_at),
            each(self.drafted_at, other.drafted_at),
        )

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted ÷ drafted; None where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    def mean_tokens_a_pass(self, n_decoded: int) -> float | None:
        """(Accepted + bonus) ÷ passes over `n_decoded` tokens behind the first: each pass adds one bonus token."""
        n_passes = n_decoded - self.accepted
        return n_decoded / n_passes if n_passes > 0 else None

    def conditional(self) -> tuple[float | None, ...]:
        """Accepted ÷ reached, by position: reached are the drafts that had the token and all of it accepted before.

        None where a position was never reached, and for all behind the first where `drafted_at` is not known: a draft
        may have ended there.
        """
        rates: list[float | None] = []
        before = self.drafts
        for i, accepted in enumerate(self.accepted_at):
            # A draft that ended is not reached; how many of those that ended had all accepted, no counter tells.
            had = self.drafted_at[i] if i < len(self.drafted_at) else (before if i == 0 else None)
            reached = None if had is None or before is None else min(had, before)
            rates.append(accepted / reached if reached else None)
            before = accepted
        return tuple(rates)


@dataclass(frozen=True)
class Request:
    """A prompt to answer with at most `n_tokens` tokens; greedy at temperature 0."""

    messages: Messages
    n_tokens: int
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Answer:
    """An answer with its times.

    n_tokens: of the answer, as the engine counts them. ttft_s: seconds from the request to the first token.
    decode_s: from the first token to the last, so that `n_tokens - 1` came in it; by the engine's own clock where it
    tells, else by arrival. arrivals: (seconds since the request, tokens so far), one a piece that arrived; tokens are
    counted by pieces where the engine does not say. counters: of this request, where the engine says.
    """

    text: str
    n_tokens: int
    ttft_s: float
    decode_s: float
    arrivals: tuple[tuple[float, int], ...] = ()
    counters: Counters | None = None

    @property
    def tokens_per_s(self) -> float | None:
        """Decoding speed behind the first token; None for answers too short to tell."""
        return (self.n_tokens - 1) / self.decode_s if self.n_tokens > 1 and self.decode_s > 0 else None


@dataclass(frozen=True)
class Rendering:
    """Settings as an engine's users write them down.

    title: where it goes ("Command line", "Modelfile", "Python" …). language: of the text, for highlighting ("sh",
    "json", "python", "text"). text: complete, to be copied. file_name: what to save it as.
    """

    title: str
    language: str
    text: str
    file_name: str


class Engine(Protocol):
    """An engine; not running when made. One thread may call it, `complete` as many as `parallel` allows.

    name: "slipstream", "llama.cpp", "vllm" … version: of what runs or would be run; "" where unknown before `attach`.
    concurrent: whether several requests may be answered at once.

    Every method may raise EngineError, with the engine's last lines where it has any.
    """

    name: str
    version: str
    concurrent: bool

    def speculative_options(self, settings: Settings) -> tuple[Option, ...]:
        """What this engine and version can do with this model and draft; needs no running engine."""

    def start(self, settings: Settings, progress: Callable[[str], None] = lambda line: None) -> None:
        """Starts it and returns when it answers; no prompt cache, whatever the settings. Not started before.

        progress: told what it does meanwhile. Raises InputError for settings that the engine cannot take.
        """

    def attach(self, url: str) -> None:
        """Uses a server that runs already. `start` then changes only what can be asked for with a request."""

    def complete(self, request: Request) -> Answer:
        """Answers one request, streaming. Raises EngineError where the server fails or answers an error."""

    def counters(self) -> Counters | None:
        """Totals since the start; None where the engine keeps none."""

    def render(self, settings: Settings) -> tuple[Rendering, ...]:
        """The settings for this version, the most usual way first; needs no running engine."""

    def stop(self) -> None:
        """Ends what `start` started, and leaves alone what `attach` found; harmless when done twice."""


@dataclass
class Arrivals:
    """Collects when the tokens of an answer arrived. `clock` in seconds."""

    clock: Callable[[], float]
    began: float = field(init=False)
    times: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.began = self.clock()

    def add(self, n_tokens: int = 1) -> None:
        so_far = self.times[-1][1] if self.times else 0
        self.times.append((self.clock() - self.began, so_far + n_tokens))

    def answer(self, text: str, n_tokens: int | None = None, counters: Counters | None = None) -> Answer:
        """By arrival; `n_tokens` as the engine counts them, if it does."""
        if not self.times:
            return Answer(text, n_tokens or 0, self.clock() - self.began, 0.0, (), counters)
        first, last = self.times[0][0], self.times[-1][0]
        return Answer(text, n_tokens or self.times[-1][1], first, last - first, tuple(self.times), counters)
