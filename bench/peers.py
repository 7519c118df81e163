#!/usr/bin/env python3
"""slipstream against llama.cpp's own speculation, in one run: speed by category and arm.

    python bench/peers.py MODEL --prompts FILE … [--draft SMALL.gguf] [--tuned tune.json] [--out bench/results/peers-…]

Arms: plain decoding and `auto` (with --draft also `auto+draft`) of slipstream; llama.cpp's server of the same package
with each n-gram speculation, none, (with --draft) draft-simple at n_max 2, 4 and 8, and (with --tuned) what
`slipstream tune` decided for; with --transformers or --openvino, the interpreter of an environment that has them, these
engines plain and with prompt lookup.

Prompts take turns over categories, arms take turns within a prompt, the first of them another one each time. No prompt
cache; what n-gram drafters have learned is kept over the run. Each measurement goes to OUT.jsonl at once; the same
command goes on where it was stopped. At the end, or with --report alone, OUT.md, OUT.json and OUT.png are written.
Every arm loads the model for itself. Nothing else should run beside it.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import peers_report
import psutil
from peers_arms import (
    CTX_MARGIN,
    ENGINES,
    N_WARM_UP,
    WARM_UP,
    Arm,
    Request,
    SlipstreamArm,
    arm_names,
    baseline,
    end_tokens,
    open_arms,
    tuned_speculation,
)
from peers_journal import Journal, Measurement, Settings, fingerprint, is_loop
from peers_process import Engine
from speed import read_prompts

from slipstream import __version__
from slipstream.engines.protocol import Speculation
from slipstream.errors import InputError, RuntimeLibraryError, SlipstreamError
from slipstream.lab.machine import cpu
from slipstream.lab.workload import Prompt
from slipstream.models.resolve import resolve

HERE = Path(__file__).parent
SEED = 1


def rotated(arms: Sequence[str], turn: int) -> list[str]:
    """The arms, beginning with another one each turn."""
    start = turn % len(arms)
    return [*arms[start:], *arms[:start]]


def remaining(prompts: Sequence[Prompt], journal: Journal) -> list[tuple[int, Prompt]]:
    """The prompts to measure yet, each with its turn."""
    done = journal.complete().keys() | journal.left_out.keys()
    return [(turn, prompt) for turn, prompt in enumerate(prompts) if prompt.id not in done]


class Bench:
    """All arms, loaded and warm, and the journal that they write to."""

    def __init__(self, settings: Settings, arms: Mapping[str, Arm], journal: Journal) -> None:
        plain = arms["plain"]
        assert isinstance(plain, SlipstreamArm)
        self._llm, self._arms, self._settings, self._journal = plain.llm, arms, settings, journal
        self._banned = end_tokens(plain.llm)
        for arm in arms.values():
            arm.answer(self._request([{"role": "user", "content": WARM_UP}], N_WARM_UP))

    def measure(self, turn: int, prompt: Prompt) -> str:
        """One prompt in all arms, written down one by one; what there is to say of it."""
        settings = self._settings
        request = self._request(prompt.messages, settings.n_tokens)
        n_prompt = len(request.tokens)
        if n_prompt + settings.n_tokens + CTX_MARGIN > settings.n_ctx:
            self._journal.leave_out(prompt.id, prompt.category, f"{n_prompt} tokens")
            return "left out, too long"
        token_s, run = {}, len(self._journal.runs) - 1
        for name in rotated(settings.arms, turn):
            before_s, began = others_s(), time.perf_counter()
            answer = self._arms[name].answer(request)
            others = (others_s() - before_s) / (time.perf_counter() - began)
            if answer.n_decoded < 1:
                raise RuntimeLibraryError(f"{name} wrote {len(answer.tokens)} tokens of {settings.n_tokens}.")
            token_s[name] = answer.decode_s / answer.n_decoded
            loop = is_loop(answer.tokens)
            self._journal.measured(Measurement(prompt.id, prompt.category, name, n_prompt, loop, run, answer, others))
        return " ".join(f"{arm} {token_s[baseline(arm)] / token_s[arm]:.2f}" for arm in settings.arms[1:])

    def _request(self, messages: Sequence[Mapping[str, str]], n_tokens: int) -> Request:
        tokens = self._llm.prompt_tokens(messages)
        return Request(messages, tokens, n_tokens, self._settings.temperature, SEED, self._banned)


def others_s() -> float:
    """Seconds of the processors that neither this process nor its children took: other programs, other machines."""
    times = psutil.cpu_times()
    busy_s = sum(times) - times.idle - getattr(times, "iowait", 0.0)
    mine = psutil.Process()
    used = [process.cpu_times() for process in (mine, *mine.children(recursive=True))]
    return float(busy_s - sum(t.user + t.system for t in used))


def run(options: argparse.Namespace, journal: Journal) -> None:
    """Measures what the journal lacks, or as much of it as there is time for."""
    until = time.monotonic() + 60 * options.minutes
    model = resolve(options.model)
    draft = resolve(options.draft) if options.draft else None
    paths = {name: path for name, path in vars(options).items() if name in ENGINES and path}
    tuned = tuned_speculation(options.tuned) if options.tuned else None
    settings = settings_of(options, model, draft, list(paths), tuned)
    prompts = read_prompts(options.prompts, options.per_category)
    if len({prompt.id for prompt in prompts}) < len(prompts):
        raise InputError("Two prompts have the same id.", "Give each an id of its own.")
    with ExitStack() as opened:
        engines = {}
        for name, python in paths.items():
            arguments = [str(model), str(options.threads)]
            engines[name] = Engine(python, HERE / f"peers_{name}.py", arguments)
            opened.callback(engines[name].close)
        journal.require_same(settings, versions(engines))
        todo = remaining(prompts, journal)
        if not todo:
            return
        bench = Bench(settings, open_arms(settings, model, draft, engines, opened, tuned or ()), journal)
        journal.begin(settings, versions(engines), about())
        for turn, prompt in todo:
            if time.monotonic() > until:
                print(f"stopped after {options.minutes:g} minutes; the same command goes on", file=sys.stderr)
                return
            print(f"{turn + 1}/{len(prompts)} {prompt.id}: {bench.measure(turn, prompt)}", file=sys.stderr)


def settings_of(
    options: argparse.Namespace,
    model: Path,
    draft: Path | None,
    engines: Sequence[str],
    tuned: tuple[Speculation, ...] | None = None,
) -> Settings:
    if engines and options.temperature > 0:
        raise InputError("transformers and OpenVINO are measured greedily.", "Leave --temperature away.")
    return Settings(
        model=model.name,
        model_bytes=model.stat().st_size,
        draft=draft.name if draft else None,
        draft_bytes=draft.stat().st_size if draft else 0,
        prompts=tuple(map(fingerprint, options.prompts)),
        per_category=options.per_category,
        n_tokens=options.tokens,
        n_threads=options.threads,
        n_ctx=options.ctx,
        temperature=options.temperature,
        seed=SEED,
        arms=arm_names(draft is not None, engines, options.arms.split(",") if options.arms else (), tuned is not None),
        tuned=None if tuned is None else " + ".join(map(str, tuned)) or "plain",
    )


def versions(engines: Mapping[str, Engine]) -> dict[str, str]:
    own = {"slipstream": __version__, "xllamacpp": version("xllamacpp"), "Python": platform.python_version()}
    others = {name: v for engine in engines.values() for name, v in engine.versions.items()}
    return {**own, **others, "on": cpu()}


def about() -> dict[str, str]:
    """When and by which command; paths without their folders, since those are of no use elsewhere."""
    words = [Path(word).name if os.sep in word else word for word in sys.argv[1:]]
    git = ["git", "-C", str(HERE), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        revision = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        revision = "unknown"
    began = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    return {"began": began, "revision": revision, "command": " ".join(["python bench/peers.py", *words])}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--prompts", nargs="+", type=Path, default=[])
    parser.add_argument("--draft")
    parser.add_argument("--per-category", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ctx", type=int, default=2048)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--arms", help="names, separated by commas; all unless given")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop between two prompts after so long")
    parser.add_argument("--transformers", metavar="PYTHON")
    parser.add_argument("--openvino", metavar="PYTHON")
    parser.add_argument("--tuned", type=Path, metavar="TUNE.JSON")
    parser.add_argument("--report", action="store_true", help="measure nothing, write the report anew")
    parser.add_argument("--out", type=Path, help="bench/results/peers-MODEL unless given")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    out = options.out or HERE / "results" / f"peers-{Path(options.model).stem}"
    out.parent.mkdir(parents=True, exist_ok=True)
    journal = Journal(out.with_name(out.name + ".jsonl"))
    if not options.report:
        run(options, journal)
    for path in peers_report.write(journal, out):
        print(path)


if __name__ == "__main__":
    try:
        main()
    except SlipstreamError as error:
        sys.exit(f"slipstream: {error}")
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        sys.exit(130)
