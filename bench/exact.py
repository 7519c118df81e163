#!/usr/bin/env python3
"""What it costs to be exact to the last bit: ways to have a class of widths, and plain decoding in each of them.

    python bench/exact.py MODEL [--threads 2] [--contexts 64 504 1016] [--repeats 30] [--json OUT]

For each way (options of the context) the width probe looks at bands around these context lengths; exact mode would
use the widths shown. Then the passes of plain decoding in exact mode (the narrowest of these widths) take turns with
those of normal plain decoding (one token, the usual options), and the ratio of their times is given: the median
over the repeats and its quartiles. Ways whose ratio is 1 make exactness free. Only one thing may run on the machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from slipstream import __version__
from slipstream.decoding.protocols import Rows
from slipstream.decoding.widths import WHOLE_ROWS, WidthClasses, fill, probe
from slipstream.loading import PROBE_TEXT
from slipstream.runtimes.llamacpp import ContextOptions, LlamaModel, LlamaRuntime

WAYS = {
    "as usual": {},
    "one thread": {"n_threads": 1},
    "no flash attention": {"flash_attn": "off"},
    "K cache q8_0": {"cache_type_k": "q8_0", "flash_attn": "on"},
    "V cache bf16": {"cache_type_v": "bf16", "flash_attn": "on"},
}


def seconds(runtime: LlamaRuntime, text: list[int], n_tokens: int, width: int) -> float:
    tokens = [text[i % len(text)] for i in range(n_tokens, n_tokens + width)]
    began = time.perf_counter()
    runtime.forward([Rows(0, tokens, n_tokens, width)])
    took = time.perf_counter() - began
    runtime.keep(0, n_tokens)
    return took


def ratios(usual: LlamaRuntime, way: LlamaRuntime, text: list[int], context: int, width: int, n: int) -> list[float]:
    for runtime in (usual, way):
        fill(runtime, text, context)
        seconds(runtime, text, context, 1)
    pairs = [(seconds(usual, text, context, 1), seconds(way, text, context, width)) for _ in range(n)]
    return [exact / plain for plain, exact in pairs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--contexts", type=int, nargs="+", default=[64, 504, 1016])
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    usual = ContextOptions(n_ctx=max(options.contexts) + 2 * WHOLE_ROWS, n_threads=options.threads)
    results = []
    with ExitStack() as opened:
        model = opened.enter_context(LlamaModel(options.model))
        text = model.tokenizer.tokenize(PROBE_TEXT, add_special=True, parse_special=False)
        plain = opened.enter_context(LlamaRuntime(model, usual))
        for name, changes in WAYS.items():
            with LlamaRuntime(model, replace(usual, **changes)) as way:
                starts = [c - WHOLE_ROWS // 2 for c in options.contexts]
                bands = tuple(probe(way, text, starts, WHOLE_ROWS))
                exact = WidthClasses(bands).exact
                print(f"{name}: exact mode uses the widths {' '.join(map(str, exact))}")
                for band in bands:
                    groups = " | ".join(" ".join(map(str, group)) for group in band.classes)
                    print(f"  context {band.start}: {groups}; difference {band.difference:.2g}, flips {band.flips}")
                for context in options.contexts:
                    found = ratios(plain, way, text, context, exact[0], options.repeats)
                    low, middle, high = statistics.quantiles(found, n=4)
                    print(f"  context {context}: {middle:.3f} [{low:.3f}–{high:.3f}] × plain", flush=True)
                    results.append(
                        {
                            "way": name,
                            "context": context,
                            "widths": exact,
                            "classes": [[list(g) for g in b.classes] for b in bands],
                            "ratio": middle,
                            "quartiles": [low, high],
                        }
                    )
    record = {
        "command": " ".join(sys.argv),
        "model": options.model.name,
        "threads": options.threads,
        "slipstream": __version__,
        "machine": f"{platform.machine()}, {platform.system()}",
        "results": results,
    }
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
