"""vLLM's batch as a custom proposer sees it, with texts that are known beforehand instead of a model.

After `GPUModelRunner` and `InputBatch` of vLLM 0.32: requests stand in rows without a name; when one ends, the last row
moves up into its place; prompts are read in chunks, and a row whose prompt is not read yet has no sampled token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from slipstream.engines.protocol import Counters
from slipstream.engines.vllm_proposer import SlipstreamProposer

MAX_MODEL_LEN = 512


def vllm_config(n_max: int = 8, schedule: Any = None) -> Any:
    """What a proposer reads of a `VllmConfig`."""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(
            num_speculative_tokens=n_max, num_speculative_tokens_per_batch_size=schedule
        ),
        model_config=SimpleNamespace(max_model_len=MAX_MODEL_LEN),
    )


@dataclass
class Clock:
    """Seconds that pass only when told."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(eq=False)
class Asked:
    """A request: the prompt, what the model will answer, how far it is."""

    prompt: list[int]
    answer: list[int]
    n_read: int = 0
    tokens: list[int] = field(default_factory=list)
    draft: list[int] = field(default_factory=list)
    away: int = 0

    @property
    def written(self) -> int:
        return len(self.tokens) - len(self.prompt)

    @property
    def is_done(self) -> bool:
        return self.written >= len(self.answer)


class Batch:
    """Runs requests to their ends. pass_s(width): what a pass costs on the clock that the proposer reads too.
    config: see `vllm_config`.

    proposed: for each call the lengths of the drafts, in rows. counters: as vLLM counts. n_passes: with output or not.
    """

    def __init__(
        self,
        requests: Sequence[tuple[list[int], list[int]]],
        n_rows: int = 4,
        chunk: int = 16,
        pass_s: Callable[[int], float] = lambda width: 1.0,
        **config: Any,
    ) -> None:
        self.clock = Clock()
        self.proposer = SlipstreamProposer(vllm_config(**config), self.clock)
        self.waiting = [Asked(prompt, answer, tokens=list(prompt)) for prompt, answer in requests]
        self.all = list(self.waiting)
        self.rows: list[Asked] = []
        self.n_rows, self.chunk = n_rows, chunk
        self.pass_s = pass_s
        self.counters = Counters(drafts=0)
        self.proposed: list[list[int]] = []
        self.n_passes = 0

    def run(self) -> None:
        while self.waiting or self.rows:
            self.step()

    def step(self) -> None:
        """One pass, the proposer's call behind it, and the departures."""
        while self.waiting and len(self.rows) < self.n_rows:
            self.rows.append(self.waiting.pop(0))
        width = sum(self._width(request) for request in self.rows)
        sampled = [self._verified(request) for request in self.rows]
        self.clock.now += self.pass_s(width)
        self.n_passes += 1
        drafts = self._ask(sampled)
        for request, draft, new in zip(self.rows, drafts, sampled, strict=True):
            request.draft = draft if new else []
        for i in reversed(range(len(self.rows))):
            if self.rows[i].is_done:
                self._leave(i)

    def send_away(self, row: int) -> Asked:
        """Leaves a request out from now on, until it is put back into `rows`."""
        request = self.rows[row]
        self._leave(row)
        return request

    def _width(self, request: Asked) -> int:
        left = len(request.prompt) - request.n_read
        return min(left, self.chunk) if left else 1 + len(request.draft)

    def _verified(self, request: Asked) -> list[int]:
        if request.n_read < len(request.prompt):
            request.n_read += min(self.chunk, len(request.prompt) - request.n_read)
            if request.n_read < len(request.prompt):
                return []
        # Behind its last token the model would go on: a token that nobody drafts.
        truth = [*request.answer[request.written :], *[-1] * (len(request.draft) + 1)]
        n = next(i for i, token in enumerate([*request.draft, None]) if token != truth[i])
        new = truth[: n + 1]
        if request.draft:
            n_drafted = len(request.draft)
            self.counters += Counters(n_drafted, n, 1, (1,) * n, (1,) * n_drafted)
        request.tokens += new
        return new

    def _ask(self, sampled: list[list[int]]) -> list[list[int]]:
        ids = np.full((self.n_rows + 1, MAX_MODEL_LEN), 7, dtype=np.int32)
        lengths = np.full(self.n_rows + 1, 99, dtype=np.int32)
        for i, request in enumerate(self.rows):
            lengths[i] = len(request.tokens)
            ids[i, : lengths[i]] = request.tokens
        drafts: list[list[int]] = self.proposer.propose(sampled, lengths, ids, slot_mappings=None)
        assert len(drafts) == len(self.rows)
        self.proposed.append([len(draft) for draft in drafts])
        return drafts

    def _leave(self, row: int) -> None:
        last = self.rows.pop()
        if row < len(self.rows):
            self.rows[row] = last
