#!/usr/bin/env python3
"""Hugging Face transformers as two arms of bench/peers.py: plain, and assisted generation with prompt lookup.

    python bench/peers.py MODEL --transformers /path/to/python

Runs in an environment of its own: torch, transformers, gguf, accelerate. The GGUF file is loaded dequantised, in
float32: its arithmetic is not llama.cpp's, so prompt lookup is compared with this engine's own plain decoding.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from peers_process import Reply, Request, serve

N_LOOKUP = 10
"""Tokens drafted in a round: the value of transformers' own documentation."""


class Clock:
    """A stopping criterion that stops nothing: notes when the first and the last round ended, and with how many."""

    def __init__(self) -> None:
        self.rounds: list[tuple[float, int]] = []

    def __call__(self, input_ids: Any, scores: Any, **options: Any) -> Any:
        import torch

        self.rounds.append((time.perf_counter(), input_ids.shape[1]))
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def answer(model: Any, request: Request, lookup: bool) -> Reply:
    import torch
    from transformers import StoppingCriteriaList

    clock = Clock()
    prompt = torch.tensor([request["prompt"]])
    with torch.inference_mode():
        text = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=request["n_tokens"],
            suppress_tokens=request["banned"],
            stopping_criteria=StoppingCriteriaList([clock]),
            **({"prompt_lookup_num_tokens": N_LOOKUP} if lookup else {}),
        )
    (first_s, n_first), (last_s, n_last) = clock.rounds[0], clock.rounds[-1]
    tokens = text[0, prompt.shape[1] :].tolist()
    return {"tokens": tokens, "n_decoded": n_last - n_first, "decode_s": last_s - first_s}


def open_engine() -> Any:
    import torch
    import transformers

    path, n_threads = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(n_threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32
    )
    # The answer goes on behind its end; the tokens that end it are banned.
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    arms = {
        "transformers": lambda request: answer(model, request, lookup=False),
        "transformers+lookup": lambda request: answer(model, request, lookup=True),
    }
    return arms, {"transformers": transformers.__version__, "torch": torch.__version__}


if __name__ == "__main__":
    serve(open_engine)
