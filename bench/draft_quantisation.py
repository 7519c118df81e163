#!/usr/bin/env python3
"""What a draft's quantisation costs and brings: how often it is right, and how long one of its passes takes.

    python bench/draft_quantisation.py TARGET DRAFT… [--prompts FILE …] [--per-category 1] [--tokens 64] [--json OUT]

The drafts are one model in several types. The target answers each prompt greedily; every draft then reads the answer
token by token, and two things are counted at each place: whether its likeliest token is the target's (what a drafted
token is accepted by at temperature 0), and how much its distribution overlaps the target's, Σ min(p, q) at temperature
1 without truncation (what one is accepted by under the rejection rules). A draft of another vocabulary is restricted
to common tokens. Differences are to the last draft named, with a bootstrap over prompts (95 %). The speed-up is
predicted from t(w) of both and the agreement, at the best draft length.

Prompts that the file of `--json` holds are not measured again: `--limit-s` can cut the work into pieces. Agreement
needs no quiet machine; of t(1) the least of all runs is kept.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from speed import read_prompts

from slipstream import LLM, __version__, load
from slipstream.decoding.cost import CostCurve
from slipstream.decoding.cost_probe import measure
from slipstream.decoding.protocols import Logits, Rows, Runtime
from slipstream.drafters.intersection import CommonRuntime
from slipstream.drafters.translation import twins
from slipstream.loading import PROBE_TEXT
from slipstream.models.candidates import predict
from slipstream.models.gguf import read_gguf
from slipstream.models.pairing import n_draft_contexts
from slipstream.models.resolve import resolve
from slipstream.runtimes.llamacpp import ContextOptions, LlamaModel, LlamaRuntime

PROBE_S = 3.0
N_RESAMPLED = 2000

Counts = dict[str, list[float]]
"""By draft: the places looked at, those of agreement, and the sum of overlaps."""


class Draft:
    """A draft model whose rows are in the target's tokens."""

    def __init__(self, path: Path, llm: LLM, target: Path, context: ContextOptions, opened: ExitStack) -> None:
        gguf = read_gguf(path)
        model = opened.enter_context(LlamaModel(path, None, gguf))
        inner = opened.enter_context(LlamaRuntime(model, context))
        self.name = f"{path.name} ({gguf.quantization})"
        self.size_bytes = path.stat().st_size
        self.curve = curve_of(inner, model.tokenizer.tokenize(PROBE_TEXT, add_special=True, parse_special=False))
        vocabularies = llm.tokenizer, model.tokenizer
        is_foreign = n_draft_contexts(read_gguf(target), gguf) > 1
        self.runtime: Runtime = CommonRuntime(inner, *vocabularies, twins(*vocabularies)) if is_foreign else inner

    def counts(self, prompt: Sequence[int], answer: Sequence[int], rows: NDArray[np.float32]) -> list[float]:
        """What is counted at each place of an answer, over `rows` of the target."""
        self.runtime.keep(0, 0)
        agreed = overlap = 0.0
        for place, (token, row) in enumerate(zip(answer, rows, strict=True)):
            read = prompt if place == 0 else answer[place - 1 : place]
            mine = self.row(read, len(prompt) + place - len(read), len(row))
            agreed += int(mine.argmax()) == token
            overlap += float(np.minimum(probabilities(mine), probabilities(row)).sum())
        return [len(answer), agreed, overlap]

    def row(self, tokens: Sequence[int], start: int, n_vocab: int) -> Logits:
        """The row behind these tokens; padding may make the vocabularies of a family differ in length."""
        found = last_row(self.runtime, tokens, start)[:n_vocab]
        return np.concatenate([found, np.full(n_vocab - len(found), -np.inf, np.float32)])


def curve_of(runtime: Runtime, text: Sequence[int]) -> CostCurve:
    curve = measure(runtime, text, time.perf_counter, PROBE_S, lambda done: None)
    runtime.keep(0, 0)
    return curve


def last_row(runtime: Runtime, tokens: Sequence[int], start: int) -> Logits:
    for at in range(0, len(tokens), runtime.n_batch):
        result = runtime.forward([Rows(0, tokens[at : at + runtime.n_batch], start + at, 1)])
    row: Logits = result.logits[0][0]
    return row


def probabilities(row: Logits) -> NDArray[np.float64]:
    powers = np.exp(row.astype(np.float64) - float(row.max()))
    return powers / powers.sum()


def answered(llm: LLM, prompt: Sequence[int], n_tokens: int) -> tuple[list[int], NDArray[np.float32]]:
    """The greedy answer, and the row that chose each of its tokens."""
    llm.runtime.keep(0, 0)
    answer: list[int] = []
    rows = []
    read: Sequence[int] = prompt
    while len(answer) < n_tokens and not (answer and llm.tokenizer.is_eog(answer[-1])):
        rows.append(last_row(llm.runtime, read, len(prompt) + len(answer) - len(read)).copy())
        answer.append(int(rows[-1].argmax()))
        read = answer[-1:]
    return answer, np.stack(rows)


def rate(results: Sequence[Counts], draft: str, what: int) -> float:
    return sum(r[draft][what] for r in results) / sum(r[draft][0] for r in results)


def difference(results: Sequence[Counts], draft: str, other: str) -> tuple[float, float, float]:
    """Of two drafts' agreement, with its bounds."""
    chance = random.Random(0)
    drawn = [chance.choices(results, k=len(results)) for _ in range(N_RESAMPLED)]
    spread = sorted(rate(some, draft, 1) - rate(some, other, 1) for some in drawn)
    cut = N_RESAMPLED // 40
    return rate(results, draft, 1) - rate(results, other, 1), spread[cut], spread[-1 - cut]


def report(drafts: Sequence[Draft], target: CostCurve, results: Sequence[Counts], t1_ms: dict[str, float]) -> list[Any]:
    """A table with a line for each draft; returns its figures."""
    print(f"{'draft':<44}{'MB':>6}{'t(1) ms':>9}{'agrees':>8}{'overlap':>9}{'against the last':>27}{'speed-up':>10}")
    figures = []
    for draft in drafts:
        agreement, overlap = rate(results, draft.name, 1), rate(results, draft.name, 2)
        by, low, high = difference(results, draft.name, drafts[-1].name)
        speed_up, n_draft = predict(target, draft.curve, agreement)
        figures.append(
            {
                "draft": draft.name,
                "size_bytes": draft.size_bytes,
                "t1_ms": t1_ms[draft.name],
                "agreement": agreement,
                "overlap": overlap,
                "difference": by,
                "low": low,
                "high": high,
                "predicted_speed_up": speed_up,
                "n_draft": n_draft,
            }
        )
        against = f"{by:+.1%} ({low:+.1%} to {high:+.1%})"
        print(
            f"{draft.name:<44}{draft.size_bytes / 1e6:>6.0f}{t1_ms[draft.name]:>9.1f}{agreement:>8.1%}{overlap:>9.1%}"
            f"{against:>27}{f'{speed_up:.2f} at {n_draft}':>10}"
        )
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("drafts", nargs="+")
    parser.add_argument("--prompts", nargs="+", type=Path, default=[])
    parser.add_argument("--per-category", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit-s", type=float, default=float("inf"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    began = time.monotonic()

    path, context = resolve(args.target), ContextOptions(n_ctx=2048, n_threads=args.threads)
    settings = {"target": path.name, "tokens": args.tokens, "threads": args.threads}
    known = json.loads(args.json.read_text()) if args.json and args.json.exists() else {}
    done: dict[str, Counts] = known.get("results", {}) if known.items() >= settings.items() else {}
    with ExitStack() as opened:
        llm = opened.enter_context(load(path, draft="off", context_options=context))
        cost = curve_of(llm.runtime, llm.tokenizer.tokenize(PROBE_TEXT, add_special=True, parse_special=False))
        drafts = [Draft(resolve(name), llm, path, context, opened) for name in args.drafts]
        before = {figure["draft"]: figure["t1_ms"] for figure in known.get("drafts", [])} if done else {}
        t1_ms = {d.name: min(d.curve.time(1) * 1e3, before.get(d.name, float("inf"))) for d in drafts}
        prompts = read_prompts(args.prompts, args.per_category)
        for i, prompt in enumerate(prompts, 1):
            if prompt.id in done or time.monotonic() - began > args.limit_s:
                continue
            tokens = llm.prompt_tokens(prompt.messages)
            if len(tokens) + args.tokens > llm.runtime.n_ctx // 2:
                continue
            answer, rows = answered(llm, tokens, args.tokens)
            done[prompt.id] = {draft.name: draft.counts(tokens, answer, rows) for draft in drafts}
            said = ", ".join(f"{agreed:.0f}" for _, agreed, _ in done[prompt.id].values())
            print(f"{i}/{len(prompts)} {prompt.id}: {len(answer)} tokens, agreed {said}", file=sys.stderr)
        summary = {
            **settings,
            "target_t1_ms": cost.time(1) * 1e3,
            "slipstream": __version__,
            "xllamacpp": version("xllamacpp"),
            "machine": platform.processor() or platform.machine(),
            "prompts": len(done),
            "drafts": report(drafts, cost, list(done.values()), t1_ms),
        }
    if args.json:
        args.json.write_text(json.dumps({**summary, "results": done}, indent=1) + "\n")
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
