"""vLLM itself: slipstream's proposer within it, and its server as an engine."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slipstream.engines.protocol import Counters, Request, Settings, Speculation
from slipstream.engines.vllm import VllmEngine
from slipstream.errors import EngineError

ARM = Path(__file__).with_name("vllm_arm.py")


def answered(python: str, model: str, arm: str, folder: Path) -> Any:
    out = folder / f"{arm}.json"
    # In float32: bfloat16 rounds so coarsely that passes of other widths choose other tokens, with vLLM's n-grams too.
    ran = subprocess.run(
        [python, str(ARM), model, arm, "float32", str(out)], capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(out.read_text(encoding="utf-8"))


def test_the_proposer_drafts_for_vllm_and_changes_no_token(vllm_python: str, hf_model: str, tmp_path: Path) -> None:
    """Six requests in four rows, prompts read in chunks, so that rows end, move and wait."""
    plain = answered(vllm_python, hf_model, "plain", tmp_path)
    drafted = answered(vllm_python, hf_model, "slipstream", tmp_path)
    assert drafted["tokens"] == plain["tokens"]
    ours, theirs = drafted["ours"], drafted["vllm"]
    assert ours["accepted"] > 20
    assert ours["drafts"] == theirs["num_drafts"]
    assert ours["drafted"] == theirs["num_draft_tokens"]
    assert ours["accepted"] == theirs["num_accepted_tokens"]
    assert ours["accepted_at"] == theirs["num_accepted_tokens_per_pos"]
    assert ours["drafted_at"][0] == ours["drafts"]
    assert sum(ours["drafted_at"]) == ours["drafted"]


def test_a_server_is_started_asked_counted_and_stopped(vllm_python: str, hf_model: str) -> None:
    engine = VllmEngine(vllm_python)
    settings = Settings(hf_model, (Speculation("slipstream", 8),), n_ctx=512, n_threads=1, parallel=2)
    assert {option.kind: option.why_not for option in engine.speculative_options(settings)}["slipstream"] == ""
    engine.start(settings)
    try:
        before = engine.counters()
        request = Request([{"role": "user", "content": "Repeat three times: one two three four five six seven."}], 32)
        answer = engine.complete(request)
        again = engine.complete(request)
        after = engine.counters()
        assert answer.text == again.text
        assert answer.n_tokens == answer.arrivals[-1][1] > 5
        assert isinstance(before, Counters) and isinstance(after, Counters)
        assert (after - before).accepted > 3
        assert sum((after - before).accepted_at) == (after - before).accepted
        other = VllmEngine()
        other.attach(f"{engine._client.base_url}" if engine._client else "")
        assert other.version == engine.version
        assert other.complete(request).text == answer.text
        other.stop()
        assert engine._process is not None and engine._process.is_running
    finally:
        engine.stop()


def test_a_start_that_vllm_refuses_tells_its_reason(vllm_python: str, hf_model: str) -> None:
    engine = VllmEngine(vllm_python)
    with pytest.raises(EngineError) as failed:
        engine.start(Settings(hf_model, n_ctx=1_000_000, n_threads=1))
    assert "max_model_len" in failed.value.message
