"""Engines that are libraries: a program at the other end of a pipe, with scripts of the test's own in their place."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from slipstream.engines.child import FOLDER, Child, ChildEngine, answer_of
from slipstream.engines.installed import Installed, find_installed
from slipstream.engines.protocol import Counters, Request, Settings
from slipstream.errors import EngineError, InputError

HELLO = Request(({"role": "user", "content": "Hello"},), 8, seed=3)

SCRIPT = f"""
import os, sys, time
sys.path.insert(0, {str(FOLDER)!r})
from pipe import serve

def load(options):
    print("loading", file=sys.stderr)
    if options["load"] == "fails":
        raise OSError("no such\\n file")
    if options["load"] == "ends":
        print("out of memory", file=sys.stderr)
        os._exit(3)

    def answer(asked, rounds):
        what = asked["messages"][-1]["content"]
        if what == "ends":
            os._exit(4)
        if what == "fails":
            raise ValueError("bad prompt")
        print("noise of a library")
        time.sleep(0.02)
        rounds.came(3)
        for n in (1, 2):
            time.sleep(0.05)
            rounds.came(n)
        counters = {{"drafted": 9, "accepted": 3, "drafts": 3, "accepted_at": [2, 1], "drafted_at": [3, 3]}}
        return {{"text": f"{{what}} ü {{asked['seed']}}", "n_tokens": 6, "counters": counters}}

    return answer

serve(load)
"""


class Toy(ChildEngine):
    name = "toy"
    title = "Toy"

    def __init__(self, folder: Path, load: str = "works") -> None:
        path = folder / "toy_script.py"
        path.write_text(SCRIPT)
        self.script, self.load = str(path), load
        self.installed = Installed("Toy", "pip install toy", None, "1.0")
        super().__init__()

    def _options(self, settings: Settings) -> dict[str, Any]:
        return {"load": self.load}


@pytest.fixture
def toy(tmp_path: Path):
    engine = Toy(tmp_path)
    engine.start(Settings("model"))
    yield engine
    engine.stop()


def said(text: str) -> Request:
    return Request(({"role": "user", "content": text},), 8)


def test_an_answer_with_its_rounds_by_the_clock_of_the_process(toy: Toy) -> None:
    answer = toy.complete(HELLO)
    assert (answer.text, answer.n_tokens) == ("Hello ü 3", 6)
    assert [n for _, n in answer.arrivals] == [3, 4, 6]
    assert 0.02 <= answer.ttft_s == answer.arrivals[0][0]
    assert answer.counters == Counters(9, 3, 3, (2, 1), (3, 3))


def test_decoding_is_timed_without_the_tokens_of_the_first_round() -> None:
    answer = answer_of({"text": "x", "n_tokens": 6}, [(1.0, 3), (1.5, 4), (2.5, 6)])
    assert answer.tokens_per_s == pytest.approx(3 / 1.5)
    assert (answer.ttft_s, answer.counters) == (1.0, None)


def test_an_answer_of_one_round_has_no_speed() -> None:
    assert answer_of({"text": "x", "n_tokens": 3}, [(1.0, 3)]).tokens_per_s is None
    assert answer_of({"text": "", "n_tokens": 0}, []).tokens_per_s is None


def test_counters_add_up_and_begin_anew_with_a_start(toy: Toy) -> None:
    assert toy.counters() is None
    one = toy.complete(HELLO).counters
    two = toy.complete(HELLO).counters
    assert one is not None and two is not None and toy.counters() == one + two
    toy.stop()
    toy.start(Settings("model"))
    assert toy.counters() is None


def test_a_request_that_fails_is_one_error_and_the_engine_goes_on(toy: Toy) -> None:
    with pytest.raises(EngineError, match="Toy: ValueError: bad prompt"):
        toy.complete(said("fails"))
    assert toy.complete(said("again")).text.startswith("again")


def test_a_process_that_ends_says_its_last_lines_whenever_asked(toy: Toy) -> None:
    for _ in range(2):
        with pytest.raises(EngineError, match=r"Toy ended\. Its last lines:\nloading\nnoise of a library"):
            if toy.counters() is None:
                toy.complete(HELLO)
            toy.complete(said("ends"))


@pytest.mark.parametrize(
    ("load", "error"),
    [("fails", "Toy: OSError: no such file"), ("ends", r"Toy ended\. Its last lines:\nloading\nout of memory")],
)
def test_what_cannot_be_loaded(tmp_path: Path, load: str, error: str) -> None:
    engine = Toy(tmp_path, load)
    with pytest.raises(EngineError, match=error):
        engine.start(Settings("model"))
    engine.stop()


def test_an_answer_that_is_interrupted_ends_the_process(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(child: Child, request: Request) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Child, "ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        toy.complete(HELLO)
    monkeypatch.undo()
    with pytest.raises(AssertionError, match="start comes first"):
        toy.complete(HELLO)


def test_one_request_at_a_time_and_no_server(toy: Toy, tmp_path: Path) -> None:
    assert not toy.concurrent
    with pytest.raises(InputError, match="one request at a time, not 4"):
        Toy(tmp_path).start(Settings("model", parallel=4))
    with pytest.raises(InputError, match="is a library"):
        toy.attach("http://127.0.0.1:1")


def test_models_on_this_machine_are_not_asked_for_on_the_network(toy: Toy, tmp_path: Path) -> None:
    here = Settings(str(tmp_path), n_threads=2)
    assert toy._environment(here) == {"OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1"}
    assert toy._environment(Settings(str(tmp_path), draft="org/draft")) == {}


class TestInstalled:
    def test_here(self) -> None:
        found = find_installed("pytest", "pytest", "pip install pytest", None)
        assert found.version == pytest.__version__ and found.python() == sys.executable

    def test_in_another_environment(self) -> None:
        found = find_installed("pytest", "pytest", "pip install pytest", sys.executable)
        assert found.version == pytest.__version__ and found.python() == sys.executable

    def test_not_here_says_how_to_install_once_it_is_needed(self) -> None:
        found = find_installed("Some engine", "no-such-package", "pip install some-engine", None)
        assert found.version == ""
        with pytest.raises(EngineError, match=r"Some engine is not installed here.*\(pip install some-engine\)"):
            found.python()

    def test_not_there(self) -> None:
        with pytest.raises(EngineError, match=r"not installed in the environment of .* pip install some-engine"):
            find_installed("Some engine", "no-such-package", "pip install some-engine", sys.executable)

    def test_no_such_python(self) -> None:
        with pytest.raises(EngineError, match="/no/python cannot be run"):
            find_installed("Some engine", "x", "pip install some-engine", "/no/python")
