"""What bench/peers.py computes and writes down, without models: made-up measurements whose figures are known."""

from __future__ import annotations

import importlib
import json
import random
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from tuned_examples import clear_win

from slipstream.engines.protocol import Speculation
from slipstream.errors import InputError, RuntimeLibraryError
from slipstream.lab.tuned import Verdict
from slipstream.lab.workload import Prompt

BENCH = Path(__file__).parents[1] / "bench"
sys.path.append(str(BENCH))
peers: Any = importlib.import_module("peers")
arms: Any = importlib.import_module("peers_arms")
journals: Any = importlib.import_module("peers_journal")
process: Any = importlib.import_module("peers_process")
reports: Any = importlib.import_module("peers_report")
statistics: Any = importlib.import_module("peers_statistics")

VERSIONS = {"slipstream": "0.1.0"}
ABOUT = {"began": "2026-11-29", "revision": "abc", "command": "python bench/peers.py"}
NOISE = random.Random(0)
TEXT = tuple(NOISE.randrange(1000) for _ in range(128))
LOOP = TEXT[:50] + TEXT[:6] * 13


def settings(**changes: Any) -> Any:
    usual: dict[str, Any] = {
        "model": "model.gguf",
        "model_bytes": 1,
        "draft": None,
        "draft_bytes": 0,
        "prompts": ("prompts.jsonl 0",),
        "per_category": 2,
        "n_tokens": 128,
        "n_threads": 2,
        "n_ctx": 2048,
        "temperature": 0.0,
        "seed": 1,
        "arms": ("plain", "auto", "none", "ngram-mod"),
    }
    return journals.Settings(**{**usual, **changes})


def measurement(prompt: str, category: str, arm: str, token_s: float, **changes: Any) -> Any:
    """127 tokens at `token_s` seconds each."""
    told = {"n_drafted": 0, "n_accepted": 0} if arm not in ("plain", "none") else {}
    tokens, run = changes.get("tokens", TEXT), changes.get("run", 0)
    answer = journals.Answer(tokens, 127, 127 * token_s, **{**told, **changes.get("told", {})})
    return journals.Measurement(prompt, category, arm, 10, journals.is_loop(tokens), run, answer)


def begun(path: Path, **changes: Any) -> Any:
    journal = journals.Journal(path)
    journal.begin(settings(**changes), VERSIONS, ABOUT)
    return journal


def fill(journal: Any, prompt: str, category: str, *token_s: float, **changes: Any) -> None:
    for arm, seconds in zip(journal.settings.arms, token_s, strict=True):
        journal.measured(measurement(prompt, category, arm, seconds, **changes))


def rows(*lines: tuple[str, dict[str, float]]) -> list[Any]:
    """Prompts by category and seconds a token."""
    return [
        statistics._row({arm: measurement(str(i), category, arm, s) for arm, s in token_s.items()})
        for i, (category, token_s) in enumerate(lines)
    ]


@pytest.mark.parametrize("period", [1, 6, 31])
def test_an_answer_that_ends_by_repeating_itself_is_a_loop(period: int) -> None:
    assert journals.is_loop(TEXT[:30] + (TEXT[:period] * 128)[:98])


def test_a_list_that_only_counts_up_is_a_loop() -> None:
    lines = [token for i in range(16) for token in (i, *TEXT[:9])]
    assert journals.is_loop(lines[:128])


@pytest.mark.parametrize("tokens", [TEXT, (), (1,), (7,) * 64 + TEXT[:64], (TEXT[:33] * 4)[:128]])
def test_an_answer_that_goes_on_or_repeats_from_afar_is_no_loop(tokens: tuple[int, ...]) -> None:
    assert not journals.is_loop(tokens)


def test_every_arm_is_once_the_first() -> None:
    orders = [peers.rotated(("a", "b", "c"), turn) for turn in range(3)]
    assert orders == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]


def test_arms_with_a_draft_need_one_and_a_lookup_brings_its_own_plain_arm() -> None:
    assert not [name for name in arms.arm_names(False, []) if "draft" in name]
    assert {"auto+draft", "draft-simple-8"} <= set(arms.arm_names(True, []))
    assert arms.arm_names(False, ["openvino"], ["openvino+lookup"]) == ("plain", "openvino", "openvino+lookup")
    with pytest.raises(InputError, match="draft-simple-2 is not an arm here"):
        arms.arm_names(False, [], ["draft-simple-2"])
    assert "tuned" in arms.arm_names(False, [], tuned=True) and "tuned" not in arms.arm_names(False, [])


def test_a_journal_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    journal = begun(tmp_path / "j")
    fill(journal, "a", "chat", 0.02, 0.01, 0.02, 0.02)
    journal.leave_out("b", "rag", "9999 tokens")
    again = journals.Journal(tmp_path / "j")
    assert again.settings == settings()
    assert again.complete() == journal.complete()
    assert again.left_out == {"b": "9999 tokens"}


@pytest.mark.parametrize(("changes", "name"), [({"n_ctx": 4096}, "n_ctx"), ({"arms": ("plain",)}, "arms")])
def test_other_settings_are_refused_and_named(tmp_path: Path, changes: dict[str, Any], name: str) -> None:
    begun(tmp_path / "j")
    with pytest.raises(InputError, match=rf"measured with {name} .* Give another --out"):
        begun(tmp_path / "j", **changes)
    assert len((tmp_path / "j").read_text().splitlines()) == 1


def test_other_versions_are_refused(tmp_path: Path) -> None:
    begun(tmp_path / "j")
    with pytest.raises(InputError, match=r"slipstream '0\.1\.0', now it is '0\.2\.0'"):
        journals.Journal(tmp_path / "j").begin(settings(), {"slipstream": "0.2.0"}, ABOUT)


def test_a_file_of_something_else_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "j").write_text('{"id": 1}\n')
    with pytest.raises(InputError, match="no journal"):
        journals.Journal(tmp_path / "j")
    assert (tmp_path / "j").read_text() == '{"id": 1}\n'


def test_a_line_that_was_cut_off_is_dropped_and_the_file_goes_on(tmp_path: Path) -> None:
    fill(begun(tmp_path / "j"), "a", "chat", 0.02, 0.01, 0.02, 0.02)
    with (tmp_path / "j").open("a") as file:
        file.write('{"kind": "measurement", "id": "b')
    fill(begun(tmp_path / "j"), "b", "chat", 0.02, 0.01, 0.02, 0.02, run=1)
    assert list(journals.Journal(tmp_path / "j").complete()) == ["a", "b"]


def test_a_prompt_that_was_interrupted_between_arms_is_measured_anew(tmp_path: Path) -> None:
    journal = begun(tmp_path / "j")
    fill(journal, "a", "chat", 0.02, 0.01, 0.02, 0.02)
    journal.measured(measurement("b", "chat", "plain", 9.0))
    journal.leave_out("c", "chat", "9999 tokens")
    prompts = [Prompt(name, "chat", ()) for name in "abcd"]
    assert [(turn, prompt.id) for turn, prompt in peers.remaining(prompts, journal)] == [(1, "b"), (3, "d")]
    journal = begun(tmp_path / "j")
    fill(journal, "b", "chat", 0.02, 0.01, 0.02, 0.02, run=1)
    assert journal.complete()["b"]["plain"].answer.decode_s == 127 * 0.02


def test_a_prompt_measured_partly_before_and_partly_after_a_restart_does_not_count(tmp_path: Path) -> None:
    journal = begun(tmp_path / "j", arms=("plain", "auto"))
    journal.measured(measurement("a", "chat", "plain", 0.02))
    journal.measured(measurement("a", "chat", "auto", 0.02, run=1))
    assert journal.complete() == {}


def test_the_ratio_is_of_sums_and_the_median_over_prompts() -> None:
    some = rows(("chat", {"plain": 1.0, "auto": 0.5}), ("chat", {"plain": 1.0, "auto": 2.0}))
    ratio = statistics.speed_up(some, "auto")
    assert ratio.value == pytest.approx(0.8)
    assert (ratio.low, ratio.high) == pytest.approx((0.5, 2.0))
    assert statistics.speed_up(some, "auto", statistics.median_ratio).value == pytest.approx(1.25)


def test_intervals_are_of_pairs_and_none_comes_from_one_prompt() -> None:
    uneven = rows(*(("chat", {"plain": 2.0 * s, "auto": s}) for s in (0.01, 0.1, 1.0)))
    figure = statistics.speed_up(uneven, "auto")
    assert (figure.low, figure.high) == pytest.approx((2.0, 2.0))
    assert statistics.speed_up(uneven[:1], "auto") == statistics.Figure(pytest.approx(2.0))


def test_an_engine_of_its_own_is_compared_with_its_own_plain_decoding() -> None:
    some = rows(("chat", {"plain": 9.0, "openvino": 3.0, "openvino+lookup": 1.0}))
    assert statistics.speed_up(some, "openvino+lookup").value == pytest.approx(3.0)
    assert statistics.speed_up(some, "openvino").value == pytest.approx(3.0)


def test_the_geometric_mean_weighs_categories_alike() -> None:
    some = rows(
        ("chat", {"plain": 2.0, "auto": 1.0, "none": 1.0}),
        ("chat", {"plain": 2.0, "auto": 1.0, "none": 1.0}),
        ("edit", {"plain": 1.0, "auto": 2.0, "none": 1.0}),
    )
    assert statistics.geometric_mean(some, "auto").value == pytest.approx(1.0)
    assert statistics.geometric_mean(some, "auto", "none").value == pytest.approx(0.5**0.5)


def test_categories_are_resampled_each_for_itself() -> None:
    """Were the same prompts drawn in both, every gain in one would be a loss in the other, and the interval empty."""
    fast, slow = {"plain": 1.0, "auto": 0.5}, {"plain": 1.0, "auto": 2.0}
    figure = statistics.geometric_mean(rows(("a", fast), ("a", slow), ("b", slow), ("b", fast)), "auto")
    assert (figure.low, figure.high) == pytest.approx((0.5, 2.0))


def test_the_arm_in_hindsight_is_scored_on_the_half_that_did_not_choose_it() -> None:
    """In one half "a" is fast, in the other "b"; whoever chose and scored on all prompts would find 2.5 ÷ 2."""
    even, odd = {"plain": 1.0, "auto": 1.0, "a": 1.0, "b": 4.0}, {"plain": 1.0, "auto": 1.0, "a": 4.0, "b": 1.0}
    found = statistics.hindsight(rows(("chat", even), ("chat", odd)), "auto", ["a", "b"])
    assert found.chosen == ("a", "b")
    assert found.figure.value == pytest.approx(4.0)
    assert statistics.hindsight(rows(("chat", even)), "auto", ["a", "b"]) is None


def verdicts(some: list[Any], **changes: Any) -> list[tuple[str, str]]:
    return [(goal.verdict, goal.where) for goal in statistics.goals(some, settings(**changes))]


def test_goals_are_judged_in_the_worst_category_and_only_where_they_were_measured() -> None:
    good = {"plain": 2.0, "auto": 1.0, "none": 2.0, "ngram-mod": 1.5}
    bad = {"plain": 1.0, "auto": 1.1, "none": 1.0, "ngram-mod": 1.2}
    some = rows(("edit", good), ("edit", good), ("chat", bad), ("chat", bad))
    missing = ("not measured", "")
    assert verdicts(some) == [("missed", "chat"), ("missed", "chat"), ("met", "against ngram-mod"), missing, missing]
    assert verdicts(some[:2])[:2] == [("met", "edit"), ("met", "edit")]
    assert verdicts(some, temperature=1.0) == [missing, missing, missing, ("missed", "chat"), missing]
    assert verdicts([]) == [missing] * 5


def test_what_tuning_chose_is_judged_against_the_best_arm_that_it_did_not_choose() -> None:
    some = rows(*[("edit", {"plain": 2.0, "auto": 1.0, "none": 2.0, "ngram-mod": 1.0, "tuned": 1.04})] * 2)
    tuned = {"arms": ("plain", "auto", "none", "ngram-mod", "tuned"), "tuned": "ngram-mod n 16"}
    goal = statistics.goals(some, settings(**tuned))[-1]
    assert (goal.verdict, goal.where) == ("met", "ngram-mod n 16 against ngram-mod")
    assert goal.figure.value == pytest.approx(1 / 1.04)
    assert len(statistics.goals(some, settings())) == 5


def test_the_setting_that_tuning_decided_for_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "tune.json"

    def decided(arm: str | None, engine: str = "llama.cpp") -> Any:
        write_tuned(path, engine, arm)
        return arms.tuned_speculation(path)

    assert decided("ngram-mod n 16") == (Speculation("ngram-mod", 16),)
    assert decided("plain") == ()
    for arm, engine in ((None, "llama.cpp"), ("ngram-mod n 16", "vllm")):
        with pytest.raises(InputError, match=r"decides nothing for llama\.cpp"):
            decided(arm, engine)


def write_tuned(path: Path, engine: str, arm: str | None) -> None:
    """A tune.json of one engine with a verdict."""
    tuned = clear_win()
    (found,) = tuned.engines
    measured = replace(found.arms[0], arm="ngram-mod n 16", speculation=(Speculation("ngram-mod", 16),))
    found = replace(found, name=engine, arms=(measured,), verdict=Verdict(arm, None, ""))
    path.write_text(json.dumps(asdict(replace(tuned, engines=(found,)))), encoding="utf-8")


def test_the_report_gives_loops_apart_and_says_what_went_wrong(tmp_path: Path) -> None:
    journal = begun(tmp_path / "out.jsonl")
    cache = {"told": {"n_drafted": 4, "n_accepted": 3}}
    for prompt in "ab":
        fill(journal, prompt, "edit", 0.02, 0.01, 0.02, 0.016)
        journal.measured(measurement(prompt, "edit", "auto", 0.01, **cache))
    journal.leave_out("long", "rag", "9999 tokens")
    journal = begun(tmp_path / "out.jsonl")
    fill(journal, "c", "edit", 0.02, 0.002, 0.02, 0.016, tokens=LOOP, run=1)
    written = reports.write(journals.Journal(tmp_path / "out.jsonl"), tmp_path / "out")

    text = (tmp_path / "out.md").read_text()
    assert "3 prompts, 1 of them loops; left out: 1 (long: 9999 tokens)" in text
    assert "Measured in 2 runs: every arm's n-gram state began anew in each." in text
    assert "Never drafted a token: ngram-mod." in text
    assert "| auto | 2.00 [2.00–2.00] | 2.00 [2.00–2.00] |" in text.split("## Speed-up, without loops")[1]
    assert "| auto | 10.00 |" in text.split("## Loops alone (1)")[1]
    assert "| auto | 100.0 | 2.00 [2.00–2.00] | 2.00 [2.00–2.00] | 6/8 | 2/2 |" in text
    assert "| edit | ngram-mod / ngram-mod | 1.60 [1.60–1.60] |" in text

    data = json.loads((tmp_path / "out.json").read_text())
    assert data["without_loops"]["categories"]["edit"]["auto"]["ratio"]["value"] == pytest.approx(2.0)
    assert data["loops"]["categories"]["edit"]["auto"]["ratio"]["value"] == pytest.approx(10.0)
    assert data["all"]["n_prompts"] == 3
    assert all(path.exists() for path in written)


def test_a_report_of_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no measurements"):
        reports.write(journals.Journal(tmp_path / "out.jsonl"), tmp_path / "out")


def test_a_report_can_be_written_before_the_first_prompt_is_complete(tmp_path: Path) -> None:
    reports.write(begun(tmp_path / "out.jsonl"), tmp_path / "out")
    assert "0 prompts" in (tmp_path / "out.md").read_text()


ENGINE = """
import sys
sys.path.append({bench!r})
from peers_process import serve

def answer(request):
    print("a library that prints")
    if request["arm"] == "tired":
        sys.exit("no more")
    return {{"tokens": request["prompt"][:: 1 if request["n_tokens"] else 0]}}

serve(lambda: ({{"echo": answer, "tired": answer}}, {{"engine": sys.argv[1]}}))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "engine.py"
    path.write_text(ENGINE.format(bench=str(BENCH)))
    return path


def test_an_engine_in_a_process_answers_whatever_its_libraries_print(script: Path) -> None:
    engine = process.Engine(sys.executable, script, ["7"])
    assert engine.versions == {"engine": "7"}
    assert engine.ask({"arm": "echo", "prompt": [1, 2], "n_tokens": 1}) == {"tokens": [1, 2]}
    with pytest.raises(RuntimeLibraryError, match="engine: ValueError: slice step cannot be zero"):
        engine.ask({"arm": "echo", "prompt": [1, 2], "n_tokens": 0})
    for _ in range(2):
        with pytest.raises(RuntimeLibraryError, match="engine ended"):
            engine.ask({"arm": "tired", "prompt": [], "n_tokens": 1})
    engine.close()


def test_an_interpreter_that_is_not_there_is_named(script: Path) -> None:
    with pytest.raises(InputError, match="no-such-python cannot be run"):
        process.Engine("no-such-python", script, [])


def test_a_prompt_that_was_disturbed_does_not_count_and_is_measured_again(tmp_path):
    journal = begun(tmp_path / "j.jsonl", arms=("plain", "auto"))
    for others in 0.5, 0.02:
        assert "a" not in journal.complete()
        for arm, share in ("plain", 0.01), ("auto", others):
            journal.measured(replace(measurement("a", "chat", arm, 0.01), others=share))
    assert "a" in journal.complete() and journal.n_disturbed == 0
