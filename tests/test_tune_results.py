"""What a tuning run reports of an engine and its settings, beside the verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_engines import World, prompts
from tuning import DRAFT, NGRAM, by_kind, engine, one, run

from slipstream.engines.protocol import Answer, Counters, Option, Settings, Speculation
from slipstream.lab import tune_files
from slipstream.lab.tune_results import arm_result, is_loop, speed
from slipstream.lab.tune_search import Arm
from slipstream.lab.tune_visit import Block, Measured, Visit

PAYS = World(by_kind(ngram=1.5), by_kind(ngram=2.0))


def visit(**seconds: float) -> Visit:
    """100 tokens a task, in so many seconds."""
    answers = (("p", Answer("", 101, 0.1, 1.0)),)
    return Visit("plain", {task: Measured("chat", 100, s, answers) for task, s in seconds.items()}, {}, 0.0, 1.0)


def test_a_speed_is_the_median_over_prompts_however_often_each_was_asked() -> None:
    visits = [visit(a=1.0, b=2.0, c=5.0), visit(a=1.0), visit(a=1.0), visit(a=50.0, b=2.5, c=4.0)]
    assert speed(visits) == pytest.approx((50 + 40) / 2)
    assert speed([]) is None and speed([visit(a=0.0)]) is None


@pytest.mark.parametrize(("b", "is_lie"), [(1.0, False), (0.26, True)])
def test_counters_are_doubted_only_where_the_gain_is_sure(b, is_lie):
    """Two answers, one of them four times as fast, may be noise; where both are, a token in fifty cannot explain it."""
    plain = visit(a=1.0, b=1.0)
    tried = replace(visit(a=0.25, b=b), arm="ngram n 4", counters=Counters(8, 4, 2))
    setting = Arm(Settings("big", (Speculation("ngram", 4),)), Option("ngram"))
    found = arm_result(setting, [Block("ngram n 4", "search", plain, tried, plain)])
    assert found.overall is not None and found.overall.value > 1.9 and (found.overall.low > 1) == is_lie
    assert ("counters cannot be right" in found.reason) == is_lie
    assert found.acceptance_rate == (None if is_lie else 0.5)


def test_prompts_that_plain_decoding_answered_are_counted_by_category(tmp_path):
    little = one(run(engine(PAYS), tmp_path / "little", budget_s=1.0))
    assert little.prompts in ({"chat": 1, "edit": 0}, {"chat": 0, "edit": 1})
    enough = run(engine(PAYS), tmp_path / "enough")
    assert one(enough).prompts == enough.prompts == {"chat": 12, "edit": 12}


def test_prompts_asked_together_count_for_their_own_categories(tmp_path):
    some = prompts({"chat": 9, "edit": 9, "qa": 6})
    found = one(run(engine(PAYS), tmp_path, some, concurrency=(4,)))
    assert "mixed" in found.by_category and found.prompts == {"chat": 9, "edit": 9, "qa": 6}


def test_plain_decoding_has_a_speed_though_no_setting_was_measured(tmp_path):
    found = one(run(engine(World(noise=0.0)), tmp_path, budget_s=1.0))
    assert found.plain_tokens_per_s == pytest.approx(50.0)
    assert all(arm.plain_tokens_per_s is None for arm in found.arms)


def test_a_setting_is_told_as_data_and_read_again_as_such(tmp_path):
    options = [NGRAM, DRAFT, Option("mtp", (2,), combines=True), Option("heads", why_not="there are none")]
    tuned = run(engine(PAYS, options), tmp_path, draft="small")
    tune_files.write(tuned, tmp_path)
    arms = one(tune_files.read(tmp_path / "tune.json")).arms
    assert all(" + ".join(map(str, arm.speculation)) == arm.arm for arm in arms)
    assert {type(how) for arm in arms for how in arm.speculation} == {Speculation}
    by_name = {arm.arm: arm.speculation for arm in arms}
    assert by_name["heads"] == (Speculation("heads"),) and by_name["mtp n 2"] == (Speculation("mtp", 2),)


def test_the_speeds_of_a_setting_and_of_plain_decoding_beside_it_make_the_speed_up(tmp_path):
    found = one(run(engine(World(by_kind(ngram=1.5), by_kind(ngram=2.0), spread=0.3)), tmp_path))
    some = [arm for arm in found.arms if arm.overall]
    assert len(some) > 3
    for arm in some:
        assert arm.tokens_per_s / arm.plain_tokens_per_s == pytest.approx(arm.overall.value)


def test_the_setting_that_was_judged_is_marked_and_each_is_written_as_its_users_would(tmp_path):
    found = one(run(engine(PAYS), tmp_path))
    assert [arm.arm for arm in found.arms if arm.judged] == [found.verdict.arm]
    assert all(arm.rendered == f"simulated big --speculate '{arm.arm}'\n" for arm in found.arms)


def test_prompts_that_plain_decoding_repeats_itself_on_or_answers_in_several_ways_are_counted(tmp_path):
    some = prompts()
    loops, wavers = some[0].messages[-1]["content"], some[1].messages[-1]["content"]
    asked: list[str] = []

    def text(settings: Settings, prompt: str) -> str:
        asked.append(prompt)
        if prompt == loops:
            return "It rains. " + "And then it goes on. " * 30
        return f"answer {len(asked)}" if prompt == wavers else f"an answer to {prompt}"

    found = one(run(engine(PAYS, text=text), tmp_path, some))
    assert (found.n_loops, found.n_unsteady) == (1, 1)
    assert "plain decoding itself gave several for 1 prompt." in found.verdict.reason


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("A tale of failure, " * 20, True),
        ("Once upon a time there was a " + "ba" * 100, True),
        (
            "The quick brown fox jumps over the lazy dog, while seven wizards box and a judge in Bern waits for tea.",
            False,
        ),
        ("ha" * 10, False),
        ("", False),
    ],
)
def test_a_text_that_goes_round(text, is_one):
    assert is_loop(text) == is_one
