"""The verdict of `slipstream tune` where the truth is known."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace

import pytest
from simulated_engines import LAST_LINES, SimulatedEngine, World, prompts
from tuned_examples import arm as example
from tuning import DRAFT, NGRAM, OTHER, arm, by_kind, engine, one, run

from slipstream.engines.protocol import Counters, Option, Settings, Speculation
from slipstream.errors import EngineError
from slipstream.lab.tune_search import NOT_MEASURED
from slipstream.lab.tune_statistics import Drift
from slipstream.lab.tune_verdict import Circumstances, in_category, overall
from slipstream.lab.tuned import Ratio


def peak(how: Speculation, category: str) -> float:
    """n-grams of about 6 tokens are best, and worth half as much again; the others gain nothing."""
    if how.kind != "ngram":
        return 0.95
    return 1.5 - 0.2 * abs(math.log2((how.n_max or 4) / 6))


def test_speculation_that_pays_is_found_with_its_best_length(tmp_path):
    found = one(run(engine(World(peak, lambda how, category: 2.0)), tmp_path))
    verdict = found.verdict
    assert verdict.arm in ("ngram n 5", "ngram n 6", "ngram n 7", "ngram n 8")
    assert (
        verdict.ratio.low > 1.3 and verdict.ratio.low <= peak(Speculation("ngram", 6), "") <= verdict.ratio.high * 1.05
    )
    assert re.fullmatch(r"Its interval lies above 1, on \d+ prompts that did not choose it\.", verdict.reason)
    assert {v.arm for v in found.by_category.values()} == {verdict.arm}
    assert arm(found, "other n 4").state == "dropped" and "slower than" in arm(found, "other n 4").reason
    assert [w.text for w in found.settings] == [f"simulated big --speculate '{verdict.arm}'\n"]


def test_drafts_that_are_never_right_are_left_off(tmp_path):
    world = World(by_kind(ngram=0.8, other=0.9), by_kind(ngram=1.05, other=1.05))
    verdict = one(run(engine(world), tmp_path)).verdict
    assert (verdict.arm, verdict.ratio) == ("plain", None)
    assert re.match(r"(ngram|other) n \d+ is 0\.\d\d \[", verdict.reason) and "Acceptance is too low" in verdict.reason
    assert "below 60%, change the draft or turn it off." in verdict.hint


@pytest.mark.parametrize(
    ("found", "judged", "decided"),
    [
        (Ratio(1.02, 1.004, 1.04, 20), True, "ngram"),
        (Ratio(1.02, 0.99, 1.04, 20), True, "plain"),
        (Ratio(1.03, 0.96, 1.14, 20), True, "plain"),
        (Ratio(1.03, 0.96, 1.14, 20), False, None),
        (Ratio(1.03, 0.96, 1.14, 9), True, None),
        (Ratio(1.07, 0.98, 1.17, 20), True, None),
        (Ratio(1.03, 0.80, 1.30, 5), True, None),
    ],
)
def test_what_is_not_sure_is_left_off_where_little_is_likely_to_be_gained(found, judged, decided):
    some = [replace(example("ngram", 1.2), overall=found)]
    verdict = overall(some, "ngram" if judged else None, Circumstances(Drift(0.0, 1), fresh=True))
    assert verdict.arm == decided


def test_a_setting_that_drafted_nothing_cannot_be_the_one(tmp_path):
    none = replace(example("ngram", 1.3), n_drafted=0)
    about = Circumstances(Drift(0.0, 1), fresh=True)
    alone = overall([none], "ngram", about)
    assert (alone.arm, alone.reason) == ("plain", "Nothing was drafted on these prompts by ngram.")
    assert overall([none, example("draft", 1.2)], "draft", about).arm == "draft"
    assert in_category([none], "ngram", "chat", about).reason == alone.reason


def test_settings_that_drafted_nothing_decide_nothing_while_others_were_not_measured(tmp_path):
    none = replace(example("ngram", 0.8), n_drafted=0)
    missed = replace(example("other", 1.0), overall=None, by_category={}, reason=NOT_MEASURED, state="dropped")
    for verdict in (
        overall([none, missed], "ngram", Circumstances(Drift(0.0, 1), fresh=True)),
        in_category([none, missed], "ngram", "chat", Circumstances(Drift(0.0, 1), fresh=True)),
    ):
        assert verdict.arm is None and "no time for 1 other setting" in verdict.reason


def test_a_setting_that_drafts_nothing_is_not_tried_for_long(tmp_path):
    def idle(settings: Settings, counters: Counters) -> Counters:
        return Counters(0, 0, 0) if settings.arm.startswith("other") else counters

    world = World(by_kind(ngram=1.3, other=1.0), by_kind(ngram=2.0), spread=0.0)
    simulated = engine(world, lie=idle)
    found = one(run(simulated, tmp_path))
    assert found.verdict.arm.startswith("ngram")
    assert arm(found, "other n 4").reason == "it drafted nothing"


def test_one_prompt_is_not_enough_and_is_not_called_short(tmp_path):
    one_prompt = replace(example("ngram", 1.3), overall=None, n_compared=1)
    about = Circumstances(Drift(0.0, 1), fresh=True)
    assert "No setting was measured on two prompts" in overall([one_prompt], None, about).reason
    short = replace(one_prompt, tokens_per_s=None)
    assert "Answers were too short" in overall([short], None, about).reason


@pytest.mark.parametrize(("rate", "said"), [(0.83, "Too little is drafted: 83%"), (0.2, "Acceptance is too low: 20%")])
def test_few_tokens_a_pass_have_one_of_two_causes(rate, said):
    some = replace(
        example("ngram", 1.0),
        overall=Ratio(1.0, 0.97, 1.03, 20),
        acceptance_rate=rate,
        mean_tokens_a_pass=1.1,
        pass_cost=1.1,
    )
    verdict = overall([some], "ngram", Circumstances(Drift(0.0, 1), fresh=True))
    assert verdict.arm == "plain" and said in verdict.reason and "1.10 tokens a pass" in verdict.reason


def test_settings_that_there_was_no_time_for_are_counted(tmp_path):
    missed = replace(example("other", 1.0), overall=None, reason=NOT_MEASURED, state="dropped")
    about = Circumstances(Drift(0.0, 1), fresh=True)
    for some, said in (([missed], "1 other setting."), ([missed] * 3, "3 other settings.")):
        verdict = overall([example("ngram", 1.3), *some], "ngram", about)
        assert verdict.arm == "ngram" and verdict.reason.endswith(f"There was no time for {said}")


def test_dear_verification_is_told_from_low_acceptance(tmp_path):
    """Nine in ten accepted, and still slower: the rule of thumb is shown beside the answer, and is wrong."""
    option = Option("ngram", n_max=(2,))
    verdict = one(run(engine(World(by_kind(ngram=0.9), by_kind(ngram=2.8)), [option]), tmp_path)).verdict
    assert verdict.arm == "plain" and "verification is too dear on this hardware" in verdict.reason
    assert "times as fast were passes as cheap as plain ones" in verdict.reason
    assert verdict.hint.endswith("from 70% on it pays; measured, it does not.")


def test_a_slow_draft_is_told_from_dear_verification(tmp_path):
    """A pass over five tokens costs little more than a plain one, as n-grams show; so it is the draft that costs."""
    options = [Option("ngram", n_max=(4,)), Option("draft", n_max=(4,), needs_draft=True)]
    world = World(by_kind(ngram=0.95, draft=0.9), by_kind(ngram=1.2, draft=3.0))
    verdict = one(run(engine(world, options), tmp_path, draft="small")).verdict
    assert verdict.arm == "plain" and "verification is too dear" in verdict.reason
    assert (
        "With the draft model" in verdict.reason and "the draft is too slow (verifying takes about 1." in verdict.reason
    )


def test_a_draft_that_does_not_fit_into_memory_is_named(tmp_path):
    faults = {"will_not_start": lambda s: "ggml: failed to allocate buffer" if s.draft else ""}
    found = one(run(engine(World(), [DRAFT], **faults), tmp_path, draft="small"))
    assert found.verdict.arm == "plain"
    assert re.fullmatch(r"draft n \d(, draft n \d)? did not fit into memory\.", found.verdict.reason)
    assert all(a.state == "failed" and "failed to allocate" in a.reason for a in found.arms)


def test_speculation_that_pays_for_one_category_only(tmp_path):
    world = World(lambda how, category: 1.8 if category == "edit" and how.kind == "ngram" else 0.8, by_kind(ngram=1.5))
    found = one(run(engine(world), tmp_path, prompts({"chat": 24, "qa": 24, "edit": 24})))
    assert found.by_category["edit"].arm.startswith("ngram") and found.by_category["edit"].ratio.low > 1.5
    assert found.by_category["chat"].arm == found.by_category["qa"].arm == "plain"


def test_another_setting_may_be_best_in_each_category(tmp_path):
    best = {"edit": "ngram", "chat": "other"}
    world = World(lambda how, category: 1.6 if best.get(category) == how.kind else 1.2, by_kind(ngram=2.0, other=2.0))
    found = one(run(engine(world, [Option("ngram", (4,)), OTHER]), tmp_path, prompts(n=24)))
    assert found.by_category["edit"].arm.startswith("ngram") and found.by_category["chat"].arm.startswith("other")
    assert found.verdict.ratio.value == pytest.approx(1.4, abs=0.05)
    assert any("for " in written.title for written in found.settings)


def load_that(kind: str, seed: int):
    """Another load of the machine, by up to some 40 %."""
    chance = random.Random(seed)
    steps = [0.0]
    for _ in range(4000):
        steps.append(max(-0.4, min(0.4, steps[-1] + chance.gauss(0, 0.1))))
    jumps = [chance.choice((0.0, 0.35)) for _ in range(4000)]
    return {
        "wanders": lambda s: math.exp(steps[int(s / 20) % 4000]),
        "jumps": lambda s: math.exp(jumps[int(s / 45) % 4000]),
        "eases": lambda s: 1 + 0.4 * math.exp(-s / 900),
        "swings": lambda s: 1 + 0.3 * math.sin(s / 70),
    }[kind]


@pytest.mark.parametrize("kind", ["wanders", "jumps", "eases", "swings"])
def test_a_drifting_machine_fakes_no_gain(tmp_path, kind):
    for seed in range(5):
        world = World(load=load_that(kind, seed), start_s=5.0)
        verdict = one(run(engine(world, seed=seed), tmp_path / f"{seed}", budget_s=1200.0)).verdict
        assert verdict.arm in ("plain", None), (seed, verdict)


def test_a_gain_is_seen_through_drift(tmp_path):
    world = World(by_kind(ngram=1.6), by_kind(ngram=2.0), load=load_that("eases", 0))
    assert one(run(engine(world), tmp_path)).verdict.arm.startswith("ngram")


LIES = {
    "more accepted than drafted": lambda s, c: Counters(10, 60, 5) if s.speculation else c,
    "more accepted than written": lambda s, c: Counters(9000, 8000) if s.speculation else c,
    "all of them accepted": lambda s, c: Counters(127, 127, 1) if s.speculation else c,
    "less than nothing": lambda s, c: Counters(-4, -4, -1) if s.speculation else c,
    "more at a later place": lambda s, c: Counters(80, 40, 20, (10, 30), (20, 20)) if s.speculation else c,
    "a gain from nothing": lambda s, c: Counters(80, 0, 20) if s.speculation else c,
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
@pytest.mark.parametrize("by_request", [True, False])
def test_counters_that_cannot_be_are_flagged_and_decide_nothing(tmp_path, lie, by_request):
    world = World(by_kind(ngram=1.5, other=1.5), by_kind(ngram=2.0, other=2.0), start_s=20.0)
    found = one(run(engine(world, [NGRAM], lie=lie, by_request=by_request), tmp_path))
    assert found.verdict.arm.startswith("ngram") and found.verdict.ratio.low > 1.3 and found.verdict.hint == ""
    winner = arm(found, found.verdict.arm)
    assert "Its counters cannot be right" in winner.reason
    assert (winner.acceptance_rate, winner.mean_tokens_a_pass, winner.conditional) == (None, None, ())


def test_how_many_drafts_were_accepted_up_to_each_position(tmp_path):
    def count(settings, c):
        return replace(c, accepted_at=(c.drafts, c.drafts // 2), drafted_at=())

    world = World(by_kind(ngram=1.5), by_kind(ngram=2.0), start_s=20.0)
    found = one(run(engine(world, [NGRAM], lie=count, by_request=False), tmp_path))
    winner = arm(found, found.verdict.arm)
    assert winner.survival == (1.0, pytest.approx(0.5, abs=0.02)) and winner.conditional == (1.0, None)


def test_honest_counters_are_believed_where_prompts_differ_much(tmp_path):
    """Half the prompts gain five times, half nothing: 2.2 in the mean over prompts, 1.7 tokens a pass over all."""

    def gain(how: Speculation, category: str) -> float:
        return 5.0 if category == "edit" else 1.0

    found = one(run(engine(World(gain, gain), [NGRAM]), tmp_path))
    winner = arm(found, found.verdict.arm)
    assert winner.overall.low > 2.0 and winner.reason == ""
    assert winner.mean_tokens_a_pass == pytest.approx(5 / 3, rel=0.15)
    assert winner.pass_cost == pytest.approx(1.0, rel=0.1)


def test_honest_counters_are_believed(tmp_path):
    found = one(run(engine(World(by_kind(ngram=1.5), by_kind(ngram=2.0)), [NGRAM], by_request=False), tmp_path))
    winner = arm(found, found.verdict.arm)
    assert winner.mean_tokens_a_pass == pytest.approx(2.0, rel=0.02) and "counters" not in winner.reason


def test_measurements_during_another_load_are_counted(tmp_path):
    world = World(by_kind(ngram=1.5), by_kind(ngram=2.0), load=lambda s: 4.0 if 300 < s < 330 else 1.0, start_s=0.0)
    found = one(run(engine(world), tmp_path))
    assert 0 < found.n_disturbed < found.n_measured / 10
    assert found.n_measured == sum(len(a.samples) for a in found.arms)


def test_an_engine_that_tells_no_counters_is_judged_by_speed(tmp_path):
    faults = {"lie": lambda settings, counters: None}
    found = one(run(engine(World(by_kind(ngram=0.8, other=0.8)), **faults), tmp_path))
    assert found.verdict.arm == "plain" and "is not known" in found.verdict.reason


def test_an_engine_that_dies_is_one_failed_arm_with_its_last_lines(tmp_path):
    world = World(by_kind(ngram=1.5), by_kind(ngram=2.0))
    found = one(run(engine(world, dies=lambda s: s.arm.startswith("other")), tmp_path))
    assert found.verdict.arm.startswith("ngram")
    dead = arm(found, "other n 4")
    assert dead.state == "failed" and LAST_LINES in dead.reason


def test_a_setting_that_never_gets_ready_is_one_failed_arm(tmp_path):
    world = World(by_kind(ngram=1.5), by_kind(ngram=2.0))
    slow = {"will_not_start": lambda s: LAST_LINES if s.arm.startswith("other") else ""}
    found = one(run(engine(world, **slow), tmp_path))
    assert found.verdict.arm.startswith("ngram") and LAST_LINES in arm(found, "other n 4").reason


def test_an_engine_that_never_gets_ready_at_all_ends_with_its_last_lines(tmp_path):
    with pytest.raises(EngineError, match="CUDA error 700"):
        run(engine(will_not_start=lambda s: LAST_LINES), tmp_path)


def test_one_engine_that_never_gets_ready_leaves_the_others_alone(tmp_path):
    good = engine(World(by_kind(ngram=1.5), by_kind(ngram=2.0)), name="good")
    bad = engine(will_not_start=lambda s: LAST_LINES, name="bad")
    found = run([good, bad], tmp_path)
    assert found.engines[0].verdict.arm.startswith("ngram")
    assert found.engines[1].verdict.arm is None and LAST_LINES in found.engines[1].verdict.reason


def test_a_prompt_that_is_answered_with_an_error_is_left_out(tmp_path):
    world = World(by_kind(ngram=1.5), by_kind(ngram=2.0))
    simulated = engine(world, refuses=lambda settings, prompt: prompt in ("chat: prompt 3", "edit: prompt 5"))
    found = one(run(simulated, tmp_path))
    assert found.verdict.arm.startswith("ngram")
    refused = [prompt for _, prompt in simulated.asked if prompt == "chat: prompt 3"]
    assert len(refused) == 2, "once more, and not again"


def test_an_error_by_chance_condemns_no_setting(tmp_path):
    """One request in 25 is answered with an error; asked again, it is answered."""
    simulated = engine(World(by_kind(ngram=1.5), by_kind(ngram=2.0)))
    simulated.refuses = lambda settings, prompt: len(simulated.asked) % 25 == 0
    found = one(run(simulated, tmp_path))
    assert found.verdict.arm.startswith("ngram") and not any(a.state == "failed" for a in found.arms)


def test_an_arm_that_answers_errors_where_plain_decoding_does_not_has_failed(tmp_path):
    world = World(by_kind(ngram=1.5, other=3.0), by_kind(ngram=2.0, other=4.0))
    found = one(run(engine(world, refuses=lambda s, p: s.arm.startswith("other") and "edit" in p), tmp_path))
    assert found.verdict.arm.startswith("ngram") and arm(found, "other n 4").state == "failed"
    assert "On prompt edit-" in arm(found, "other n 4").reason and "out of cheese" in arm(found, "other n 4").reason


def test_an_engine_that_answers_nothing_but_errors_is_named_with_them(tmp_path):
    with pytest.raises(EngineError, match="status 500: out of cheese"):
        run(engine(refuses=lambda settings, prompt: True), tmp_path)


def test_plain_decoding_that_dies_in_the_middle_leaves_what_was_measured(tmp_path):
    simulated = engine(World(by_kind(ngram=1.5), by_kind(ngram=2.0)))
    simulated.refuses = lambda settings, prompt: simulated.clock.now > 300
    found = one(run(simulated, tmp_path))
    assert found.verdict.arm is None and "out of cheese" in found.verdict.reason
    assert any(a.overall for a in found.arms)


def test_other_texts_are_counted_and_shown(tmp_path):
    def text(settings, prompt):
        return f"an answer to {prompt}{' or so' if settings.speculation and 'chat' in prompt else ''}"

    found = one(run(engine(World(by_kind(ngram=1.5), by_kind(ngram=2.0)), [NGRAM], text=text), tmp_path))
    winner = arm(found, found.verdict.arm)
    assert 0 < winner.n_same < winner.n_compared
    assert all(
        name.startswith("chat") and n == len(f"an answer to chat: prompt {name[5:]}") for name, n in winner.parted
    )
    assert f"{winner.n_compared - winner.n_same} of {winner.n_compared} answers are not plain" in found.verdict.reason


def test_the_same_texts_are_counted_as_such(tmp_path):
    found = one(run(engine(World(by_kind(ngram=1.5), by_kind(ngram=2.0))), tmp_path))
    assert all(a.n_same == a.n_compared > 0 and a.parted == () for a in found.arms)


def test_short_answers_do_not_count(tmp_path):
    """Were they counted, the speculation would seem to pay: it is fast in short answers alone."""
    short = {f"chat: prompt {i}" for i in range(12)}
    world = World(lambda how, category: 3.0 if category == "chat" else 0.8, by_kind(ngram=1.2, other=1.2))
    found = one(run(engine(world, n_written=lambda prompt: 5 if prompt in short else None), tmp_path))
    assert found.verdict.arm == "plain" and "chat" not in arm(found, found.arms[0].arm).by_category


@pytest.mark.parametrize("budget_s", [1.0, 10.0, 30.0])
def test_a_budget_too_small_decides_nothing_and_says_so(tmp_path, budget_s):
    found = one(run(engine(World(by_kind(ngram=1.5), by_kind(ngram=2.0))), tmp_path, budget_s=budget_s))
    assert found.verdict.arm is None and "--budget" in found.verdict.reason and found.settings == ()


def test_the_budget_that_it_asks_for_suffices(tmp_path):
    slow = World(by_kind(ngram=1.5), by_kind(ngram=2.0), token_s=0.2, start_s=30.0)
    said = one(run(engine(slow), tmp_path / "a", budget_s=60.0)).verdict.reason
    minutes = int(said.partition("--budget of about ")[2].partition("m")[0])
    assert minutes < 60
    assert one(run(engine(slow), tmp_path / "b", budget_s=60.0 * minutes)).verdict.arm.startswith("ngram")


def test_two_engines_need_a_budget_for_both(tmp_path):
    slow = World(by_kind(ngram=1.5), by_kind(ngram=2.0), token_s=0.2, start_s=30.0)
    first = engine(slow, name="first")
    second = SimulatedEngine(first.clock, first.options, slow, name="second")
    said = run([first, second], tmp_path, budget_s=120.0).engines[0].verdict.reason
    alone = one(run(engine(slow), tmp_path / "alone", budget_s=60.0)).verdict.reason
    both, one_alone = (int(text.partition("--budget of about ")[2].partition("m")[0]) for text in (said, alone))
    assert both == pytest.approx(2 * one_alone, abs=2)


def test_one_budget_is_asked_for_by_all_runs_of_a_command(tmp_path):
    """Four requests at once take longer a task here, so each alone would ask for another budget."""
    slow = engine(World(by_kind(ngram=1.5), by_kind(ngram=2.0), token_s=0.5))
    found = run(slow, tmp_path, budget_s=120.0, concurrency=(1, 4)).engines
    asked = {each.verdict.reason.partition("--budget of about ")[2].partition(",")[0] for each in found}
    assert len(asked) == 1 and "" not in asked
    assert "going by 1 answer at" in found[0].verdict.reason
    assert re.search(r"going by \d groups? of 4 answers at", found[1].verdict.reason)


@pytest.mark.parametrize("slower", [1.0, 1.5, 3.0])
def test_answers_at_half_the_speed_of_others_are_taken_for_another_load(tmp_path, slower):
    world = World(token_s=0.2, load=lambda seconds: slower if seconds > 20 else 1.0)
    found = one(run(engine(world), tmp_path, budget_s=60.0))
    assert re.search(r"going by 2 answers at \d\.\d to 5\.\d tokens/s", found.verdict.reason)
    assert ("something else seems to run" in found.verdict.reason) == (slower > 2)


def test_an_engine_that_speculates_whatever_it_is_asked_is_found_out(tmp_path):
    found = one(run(engine(lie=lambda settings, counters: Counters(40, 20, 10)), tmp_path))
    assert found.verdict.arm is None and "Plain decoding is none here" in found.verdict.reason


def test_kinds_that_cannot_be_had_are_shown_with_the_reason(tmp_path):
    found = one(run(engine(World(by_kind(ngram=1.5), by_kind(ngram=2.0)), [NGRAM, DRAFT]), tmp_path))
    assert arm(found, "draft").reason == "not run: it needs a draft model" and arm(found, "draft").overall is None


def test_an_engine_with_nothing_to_try_says_why(tmp_path):
    found = one(run(engine(World(), [DRAFT]), tmp_path))
    assert found.verdict.arm is None and "draft not run: it needs a draft model" in found.verdict.reason


def test_kinds_that_are_missing_for_one_reason_are_named_together(tmp_path):
    fixed = [Option(kind, why_not=f"start it with {kind}") for kind in ("one", "two", "three")]
    reason = one(run(engine(World(), [*fixed, DRAFT]), tmp_path)).verdict.reason
    assert reason == (
        "No speculation can be had here. one, two, three not run: start it with one. "
        "draft not run: it needs a draft model."
    )


def test_a_draft_that_cannot_be_used_is_not_passed_over_in_silence(tmp_path):
    other_words = replace(DRAFT, why_not="it has another vocabulary")
    pays = World(by_kind(ngram=1.5), by_kind(ngram=2.0))
    for number, (options, draft, said) in enumerate(
        [
            ([NGRAM, other_words], "small", True),
            ([NGRAM, other_words], None, False),
            ([NGRAM, DRAFT, replace(other_words, kind="head")], "small", False),
        ]
    ):
        reason = one(run(engine(pays, options), tmp_path / str(number), draft=draft)).verdict.reason
        assert reason.endswith("The draft was not tried: it has another vocabulary.") == said
