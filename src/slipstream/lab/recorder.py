"""A runtime that keeps a record of its passes, and the replay of such a record from a clean cache."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.decoding.protocols import Logits, Pass, Rows, Runtime


@dataclass(frozen=True)
class Recorded:
    """A pass over one sequence: what was asked, and a hash of the bits of each row that came out."""

    rows: Rows
    bits: tuple[bytes, ...]


class Recorder:
    """Implements `decoding.protocols.Runtime` by another one, for one sequence a pass."""

    def __init__(self, inner: Runtime) -> None:
        self.inner = inner
        self.passes: list[Recorded] = []
        self.n_vocab, self.n_ctx, self.n_seq_max = inner.n_vocab, inner.n_ctx, inner.n_seq_max
        self.n_batch, self.max_rollback = inner.n_batch, inner.max_rollback

    def forward(self, rows: Sequence[Rows]) -> Pass:
        result = self.inner.forward(rows)
        self.passes.append(Recorded(rows[0], _bits(result.logits[0])))
        return result

    def keep(self, seq: int, n_tokens: int) -> None:
        self.inner.keep(seq, n_tokens)

    def held(self, seq: int) -> int:
        return self.inner.held(seq)

    def floor(self, seq: int) -> int:
        return self.inner.floor(seq)


@dataclass(frozen=True)
class Replay:
    """What came out when a record was computed again.

    wrong_at: the first token whose row has other bits now, None if there is none; row: a copy of the row that chose
    the token asked for, float32 (n_vocab,).
    """

    wrong_at: int | None
    row: Logits


def replay(runtime: Runtime, passes: Sequence[Recorded], text: Sequence[int], at: int) -> Replay:
    """Computes a record again up to token number `at` of the text, with nothing rejected in between.

    The passes have the widths that they had, from an empty cache on; but where a pass had drafted tokens that were
    not taken, or padding, some other token stands now. A row that depends on what must not matter cannot come out
    the same: a rejected token left in the cache, a position shifted by one, a neighbour's row.
    """
    runtime.keep(0, 0)
    wrong_at: int | None = None
    row: Logits | None = None
    for i, recorded in enumerate(passes):
        asked = recorded.rows
        end = passes[i + 1].rows.start if i + 1 < len(passes) else len(text) - 1
        if asked.start >= at:
            break
        kept = min(end, at, asked.start + len(asked.tokens)) - asked.start
        others = [(token + 1) % runtime.n_vocab for token in asked.tokens]  # never what stood there
        tokens = [*text[asked.start : asked.start + kept], *others[kept:]]
        rows = Rows(0, tokens, asked.start, asked.n_outputs, asked.n_padding, others[-1])
        logits = runtime.forward([rows]).logits[0]
        first = len(asked.tokens) - asked.n_outputs  # the first row that has an output
        for place, bits in enumerate(_bits(logits[: max(kept - first, 0)])):
            token = asked.start + first + place + 1
            if bits != recorded.bits[place] and wrong_at is None:
                wrong_at = token
            if token == at:
                row = logits[place].copy()
        runtime.keep(0, asked.start + kept)
    assert row is not None, "the record reaches up to the token"
    return Replay(wrong_at, row)


def straight(
    runtime: Runtime, passes: Sequence[Recorded], text: Sequence[int], n_prompt: int, widths: Sequence[int]
) -> list[bytes]:
    """The bits of the rows behind each token from the end of the prompt on, computed with nothing taken back at all.

    The prompt is read as the record says; what follows in passes of these widths (ascending), full of the text's own
    tokens. Only the last is padded, to the narrowest: what was computed once had room for that.
    """
    runtime.keep(0, 0)
    bits: list[bytes] = []
    for recorded in passes:
        if recorded.rows.start < n_prompt:
            bits += _bits(runtime.forward([recorded.rows]).logits[0])
    start = n_prompt
    while start < len(text) - 1:
        n_left = len(text) - 1 - start
        width = max((w for w in widths if w <= n_left), default=widths[0])
        tokens = list(text[start : start + min(width, n_left)])
        padded = tokens + tokens[-1:] * (width - len(tokens))
        bits += _bits(runtime.forward([Rows(0, padded, start, width)]).logits[0][: len(tokens)])
        start += width
    return bits


def _bits(rows: Logits) -> tuple[bytes, ...]:
    return tuple(hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in rows)
