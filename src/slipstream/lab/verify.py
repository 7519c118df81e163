"""Is the speculative text that of plain decoding? Where it isn't, does the width of the passes explain it?"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from slipstream.decoding.choice import Sampler
from slipstream.decoding.control import Control
from slipstream.decoding.cost import MAX_WIDTH, CostCurve
from slipstream.decoding.record import DraftCost
from slipstream.decoding.ring import Ring, SequenceState
from slipstream.decoding.sampling import Sampling
from slipstream.errors import InputError
from slipstream.lab.recorder import Recorder, Replay, replay, straight
from slipstream.lab.workload import Prompt
from slipstream.llm import LLM

Mode = Literal["normal", "exact"]

Progress = Callable[[float], None]


@dataclass(frozen=True)
class Divergence:
    """A prompt whose two texts part.

    position: tokens of the answer before the parting. plain, speculative: the tokens there, None if one text ends.
    gap: how far the plain arm's row puts its own token before the other one, in logits; for a sampled token this may
    be negative. difference: the largest between the two arms' rows at this place. explained: both rows were
    reproduced bit for bit from a clean cache, they differ, and each chooses its own token; else `reason` says why not.
    """

    prompt: str
    position: int
    plain: int | None
    speculative: int | None
    gap: float
    difference: float
    explained: bool
    reason: str = ""


@dataclass
class Comparison:
    """All prompts at one temperature, in one mode.

    identical: prompts with the same tokens. identical_rows: those whose logits were also the same, to the last bit.
    faults: prompts whose rows were not reproduced from a clean cache though the texts agree. n_tokens, plain_s: tokens
    and seconds of plain decoding, from the first token on.
    """

    mode: Mode
    temperature: float
    prompts: int = 0
    identical: int = 0
    identical_rows: int = 0
    divergences: list[Divergence] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    n_tokens: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    plain_s: float = 0.0

    @property
    def passed(self) -> bool:
        """Every divergence is explained; in exact mode there is none, nor a bit that differs."""
        if self.faults or not all(d.explained for d in self.divergences):
            return False
        return self.mode == "normal" or self.identical_rows == self.prompts


@dataclass
class Report:
    """What `verify` found. exact_cost: plain decoding in exact mode ÷ plain decoding, in seconds a token."""

    comparisons: list[Comparison] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return all(c.passed for c in self.comparisons)

    @property
    def exact_cost(self) -> float | None:
        seconds = {mode: [c for c in self.comparisons if c.mode == mode] for mode in ("normal", "exact")}
        rates = [sum(c.plain_s for c in cs) / (sum(c.n_tokens for c in cs) or 1) for cs in seconds.values()]
        return rates[1] / rates[0] if all(rates) else None


@dataclass(frozen=True)
class _Arm:
    """A text, and the record of how it was computed. `decode_s` from the first token on."""

    tokens: list[int]
    n_prompt: int
    recorder: Recorder
    sampler: Sampler
    decode_s: float
    n_drafted: int
    n_accepted: int

    @property
    def rows(self) -> list[bytes]:
        """The bits of the row behind each token that was kept, from the end of the prompt on."""
        kept: list[bytes] = []
        for i, recorded in enumerate(self.recorder.passes):
            start, later = recorded.rows.start, self.recorder.passes[i + 1 :]
            n = (later[0].rows.start if later else len(self.tokens) - 1) - start
            first = len(recorded.rows.tokens) - recorded.rows.n_outputs
            kept += recorded.bits[: max(n - first, 0)]
        return kept


class EagerCost(CostCurve):
    """What control is told of the cost of passes: so little that it drafts wherever it can, and pads odd widths."""

    def __init__(self) -> None:
        super().__init__({w: 1 + w / 16 + (w % 2) / 4 for w in range(1, MAX_WIDTH + 1)})

    def observe(self, width: int, seconds: float, n_context: int = 0) -> None:
        """Does not learn what passes really cost."""


def verify(
    llm: LLM,
    prompts: Sequence[Prompt],
    temperatures: Sequence[float] = (0.0,),
    n_tokens: int = 48,
    seed: int = 0,
    modes: Sequence[Mode] = ("normal", "exact"),
    progress: Progress = lambda done: None,
    cost: CostCurve | None = None,
) -> Report:
    """Writes each prompt with and without speculation, in normal mode and, if the classes are known, in exact mode.

    cost: what control goes by; unless given, one by which drafts are as long as they can be. The arms of a prompt take
    turns. Every speculative record is replayed from a clean cache, whether the texts agree or not; at a parting both
    are. Answers end after `n_tokens` or with the model's end token. A model without a chat template reads the messages
    as one text. Raises what `LLM.prompt_tokens` raises, and InputError for a prompt that leaves no room in the context.
    """
    llm.forget()
    texts = [(p.id, _tokens(llm, p)) for p in prompts]
    possible = [mode for mode in modes if mode == "normal" or llm.classes.exact]
    report = Report([Comparison(mode, t) for t in temperatures for mode in possible])
    try:
        for n, (name, prompt) in enumerate(texts):
            for i, comparison in enumerate(report.comparisons):
                sampling = Sampling(temperature=comparison.temperature, seed=seed + n)
                _compare(llm, cost or EagerCost(), name, prompt, sampling, n_tokens, comparison)
                progress((n + (i + 1) / len(report.comparisons)) / len(texts))
    finally:
        llm.forget()
    return report


def _tokens(llm: LLM, prompt: Prompt) -> list[int]:
    text = "\n\n".join(message["content"] for message in prompt.messages)
    tokens = llm.prompt_tokens(prompt.messages if llm.template else text)
    if len(tokens) + 2 > llm.runtime.n_ctx:
        raise InputError(
            f"Prompt {prompt.id} has {len(tokens)} tokens; the context holds {llm.runtime.n_ctx}, the answer included.",
            "Leave it out, or use a larger --ctx.",
        )
    return tokens


def _compare(
    llm: LLM,
    cost: CostCurve,
    name: str,
    prompt: list[int],
    sampling: Sampling,
    n_tokens: int,
    comparison: Comparison,
) -> None:
    widths = llm.classes.exact if comparison.mode == "exact" else ()
    control = Control(cost, dict.fromkeys(llm.control.records, DraftCost(0.01)), widths)
    plain = _write(llm, control, prompt, sampling, n_tokens, speculate=False)
    fast = _write(llm, control, prompt, sampling, n_tokens, speculate=True)
    comparison.prompts += 1
    comparison.n_tokens += len(plain.tokens) - plain.n_prompt - 1
    comparison.plain_s += plain.decode_s
    comparison.n_drafted += fast.n_drafted
    comparison.n_accepted += fast.n_accepted
    parting = _parting(plain.tokens, fast.tokens)
    if parting is None:
        comparison.identical += 1
        comparison.identical_rows += plain.rows == fast.rows
        if comparison.mode == "exact":
            # Every width of the class must give these bits, the narrowest that takes several tokens among them.
            rows = straight(llm.runtime, fast.recorder.passes, fast.tokens, fast.n_prompt, widths[:2])
            if fast.rows != rows:
                comparison.faults.append(f"{name}: passes over the finished text give other rows")
        again = replay(llm.runtime, fast.recorder.passes, fast.tokens, len(fast.tokens) - 1)
        if again.wrong_at is not None:
            comparison.faults.append(
                f"{name}: a clean cache gives another row for token {again.wrong_at - fast.n_prompt + 1} of the answer"
            )
        return
    divergence = _explain(llm, name, plain, fast, parting)
    if comparison.mode == "exact" and divergence.explained:
        divergence = replace(divergence, explained=False, reason="the widths of exact mode should agree")
    comparison.divergences.append(divergence)


def _write(llm: LLM, control: Control, prompt: list[int], sampling: Sampling, n_tokens: int, speculate: bool) -> _Arm:
    recorder = Recorder(llm.runtime)
    recorder.keep(0, 0)
    sampler = Sampler(sampling, llm.runtime.n_vocab)
    limit = min(llm.runtime.n_ctx, len(prompt) + n_tokens)
    state = SequenceState(0, sampler, llm.tokenizer.is_eog, limit)
    ring = Ring(recorder, llm.drafters if speculate else (), control, time.perf_counter)
    ring.begin(state, prompt, 0)
    n_drafted, n_accepted, decode_s = 0, 0, 0.0
    while not state.ended:
        (done,) = ring.step([state])
        n_drafted, n_accepted, decode_s = n_drafted + done.drafted, n_accepted + done.accepted, decode_s + done.total_s
    return _Arm(state.tokens, len(prompt), recorder, sampler, decode_s, n_drafted, n_accepted)


def _parting(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The place of the first token that differs; None if there is none."""
    for i, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return i
    return None if len(one) == len(other) else min(len(one), len(other))


def _explain(llm: LLM, name: str, plain: _Arm, fast: _Arm, parting: int) -> Divergence:
    position = parting - plain.n_prompt
    if parting >= min(len(plain.tokens), len(fast.tokens)):
        reason = "one text ends where the other goes on behind the same tokens"
        return Divergence(name, position, None, None, 0.0, 0.0, False, reason)
    mine, theirs = plain.tokens[parting], fast.tokens[parting]
    again = [replay(llm.runtime, arm.recorder.passes, arm.tokens, parting) for arm in (plain, fast)]
    one, other = again[0].row, again[1].row
    reason = _doubt("plain", plain, again[0], parting) or _doubt("speculative", fast, again[1], parting)
    if not reason and np.array_equal(one, other):
        reason = "both arms' rows are the same, bit for bit"
    gap = float(one[mine] - one[theirs])
    difference = float(np.abs(one - other).max())
    return Divergence(name, position, mine, theirs, gap, difference, not reason, reason)


def _doubt(which: str, arm: _Arm, again: Replay, parting: int) -> str:
    """Why a replay does not account for what an arm wrote; empty if it does."""
    if again.wrong_at is not None:
        return f"a clean cache gives the {which} arm another row for token {again.wrong_at - arm.n_prompt + 1}"
    if arm.sampler.bind(arm.tokens[:parting])(again.row, ()) != arm.tokens[parting]:
        return f"the {which} arm's row chooses another token"
    return ""
