"""`slipstream verify`: what it prints, its exit status, and what it says of bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from faults import NeighboursRow, Passing
from test_cli import slipstream as command  # noqa: F401 (a fixture)
from tiny_models import write_tiny

from slipstream import estimates
from slipstream.runtimes.llamacpp import LlamaRuntime

TEXTS = ("ABCABCDEFABCABCDEF", "QWERTYUIOP", "XYZZYXYZZYXYZ")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture
def raw(tmp_path) -> list[str]:
    """Options for short prompts."""
    (tmp_path / "raw.jinja").write_text("{{ messages[0].content }}")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Repeat: one two three, one two three, one"}\n')
    return ["--template", str(tmp_path / "raw.jinja"), "--prompts", str(tmp_path / "prompts.jsonl"), "--threads", "1"]


@pytest.mark.model
def test_the_command_says_that_the_demo_model_passes(command, smollm2_path, raw):  # noqa: F811
    code, out, err = command("verify", smollm2_path, *raw, "--ctx", 512, "-n", 10, "--temp", 0, "--json")
    data = json.loads(out)
    assert (code, err) == (0, "") and data["passed"] and data["exact_widths"][0] == 1
    assert [(c["mode"], c["identical"], c["passed"]) for c in data["comparisons"]] == [
        ("normal", 1, True),
        ("exact", 1, True),
    ]


@pytest.fixture
def tiny_command(command, folder, monkeypatch, tmp_path):  # noqa: F811
    """`slipstream verify` with a tiny model."""
    monkeypatch.setattr(estimates, "folder", lambda: folder / "estimates")
    path = write_tiny(folder / "command.gguf", "llama")
    (tmp_path / "prompts.jsonl").write_text("\n".join(json.dumps({"prompt": text}) for text in TEXTS))
    more = ["--prompts", tmp_path / "prompts.jsonl", "--threads", 1, "--ctx", 256, "--batch", 64]

    def run(*arguments: str | Path | int) -> tuple[int, str, str]:
        return command("verify", path, *more, *arguments)

    return run


def test_the_command_prints_a_table_and_the_classes(tiny_command, raw):
    code, out, err = tiny_command(*raw[:2], "-n", 20, "--temp", 0, "--temp", 1.2)
    assert (code, err) == (0, "") and "Every divergence is explained." in out
    assert out.count("normal") >= 2 and out.count("exact") >= 2 and "largest difference" in out
    assert "exact mode uses 2 3 4" in out and "times as long as in normal mode" in out


def test_the_command_ends_with_status_1_where_a_fault_is_planted(tiny_command, raw, monkeypatch):
    assert tiny_command(*raw[:2], "-n", 20, "--temp", 0)[0] == 0, "and now the classes are known"
    real = LlamaRuntime.forward

    def forward(self, rows):
        class Inner(Passing):
            def __init__(self) -> None: ...
            def forward(self, rows):
                return real(runtime, rows)

        runtime, faulty = self, NeighboursRow.__new__(NeighboursRow)
        faulty.inner = Inner()
        return faulty.forward(rows)

    monkeypatch.setattr(LlamaRuntime, "forward", forward)
    code, out, err = tiny_command(*raw[:2], "-n", 20, "--temp", 0)
    assert (code, err) == (1, "") and "NOT explained" in out
    code, out, _ = tiny_command(*raw[:2], "-n", 20, "--temp", 0, "--json")
    assert code == 1 and not json.loads(out)["passed"]


def test_the_whole_probe_comes_first_where_it_is_asked_for(tiny_command, raw):
    before = json.loads(tiny_command(*raw[:2], "-n", 4, "--temp", 0, "--json", "--ctx", 700)[1])
    after = json.loads(tiny_command(*raw[:2], "-n", 4, "--temp", 0, "--json", "--ctx", 700, "--probe")[1])
    assert before["reach"] == 512 and after["reach"] == 768
    assert {b["n_rows"] for b in before["bands"]} == {8} and {b["n_rows"] for b in after["bands"]} == {32}


BAD = {
    "no file": (["--prompts", "TMP/none.jsonl"], "cannot be read"),
    "a bad line": (["--prompts", "TMP/bad.jsonl"], "line 2"),
    "no prompts": (["--prompts", "TMP/empty.jsonl"], "no prompts"),
    "one token": (["-n", "1"], "--n-predict is 1"),
    "temperature": (["--temp", "0", "--temp", "-0.5"], "temperature is -0.5. It must be a finite number, 0 or more"),
    "temperature nan": (["--temp", "nan"], "temperature is nan"),
    "seed": (["--seed", "-1"], "seed is -1"),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_input_is_one_line_and_status_2(tiny_command, raw, tmp_path, bad):
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a"}\n{"prompt": 3}\n')
    (tmp_path / "empty.jsonl").write_text("\n\n")
    arguments, said = BAD[bad]
    code, out, err = tiny_command(*raw[:2], *(a.replace("TMP", str(tmp_path)) for a in arguments))
    assert (code, out) == (2, "") and err.startswith("slipstream: ") and err.count("\n") == 1
    assert said in " ".join(err.split())
