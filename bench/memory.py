#!/usr/bin/env python3
"""How near the memory plan comes to what llama.cpp says it allocates, in loads for real on the CPU.

    python bench/memory.py MODEL... [--contexts 512 4096 16384] [--parallel 1 4] [--json OUT]

Compared are the sizes in llama.cpp's log, in MiB: "model buffer size" (CPU_Mapped and CPU_REPACK together), "KV
buffer size" and "RS buffer size" (recurrent states) together, "compute buffer size", and "output buffer size", which
is of one row a sequence at first; a plan counts as many rows as drafting may verify, to which the buffer then grows
without a word in the log. Each line is one context, made as `slipstream.load` makes it. Errors are estimate ÷ log − 1,
in per cent. The exit status is 0 if they are within 3 for weights and KV cache and within 10 in all.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from itertools import product
from pathlib import Path

from slipstream.decoding.cost import MAX_WIDTH
from slipstream.models.gguf import read_gguf
from slipstream.models.hardware import this_machine
from slipstream.models.memory import Context, Load, Setup, plan, read_shape
from slipstream.models.stores import part_paths
from slipstream.runtimes.llamacpp import ContextOptions, LlamaModel, LlamaRuntime, ModelOptions
from slipstream.runtimes.llamacpp.library import RELEASE, collected_log, open_library

MIB = 1 << 20
LIMITS = {"weights": 3.0, "KV cache": 3.0, "all": 10.0}
TYPES = (("f16", "f16"), ("q8_0", "q8_0"), ("q8_0", "q4_0"))


def logged(path: Path, options: ContextOptions) -> dict[str, float]:
    """MiB by kind, as llama.cpp logs them."""
    with (
        collected_log() as lines,
        LlamaModel(path, ModelOptions(n_gpu_layers=0)) as model,
        LlamaRuntime(model, options),
    ):
        log = "".join(lines)

    def sizes(pattern: str) -> list[float]:
        return [float(size) for size in re.findall(pattern + r" +size = +([\d.]+) MiB", log)]

    return {
        "weights": sum(sizes(r"load_tensors: .* model buffer")),
        "KV cache": sum(sizes(r"(?:llama_kv_cache|llama_memory_recurrent): .*(?:KV|RS) buffer")),
        "compute": sum(sizes(r"compute buffer")),
        "outputs": sum(sizes(r"output buffer")),
    }


def planned(path: Path, options: ContextOptions) -> dict[str, float]:
    """The same kinds of a plan for the CPU alone."""
    machine = this_machine()
    first, *others = part_paths(path)
    shape = read_shape([read_gguf(first), *(read_gguf(other) for other in others)], machine.repacked)
    context = Context(
        n_ctx=options.n_ctx or 0,
        n_seq=options.n_seq_max,
        n_batch=options.n_batch,
        type_k=options.cache_type_k.upper(),
        type_v=options.cache_type_v.upper(),
        n_rollback=options.n_rollback,
    )
    parts = plan(Setup(machine, Load(shape, context, n_gpu_layers=0))).parts
    names = {
        "weights": ("weights", "repacked weights"),
        "KV cache": ("KV cache", "recurrent state"),
        "compute": ("compute buffers",),
        "outputs": ("outputs",),
    }
    return {kind: sum(p.n_bytes for p in parts if p.name in known) / MIB for kind, known in names.items()}


def errors(estimate: dict[str, float], log: dict[str, float]) -> dict[str, float]:
    pairs = {kind: (estimate[kind], log[kind]) for kind in log}
    pairs["all"] = (sum(estimate.values()), sum(log.values()))
    return {kind: 100 * (ours / theirs - 1) if theirs else 0.0 for kind, (ours, theirs) in pairs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 4096, 16384])
    parser.add_argument("--parallel", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    open_library()
    results = []
    print("| model | context | sequences | K, V | weights | KV cache | compute | outputs | all | all, log (MiB) |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for path, n_ctx, n_seq, (type_k, type_v) in product(asked.models, asked.contexts, asked.parallel, TYPES):
        options = ContextOptions(
            n_ctx=n_ctx, n_seq_max=n_seq, cache_type_k=type_k, cache_type_v=type_v, n_rollback=MAX_WIDTH, n_threads=1
        )
        estimate, log = planned(path, options), logged(path, options)
        off = errors(estimate, log)
        results.append({"model": path.name, **vars(options), "planned_mib": estimate, "logged_mib": log, "off": off})
        cells = " | ".join(f"{error:+.2f}" for error in off.values())
        total = sum(log.values())
        print(f"| {path.stem} | {n_ctx} | {n_seq} | {type_k}, {type_v} | {cells} | {total:.1f} |", flush=True)
    worst = {kind: max(abs(r["off"][kind]) for r in results) for kind in results[0]["off"]}
    print("worst:", ", ".join(f"{kind} {error:.2f} %" for kind, error in worst.items()))
    passed = all(worst[kind] <= limit for kind, limit in LIMITS.items())
    summary = {"xllamacpp": RELEASE, "n_contexts": len(results), "worst_percent": worst, "passed": passed}
    if asked.json:
        asked.json.write_text(json.dumps({**summary, "results": results}, indent=1) + "\n")
    print(json.dumps(summary))
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
