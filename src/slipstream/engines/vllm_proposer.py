"""slipstream inside vLLM: the suffix drafter as a custom proposer, with lengths by what passes cost there.

    vllm serve MODEL --speculative-config '{"method": "custom_class", "num_speculative_tokens": 16,
        "model": "slipstream.engines.vllm_proposer.SlipstreamProposer"}'

slipstream must be installed in vLLM's environment. vLLM (its V1 model runner; `vllm/v1/spec_decode/
custom_class_proposer.py`) makes one proposer a worker and calls `propose` behind every pass. It verifies drafts by its
own rules, so nothing here can change what the target writes. Within `num_speculative_tokens` of the model's length vLLM
asks no proposer, and counts drafts of its own that are all rejected.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from slipstream.decoding.choice import Sampler
from slipstream.decoding.cost import Clock
from slipstream.decoding.draft import EMPTY
from slipstream.decoding.protocols import Budget
from slipstream.decoding.sampling import Sampling
from slipstream.drafters.suffix import SuffixDrafter

from .protocol import Counters
from .schedules import scheduled
from .vllm_length import LengthControl

GRACE: Final = 8
"""Calls that a text may be away: vLLM leaves requests out of a pass when it lacks room for all of them."""


@dataclass(eq=False)
class Text:
    """A sequence as it was last seen. draft: what was proposed then. n_missed: calls since."""

    seq: int
    tokens: NDArray[np.int32]
    draft: tuple[int, ...] = ()
    n_missed: int = 0

    def precedes(self, row: NDArray[np.int32]) -> bool:
        n = len(self.tokens)
        return n <= len(row) and np.array_equal(row[:n], self.tokens)


class Texts:
    """Which row of vLLM's batch goes on with which text: rows carry no name, and move up when others end."""

    def __init__(self) -> None:
        self.rows: list[Text | None] = []
        self._away: list[Text] = []
        self._n = 0

    def follow(self, rows: Sequence[NDArray[np.int32]]) -> tuple[list[Text | None], list[Text]]:
        """For each row the text that it goes on with, or None; and the texts that have been away for too long."""
        before = [*self.rows, *[None] * len(rows)]
        found = [text if text and text.precedes(row) else None for text, row in zip(before, rows, strict=False)]
        staying = {id(text) for text in found}
        left = [text for text in [*self.rows, *self._away] if text and id(text) not in staying]
        for i, row in enumerate(rows):
            if found[i] is None:
                text = max((t for t in left if t.precedes(row)), key=lambda t: len(t.tokens), default=None)
                if text is not None:
                    left.remove(text)
                    found[i] = text
        for text in left:
            text.n_missed += 1
        self.rows = found
        self._away = [text for text in left if text.n_missed <= GRACE]
        return found, [text for text in left if text.n_missed > GRACE]

    def begin(self, row: int) -> Text:
        """A new text in a row that goes on with none."""
        self._n += 1
        text = self.rows[row] = Text(self._n, np.empty(0, dtype=np.int32))
        return text


class SlipstreamProposer:
    """vLLM's custom proposer. It reads tokens alone, so it works for every model and every way of sampling."""

    def __init__(self, vllm_config: Any, clock: Clock = time.perf_counter) -> None:
        speculative = vllm_config.speculative_config
        self.n_max: int = speculative.num_speculative_tokens
        self.n_max_by_batch = getattr(speculative, "num_speculative_tokens_per_batch_size", None)
        self.max_model_len: int = vllm_config.model_config.max_model_len
        self.control = LengthControl()
        self._drafter = SuffixDrafter()
        self._choice = Sampler(Sampling(temperature=0.0), 1).bind(())  # the suffix drafter chooses nothing
        self._texts = Texts()
        self._counters = Counters(drafts=0)
        self._clock = clock
        self._left_at = clock()
        self._drafting_s = 0.0

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """vLLM asks for it; there is no model."""

    @property
    def counters(self) -> Counters:
        """Drafts that were verified, as vLLM counts them, and how many of them had a token at each position.

        Where vLLM verifies only the head of a draft, as a grammar or the end of its token budget may have it, the whole
        draft is counted here.
        """
        return self._counters

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Drafts for the rows of the batch, in their order; empty for those that may not or need not have one.

        sampled_token_ids: what the last pass gave each row; nothing for a prompt that is still being read.
        num_tokens_no_spec (rows or more,), token_ids_cpu (rows or more, model length): the text of each row, what was
        sampled included. Nothing of these is kept.
        """
        if self.control.is_resting:
            self.control.rested()
            return [[] for _ in sampled_token_ids]
        began = self._clock()
        pass_s = began - self._left_at
        ids, lengths = np.asarray(token_ids_cpu), np.asarray(num_tokens_no_spec).tolist()
        rows = [ids[i, : lengths[i]] for i in range(len(sampled_token_ids))]
        self._observe(rows, [len(sampled) for sampled in sampled_token_ids], pass_s)
        drafts = self._propose(rows, [len(sampled) > 0 for sampled in sampled_token_ids])
        self._left_at = self._clock()
        self._drafting_s += self._left_at - began
        return drafts

    def _observe(self, rows: Sequence[NDArray[np.int32]], n_sampled: Sequence[int], pass_s: float) -> None:
        """Takes in what the last pass gave, and what it cost where all its tokens are known."""
        texts, gone = self._texts.follow(rows)
        for ended in gone:
            self._drafter.end(ended.seq)
        width, n_accepted, is_known = len(rows), 0, bool(rows)
        for i, (row, text, n_new) in enumerate(zip(rows, texts, n_sampled, strict=True)):
            goes_on = text is not None and n_new > 0 and len(text.tokens) + n_new == len(row)
            is_known = is_known and goes_on and text is not None and text.n_missed == 0
            if text is not None and goes_on:
                width += len(text.draft)
                n_accepted += n_new - 1
                self._count(len(text.draft), n_new - 1)
            self._read(i, row, text, n_new, goes_on)
        if is_known:
            self.control.passed(len(rows), width, pass_s, n_accepted, self._drafting_s)
            self._drafting_s = 0.0

    def _read(self, i: int, row: NDArray[np.int32], text: Text | None, n_new: int, goes_on: bool) -> None:
        if text is None and n_new == 0:
            return  # a prompt that is still being read
        text = text or self._texts.begin(i)
        if goes_on:
            self._drafter.observe(text.seq, row[len(text.tokens) :].tolist())
        elif n_new:
            self._drafter.begin(text.seq, row.tolist())
        text.tokens, text.draft, text.n_missed = row.copy(), (), 0

    def _propose(self, rows: Sequence[NDArray[np.int32]], may_have: Sequence[bool]) -> list[list[int]]:
        if self.control.is_resting:
            return [[] for _ in rows]
        n_max = min(self.n_max, scheduled(self.n_max_by_batch, len(rows), self.n_max))
        floor = self.control.min_survival(len(rows))
        texts = self._texts.rows
        drafts = [
            self._drafter.propose(text.seq, Budget(min(n_max, self.max_model_len - len(row) - 1), floor), self._choice)
            if text is not None and may
            else EMPTY
            for text, row, may in zip(texts, rows, may_have, strict=True)
        ]
        n_taken = self.control.lengths(len(rows), [draft.survival.tolist() for draft in drafts])
        taken = [draft.tokens[:n].tolist() for draft, n in zip(drafts, n_taken, strict=True)]
        for row, tokens in zip(texts, taken, strict=True):
            if row is not None:
                row.draft = tuple(tokens)
        return taken

    def _count(self, n_drafted: int, n_accepted: int) -> None:
        if n_drafted:
            self._counters += Counters(n_drafted, n_accepted, 1, (1,) * n_accepted, (1,) * n_drafted)
