#!/usr/bin/env python3
"""llama.cpp's own server, from the package that slipstream uses, as one arm of bench/peers.py.

Started by that script: NAME KIND N_MAX MODEL DRAFT N_CTX N_THREADS.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any

from peers_process import Reply, Request, serve


def answer(server: Any, request: Request) -> Reply:
    reply = server.handle_completions(
        {
            "prompt": request["prompt"],
            "n_predict": request["n_tokens"],
            "temperature": request["temperature"],
            "seed": request["seed"],
            "ignore_eos": True,
            "cache_prompt": False,
            "return_tokens": True,
            "verbose": True,
        }
    )
    if "error" in reply:
        return {"error": reply["error"]["message"]}
    timings = reply["timings"]
    return {
        "tokens": reply["__verbose"]["tokens"],
        "prompt_n": timings["prompt_n"],
        "n_decoded": timings["predicted_n"] - 1,
        "decode_s": timings["predicted_ms"] / 1e3,
        "n_drafted": timings.get("draft_n", 0),
        "n_accepted": timings.get("draft_n_accepted", 0),
    }


def server_options(library: Any, kind: str, n_max: int, model: str, draft: str, n_ctx: int, n_threads: int) -> Any:
    """The options of slipstream's own context, and nothing that saves or restores a cache."""
    options = library.CommonParams()
    options.model.path = model
    options.n_ctx, options.n_parallel = n_ctx, 1
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = n_threads
    options.swa_full, options.fit_params = True, False
    options.cache_ram_mib, options.n_ctx_checkpoints = 0, 0
    options.verbosity = -1
    types = library.common_speculative_type
    options.speculative.types = [getattr(types, "COMMON_SPECULATIVE_TYPE_" + kind.upper().replace("-", "_"))]
    if n_max:
        small = options.speculative.draft
        small.n_max = n_max
        small.mparams.path = draft
        small.cpuparams.n_threads = small.cpuparams_batch.n_threads = n_threads
    return options


def open_engine() -> Any:
    import xllamacpp

    name, kind, n_max, model, draft, n_ctx, n_threads = sys.argv[1:]
    options = server_options(xllamacpp, kind, int(n_max), model, draft, int(n_ctx), int(n_threads))
    server = xllamacpp.Server(options)
    return {name: lambda request: answer(server, request)}, {"xllamacpp": version("xllamacpp")}


if __name__ == "__main__":
    serve(open_engine)
