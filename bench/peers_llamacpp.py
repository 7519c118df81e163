#!/usr/bin/env python3
"""llama.cpp's own server, from the package that slipstream uses, as one arm of bench/peers.py.

Started by that script: NAME and the fields of `CommonParams`, as JSON.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from typing import Any

from peers_process import Reply, Request, serve

from slipstream.engines.llamacpp_settings import parameters


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


def open_engine() -> Any:
    import xllamacpp

    name, fields = sys.argv[1:]
    # As slipstream's own context, and with nothing that saves or restores a cache.
    alike = {"swa_full": True, "fit_params": False, "cache_ram_mib": 0, "n_ctx_checkpoints": 0, "verbosity": -1}
    server = xllamacpp.Server(parameters(xllamacpp, {**json.loads(fields), **alike}))
    return {name: lambda request: answer(server, request)}, {"xllamacpp": version("xllamacpp")}


if __name__ == "__main__":
    serve(open_engine)
