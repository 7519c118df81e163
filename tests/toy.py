"""The toy runtime, observed; a drafter that follows a script, a clock and a control, for tests of the ring."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from slipstream.decoding.acceptance import Acceptance
from slipstream.decoding.choice import Choice
from slipstream.decoding.control import ANYWHERE, Control, Standing
from slipstream.decoding.cost import CostCurve
from slipstream.decoding.draft import EMPTY, Draft, chain
from slipstream.decoding.protocols import Budget, Logits, Pass, Rows
from slipstream.runtimes.markov import MarkovRuntime

N_VOCAB = 13


class ToyRuntime(MarkovRuntime):
    """The toy runtime of the package, with what tests want to see and to break.

    Rows that were handed out turn into NaN at the next call. `fail`: an error to raise once, instead of the next
    pass. `passes` keeps all that was asked.
    """

    def __init__(
        self,
        n_vocab: int = N_VOCAB,
        n_ctx: int = 256,
        n_seq_max: int = 4,
        n_batch: int = 64,
        max_rollback: int | None = None,
        seed: int = 0,
    ) -> None:
        table = np.random.default_rng(seed).normal(0, 2, (n_vocab,) * 3).astype(np.float32)
        super().__init__(table, n_ctx=n_ctx, n_seq_max=n_seq_max, n_batch=n_batch, max_rollback=max_rollback)
        self.passes: list[list[Rows]] = []
        self.fail: BaseException | None = None
        self._given: tuple[Logits, ...] = ()

    def forward(self, rows: Sequence[Rows]) -> Pass:
        self._forget_rows()
        self.passes.append(list(rows))
        if self.fail is not None:
            error, self.fail = self.fail, None
            raise error
        result = super().forward(rows)
        self._given = result.logits
        return result

    def keep(self, seq: int, n_tokens: int) -> None:
        self._forget_rows()
        super().keep(seq, n_tokens)

    def _forget_rows(self) -> None:
        for logits in self._given:
            logits[:] = np.nan


class Scripted:
    """A drafter that proposes what `script(text)` says of the text so far, `survival` sure of each token.

    It checks that it is told the whole text: `texts` holds what it was told of each sequence.
    """

    def __init__(
        self, script: Callable[[int, list[int]], list[int]], name: str = "scripted", survival: float = 0.95
    ) -> None:
        self.name = name
        self.script = script
        self.survival = survival
        self.texts: dict[int, list[int]] = {}
        self.obeys = True
        self.can_continue = False
        self.acceptances: dict[str, Acceptance] = {}

    def begin(self, seq: int, tokens: Sequence[int]) -> None:
        self.texts[seq] = list(tokens)

    def backlog(self, seq: int) -> int:
        return 0

    def propose(self, seq: int, budget: Budget, choice: Choice, behind: Sequence[int] = ()) -> Draft:
        assert budget.max_tokens >= 1
        tokens = self.script(seq, self.texts[seq])
        if self.obeys:
            tokens = tokens[: budget.max_tokens]
        return chain(tokens, [self.survival ** (i + 1) for i in range(len(tokens))]) if tokens else EMPTY

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        self.texts[seq] += tokens

    def end(self, seq: int) -> None:
        self.texts.pop(seq, None)


class Clock:
    """Goes on by a millisecond each time it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


class AlwaysTake(Control):
    """Asks every drafter for up to `n` tokens, and verifies all of them, as far as the pass holds them."""

    def __init__(self, n: int) -> None:
        super().__init__(CostCurve({1: 1.0, 33: 1.3}))
        self.n = n

    def budget(self, drafter: str, room: int, so_far: float = 0.0, standing: Standing = ANYWHERE) -> Budget | None:
        room = min(room, self.n)
        return Budget(room) if room >= 1 else None
