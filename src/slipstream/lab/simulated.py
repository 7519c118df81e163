"""What a simulation is made of: a clock, a runtime that knows its texts, drafters that cost simulated time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.decoding.acceptance import Acceptance
from slipstream.decoding.choice import Choice
from slipstream.decoding.draft import Draft, chain
from slipstream.decoding.protocols import Budget, Drafter, Logits, Pass, Rows
from slipstream.decoding.record import DraftCost

N_CTX = 1 << 20
N_BATCH = 4096

PassTime = Callable[[int, int], float]
"""Seconds of a pass, by its width and the length of the context."""


@dataclass(frozen=True)
class Text:
    """A request that is known to its end: token ids."""

    prompt: Sequence[int]
    answer: Sequence[int]

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt, *self.answer]


class Clock:
    """Simulated seconds: `now` moves only when something is said to take time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TextRuntime:
    """Implements `decoding.protocols.Runtime` by texts, one a sequence: `texts[seq]` is what will be written.

    Behind a prefix of the text the row favours its next token. A pass takes what `pass_s` says.
    """

    max_rollback: int | None = None
    n_ctx, n_batch = N_CTX, N_BATCH

    def __init__(self, n_vocab: int, n_seq_max: int, pass_s: PassTime, clock: Clock) -> None:
        self.n_vocab, self.n_seq_max = n_vocab, n_seq_max
        self.texts: list[Sequence[int]] = [()] * n_seq_max
        self._held = [0] * n_seq_max
        self._pass_s, self._clock = pass_s, clock
        self._rows = np.zeros((1, n_vocab), dtype=np.float32)
        self._set: list[tuple[int, int]] = []

    def forward(self, rows: Sequence[Rows]) -> Pass:
        width = sum(len(r.tokens) + r.n_padding for r in rows)
        self._clock.now += self._pass_s(width, sum(r.start for r in rows) // len(rows))
        n_outputs = sum(r.n_outputs for r in rows)
        for place in self._set:
            self._rows[place] = 0.0
        self._set = []
        if n_outputs > len(self._rows):
            self._rows = np.zeros((n_outputs, self.n_vocab), dtype=np.float32)
        logits, at = [], 0
        for r in rows:
            assert self._held[r.seq] == r.start, "rows follow what the cache holds"
            logits.append(self._favour(at, r))
            at += r.n_outputs
            self._held[r.seq] += len(r.tokens) + r.n_padding
        return Pass(tuple(logits), (width,))

    def _favour(self, at: int, r: Rows) -> Logits:
        """Rows from `at` on: one for each output, with a peak where the text goes on."""
        text, end = self.texts[r.seq], r.start + len(r.tokens)
        for i, position in enumerate(range(end - r.n_outputs + 1, end + 1)):
            if position < len(text):
                self._rows[at + i, text[position]] = 1.0
                self._set.append((at + i, text[position]))
        rows: Logits = self._rows[at : at + r.n_outputs]
        return rows

    def keep(self, seq: int, n_tokens: int) -> None:
        self._held[seq] = min(self._held[seq], n_tokens)

    def held(self, seq: int) -> int:
        return self._held[seq]

    def floor(self, seq: int) -> int:
        return 0


class OnClock:
    """A real drafter whose proposals take `ask_s` simulated seconds each."""

    def __init__(self, inner: Drafter, ask_s: float, clock: Clock) -> None:
        self.inner, self.ask_s, self.clock = inner, ask_s, clock
        self.name, self.can_continue, self.acceptances = inner.name, inner.can_continue, inner.acceptances

    def begin(self, seq: int, tokens: Sequence[int]) -> None:
        self.inner.begin(seq, tokens)

    def backlog(self, seq: int) -> int:
        return self.inner.backlog(seq)

    def propose(self, seq: int, budget: Budget, choice: Choice, behind: Sequence[int] = ()) -> Draft:
        self.clock.now += self.ask_s
        return self.inner.propose(seq, budget, choice, behind)

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        self.inner.observe(seq, tokens)

    def end(self, seq: int) -> None:
        self.inner.end(seq)


Script = Callable[[int, Sequence[int]], tuple[Sequence[int], Sequence[float]]]
"""What a drafter says of a text, by its number, behind the tokens so far: tokens, and how sure it is of each."""


class Model:
    """A drafter that writes token by token, as a small model does: what a script says, in simulated time.

    The texts are numbered as they are begun. It learns how far to trust each tenth of its confidence, as
    `drafters.model` does.
    """

    can_continue = False

    def __init__(self, name: str, script: Script, cost: DraftCost, clock: Clock) -> None:
        self.name = name
        self.script, self.cost, self.clock = script, cost, clock
        self.acceptance = Acceptance([0.05 + 0.1 * band for band in range(10)], prior_weight=4.0)
        self.acceptances: Mapping[str, Acceptance] = {"chosen": self.acceptance}
        self._n_begun = 0
        self._number: dict[int, int] = {}
        self._tokens: dict[int, list[int]] = {}
        self._unread: dict[int, int] = {}
        self._drafted: dict[int, list[tuple[int, int]]] = {}

    def begin(self, seq: int, tokens: Sequence[int]) -> None:
        self._number[seq] = self._n_begun
        self._n_begun += 1
        self._tokens[seq] = list(tokens)
        self._unread[seq] = len(tokens)
        self._drafted[seq] = []

    def backlog(self, seq: int) -> int:
        return self._unread[seq]

    def propose(self, seq: int, budget: Budget, choice: Choice, behind: Sequence[int] = ()) -> Draft:
        tokens, sure = self.script(self._number[seq], self._tokens[seq])
        drafted: list[tuple[int, int]] = []
        survival: list[float] = []
        alive, n_steps = 1.0, 0
        for token, confidence in zip(tokens[: budget.max_tokens], sure, strict=False):
            rate = self.acceptance.typical(len(drafted))
            if drafted and not budget.pays(len(drafted), alive * rate, rate):
                break
            band = min(int(10 * confidence), 9)
            alive *= self.acceptance.rate(band, len(drafted))
            n_steps += 1
            if alive < budget.min_survival:
                break
            drafted.append((band, int(token)))
            survival.append(alive)
        self.clock.now += n_steps * self.cost.token_s + self._unread[seq] * self.cost.read_s
        self._drafted[seq], self._unread[seq] = drafted, 0
        return chain([token for _, token in drafted], survival)

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        drafted = self._drafted[seq]
        agreed = self.acceptance.learn_draft([band for band, _ in drafted], [token for _, token in drafted], tokens)
        self._tokens[seq] += tokens
        self._unread[seq] += len(tokens) - agreed
        self._drafted[seq] = []

    def end(self, seq: int) -> None:
        self._tokens.pop(seq, None)
