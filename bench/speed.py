#!/usr/bin/env python3
"""Plain decoding and slipstream in turn, prompt by prompt, in one process: decode speed and its ratio by category.

    python bench/speed.py MODEL [--prompts FILE …] [--per-category 4] [--tokens 128] [--draft auto] [--json OUT]

Prompt files hold one JSON object a line with `id`, `category` and `turns` (the first turn is used). Each prompt is
read once beforehand, so that both arms start from the same cache; then the arms take turns, `--repeats` times each,
and the faster run of each counts, since other work of the machine only ever slows one down. A category's ratio is
that of its summed decode times at the same number of tokens; its spread a bootstrap over prompts (95 %).
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import random
import sys
from collections import defaultdict
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from slipstream import LLM, Sampling, __version__, load
from slipstream.lab import workload
from slipstream.lab.workload import Prompt
from slipstream.llm import Completion

GOALS = "Goals: SmolLM2 q8_0: all ≥ 1.20, edit ≥ 1.30; Qwen2.5-Coder q4_k_m: edit ≥ 1.10; no category below 0.97."


@dataclass(frozen=True)
class Result:
    """One prompt in both arms: decode seconds a token, from the first token on."""

    id: str
    category: str
    n_tokens: int
    plain_s: float
    slipstream_s: float
    acceptance_rate: float | None
    tokens_per_pass: float
    same: bool


def read_prompts(paths: list[Path], per_category: int) -> list[Prompt]:
    """The first `per_category` prompts of each category, taken from all over the files at even distances."""
    by_category: dict[str, list[Prompt]] = defaultdict(list)
    for prompt in [p for path in paths for p in workload.read(path)] or workload.built_in():
        by_category[prompt.category].append(prompt)
    chosen = {c: ps[:: max(1, len(ps) // per_category)][:per_category] for c, ps in by_category.items()}
    rounds = max(map(len, chosen.values()))
    return [ps[i] for i in range(rounds) for ps in chosen.values() if i < len(ps)]


def measure(llm: LLM, prompt: Prompt, sampling: Sampling, n_tokens: int, repeats: int) -> Result | None:
    messages = prompt.messages
    if len(llm.prompt_tokens(messages)) + n_tokens > llm.runtime.n_ctx:
        return None
    llm.generate(messages, sampling, max_tokens=1, speculate=False)
    runs: dict[bool, list[Completion]] = {False: [], True: []}
    for i in range(repeats):
        for speculate in (False, True) if i % 2 == 0 else (True, False):
            runs[speculate].append(llm.generate(messages, sampling, max_tokens=n_tokens, speculate=speculate))
    if not all(run.statistics.n_decoded for arm in runs.values() for run in arm):
        return None
    answers = {arm: max(done, key=lambda a: a.statistics.tokens_per_second or 0.0) for arm, done in runs.items()}
    plain, fast = answers[False].statistics, answers[True].statistics
    return Result(
        prompt.id,
        prompt.category,
        plain.n_decoded,
        plain.decode_s / plain.n_decoded,
        fast.decode_s / fast.n_decoded,
        fast.acceptance_rate,
        fast.mean_tokens_per_pass or 1.0,
        answers[False].tokens == answers[True].tokens,
    )


def ratio(results: list[Result]) -> float:
    return sum(r.plain_s * r.n_tokens for r in results) / sum(r.slipstream_s * r.n_tokens for r in results)


def spread(results: list[Result]) -> tuple[float, float]:
    """95 % bootstrap interval of the ratio over prompts, from a fixed seed."""
    rng = random.Random(0)
    draws = sorted(ratio(rng.choices(results, k=len(results))) for _ in range(1000))
    return draws[24], draws[974]


def report(results: list[Result]) -> dict[str, float]:
    by_category: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_category[result.category].append(result)
    heads = ("prompts", 8), ("plain t/s", 11), ("slip t/s", 10), ("ratio", 7), ("95 %", 14), ("t/pass", 8), ("same", 7)
    print(f"{'category':<14}" + "".join(f"{name:>{size}}" for name, size in heads))
    ratios = {}
    for category, rows in by_category.items():
        n = sum(r.n_tokens for r in rows)
        plain = n / sum(r.plain_s * r.n_tokens for r in rows)
        low, high = spread(rows)
        ratios[category] = ratio(rows)
        per_pass = n / sum(r.n_tokens / r.tokens_per_pass for r in rows)
        print(
            f"{category:<14}{len(rows):>8}{plain:>11.1f}{plain * ratios[category]:>10.1f}{ratios[category]:>7.2f}"
            f"{f'{low:.2f}–{high:.2f}':>14}{per_pass:>8.2f}{f'{sum(r.same for r in rows)}/{len(rows)}':>7}"
        )
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--prompts", nargs="+", type=Path, default=[])
    parser.add_argument("--per-category", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--draft", default="auto")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    sampling = Sampling(temperature=args.temperature, seed=1)
    results: list[Result] = []
    skipped = 0
    # A prompt is run several times: what the first run wrote must not be known to the next.
    with load(args.model, draft=args.draft, corpus="off", remember=False) as llm:
        prompts = read_prompts(args.prompts, args.per_category)
        for i, prompt in enumerate(prompts):
            result = measure(llm, prompt, sampling, args.tokens, args.repeats)
            skipped += result is None
            if result is not None:
                results.append(result)
                print(
                    f"{i + 1}/{len(prompts)} {result.id}: {result.plain_s / result.slipstream_s:.2f}", file=sys.stderr
                )
    ratios = report(results)
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    print(f"geometric mean over categories {mean:.3f}, worst {min(ratios.values()):.3f}; left out {skipped}\n{GOALS}")
    summary = {
        "model": args.model,
        "draft": args.draft,
        "temperature": args.temperature,
        "tokens": args.tokens,
        "repeats": args.repeats,
        "per_category": args.per_category,
        "slipstream": __version__,
        "xllamacpp": version("xllamacpp"),
        "machine": platform.processor() or platform.machine(),
        "ratios": ratios,
        "geometric_mean": mean,
    }
    if args.json:
        args.json.write_text(json.dumps({**summary, "results": [asdict(r) for r in results]}, indent=1) + "\n")
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
