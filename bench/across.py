#!/usr/bin/env python3
"""A draft of another vocabulary, by text and by common tokens, against plain decoding: prompt by prompt, in turn.

    python bench/across.py TARGET DRAFT [--prompts FILE …] [--per-category 1] [--tokens 96] [--always N] [--json OUT]

The arms share weights and have contexts of their own; "both" leaves it to control which of the two it asks. No other
drafter takes part. Each arm reads a prompt once beforehand; then they take turns, `--repeats` times each, and the
fastest run of each counts, since other work of the machine only ever slows one down. With `--always N` every round
drafts and verifies N tokens, whether or not that pays ("both" is left out): it shows how often each way is right.
Ratios are of summed decode times at the same number of tokens, with a bootstrap over prompts (95 %).
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from speed import Result, ratio, read_prompts, spread

from slipstream import LLM, Sampling, __version__
from slipstream.decoding.control import ANYWHERE, Control, Standing
from slipstream.decoding.cost import CostCurve
from slipstream.decoding.cost_probe import measure
from slipstream.decoding.protocols import Budget, Drafter, Runtime
from slipstream.decoding.record import DraftCost
from slipstream.drafters.intersection import IntersectionDrafter
from slipstream.drafters.text_drafter import TextDrafter
from slipstream.drafters.translation import Twins, twins
from slipstream.lab.workload import Prompt
from slipstream.llm import Completion
from slipstream.loading import PROBE_TEXT
from slipstream.models.gguf import read_gguf
from slipstream.models.resolve import resolve
from slipstream.models.template import ChatTemplate
from slipstream.runtimes.llamacpp import ContextOptions, LlamaModel, LlamaRuntime

ARMS: dict[str, tuple[type[TextDrafter] | type[IntersectionDrafter], ...]] = {
    "plain": (),
    "text": (TextDrafter,),
    "common": (IntersectionDrafter,),
    "both": (IntersectionDrafter, TextDrafter),
}
PROBE_S = 5.0


@dataclass(frozen=True)
class Across(Result):
    """One prompt in one arm and in plain decoding, with what was drafted."""

    arm: str
    drafted: int
    accepted: int


class Always(Control):
    """Asks every drafter for `n` tokens, and has all of them verified."""

    def __init__(self, cost: CostCurve, n: int) -> None:
        super().__init__(CostCurve({1: 1.0, 33: 1.0001}))
        self.measured = cost
        self.n = n

    def budget(self, drafter: str, room: int, so_far: float = 0.0, standing: Standing = ANYWHERE) -> Budget | None:
        return Budget(min(room, self.n)) if room >= 1 else None

    def plain_token_s(self, n_context: int) -> float:
        return self.measured.time(1, n_context)


def copied(curve: CostCurve) -> CostCurve:
    """Each arm corrects a curve of its own."""
    copy = CostCurve.from_data(curve.to_data())
    assert copy is not None
    return copy


def measured(runtime: Runtime, model: LlamaModel, cap_s: float) -> CostCurve:
    text = model.tokenizer.tokenize(PROBE_TEXT, add_special=True, parse_special=False)
    curve = measure(runtime, text, time.perf_counter, cap_s, lambda done: None)
    runtime.keep(0, 0)
    return curve


@dataclass(frozen=True)
class Pair:
    """Both models, what passes cost, and the tokens that they share."""

    target: LlamaModel
    draft: LlamaModel
    template: ChatTemplate | None
    context: ContextOptions
    twins: Twins
    cost: CostCurve
    draft_cost: CostCurve

    def arm(self, name: str, always: int, opened: ExitStack) -> LLM:
        drafters: list[Drafter] = []
        for kind in ARMS[name]:
            small = opened.enter_context(LlamaRuntime(self.draft, self.context))
            drafters.append(kind(small, self.target.tokenizer, self.draft.tokenizer, self.twins))
        step_s, read_s = self.draft_cost.time(1), self.draft_cost.time(32) / 32
        costs = {drafter.name: DraftCost(step_s, read_s) for drafter in drafters}
        control = Always(copied(self.cost), always) if always else Control(copied(self.cost), costs)
        runtime = opened.enter_context(LlamaRuntime(self.target, self.context))
        return LLM(self.target.tokenizer, runtime, control, drafters, self.template)


def load_pair(target_name: str, draft_name: str, threads: int, opened: ExitStack) -> Pair:
    path = resolve(target_name)
    gguf = read_gguf(path)
    target = opened.enter_context(LlamaModel(path, None, gguf))
    draft = opened.enter_context(LlamaModel(resolve(draft_name)))
    context = ContextOptions(n_ctx=2048, n_threads=threads)
    with LlamaRuntime(target, context) as runtime, LlamaRuntime(draft, context) as small:
        costs = measured(runtime, target, PROBE_S), measured(small, draft, PROBE_S / 5)
    template = ChatTemplate.of(gguf) if gguf.chat_template else None
    return Pair(target, draft, template, context, twins(target.tokenizer, draft.tokenizer), *costs)


def run(llms: Mapping[str, LLM], prompt: Prompt, sampling: Sampling, n_tokens: int, repeats: int) -> list[Across]:
    """The prompt in all arms, one after the other, forwards and backwards."""
    if len(llms["plain"].prompt_tokens(prompt.messages)) + n_tokens > llms["plain"].runtime.n_ctx:
        return []
    runs: dict[str, list[Completion]] = {name: [] for name in llms}
    for llm in llms.values():
        llm.generate(prompt.messages, sampling, max_tokens=1)
    for i in range(repeats):
        for name in list(llms)[:: 1 if i % 2 == 0 else -1]:
            runs[name].append(llms[name].generate(prompt.messages, sampling, max_tokens=n_tokens))
    if not all(answer.statistics.n_decoded for answers in runs.values() for answer in answers):
        return []
    best = {name: max(answers, key=lambda a: a.statistics.tokens_per_second or 0.0) for name, answers in runs.items()}
    return [across(prompt, name, best["plain"], answer) for name, answer in best.items() if name != "plain"]


def across(prompt: Prompt, arm: str, plain: Completion, answer: Completion) -> Across:
    slow, fast = plain.statistics, answer.statistics
    return Across(
        prompt.id,
        prompt.category,
        slow.n_decoded,
        slow.decode_s / slow.n_decoded,
        fast.decode_s / fast.n_decoded,
        fast.acceptance_rate,
        fast.mean_tokens_per_pass or 1.0,
        answer.tokens == plain.tokens,
        arm,
        fast.n_drafted,
        fast.n_accepted,
    )


def report(results: list[Across]) -> dict[str, dict[str, float | None]]:
    """A table with a line for each arm; returns its figures."""
    print(f"{'arm':<10}{'prompts':>8}{'ratio':>7}{'95 %':>14}{'accepted':>10}{'t/pass':>9}{'same':>8}")
    figures: dict[str, dict[str, float | None]] = {}
    for name in [arm for arm in ARMS if arm != "plain"]:
        rows = [r for r in results if r.arm == name]
        if not rows:
            continue
        n_drafted, n_tokens = sum(r.drafted for r in rows), sum(r.n_tokens for r in rows)
        rate = sum(r.accepted for r in rows) / n_drafted if n_drafted else None
        per_pass = n_tokens / sum(r.n_tokens / r.tokens_per_pass for r in rows)
        low, high = spread(list(rows))
        figures[name] = {"ratio": ratio(list(rows)), "low": low, "high": high, "rate": rate, "per_pass": per_pass}
        shown = "–" if rate is None else f"{rate:.0%}"
        same = f"{sum(r.same for r in rows)}/{len(rows)}"
        print(
            f"{name:<10}{len(rows):>8}{ratio(list(rows)):>7.2f}{f'{low:.2f}–{high:.2f}':>14}{shown:>10}"
            f"{per_pass:>9.2f}{same:>8}"
        )
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("--prompts", nargs="+", type=Path, default=[])
    parser.add_argument("--per-category", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--always", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    sampling = Sampling(temperature=args.temperature, seed=1)
    results: list[Across] = []
    with ExitStack() as opened:
        pair = load_pair(args.target, args.draft, args.threads, opened)
        names = [name for name in ARMS if not (args.always and name == "both")]
        llms = {name: pair.arm(name, args.always, opened) for name in names}
        prompts = read_prompts(args.prompts, args.per_category)
        for i, prompt in enumerate(prompts, 1):
            done = run(llms, prompt, sampling, args.tokens, args.repeats)
            results += done
            said = ", ".join(f"{r.arm} {r.plain_s / r.slipstream_s:.2f}" for r in done) or "left out"
            print(f"{i}/{len(prompts)} {prompt.id}: {said}", file=sys.stderr)
    summary = {
        "target": Path(args.target).name,
        "draft": Path(args.draft).name,
        "temperature": args.temperature,
        "tokens": args.tokens,
        "threads": args.threads,
        "always": args.always,
        "n_common": pair.twins.n_common,
        "slipstream": __version__,
        "xllamacpp": version("xllamacpp"),
        "machine": platform.processor() or platform.machine(),
        "arms": report(results),
    }
    if args.json:
        args.json.write_text(json.dumps({**summary, "results": [asdict(r) for r in results]}, indent=1) + "\n")
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
