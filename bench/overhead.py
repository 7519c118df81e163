#!/usr/bin/env python3
"""The time that one round spends outside the forward passes: a chain of 8 at a vocabulary of 151,936.

    python bench/overhead.py [--rounds 200]

Runs the real ring (suffix drafter, control, verification, commit) over a runtime and a drafter that compute nothing:
their rows are prepared, and the time within them is taken off. Every drafted token is accepted, so that all nine rows
are read. "lifted" rows have a clear favourite, as a model's mostly do; "flat" rows are normal noise (σ 3), which no
model writes: the hardest case. Prints a table in ms and, as the last line, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from slipstream.decoding.acceptance import Acceptance
from slipstream.decoding.choice import Choice, Sampler
from slipstream.decoding.control import Control
from slipstream.decoding.cost import CostCurve
from slipstream.decoding.draft import Draft, chain
from slipstream.decoding.protocols import Budget, Pass, Rows
from slipstream.decoding.ring import Ring, SequenceState
from slipstream.decoding.sampling import Sampling
from slipstream.drafters.suffix import SuffixDrafter

N_VOCAB = 151_936
N_DRAFT = 8
PROMPT = np.random.default_rng(1).integers(0, 300, 1000).tolist()

SOFTMAX = Sampling(temperature=0.8, top_k=0, top_p=1.0, min_p=0.0)
CASES = [
    ("greedy", Sampling(temperature=0), 0.3),
    ("T 0.8, top-k 40", replace(SOFTMAX, top_k=40), 3.0),
    ("T 0.8, top-p 0.95", replace(SOFTMAX, top_p=0.95), 3.0),
    ("T 0.8, no truncation", SOFTMAX, 9.0),
    ("llama.cpp's defaults", Sampling(), 3.0),
    ("  with penalties", Sampling(repeat_penalty=1.1), 3.0),
]
"""Name, options, goal in ms for a round of nine rows."""


class Prepared:
    """Runtime and drafter in one: hands out the same nine rows each round and drafts what the sampler will choose."""

    name = "prepared"
    can_continue = False
    acceptances: Mapping[str, Acceptance] = MappingProxyType({})
    n_vocab, n_ctx, n_seq_max, n_batch = N_VOCAB, 1 << 20, 1, 2048
    max_rollback = None

    def __init__(self, lift: float) -> None:
        random = np.random.default_rng(0)
        self.rows = random.normal(0, 3, (1 + N_DRAFT, N_VOCAB)).astype(np.float32)
        favourites = random.integers(N_VOCAB, size=len(self.rows))
        if lift:
            self.rows[np.arange(len(self.rows)), favourites] = self.rows.max() + lift
        self.rows.flags.writeable = False
        self.inside_s = 0.0

    def forward(self, rows: Sequence[Rows]) -> Pass:
        width = len(rows[0].tokens)
        return Pass((self.rows[: rows[0].n_outputs],), (width,))

    def keep(self, seq: int, n_tokens: int) -> None: ...

    def begin(self, seq: int, tokens: Sequence[int]) -> None: ...

    def observe(self, seq: int, tokens: Sequence[int]) -> None: ...

    def end(self, seq: int) -> None: ...

    def backlog(self, seq: int) -> int:
        return 0

    def propose(self, seq: int, budget: Budget, choice: Choice, behind: Sequence[int] = ()) -> Draft:
        began = time.perf_counter()
        tokens: list[int] = []
        for row in self.rows[:N_DRAFT]:
            tokens.append(choice(row, tokens))
        draft = chain(tokens, [0.99**i for i in range(1, N_DRAFT + 1)])
        self.inside_s += time.perf_counter() - began
        return draft


class Fixed(CostCurve):
    """Is not told that passes here take no time."""

    def observe(self, width: int, seconds: float, n_context: int = 0) -> None: ...


def rounds_ms(sampling: Sampling, lift: float, n: int) -> list[float]:
    prepared = Prepared(lift)
    control = Control(Fixed({1: 0.02, 33: 0.021}))
    ring = Ring(prepared, [SuffixDrafter(), prepared], control, time.perf_counter)
    state = SequenceState(0, Sampler(sampling, N_VOCAB), lambda token: False, 1 << 20)
    ring.begin(state, PROMPT, 0)
    times = []
    for i in range(n + 5):
        state.limit = len(state.tokens) + N_DRAFT + 1  # leaves room for a chain of 8
        prepared.inside_s, began = 0.0, time.perf_counter()
        (done,) = ring.step([state])
        took = time.perf_counter() - began - prepared.inside_s
        if done.drafter != prepared.name:
            continue  # after one plain round in a hundred the suffix drafter's turn may come
        assert done.accepted == done.drafted == N_DRAFT, "every round verifies a chain of 8 to its end"
        if i >= 5:
            times.append(took * 1e3)
    return times


def argmax_ms(n: int) -> float:
    """The floor of the greedy case: what reading nine rows costs."""
    rows, times = Prepared(12.0).rows, []
    for _ in range(n):
        began = time.perf_counter()
        for row in rows:
            row.argmax()
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    n = parser.parse_args().rounds
    results = []
    print(f"{'sampling':<22}{'rows':<8}{'median ms':>10}{'p90 ms':>8}{'goal ms':>9}")
    for name, sampling, goal in CASES:
        for rows, lift in ("lifted", 12.0), ("flat", 0.0):
            times = rounds_ms(sampling, lift, n)
            median, p90 = statistics.median(times), statistics.quantiles(times, n=10)[-1]
            print(f"{name:<22}{rows:<8}{median:>10.2f}{p90:>8.2f}{goal:>9.1f}")
            results.append({"case": name, "rows": rows, "median_ms": median, "p90_ms": p90, "goal_ms": goal})
    floor = argmax_ms(n)
    print(f"numpy's arg-max of the nine rows alone: {floor:.2f} ms")
    versions = {"python": platform.python_version(), "numpy": np.__version__, "machine": platform.machine()}
    print(json.dumps({**versions, "rounds": n, "argmax_ms": floor, "results": results}))


if __name__ == "__main__":
    main()
