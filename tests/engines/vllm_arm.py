"""Answers prompts with vLLM's Python interface in one arm, and writes what came of it as JSON.

    python vllm_arm.py MODEL ARM DTYPE OUT.json

Runs in vLLM's environment, with slipstream beside it. ARM: plain, ngram or slipstream. The engine runs in this
process, so that the proposer's own counters can be read beside vLLM's.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

PROMPTS = (
    "Repeat this line three times: the quick brown fox jumps over the lazy dog, and the dog sleeps on.",
    "Write a Python function that adds two numbers, then write the same function again with type hints.",
    "List the days of the week, then list them again.",
    "Why is the sky blue?",
    "Count from one to thirty in words.",
    "Translate to French: Good morning. Good evening. Good night.",
)
CONFIGS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "ngram": {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 2, "prompt_lookup_max": 5},
    "slipstream": {
        "method": "custom_class",
        "model": "slipstream.engines.vllm_proposer.SlipstreamProposer",
        "num_speculative_tokens": 8,
    },
}
COUNTED = "vllm:spec_decode_"


def run(model: str, arm: str, dtype: str) -> dict[str, Any]:
    """Four rows and six prompts: requests end, others take their places; prompts are read in chunks of 32."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model,
        dtype=dtype,
        seed=0,
        max_model_len=512,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        enforce_eager=True,
        enable_prefix_caching=False,
        disable_log_stats=False,
        speculative_config=CONFIGS[arm],
    )
    lengths = [SamplingParams(temperature=0.0, max_tokens=40 + 8 * i) for i in range(len(PROMPTS))]
    answers = llm.chat([[{"role": "user", "content": prompt}] for prompt in PROMPTS], lengths, use_tqdm=False)
    told = {m.name[len(COUNTED) :]: getattr(m, "value", None) for m in llm.get_metrics() if m.name.startswith(COUNTED)}
    per_position = next((list(m.values) for m in llm.get_metrics() if m.name.endswith("_per_pos")), [])
    return {
        "tokens": [list(answer.outputs[0].token_ids) for answer in answers],
        "vllm": {**told, "num_accepted_tokens_per_pos": per_position},
        "ours": _own_counters(llm) if arm == "slipstream" else None,
    }


def _own_counters(llm: Any) -> dict[str, Any]:
    from dataclasses import asdict

    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    return asdict(worker.model_runner.drafter.counters)


if __name__ == "__main__":
    cpu = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    os.environ.update({**cpu, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"})
    Path(sys.argv[4]).write_text(json.dumps(run(*sys.argv[1:4])), encoding="utf-8")
