#!/usr/bin/env python3
"""How near control comes to the best schedule in hindsight, without noise: traces written, then replayed.

    python bench/oracle.py MODEL --prompts FILE … [--per-category 4] [--tokens 128] [--trace FILE] [--json OUT]

Answers of the model are traced (greedy, the end of the text ignored), then played again in simulated time by the
trace's own cost curve. The goal is a share of 0.85 of the oracle's speed-up in categories where that is above 1.1. The
gap is told apart: passes that were wider than what was accepted, and tokens that would have been accepted but were
not drafted. A second play knows from the start what the first one learned of acceptance.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from speed import read_prompts

from slipstream import Sampling, __version__, load
from slipstream.decoding.control import Control
from slipstream.decoding.cost import CostCurve
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.lab import trace
from slipstream.lab.simulate import simulate
from slipstream.lab.simulated import Clock, Text
from slipstream.lab.whatif import WhatIf, what_if

GOAL, WORTH = 0.85, 1.1


def record(model: str, draft: str, prompts: list[Path], per_category: int, n_tokens: int, path: Path) -> None:
    with load(model, draft=draft, remember=False) as llm, trace.TraceWriter(path, llm, Path(model).name) as writer:
        chosen = read_prompts(prompts, per_category)
        for i, prompt in enumerate(chosen):
            if len(llm.prompt_tokens(prompt.messages)) + n_tokens > llm.runtime.n_ctx:
                continue
            writer.category = prompt.category
            for _ in llm.stream(prompt.messages, Sampling(temperature=0), n_tokens, ignore_end=True, trace=writer):
                pass
            print(f"{i + 1}/{len(chosen)} {prompt.id}", file=sys.stderr)


def play(run: trace.TracedRun, drafter: SuffixDrafter) -> tuple[float, float]:
    """Control with this drafter over the texts: seconds, and those of them for tokens that were rejected."""
    texts, cost = [Text(r.prompt, r.answer) for r in run.requests], run.cost
    control = Control(CostCurve(cost.measured, far=cost.far))
    total_s, wasted_s = 0.0, 0.0
    for step in simulate(texts, [drafter], control, cost.time, Clock()):
        ((_, done),) = step.rounds
        needed_s = min(cost.time(w, done.n_context) for w in range(1 + done.accepted, done.width + 1))
        total_s += step.seconds
        wasted_s += step.seconds - needed_s
    return total_s, wasted_s


def plays(run: trace.TracedRun) -> tuple[float, float, float]:
    """(seconds with control, of these for rejected tokens; seconds where all that was learned is known before)"""
    first, second = SuffixDrafter(), SuffixDrafter()
    total_s, wasted_s = play(run, first)
    for name, acceptance in second.acceptances.items():
        acceptance.restore(first.acceptances[name].to_data())
    return total_s, wasted_s, play(run, second)[0]


def report(result: WhatIf) -> dict[str, dict[str, float | str | None]]:
    rows: dict[str, dict[str, float | str | None]] = {}
    print(f"{'category':<16}{'best fixed':>16}{'auto':>8}{'oracle':>8}{'share':>8}")
    for category in (*result.categories, None):
        best, auto = result.best_fixed(category), result.speedup(result.auto, category)
        oracle, share = result.speedup(result.oracle, category), result.share(category)
        row = {"best_fixed": best.policy, "best_fixed_speedup": result.speedup(best, category)}
        rows[category or "all"] = {**row, "auto": auto, "oracle": oracle, "share": share}
        fixed = f"{best.policy} {result.speedup(best, category):.2f}"
        print(f"{category or 'all':<16}{fixed:>16}{auto:>8.2f}{oracle:>8.2f}{share or math.nan:>8.2f}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--prompts", nargs="+", type=Path, default=[])
    parser.add_argument("--per-category", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--draft", default="auto")
    parser.add_argument("--trace", type=Path, help="Keep the trace here; one that is there is only replayed.")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = args.trace or Path(folder) / "trace.jsonl"
        if not path.exists():
            record(args.model, args.draft, args.prompts, args.per_category, args.tokens, path)
        runs = trace.read(path)
    run = runs[-1]
    run.requests[:0] = [request for earlier in runs[:-1] for request in earlier.requests]
    result = what_if(run)
    rows = report(result)
    judged = {c: row for c, row in rows.items() if c != "all" and float(row["oracle"] or 0) > WORTH}
    shares = [float(row["share"] or 0) for row in judged.values()]
    met = sum(share >= GOAL for share in shares)
    least = f"; least {min(shares):.2f}" if shares else ""
    print(f"share of the oracle: goal {GOAL}, met in {met} of {len(shares)} categories{least}")
    auto_s, wasted_s, again_s = plays(run)
    gap_s = auto_s - sum(result.oracle.seconds.values())
    rejected = wasted_s / gap_s if gap_s > 0 else 0.0
    print(
        f"of the {gap_s:.1f} s between control and the oracle, {rejected:.0%} are passes wider than what was "
        f"accepted, the rest tokens not drafted; with all rates known before: {again_s:.1f} s instead of {auto_s:.1f} s"
    )
    summary = {
        "model": run.model,
        "draft": args.draft,
        "tokens": args.tokens,
        "per_category": args.per_category,
        "slipstream": __version__,
        "xllamacpp": version("xllamacpp"),
        "cost": run.cost.to_data(),
        "categories": rows,
        "gap_s": gap_s,
        "gap_rejected": rejected,
        "auto_s": auto_s,
        "auto_knowing_rates_s": again_s,
    }
    if args.json:
        args.json.write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
