"""`slipstream tune`: what it prints and writes, its exit status, and what it says of bad input."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest
from simulated_engines import SimulatedEngine, World
from test_cli import slipstream as command  # noqa: F401 (a fixture)
from tuning import by_kind, engine

from slipstream.engines import registry
from slipstream.engines.protocol import Answer, Request, Settings
from slipstream.errors import EngineError
from slipstream.lab import tune as tuning_run

PAYS = World(by_kind(ngram=1.5), by_kind(ngram=2.0))
LINES = [{"id": f"{c}-{i}", "category": c, "prompt": f"{c}: prompt {i}"} for c in ("chat", "edit") for i in range(12)]


@pytest.fixture
def tune(command, monkeypatch, tmp_path):  # noqa: F811
    """`slipstream tune big` with a simulated engine under the name of vLLM, whose time is the budget's, too."""
    made = {"vllm": engine(PAYS, name="vllm")}

    def build(name: str):
        if name in made:
            return lambda program=None: made[name]
        return registry.engine_class(name)

    measure = tuning_run.tune
    monkeypatch.setattr("slipstream.cli.tune._builder", build)
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    monkeypatch.setattr(tuning_run, "tune", lambda *a, **k: measure(*a, **k, clock=made["vllm"].clock))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, LINES)))

    def run(*arguments: object, simulated: SimulatedEngine | None = None) -> tuple[int, str, str]:
        if simulated is not None:
            made["vllm"] = simulated
        usual = ["--engine", "vllm"] if "--engine" not in arguments else []
        usual += ["--prompts", "prompts.jsonl"] if "--prompts" not in arguments else []
        return command("tune", "big", *usual, *map(str, arguments))

    return run


def test_it_prints_a_table_and_the_verdict_and_writes_all_files(tune, tmp_path):
    code, out, err = tune("--out", "found", "--budget", "30m")
    assert code == 0 and all(re.fullmatch(r" *\d+% vllm, .+: .+", line) for line in err.splitlines())
    assert "ngram n" in out and "÷ plain" in out and "prompts that did not choose it" in out
    assert re.search(r"chat: use ngram n \d+, 1\.\d\d \[1\.\d\d–1\.\d\d\]", out) and "Written:" in out
    written = {path.relative_to(tmp_path / "found").as_posix() for path in (tmp_path / "found").rglob("*.*")}
    assert written == {"journal.jsonl", "tune.json", "report.html", "settings-vllm/run.sh"}
    data = json.loads((tmp_path / "found" / "tune.json").read_text())
    assert data["command"].startswith("slipstream tune big --engine vllm")
    assert data["prompts"] == {"chat": 12, "edit": 12}


def test_the_folder_is_named_after_model_and_time(tune, tmp_path):
    assert tune("--budget", "5m")[0] == 0
    (folder,) = tmp_path.glob("tune-big-*")
    assert re.fullmatch(r"tune-big-\d{4}-\d\d-\d\d-\d{4}", folder.name)


def test_leaving_it_off_is_an_answer(tune):
    code, out, _ = tune("--budget", "30m", simulated=engine(World(by_kind(ngram=0.8, other=0.9)), name="vllm"))
    assert code == 0 and "leave it off." in out


def test_a_budget_too_small_is_no_error_and_decides_nothing(tune):
    code, out, _ = tune("--budget", "5s")
    assert code == 0 and "too small to measure any setting" in out


class Interrupted(SimulatedEngine):
    def complete(self, request: Request) -> Answer:
        if len(self.asked) == 60:
            raise KeyboardInterrupt
        return super().complete(request)


def test_ctrl_c_says_how_to_go_on_and_that_does(tune, tmp_path):
    made = engine(PAYS, name="vllm")
    interrupted = Interrupted(made.clock, made.options, PAYS, name="vllm")
    code, _, err = tune("--out", "found", "--budget", "30m", simulated=interrupted)
    going_on = "slipstream tune --resume found big --engine vllm --prompts prompts.jsonl --budget 30m"
    assert code == 130 and f"All answers but the last one are kept. To go on: {going_on}" in err
    second = engine(PAYS, name="vllm")
    assert tune("--budget", "30m", "--resume", "found", simulated=second)[0] == 0
    assert (tmp_path / "found" / "report.html").exists()
    third = engine(PAYS, name="vllm")
    assert tune("--budget", "30m", "--resume", "found", simulated=third)[0] == 0 and third.asked == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_being_ended_is_as_ctrl_c(tune, number):
    class Ended(SimulatedEngine):
        def complete(self, request: Request) -> Answer:
            if len(self.asked) == 60:
                os.kill(os.getpid(), number)
            return super().complete(request)

    made = engine(PAYS, name="vllm")
    ended = Ended(made.clock, made.options, PAYS, name="vllm")
    code, _, err = tune("--out", "found", "--budget", "30m", simulated=ended)
    assert code == 130 and "To go on: slipstream tune --resume found" in err
    ended.start(Settings("big"))  # which asserts that it was stopped
    assert signal.getsignal(number) != signal.default_int_handler


def test_ctrl_c_before_the_first_answer_leaves_nothing(tune, tmp_path):
    class AtOnce(SimulatedEngine):
        def start(self, settings, progress=lambda line: None):
            raise KeyboardInterrupt

    made = engine(PAYS, name="vllm")
    code, _, err = tune("--out", "found", simulated=AtOnce(made.clock, made.options, PAYS, name="vllm"))
    assert code == 130 and "Nothing was measured yet." in err and not (tmp_path / "found").exists()


def test_going_on_with_more_time_goes_on(tune):
    assert tune("--out", "found", "--budget", "30s")[0] == 0
    code, out, _ = tune("--budget", "30m", "--resume", "found", simulated=engine(PAYS, name="vllm"))
    assert code == 0 and "prompts that did not choose it" in out


def test_going_on_under_other_options_is_refused(tune):
    tune("--out", "found", "--budget", "5m")
    code, _, err = tune("--budget", "5m", "-n", "64", "--resume", "found", simulated=engine(PAYS, name="vllm"))
    assert code == 2 and "was measured with n_tokens 128, now it is 64" in err


def test_progress_is_written_line_by_line_where_there_is_no_terminal(tune, monkeypatch):
    monkeypatch.setattr("slipstream.cli.tune.LINE_S", 0.0)
    lines = tune("--budget", "5m")[2].splitlines()
    shares = [int(line.partition("%")[0]) for line in lines]
    assert len(lines) > 20 and shares == sorted(shares) and "vllm, plain: chat" in lines[2]


def test_an_engine_that_never_gets_ready_ends_with_its_last_lines(tune):
    broken = engine(PAYS, name="vllm", will_not_start=lambda s: "Its last lines:\nno kernel image")
    code, _, err = tune("--out", "found", simulated=broken)
    assert code == 2 and "\nno kernel image\n" in err and not Path("found").exists()


BAD = {
    "no such engine": (["--engine", "mystery"], "There is no engine 'mystery'"),
    "an engine twice": (["--engine", "vllm", "--engine", "vllm"], "names an engine twice"),
    "no time": (["--budget", "soon"], "--budget 'soon' is no time"),
    "a time without its unit": (["--budget", "5"], "--budget '5' is no time. Write it with its unit"),
    "no time at all": (["--budget", "0s"], "--budget '0s' is no time"),
    "no numbers": (["--concurrency", "1,x"], "--concurrency '1,x' is not understood"),
    "none at once": (["--concurrency", "0"], "from 1 to 1024"),
    "more than prompts": (["--concurrency", "64"], "64 requests at once need as many prompts; there are 24"),
    "short answers": (["-n", "4"], "-n is 4"),
    "no prompts": (["--prompts", "none.jsonl"], "cannot be read"),
    "empty prompts": (["--prompts", "empty.jsonl"], "holds no prompts"),
    "a bad line": (["--prompts", "bad.jsonl"], "bad.jsonl, line 2"),
    "a folder that exists": (["--out", "there"], "there exists, and is not written over. Give another --out."),
    "a folder that cannot be": (["--out", "empty.jsonl/x"], "cannot be made"),
    "nothing to resume": (["--resume", "there"], "holds no tuning run to go on with"),
    "resume and out": (["--resume", "there", "--out", "x"], "Leave --out away"),
    "a URL twice": (["--url", "http://a", "--url", "vllm=http://a"], "--url http://a is given twice for vllm"),
    "two programs": (["--program", "a", "--program", "vllm=b"], "--program is given twice for vllm"),
    "a URL of no engine": (
        ["--engine", "vllm", "--engine", "ollama", "--url", "http://a"],
        "names no engine of this run",
    ),
    "a program of none": (["--engine", "ollama", "--program", "x"], "ollama is run without a program of its own"),
    "no such model": (["--engine", "llama.cpp"], "No model on this machine is called 'big'"),
}


@pytest.mark.parametrize(("arguments", "said"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line_and_leaves_nothing_behind(tune, tmp_path, arguments, said):
    (tmp_path / "there").mkdir()
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a"}\n{"prompt": 3}\n')
    before = sorted(tmp_path.rglob("*"))
    code, out, err = tune(*arguments)
    assert code == 2 and out == "" and said in err and err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_url_and_a_program_may_name_their_engine(tune):
    simulated = engine(PAYS, name="vllm")
    assert tune("--budget", "5m", "--url", "vllm=http://127.0.0.1:9/?a=b", simulated=simulated)[0] == 0
    assert simulated.attached == "http://127.0.0.1:9/?a=b"


def test_a_folder_of_a_run_is_named_as_one_to_go_on_with(tune):
    tune("--out", "found", "--budget", "30s")
    code, _, err = tune("--out", "found", "--budget", "30s")
    assert code == 2 and "Give another --out, or go on with what is there by --resume found." in err


def test_an_engine_that_is_not_installed_says_how_to_install_it(tune, monkeypatch):
    class Missing(SimulatedEngine):
        def speculative_options(self, settings):
            raise EngineError("vLLM is not installed here.", "Install it: pip install vllm")

    made = engine(PAYS, name="vllm")
    code, _, err = tune(simulated=Missing(made.clock, made.options, name="vllm"))
    assert code == 2 and "Install it: pip install vllm" in err


def test_the_built_in_prompts_are_taken_where_none_are_given(command, tune, tmp_path: Path):  # noqa: F811
    assert command("tune", "big", "--engine", "vllm", "--budget", "5m", "--out", "own")[0] == 0
    data = json.loads((tmp_path / "own" / "tune.json").read_text())
    assert len(data["prompts"]) == 8 and set(data["prompts"].values()) == {6}
