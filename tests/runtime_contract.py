"""What every runtime must do: a suite that the tests of each runtime inherit.

A subclass has a fixture `make`, a function of the number of sequences that returns a runtime with empty caches, of at
least 16 tokens of vocabulary, 128 of context and 64 of batch. `text` and `other` are 200 token ids each; `atol` bounds
what widths, and the place of a row in the cache, may change in its logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from slipstream.decoding.protocols import Rows
from slipstream.errors import InputError, RuntimeLibraryError

TEXT = np.random.default_rng(1).integers(2, 16, 200).tolist()
OTHER = np.random.default_rng(2).integers(2, 16, 200).tolist()


def read(runtime, tokens: Sequence[int], *widths: int, seq: int = 0) -> np.ndarray:
    """Reads the tokens in passes of these widths; the rows of the last one, copied."""
    assert sum(widths) == len(tokens)
    start = 0
    for width in widths:
        logits = runtime.forward([Rows(seq, tokens[start : start + width], start, width)]).logits[0].copy()
        start += width
    return logits


class RuntimeContract:
    atol = 0.0
    text = TEXT
    other = OTHER

    def near(self, got: np.ndarray, wanted: np.ndarray) -> bool:
        return got.shape == wanted.shape and np.allclose(got, wanted, rtol=0, atol=self.atol)

    def test_outputs_are_the_last_rows_in_order(self, make: Callable):
        every = read(make(1), self.text[:12], 12)
        result = make(1).forward([Rows(0, self.text[:12], 0, 3)])
        assert result.widths == (12,)
        assert result.logits[0].dtype == np.float32
        assert self.near(result.logits[0], every[-3:])

    def test_no_outputs_are_no_rows(self, make: Callable):
        runtime = make(1)
        assert runtime.forward([Rows(0, self.text[:5], 0, 0)]).logits[0].shape == (0, runtime.n_vocab)

    def test_a_row_sees_what_is_before_it(self, make: Callable):
        """Two texts that differ in the last token but one: all but a constant table must answer differently."""
        one, two = list(self.text[:8]), list(self.text[:8])
        two[-1] = one[-1] + 1 if one[-1] < 15 else 2
        assert not np.array_equal(read(make(1), one, 8)[-1], read(make(1), two, 8)[-1])

    def test_after_a_rollback_the_rows_are_those_of_a_fresh_cache_bit_for_bit(self, make: Callable):
        """As in a round: a pass of nine rows, of which the last three are refused; then other tokens follow."""
        runtime, fresh = make(1), make(1)
        if runtime.max_rollback is not None and runtime.max_rollback < 3:
            pytest.skip("cannot go back by three")
        read(runtime, self.text[:39], 30, 9)
        runtime.keep(0, 36)
        read(fresh, self.text[:36], 30, 6)
        again = [runtime.forward([Rows(0, self.other[:6], 36, 6)]), fresh.forward([Rows(0, self.other[:6], 36, 6)])]
        assert np.array_equal(again[0].logits[0], again[1].logits[0])

    def test_it_goes_back_as_far_as_it_says_and_refuses_more(self, make: Callable):
        runtime = make(1)
        read(runtime, self.text[:45], 40, 5)
        floor = runtime.floor(0)
        limit = runtime.max_rollback
        assert floor == (0 if limit is None else 45 - min(limit, 4))
        for n in range(1, floor):
            with pytest.raises(RuntimeLibraryError, match=f"from 45 to {n} "):
                runtime.keep(0, n)
        n = max(floor, 2)
        runtime.keep(0, n)
        assert runtime.held(0) == n
        got = runtime.forward([Rows(0, self.other[:4], n, 4)]).logits[0]
        assert self.near(got, read(make(1), self.text[:n] + self.other[:4], n, 4))

    def test_snapshots_serve_once(self, make: Callable):
        runtime = make(1)
        read(runtime, self.text[:39], 30, 9)
        runtime.keep(0, runtime.held(0) - min(1, runtime.held(0) - runtime.floor(0)))
        if runtime.max_rollback is None:
            runtime.keep(0, 3)
        else:
            with pytest.raises(RuntimeLibraryError):
                runtime.keep(0, runtime.held(0) - 1)

    def test_everything_can_always_be_dropped(self, make: Callable):
        runtime = make(1)
        first = read(runtime, self.text[:20], 16, 4)
        runtime.keep(0, 0)
        assert runtime.held(0) == 0
        assert np.array_equal(read(runtime, self.text[:20], 16, 4), first)

    def test_keeping_more_than_there_is_changes_nothing(self, make: Callable):
        runtime = make(1)
        read(runtime, self.text[:20], 20)
        runtime.keep(0, 20)
        runtime.keep(0, 99)
        assert runtime.held(0) == 20

    def test_sequences_in_one_pass_get_the_rows_they_get_alone(self, make: Callable):
        runtime = make(3)
        runtime.forward([Rows(0, self.text[:30], 0, 1), Rows(2, self.other[:20], 0, 1)])
        rows = [Rows(2, self.other[20:24], 20, 2), Rows(0, self.text[30:36], 30, 6), Rows(1, self.other[:3], 0, 1)]
        result = runtime.forward(rows)
        assert sum(result.widths) == 13
        assert self.near(result.logits[0], read(make(1), self.other[:24], 20, 4)[-2:])
        assert self.near(result.logits[1], read(make(1), self.text[:36], 30, 6))
        assert self.near(result.logits[2], read(make(1), self.other[:3], 3)[-1:])

    def test_a_sequence_goes_back_without_the_others(self, make: Callable):
        runtime = make(2)
        if runtime.max_rollback is not None and runtime.max_rollback < 2:
            pytest.skip("cannot go back")
        runtime.forward([Rows(0, self.text[:20], 0, 0), Rows(1, self.other[:20], 0, 0)])
        runtime.forward([Rows(0, self.text[20:25], 20, 5), Rows(1, self.other[20:23], 20, 3)])
        runtime.keep(0, 23)
        result = runtime.forward([Rows(1, self.text[40:44], 23, 4), Rows(0, self.other[40:43], 23, 3)])
        assert self.near(result.logits[0], read(make(1), self.other[:23] + self.text[40:44], 20, 3, 4))
        assert self.near(result.logits[1], read(make(1), self.text[:23] + self.other[40:43], 20, 3, 3))

    def test_padding_makes_the_pass_wider_and_changes_no_row(self, make: Callable):
        padded, plain = make(1), make(1)
        for runtime in (padded, plain):
            runtime.forward([Rows(0, self.text[:20], 0, 0)])
        result = padded.forward([Rows(0, self.text[20:24], 20, 4, n_padding=3)])
        assert result.widths == (7,)
        assert padded.held(0) == 27
        # The same width, with real tokens in place of padding.
        seven = plain.forward([Rows(0, self.text[20:27], 20, 7)])
        assert np.array_equal(result.logits[0], seven.logits[0][:4])
        if padded.max_rollback is None or padded.max_rollback >= 3:
            padded.keep(0, 24)
            plain.keep(0, 24)
            rows = [Rows(0, self.other[:3], 24, 3)]
            assert np.array_equal(padded.forward(rows).logits[0], plain.forward(rows).logits[0])

    def test_rows_at_the_wrong_place_are_a_bug(self, make: Callable):
        runtime = make(1)
        read(runtime, self.text[:20], 20)
        for start in (0, 19, 21):
            with pytest.raises(AssertionError, match="holds 20 rows"):
                runtime.forward([Rows(0, self.text[:2], start, 1)])

    def test_the_context_can_be_filled_and_not_exceeded(self, make: Callable):
        runtime = make(1)
        held, n = 0, runtime.n_ctx
        while held < n:
            width = min(runtime.n_batch, n - held)
            runtime.forward([Rows(0, [self.text[i % 200] for i in range(width)], held, 1)])
            held += width
        with pytest.raises(InputError, match=f"context of {n}"):
            runtime.forward([Rows(0, self.text[:1], n, 1)])
        assert runtime.held(0) == n
