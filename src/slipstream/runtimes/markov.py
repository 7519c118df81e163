"""A toy runtime: the next token's distribution is a table over the last k tokens. For proofs, tests and docs.

Its cache is a real one: what a row sees is what lies in the cache before it, so that a stale row, or one that is
missing, changes the logits; a row at the wrong place is an AssertionError.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream.decoding.protocols import Logits, Pass, Rows
from slipstream.errors import InputError, RuntimeLibraryError

MAX_ORDER = 2


class MarkovRuntime:
    """Implements `decoding.protocols.Runtime` over `table`, float32, k + 1 axes of `n_vocab`.

    `table[a, b]` are the logits after … a b (k = 2), `table[b]` those after … b (k = 1); before the first token
    stands token 0. `cache[seq]` are the tokens held. `max_rollback` as in the protocol: where it isn't None, `keep`
    drops rows of the last pass alone, once, and leaves one of them, as llama.cpp's recurrent models do.
    """

    def __init__(
        self,
        table: NDArray[np.float32],
        *,
        n_ctx: int = 256,
        n_seq_max: int = 1,
        n_batch: int = 64,
        max_rollback: int | None = None,
    ) -> None:
        self.table = np.asarray(table, dtype=np.float32)
        self.order = self.table.ndim - 1
        self.n_vocab = self.table.shape[-1]
        if not 1 <= self.order <= MAX_ORDER or len(set(self.table.shape)) != 1:
            raise InputError(f"A table of shape {self.table.shape}.", "It must have 2 or 3 equal axes.")
        self.n_ctx, self.n_seq_max, self.n_batch = n_ctx, n_seq_max, n_batch
        self.max_rollback = max_rollback
        self.cache: list[list[int]] = [[] for _ in range(n_seq_max)]
        self._floor = [0] * n_seq_max

    @classmethod
    def random(
        cls,
        n_vocab: int,
        order: int = 1,
        seed: int = 0,
        *,
        scale: float = 2.0,
        n_seq_max: int = 1,
        max_rollback: int | None = None,
    ) -> MarkovRuntime:
        """A table of normal logits with standard deviation `scale`."""
        table = np.random.default_rng(seed).normal(0.0, scale, (n_vocab,) * (order + 1))
        return cls(table.astype(np.float32), n_seq_max=n_seq_max, max_rollback=max_rollback)

    def row(self, tokens: Sequence[int]) -> Logits:
        """The logits (n_vocab,) that follow a text: what `forward` must give for it."""
        last = [0] * self.order + [int(t) for t in tokens[-self.order :]]
        row: Logits = self.table[tuple(last[-self.order :])]
        return row

    def forward(self, rows: Sequence[Rows]) -> Pass:
        """See the protocol. Raises InputError beyond `n_ctx`; checks the rest by assertions."""
        widths = [self._check(r) for r in rows]
        assert len({r.seq for r in rows}) == len(rows), "one Rows a sequence"
        assert 0 < sum(widths) <= self.n_batch, f"a pass holds {self.n_batch} tokens at most"
        return Pass(tuple(self._append(r) for r in rows), (sum(widths),))

    def keep(self, seq: int, n_tokens: int) -> None:
        """See the protocol. Raises RuntimeLibraryError below `floor`."""
        held = len(self.cache[seq])
        if n_tokens >= held:
            return
        if 0 < n_tokens < self._floor[seq]:
            raise RuntimeLibraryError(f"The cache cannot go back from {held} to {n_tokens} tokens.")
        del self.cache[seq][n_tokens:]
        self._floor[seq] = 0 if self.max_rollback is None else n_tokens

    def held(self, seq: int) -> int:
        """How many positions the cache of a sequence holds."""
        return len(self.cache[seq])

    def floor(self, seq: int) -> int:
        """The fewest positions, other than none, that `keep` can go back to now."""
        return self._floor[seq]

    def _check(self, r: Rows) -> int:
        n = len(r.tokens) + r.n_padding
        held = len(self.cache[r.seq])
        assert held == r.start, f"sequence {r.seq} holds {held} rows, not {r.start}"
        assert len(r.tokens) > 0 and 0 <= r.n_outputs <= len(r.tokens) and r.n_padding >= 0, "outputs are of tokens"
        assert all(0 <= t < self.n_vocab for t in r.tokens), "tokens of the vocabulary"
        if r.start + n > self.n_ctx:
            raise InputError(f"{r.start + n} tokens exceed the context of {self.n_ctx}.", "Use a larger context.")
        return n

    def _append(self, r: Rows) -> Logits:
        cache = self.cache[r.seq]
        logits = np.empty((r.n_outputs, self.n_vocab), dtype=np.float32)
        first = len(r.tokens) - r.n_outputs
        for i, token in enumerate(r.tokens):
            cache.append(int(token))
            if i >= first:
                logits[i - first] = self.row(cache)
        cache += [int(r.tokens[-1]) if r.filler is None else r.filler] * r.n_padding
        n = len(r.tokens) + r.n_padding
        self._floor[r.seq] = 0 if self.max_rollback is None else len(cache) - min(self.max_rollback, n - 1)
        return logits
