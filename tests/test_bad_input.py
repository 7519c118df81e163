"""What the issue on losslessness calls bad input: one line that names the option and the allowed range, status 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_cli import slipstream as command  # noqa: F401 (a fixture)
from tiny_models import N_VOCAB, write_tiny

from slipstream import estimates

BAD = {
    "temperature": (["--temp", "-0.1"], "--temp is -0.1. It must be a finite number, 0 or more."),
    "temperature inf": (["--temp", "inf"], "--temp is inf. It must be a finite number, 0 or more."),
    "top-p 0": (["--top-p", "0"], "--top-p is 0.0. It must be above 0 and at most 1"),
    "top-p below 0": (["--top-p", "-0.5"], "--top-p is -0.5. It must be above 0 and at most 1"),
    "top-p above 1": (["--top-p", "1.01"], "--top-p is 1.01. It must be above 0 and at most 1"),
    "top-p nan": (["--top-p", "nan"], "--top-p is nan. It must be above 0 and at most 1"),
    "min-p": (["--min-p", "1"], "--min-p is 1.0. It must be at least 0 (off) and below 1"),
    "bias of no token": (["-l", f"{N_VOCAB}+1"], f"logit_bias token is {N_VOCAB}. It must be below {N_VOCAB}"),
    "bias of a token below 0": (["--logit-bias=-3+1"], "logit-bias"),
    "bias that is none": (["--logit-bias", "5+nan"], "--logit-bias of token 5 is nan. It must be a number or -inf."),
    "too many logprobs": (["--json", "--logprobs", "101"], "logprobs is 101. It must be"),
    "logprobs below 0": (["--json", "--logprobs", "-1"], "logprobs is -1. It must be"),
    "logprobs in a text": (["--logprobs", "3"], "--logprobs are given in the JSON object. Add --json."),
    "verification": (
        ["--verification", "foo"],
        "--verification is 'foo'. It must be one of coupled, rejection, block.",
    ),
}


@pytest.fixture
def tiny(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(estimates, "folder", lambda: tmp_path / "cache")
    return write_tiny(tmp_path / "tiny.gguf", "llama")


@pytest.mark.parametrize("bad", BAD)
def test_it_is_told_in_one_line_with_the_range(command, tiny, bad):  # noqa: F811
    arguments, said = BAD[bad]
    code, out, err = command("run", tiny, "AB", "--raw", "-n", 2, "--threads", 1, "--ctx", 128, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("slipstream: ") and err.endswith("\n") and err.count("\n") == 1
    assert said in err
    if "logprobs" in bad and "text" not in bad:
        assert "from 0 to 100" in err


@pytest.mark.parametrize("rule", ["coupled", "rejection", "block"])
def test_each_verification_rule_can_be_asked_for(command, tiny, rule):  # noqa: F811
    code, out, err = command("run", tiny, "AB", "--raw", "-n", 8, "-t", 1, "-c", 128, "--verification", rule, "-s", 3)
    assert (code, err) == (0, "") and out.strip()


def test_rejection_and_block_are_known_to_the_json(command, tiny):  # noqa: F811
    out = command("run", tiny, "AB", "--raw", "-n", 2, "-t", 1, "-c", 128, "--json", "--verification", "block")[1]
    assert '"verification": "block"' in out
