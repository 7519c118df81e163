"""How a tuning run spends its time, and what it leaves behind."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import groupby, pairwise

import pytest
from simulated_engines import SimulatedEngine, World, prompts
from tuning import NGRAM, arm, by_kind, engine, one, run

from slipstream.engines.protocol import Answer, Counters, Option, Rendering, Request, Settings
from slipstream.errors import InputError
from slipstream.lab import tune_files
from slipstream.lab.tune import Asked
from slipstream.lab.tune_journal import Budget
from slipstream.lab.tune_measure import WARM_UP

PAYS = World(by_kind(ngram=1.5), by_kind(ngram=2.0))


def visits(simulated: SimulatedEngine) -> list[tuple[str, tuple[str, ...]]]:
    """(setting, prompts), one a start."""
    found = [(name, tuple(p for _, p in asked)) for name, asked in groupby(simulated.asked, lambda pair: pair[0])]
    return [(name, tuple(p for p in asked if p != WARM_UP)) for name, asked in found]


def test_every_setting_is_measured_between_two_of_plain_decoding_on_the_same_prompts(tmp_path):
    simulated = engine(PAYS)
    run(simulated, tmp_path, budget_s=900.0)
    found = visits(simulated)
    settings = [i for i, (name, _) in enumerate(found) if name != "plain"]
    assert len(settings) > 8
    for i in settings:
        (before, earlier), (_, asked), (after, later) = found[i - 1 : i + 2]
        assert before == after == "plain"
        assert earlier[-len(asked) :] == asked == later[: len(asked)]


def test_an_engine_that_need_not_start_anew_is_measured_prompt_by_prompt(tmp_path):
    simulated = engine(World(by_kind(ngram=1.5), by_kind(ngram=2.0), start_s=0.0))
    run(simulated, tmp_path, budget_s=300.0)
    assert {len(asked) for name, asked in visits(simulated) if name != "plain"} == {1}
    warm = [name for name, asked in simulated.asked if asked == WARM_UP]
    assert len(warm) == len(set(warm)), "once a setting is enough"


def test_the_longer_starting_takes_the_longer_are_visits(tmp_path):
    sizes = []
    for start_s in (1.0, 10.0):
        simulated = engine(World(by_kind(ngram=1.5), by_kind(ngram=2.0), start_s=start_s))
        run(simulated, tmp_path / str(start_s), budget_s=3600.0)
        sizes.append(max(len(asked) for name, asked in visits(simulated) if name != "plain"))
    assert sizes[0] < sizes[1]


def test_each_visit_after_a_start_is_warmed_up_and_that_is_not_counted(tmp_path):
    simulated = engine(PAYS)
    run(simulated, tmp_path, budget_s=300.0)
    assert sum(asked == WARM_UP for _, asked in simulated.asked) == len(simulated.started)
    assert "Name three" not in (tmp_path / "journal.jsonl").read_text()


@pytest.mark.parametrize("budget_s", [60.0, 120.0, 300.0, 900.0])
@pytest.mark.parametrize("start_s", [0.0, 2.0, 20.0])
def test_the_budget_is_kept(tmp_path, budget_s, start_s):
    simulated = engine(World(by_kind(ngram=1.5), by_kind(ngram=2.0), start_s=start_s))
    assert run(simulated, tmp_path, budget_s=budget_s).seconds <= budget_s * 1.1


def test_a_visit_that_something_else_disturbed_is_made_once_more(tmp_path):
    """For a minute the machine is four times slower: the setting at work then is measured again, none loses by it."""
    away = World(by_kind(ngram=1.3, other=1.1), by_kind(ngram=2.0), load=lambda s: 4.0 if 150 < s < 210 else 1.0)
    settings = {}
    for name, world in (("quiet", replace(away, load=lambda s: 1.0)), ("busy", away)):
        simulated = engine(world)
        found = one(run(simulated, tmp_path / name, budget_s=600.0))
        assert found.verdict.arm.startswith("ngram") and 1.2 < found.verdict.ratio.low < found.verdict.ratio.high < 1.4
        settings[name] = [visit for visit in visits(simulated) if visit[0] != "plain"]
    assert not any(one == other for one, other in pairwise(settings["quiet"]))
    assert any(one == other for one, other in pairwise(settings["busy"]))


def test_a_budget_of_a_second_is_over_after_one_answer(tmp_path):
    simulated = engine(World(by_kind(ngram=1.5), by_kind(ngram=2.0), start_s=0.5))
    found = run(simulated, tmp_path, budget_s=1.0)
    assert [prompt for _, prompt in simulated.asked].count(WARM_UP) == 1 and len(simulated.asked) == 2
    assert one(found).verdict.arm is None


def test_the_budget_is_kept_though_a_setting_is_ten_times_slower(tmp_path):
    simulated = engine(World(by_kind(ngram=0.1, other=0.1), by_kind(ngram=1.1, other=1.1)))
    found = run(simulated, tmp_path, budget_s=300.0)
    assert found.seconds <= 330 and one(found).verdict.arm == "plain"


def test_engines_and_numbers_of_requests_share_the_budget(tmp_path):
    first = engine(PAYS, name="first")
    second = SimulatedEngine(first.clock, first.options, PAYS, name="second")
    found = run([first, second], tmp_path, prompts(n=16), budget_s=2400.0, concurrency=(1, 2))
    assert [(e.name, e.concurrency) for e in found.engines] == [
        ("first", 1),
        ("first", 2),
        ("second", 1),
        ("second", 2),
    ]
    assert all(e.verdict.arm.startswith("ngram") for e in found.engines) and found.seconds <= 2450


def test_the_winner_is_judged_by_prompts_that_did_not_choose_it(tmp_path):
    """Forty settings that all gain nothing: the luckiest one of them looks good to who looks at it where it won."""
    lucky = [Option(f"kind{i}") for i in range(40)]
    found = one(run(engine(World(spread=0.15), lucky), tmp_path, prompts(n=16), budget_s=4000.0))
    assert found.verdict.arm in ("plain", None)


def test_several_requests_are_measured_by_all_their_tokens_a_second(tmp_path):
    found = one(run(engine(PAYS), tmp_path, prompts(n=24), concurrency=(4,)))
    assert found.concurrency == 4 and found.verdict.arm.startswith("ngram")
    assert "groups of 4 prompts" in found.verdict.reason
    seconds = (PAYS.prefill_s + 127 * PAYS.token_s) / 4
    assert arm(found, found.verdict.arm).plain_tokens_per_s == pytest.approx(128 / seconds, rel=0.1)


def test_an_engine_that_answers_one_at_a_time_says_so(tmp_path):
    first = engine(PAYS, concurrent=False)
    found = run(first, tmp_path, prompts(n=16), concurrency=(1, 2)).engines
    assert found[0].verdict.arm.startswith("ngram")
    assert found[1].verdict.arm is None and "answers one request at a time" in found[1].verdict.reason


def test_an_attached_engine_is_attached_to_before_each_start(tmp_path):
    simulated = engine(PAYS)
    run(simulated, tmp_path, budget_s=300.0, urls={"simulated": ("http://127.0.0.1:9",)})
    assert simulated.attached == "http://127.0.0.1:9"


def test_long_prompts_get_a_longer_context(tmp_path):
    seen = []

    class Seeing(SimulatedEngine):
        def start(self, settings: Settings, progress=lambda line: None) -> None:
            seen.append(settings.n_ctx)
            super().start(settings)

    made = engine(PAYS)
    run(Seeing(made.clock, made.options, PAYS), tmp_path / "a", budget_s=60.0)
    long = [p for p in prompts(n=6)]
    long[0] = type(long[0])("long", "chat", ({"role": "user", "content": "chat: " + "word " * 4000},))
    run(Seeing(made.clock, made.options, PAYS), tmp_path / "b", long, budget_s=60.0)
    assert set(seen) == {2048, 7168}


class Vllm(SimulatedEngine):
    def render(self, settings: Settings) -> tuple[Rendering, ...]:
        (how,) = settings.speculation or (None,)
        config = {"method": how.kind, "num_speculative_tokens": how.n_max} if how else {}
        return (Rendering("Speculative configuration", "json", json.dumps(config), "vllm.json"),)

    def _answer(self, settings: Settings, request: Request, prompt: str) -> Answer:
        """Long drafts pay for one request, and none for eight."""
        length = settings.speculation[0].n_max if settings.speculation else 0
        factor = {0: 1.0, 2: 1.3, 4: 1.4, 8: 1.6}.get(length, 1.2) if settings.parallel == 1 else 1 / (1 + length / 20)
        answer = super()._answer(settings, request, prompt)
        self.clock.now += answer.decode_s * (1 / factor - 1) / settings.parallel
        return Answer(answer.text, answer.n_tokens, answer.ttft_s, answer.decode_s / factor, answer.arrivals)


def test_draft_lengths_by_batch_size_are_written_for_vllm(tmp_path):
    made = engine(World(), [Option("eagle3", (2, 4, 8))])
    vllm = Vllm(made.clock, made.options, World(), name="vllm")
    found = run(vllm, tmp_path, prompts(n=32), concurrency=(1, 8), budget_s=7200.0).engines
    written = {w.file_name: json.loads(w.text) for w in found[1].settings if w.language == "json"}
    schedule = written["vllm-by-batch-size.json"]["num_speculative_tokens_per_batch_size"]
    assert schedule[0][0] == 1 and schedule[0][2] >= 7 and schedule[-1][1:] == [8, 0]
    assert written["sglang-adaptive.json"]["1"]["candidate_steps"] != [0]
    assert "vllm-by-batch-size.json" not in {w.file_name for w in found[0].settings}


def test_a_draft_length_by_batch_size_needs_two_sizes(tmp_path):
    made = engine(World(), [Option("eagle3", (2, 4, 8))])
    found = one(run(Vllm(made.clock, made.options, World(), name="vllm"), tmp_path))
    assert "vllm-by-batch-size.json" not in {w.file_name for w in found.settings}


def test_a_gain_that_is_not_sure_makes_no_schedule(tmp_path):
    """Two prompts of three gain a little, the third loses: no verdict would say that it pays, so no schedule does."""

    class Unsure(Vllm):
        def _answer(self, settings: Settings, request: Request, prompt: str) -> Answer:
            answer = SimulatedEngine._answer(self, settings, request, prompt)
            factor = (0.6 if prompt.endswith(("0", "3", "6", "9")) else 1.6) if settings.speculation else 1.0
            self.clock.now += answer.decode_s * (1 / factor - 1) / settings.parallel
            return replace(answer, decode_s=answer.decode_s / factor)

    made = engine(World(), [Option("ngram", (4,))])
    found = run(Unsure(made.clock, made.options, World(), name="vllm"), tmp_path, prompts(n=8), concurrency=(1, 2))
    measured = [arm(each, "ngram n 4").overall for each in found.engines]
    assert any(ratio.value > 1 for ratio in measured) and all(ratio.low <= 1 for ratio in measured)
    assert "vllm-by-batch-size.json" not in {w.file_name for each in found.engines for w in each.settings}


def test_results_are_the_same_after_writing_and_reading(tmp_path):
    faults = {"text": lambda s, p: f"{p} {s.arm if 'chat' in p else ''}", "dies": lambda s: s.arm.startswith("other")}
    world = World(lambda how, category: 1.6 if category == "edit" else 0.9, by_kind(ngram=1.6))
    tuned = run(engine(world, **faults), tmp_path)
    paths = tune_files.write(tuned, tmp_path)
    assert tune_files.read(tmp_path / "tune.json") == tuned
    assert {p.name for p in paths} >= {"tune.json", "report.html", "run.sh"}
    assert all(path.stat().st_size for path in paths)
    assert any(a.timeline for e in tuned.engines for a in e.arms) and any(a.samples for a in one(tuned).arms)


def test_settings_of_several_engines_lie_in_folders_of_their_own(tmp_path):
    first = engine(PAYS, name="first")
    second = SimulatedEngine(first.clock, first.options, PAYS, name="second")
    tuned = run([first, second], tmp_path, prompts(n=16), concurrency=(1, 2))
    folders = {path.parent.name for path in tune_files.write(tuned, tmp_path) if path.name == "run.sh"}
    assert folders == {"settings-first-1", "settings-first-2", "settings-second-1", "settings-second-2"}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": 99}', '{"format": 2}', '{"format": 2, "engines": 3}']
)
def test_a_file_that_is_no_result_is_refused(tmp_path, text):
    (tmp_path / "tune.json").write_text(text)
    with pytest.raises(InputError, match=r"tune\.json"):
        tune_files.read(tmp_path / "tune.json")


def test_samples_tell_speed_and_acceptance_in_their_order(tmp_path):
    found = one(run(engine(PAYS), tmp_path))
    samples = arm(found, found.verdict.arm).samples
    assert [s.at_s for s in samples] == sorted(s.at_s for s in samples) and len(samples) > 10
    rates = {s.acceptance_rate for s in samples}
    assert rates == {arm(found, found.verdict.arm).acceptance_rate}
    assert all(s.tokens_per_s / s.plain_tokens_per_s == pytest.approx(1.5, rel=0.3) for s in samples)


def test_totals_that_tell_more_than_requests_are_used_where_they_agree(tmp_path):
    class Both(SimulatedEngine):
        """As llama.cpp: two numbers with each answer, all of them on another page."""

        def counters(self) -> Counters | None:
            return self._totals

    made = engine(PAYS, [NGRAM])
    halves = {"lie": lambda settings, counters: Counters(counters.drafted, counters.accepted)}
    found = one(run(Both(made.clock, made.options, PAYS, **halves), tmp_path))
    assert arm(found, found.verdict.arm).conditional[0] is not None
    others = {"lie": lambda s, c: Counters(c.drafted - 1, c.accepted) if s.speculation else c}
    made = engine(PAYS, [NGRAM])
    found = one(run(Both(made.clock, made.options, PAYS, **others), tmp_path / "shared"))
    assert arm(found, found.verdict.arm).conditional == ()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"n_tokens": 15}, "-n is 15"),
        ({"n_tokens": 3_000_000_000}, "-n is 3000000000"),
        ({"concurrency": ()}, "--concurrency"),
        ({"concurrency": (0,)}, "--concurrency"),
    ],
)
def test_values_out_of_range(changes, said):
    with pytest.raises(InputError, match=said):
        Asked("big", **changes)


def test_a_number_of_requests_named_twice():
    with pytest.raises(InputError, match="names a number twice"):
        Asked("big", concurrency=(1, 4, 1))


def test_a_budget_is_spent_by_the_clock_and_can_be_restored():
    clock = iter([0.0, 5.0, 100.0, 103.0])
    budget = Budget(60.0, lambda: next(clock))
    assert (budget.mark(), budget.left_s) == (5.0, 55.0)
    budget.restore(20.0)
    assert budget.left_s == 40.0 and budget.mark() == 23.0
