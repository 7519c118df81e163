"""`slipstream simulate`: tables and JSON of a replayed trace, other costs, and what it says of bad input."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
from made_traces import copying, traced

from slipstream.cli import main as cli
from slipstream.cli.simulate import read_cost
from slipstream.decoding.cost import CostCurve
from slipstream.errors import InputError

TEXTS = [copying(60, seed) for seed in range(3)]
GPU = "weight_bytes=8e9,n_parameters=8e9,bandwidth=1e12,flops=160e12"


@pytest.fixture
def command(capsys, monkeypatch):
    """Runs `slipstream simulate` in this process: (exit status, standard output, standard error)."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["slipstream", "simulate", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "160")
        with pytest.raises(SystemExit) as left:
            cli.main()
        out, err = capsys.readouterr()
        return (0 if left.value.code is None else int(left.value.code)), out, err

    return run


@pytest.fixture
def trace(tmp_path) -> Path:
    path = tmp_path / "trace.jsonl"
    traced(path, TEXTS, acceptance=0.8, categories=["edit", "chat", "edit"])
    return path


@pytest.fixture
def result(command):
    """Runs the command for its JSON."""

    def run(*arguments: str | Path) -> dict:
        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is not JSON")

        code, out, err = command(*arguments, "--json")
        assert (code, err, out.count("\n")) == (0, "", 1)
        return json.loads(out, parse_constant=refuse)

    return run


def test_a_table_for_people(command, trace):
    code, out, err = command(trace)
    assert (code, err) == (0, "")
    assert "made-up: speed-up over plain decoding, in simulated time" in out
    rows = [line for line in out.splitlines() if "│" in line]
    assert [next(name for name in ("edit", "chat", "all of them") if name in row) for row in rows] == [
        *("edit", "chat", "all of them")
    ]
    assert "passes took 1.00 of what control expected" in out


def test_json(result, trace):
    data = result(trace)
    assert set(data) == {"model", "requests", "all", "by_category", "acceptance_rate"}
    assert (data["model"], data["requests"], set(data["by_category"])) == ("made-up", 3, {"edit", "chat"})
    rates = data["all"]["tokens_per_second"]
    assert {"plain", "auto", "oracle", "suffix 1", "model 32"} <= set(rates)
    assert rates["plain"] == pytest.approx(1 / 0.020)
    assert rates["plain"] < rates["auto"] < rates["oracle"] == max(rates.values())
    fixed = {name: rate for name, rate in rates.items() if name not in ("auto", "oracle")}
    assert data["all"]["best_fixed"] == max(fixed, key=fixed.__getitem__)
    share = (rates["auto"] - rates["plain"]) / (rates["oracle"] - rates["plain"])
    assert data["all"]["share_of_oracle"] == pytest.approx(share)
    assert set(data["acceptance_rate"]) == set(rates) - {"plain", "oracle"}
    assert all(0 <= rate <= 1 for rate in data["acceptance_rate"].values())


def test_several_runs_of_a_model_are_one(result, trace):
    traced(trace, TEXTS[:1], acceptance=0.8, categories=["chat"])
    data = result(trace)
    assert data["requests"] == 4 and set(data["by_category"]) == {"edit", "chat"}


def test_runs_of_several_models_are_refused(command, trace):
    traced(trace, TEXTS[:1], model="another")
    code, out, err = command(trace)
    assert (code, out) == (2, "") and "several models: another, made-up" in err


@pytest.mark.parametrize("data", [{"1": 0.5, "33": 0.5}, {"seconds": {"1": 0.5, "33": 0.5}}])
def test_another_cost_curve(result, trace, tmp_path, data):
    (tmp_path / "cost.json").write_text(json.dumps(data))
    rates = result(trace, "--cost", tmp_path / "cost.json")["all"]["tokens_per_second"]
    assert rates["plain"] == pytest.approx(2.0) and rates["oracle"] > 8


def test_a_roofline(result, trace):
    rates = result(trace, "--cost", GPU)["all"]["tokens_per_second"]
    assert rates["plain"] == pytest.approx(125.0)


def test_all_that_a_roofline_knows_can_be_given():
    experts = f"{GPU}, overhead_s=0.001,kv_bytes=1e5,expert_bytes=60e9,n_experts=256,n_used=8"
    curve = read_cost(experts)
    assert curve.time(1) == pytest.approx(0.001 + (8e9 + 60e9 * 8 / 256) / 1e12)
    assert curve.time(1, 3000) > curve.time(1)


def test_another_acceptance(result, trace):
    rates = [result(trace, "--acceptance", a)["all"]["tokens_per_second"]["auto"] for a in ("0", "0.5", "1")]
    assert rates == sorted(rates) and rates[2] > 2 * rates[0]


def test_several_at_a_time(result, trace):
    alone, together = (result(trace, "--parallel", n)["all"]["tokens_per_second"]["plain"] for n in (1, 3))
    assert together == pytest.approx(3 * 0.020 / 0.0255 * alone, rel=0.05), "a pass over three takes 25.5 ms"


def test_a_trace_of_plain_decoding_can_be_replayed(result, tmp_path):
    path = tmp_path / "trace.jsonl"
    traced(path, TEXTS)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "round":
            line["proposals"] = [[] for _ in line["proposals"]]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = result(path)
    assert set(data["all"]["tokens_per_second"]) == {"plain", "auto", "oracle"}
    assert data["all"]["best_fixed"] == "plain" and data["all"]["share_of_oracle"] is None
    assert result(path, "--acceptance", "1", "--cost", GPU)["all"]["share_of_oracle"] > 0.5


BAD = {
    "no file": (["TMP/none.jsonl"], "cannot be read"),
    "no trace": (["TMP/diary.txt"], "line 1"),
    "nothing in it": (["TMP/empty.jsonl"], "no rounds"),
    "answers of one token": (["TMP/one.jsonl"], "no rounds"),
    "acceptance": (["TRACE", "--acceptance", "1.5"], "--acceptance is 1.5. It must be a number from 0 to 1"),
    "acceptance nan": (["TRACE", "--acceptance", "nan"], "--acceptance is nan. It must be a number from 0 to 1"),
    "parallel": (["TRACE", "--parallel", "0"], "--parallel is 0. It must be a whole number from 1 to 256"),
    "no cost file": (["TRACE", "--cost", "TMP/none.json"], "cannot be read"),
    "no cost curve": (["TRACE", "--cost", "TMP/bad.json"], "is no cost curve"),
    "deep cost": (["TRACE", "--cost", "TMP/deep.json"], "cannot be read"),
    "unknown figure": (["TRACE", "--cost", "speed=3"], "knows no 'speed'"),
    "no number": (["TRACE", "--cost", "bandwidth=fast"], "bandwidth is 'fast'"),
    "figures missing": (["TRACE", "--cost", "bandwidth=1e12"], "weight_bytes, n_parameters, flops must be given"),
    "figure below 0": (["TRACE", "--cost", f"{GPU},overhead_s=-1"], "out of range"),
    "figure nan": (["TRACE", "--cost", f"{GPU},overhead_s=nan"], "overhead_s is 'nan'"),
    "figure infinite": (["TRACE", "--cost", f"{GPU},kv_bytes=inf"], "kv_bytes is 'inf'"),
    "experts nan": (["TRACE", "--cost", f"{GPU},n_experts=nan"], "n_experts is 'nan'"),
    "experts in part": (["TRACE", "--cost", f"{GPU},expert_bytes=1e9"], "experts are told in part"),
    "half an expert": (["TRACE", "--cost", f"{GPU},n_experts=8,n_used=0.5,expert_bytes=1"], "whole numbers"),
    "more at a time than there are": (["TRACE", "--parallel", "200"], "--parallel 200 needs as many"),
    "more experts used than there are": (["TRACE", "--cost", f"{GPU},n_used=8,n_experts=4"], "out of range"),
    "passes of no time": (["TRACE", "--cost", "weight_bytes=1,n_parameters=1,bandwidth=1e99,flops=1e99"], "seconds"),
    "passes without end": (["TRACE", "--cost", f"{GPU},overhead_s=1e9"], "seconds"),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_input_is_one_line_and_status_2(command, trace, tmp_path, bad):
    (tmp_path / "diary.txt").write_text("Dear diary,\nthe day was long,\nand so was the night\n")
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "bad.json").write_text('{"2": 0.1}')
    (tmp_path / "deep.json").write_text("[" * 100_000)
    traced(tmp_path / "one.jsonl", [copying(1)])
    arguments, said = BAD[bad]
    named = {"TRACE": str(trace)}
    code, out, err = command(*(named.get(a, a.replace("TMP", str(tmp_path))) for a in arguments))
    assert (code, out) == (2, "")
    assert err.startswith("slipstream: ") and err.endswith("\n") and err.count("\n") == 1
    assert said in err


def test_a_cost_curve_is_read_as_it_is_stored(tmp_path):
    curve = CostCurve({1: 0.02, 8: 0.03})
    (tmp_path / "cost.json").write_text(json.dumps(curve.to_data()))
    assert read_cost(str(tmp_path / "cost.json")).measured == curve.measured
    with pytest.raises(InputError):
        read_cost("weight_bytes=" + str(math.nan))
