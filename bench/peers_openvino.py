#!/usr/bin/env python3
"""OpenVINO GenAI as two arms of bench/peers.py: plain, and prompt lookup.

    python bench/peers.py MODEL --openvino /path/to/python

Runs in an environment of its own: openvino-genai==2026.4.1.0 (it reads GGUF files), numpy. Its arithmetic is not
llama.cpp's, so prompt lookup is compared with this engine's own plain decoding. Both go on behind the token that ends
the text, which is not banned here as in the other arms: prompt lookup would not heed it.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from peers_process import Reply, Request, serve

N_LOOKUP = 5
N_GRAM = 3
"""The values of OpenVINO's own samples: tokens drafted in a round, and the longest n-gram looked up."""


def answer(pipeline: Any, request: Request, lookup: bool) -> Reply:
    import numpy
    import openvino
    import openvino_genai

    prompt = numpy.array([request["prompt"]], dtype=numpy.int64)
    inputs = openvino_genai.TokenizedInputs(openvino.Tensor(prompt), openvino.Tensor(numpy.ones_like(prompt)))
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = request["n_tokens"]
    config.ignore_eos, config.do_sample = True, False
    if lookup:
        config.num_assistant_tokens, config.max_ngram_size = N_LOOKUP, N_GRAM

    class Clock(openvino_genai.StreamerBase):  # type: ignore[misc]
        rounds: list[tuple[float, int]]

        def write(self, tokens: int | list[int]) -> Any:
            n = 1 if isinstance(tokens, int) else len(tokens)
            self.rounds.append((time.perf_counter(), n))
            return openvino_genai.StreamingStatus.RUNNING

        def end(self) -> None: ...

    clock = Clock()
    clock.rounds = []
    done = pipeline.generate(inputs, config, clock)
    n_decoded = sum(n for _, n in clock.rounds[1:])
    return {"tokens": done.tokens[0], "n_decoded": n_decoded, "decode_s": clock.rounds[-1][0] - clock.rounds[0][0]}


def open_engine() -> Any:
    import openvino_genai

    path, n_threads = sys.argv[1], int(sys.argv[2])
    pipelines = {
        "openvino": openvino_genai.LLMPipeline(path, "CPU", INFERENCE_NUM_THREADS=n_threads),
        "openvino+lookup": openvino_genai.LLMPipeline(path, "CPU", prompt_lookup=True, INFERENCE_NUM_THREADS=n_threads),
    }
    arms = {
        "openvino": lambda request: answer(pipelines["openvino"], request, lookup=False),
        "openvino+lookup": lambda request: answer(pipelines["openvino+lookup"], request, lookup=True),
    }
    return arms, {"openvino-genai": openvino_genai.__version__}


if __name__ == "__main__":
    serve(open_engine)
