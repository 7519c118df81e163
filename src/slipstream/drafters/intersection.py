"""Drafting by common tokens: a model of another vocabulary, restricted to the tokens that the target has, too.

Its distribution over these, normalised, is what it drafts from; all else is as with a draft of the same vocabulary
(TLI: Timor et al., arXiv 2502.05202, algorithm 4). What was committed it reads token by token: as the twin where there
is one, else in its own tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..decoding.choice import Choice
from ..decoding.draft import EMPTY, Draft
from ..decoding.protocols import Budget, Logits, Pass, Rows, Runtime
from ..errors import InputError
from .model import ModelDrafter
from .translation import Tokenizer, Twins, continued


class CommonRuntime:
    """Implements `decoding.protocols.Runtime` over the draft's: tokens and rows are the target's.

    Positions count the target's tokens; a pass gives the row behind its last token alone. Rows are −inf for tokens
    that the draft lacks, and are written over by the next pass.
    """

    def __init__(self, inner: Runtime, target: Tokenizer, draft: Tokenizer, twins: Twins) -> None:
        self.inner = inner
        self.n_vocab = twins.n_target
        self.n_ctx, self.n_seq_max, self.n_batch = inner.n_ctx, inner.n_seq_max, inner.n_batch
        self.max_rollback = inner.max_rollback
        self._target, self._draft, self._twins = target, draft, twins
        self._known: dict[int, tuple[int, ...]] = {
            t: (int(d),) for t, d in enumerate(twins.draft[: twins.n_target]) if d >= 0
        }
        self._bytes = {piece: t for t in range(draft.n_vocab) if len(piece := draft.piece(t)) == 1}
        self._ends: list[list[int]] = [[] for _ in range(inner.n_seq_max)]
        self._row = twins.row()

    def translate(self, tokens: Sequence[int], start: int) -> list[int]:
        """The draft's tokens for tokens of the target that stand at the positions from `start` on."""
        return [mine for at, token in enumerate(tokens, start) for mine in self._translated(token, at)]

    def forward(self, rows: Sequence[Rows]) -> Pass:
        """See the protocol; one `Rows`, with an output for its last token and no padding."""
        (asked,) = rows
        assert asked.n_outputs == 1 and asked.n_padding == 0
        ends = self._ends[asked.seq]
        assert len(ends) == asked.start, f"sequence {asked.seq} holds {len(ends)} rows, not {asked.start}"
        each = [self._translated(token, at) for at, token in enumerate(asked.tokens, asked.start)]
        tokens = [token for mine in each for token in mine]
        start = end = ends[-1] if ends else 0
        self.inner.keep(asked.seq, start)  # more is there only where a pass failed
        for at in range(0, len(tokens), self.n_batch):
            result = self.inner.forward([Rows(asked.seq, tokens[at : at + self.n_batch], start + at, 1)])
        self._row[self._twins.place] = result.logits[0][0]
        for mine in each:
            end += len(mine)
            ends.append(end)
        row: Logits = self._row[: self.n_vocab]
        return Pass((row[None],), result.widths)

    def keep(self, seq: int, n_tokens: int) -> None:
        ends = self._ends[seq]
        del ends[n_tokens:]
        self.inner.keep(seq, ends[-1] if ends else 0)

    def held(self, seq: int) -> int:
        return len(self._ends[seq])

    def floor(self, seq: int) -> int:
        return 0

    def _translated(self, token: int, position: int) -> tuple[int, ...]:
        if position == 0 and self._draft.add_bos:
            begins = self._target.add_bos and token == self._target.bos
            return (self._draft.bos, *(() if begins else self._own(token)))
        return self._own(token)

    def _own(self, token: int) -> tuple[int, ...]:
        own = self._known.get(token)
        if own is None:
            own = self._known[token] = self._spelt(self._target.piece(token, special=True))
        return own

    def _spelt(self, piece: bytes) -> tuple[int, ...]:
        """The draft's own tokens of these bytes, which need not be whole characters."""
        try:
            piece.decode()
            tokens = continued(self._draft, (), piece)
        except UnicodeDecodeError:
            tokens = [t for byte in piece if (t := self._bytes.get(bytes([byte]))) is not None]
        # A row is wanted behind every token, be it one without bytes.
        return tuple(tokens) or (max(self._draft.eos, 0),)


class IntersectionDrafter(ModelDrafter):
    """Implements `decoding.protocols.Drafter` over the runtime of a draft model of another vocabulary."""

    name = "model-common"

    def __init__(self, runtime: Runtime, target: Tokenizer, draft: Tokenizer, twins: Twins) -> None:
        """`runtime` computes for `draft`; `twins` are those of the two tokenizers."""
        self._common = CommonRuntime(runtime, target, draft, twins)
        self._n_read: dict[int, int] = {}
        self._n_tokens: dict[int, int] = {}
        super().__init__(self._common, twins.n_target)

    def begin(self, seq: int, tokens: Sequence[int]) -> None:
        self._n_read[seq] = self._n_tokens[seq] = 0
        self._count(seq, tokens)
        super().begin(seq, tokens)

    def propose(self, seq: int, budget: Budget, choice: Choice, behind: Sequence[int] = ()) -> Draft:
        # Its own tokens may be more than the target's, and fill its context sooner.
        room = self._common.inner.n_ctx - self._n_read[seq]
        try:
            return super().propose(seq, replace(budget, max_tokens=min(budget.max_tokens, room)), choice, behind)
        except InputError:
            return EMPTY  # a logit bias bans all common tokens

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        self._count(seq, tokens)
        super().observe(seq, tokens)

    def _count(self, seq: int, tokens: Sequence[int]) -> None:
        """How many tokens the text is for the draft."""
        self._n_read[seq] += len(self._common.translate(tokens, self._n_tokens[seq]))
        self._n_tokens[seq] += len(tokens)
