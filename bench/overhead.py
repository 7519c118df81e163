"""Time of one round outside the forward passes, chain of 8, vocabulary 151,936: what verification costs.

    python bench/overhead.py [--rounds 200]

Rows are synthetic: normal logits (σ 3) in which every drafted token is lifted to 12 above the rest, so that all are
accepted, and a last row with as sharp a favourite for the bonus token; as a harder case "flat", rows in which nothing
is lifted (the draft is then whatever the sampler chooses, so that all rows are read). Prints a table in ms and one
JSON object.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from slipstream.decoding.draft import Draft, chain
from slipstream.decoding.sampling import Sampler, Sampling
from slipstream.decoding.verify import verify

N_VOCAB = 151_936
N_DRAFT = 8
PROMPT = list(range(512))

SOFTMAX = Sampling(temperature=0.8, top_k=0, top_p=1.0, min_p=0.0)
CASES: list[tuple[str, Sampling | None, float]] = [
    ("(arg-max alone)", None, 0.3),
    ("greedy", Sampling(temperature=0), 0.3),
    ("T 0.8, top-k 40", replace(SOFTMAX, top_k=40), 3.0),
    ("T 0.8, top-p 0.95", replace(SOFTMAX, top_p=0.95), 3.0),
    ("T 0.8", SOFTMAX, 9.0),
    ("llama.cpp's defaults", Sampling(), 3.0),
    ("  and penalties", Sampling(repeat_penalty=1.1), 3.0),
]
"""Name, options (None: no round, only the arg-max of each row), goal in ms for a round of 9 rows."""


def synthetic(sampler: Sampler, lift: float) -> tuple[NDArray[np.float32], Draft]:
    """Read-only rows and a draft that the sampler accepts as a whole."""
    random = np.random.default_rng(0)
    rows = random.normal(0, 3, (1 + N_DRAFT, N_VOCAB)).astype(np.float32)
    if lift:
        rows[np.arange(len(rows)), random.integers(N_VOCAB, size=len(rows))] = rows.max() + lift
    rows.setflags(write=False)
    choose = sampler.bind(PROMPT)
    drafted: list[int] = []
    for row in rows[:-1]:
        drafted.append(choose(row, drafted))
    return rows, chain(drafted, [0.9] * N_DRAFT)


def verification(sampling: Sampling, lift: float) -> Callable[[], None]:
    """A round without its forward passes. The ring's takes its place here."""
    sampler = Sampler(sampling, N_VOCAB)
    rows, draft = synthetic(sampler, lift)

    def round_() -> None:
        verdict = verify(draft, rows, sampler.bind(PROMPT))
        assert len(verdict.accepted) == N_DRAFT

    return round_


def bare_argmax(lift: float) -> Callable[[], None]:
    """The floor: what reading the rows costs."""
    rows, _ = synthetic(Sampler(Sampling(temperature=0), N_VOCAB), lift)

    def read() -> None:
        for row in rows:
            row.argmax()

    return read


def times_ms(work: Callable[[], None], n: int) -> list[float]:
    for _ in range(5):
        work()
    times = []
    for _ in range(n):
        began = time.perf_counter()
        work()
        times.append((time.perf_counter() - began) * 1e3)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    n = parser.parse_args().rounds
    results = []
    print(f"{'sampling':<22}{'rows':<8}{'median ms':>10}{'p90 ms':>10}{'goal ms':>10}")
    for name, sampling, goal in CASES:
        for rows, lift in ("lifted", 12.0), ("flat", 0.0):
            times = times_ms(verification(sampling, lift) if sampling else bare_argmax(lift), n)
            median, p90 = statistics.median(times), statistics.quantiles(times, n=10)[-1]
            print(f"{name:<22}{rows:<8}{median:>10.3f}{p90:>10.3f}{goal:>10.1f}")
            results.append({"case": name, "rows": rows, "median_ms": median, "p90_ms": p90, "goal_ms": goal})
    machine = {"python": sys.version.split()[0], "numpy": np.__version__, "machine": platform.platform()}
    print(json.dumps({"n_vocab": N_VOCAB, "n_draft": N_DRAFT, "rounds": n, **machine, "results": results}))


if __name__ == "__main__":
    main()
