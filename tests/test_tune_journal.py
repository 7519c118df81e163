"""What a tuning run writes down, and how it goes on where it was stopped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from simulated_engines import LAST_LINES, SimulatedEngine, World, prompts
from tuning import NGRAM, OTHER, by_kind, engine, run

from slipstream.engines.protocol import Answer, Request, Settings
from slipstream.errors import EngineError, InputError
from slipstream.lab.tune import JOURNAL
from slipstream.lab.tuned import Tuned

WORLD = World(by_kind(ngram=1.4), by_kind(ngram=2.0))


def lines(folder: Path, kind: str = "") -> list[dict]:
    if not (folder / JOURNAL).exists():
        return []
    found = [json.loads(line) for line in (folder / JOURNAL).read_text(encoding="utf-8").splitlines()]
    return [line for line in found if not kind or line["kind"] == kind]


def same(one: Tuned, other: Tuned) -> bool:
    return replace(one, seconds=0, started="") == replace(other, seconds=0, started="")


class Interrupted(SimulatedEngine):
    """Ctrl-C in the middle of its answer number `at`."""

    at = 0

    def complete(self, request: Request) -> Answer:
        if len(self.asked) == self.at:
            raise KeyboardInterrupt
        return super().complete(request)


def interrupted(at: int, **more: object) -> Interrupted:
    plain = engine(WORLD, **more)
    made = Interrupted(plain.clock, plain.options, plain.world, **more)
    made.at = at
    return made


def test_each_measurement_is_on_the_disk_before_the_next_begins(tmp_path):
    seen: list[int] = []

    class Watching(SimulatedEngine):
        def complete(self, request: Request) -> Answer:
            if not request.messages[0]["content"].startswith("Name"):
                seen.append(len(lines(tmp_path, "measurement")))
            return super().complete(request)

    made = engine(WORLD)
    run(Watching(made.clock, made.options, made.world), tmp_path, budget_s=400.0)
    assert len(seen) > 50 and seen == list(range(len(seen)))


def test_a_finished_run_is_read_again_without_measuring(tmp_path):
    first, again = engine(WORLD), engine(WORLD)
    done = run(first, tmp_path)
    assert same(run(again, tmp_path), done) and (again.asked, again.started) == ([], [])
    assert run(engine(WORLD), tmp_path).seconds == done.seconds


@pytest.mark.parametrize("at", [0, 1, 7, 60, 200])
def test_a_run_that_was_interrupted_goes_on_where_it_stopped(tmp_path, at):
    with pytest.raises(KeyboardInterrupt):
        run(interrupted(at), tmp_path, budget_s=900.0)
    before = lines(tmp_path, "visit")
    second = engine(WORLD)
    done = run(second, tmp_path, budget_s=900.0)
    assert lines(tmp_path, "visit")[: len(before)] == before
    assert len(second.asked) < at + 700 and done.engines[0].verdict.arm.startswith("ngram")
    assert len(lines(tmp_path, "run")) == (2 if at > 1 else 1), "the first one is written with an answer"
    third = engine(WORLD)
    assert same(run(third, tmp_path, budget_s=900.0), done) and third.asked == []


def test_the_engine_is_stopped_when_interrupted(tmp_path):
    made = interrupted(60)
    with pytest.raises(KeyboardInterrupt):
        run(made, tmp_path)
    made.start(Settings("big"))  # which asserts that it was stopped


def test_an_interrupt_among_several_requests_stops_the_engine_too(tmp_path):
    made = interrupted(60)
    with pytest.raises(KeyboardInterrupt):
        run(made, tmp_path, prompts(n=12), concurrency=(4,))
    made.start(Settings("big"))


def test_a_line_that_was_cut_off_is_dropped_and_the_run_goes_on(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(interrupted(60), tmp_path)
    with (tmp_path / JOURNAL).open("a") as file:
        file.write('{"kind": "measurement", "engine": "simul')
    assert run(engine(WORLD), tmp_path).engines[0].verdict.arm.startswith("ngram")
    assert lines(tmp_path)


def test_what_was_spent_before_is_spent(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(interrupted(200), tmp_path, budget_s=900.0)
    spent = lines(tmp_path, "visit")[-1]["spent_s"]
    second = engine(WORLD)
    assert run(second, tmp_path, budget_s=900.0).seconds == pytest.approx(spent + second.clock.now, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"model": "other"}, "model"),
        ({"n_tokens": 64}, "n_tokens"),
        ({"draft": "small"}, "draft"),
        ({"concurrency": (1, 2)}, "concurrency"),
        ({"urls": {"simulated": ("http://127.0.0.1:1",)}}, "urls"),
    ],
)
def test_other_settings_are_refused_and_named(tmp_path, changes, name):
    run(engine(WORLD), tmp_path, budget_s=300.0)
    before = (tmp_path / JOURNAL).read_bytes()
    with pytest.raises(InputError, match=rf"was measured with {name} .* now it is .* without --resume"):
        run(engine(WORLD), tmp_path, **{"budget_s": 300.0, **changes})
    assert (tmp_path / JOURNAL).read_bytes() == before


def test_a_larger_budget_goes_on_behind_the_smaller_one(tmp_path):
    first = run(engine(WORLD), tmp_path, budget_s=30.0)
    before = lines(tmp_path, "visit")
    second = engine(WORLD)
    done = run(second, tmp_path, budget_s=900.0)
    assert lines(tmp_path, "visit")[: len(before)] == before
    assert first.engines[0].verdict.arm is None and done.engines[0].verdict.arm.startswith("ngram")
    assert 500 < done.seconds <= 990 and second.clock.now == pytest.approx(done.seconds - first.seconds, abs=1)
    third = engine(WORLD)
    assert same(run(third, tmp_path, budget_s=900.0), done) and third.asked == []


@pytest.mark.parametrize("at", [7, 60])
def test_an_interrupted_run_may_go_on_with_a_larger_budget(tmp_path, at):
    with pytest.raises(KeyboardInterrupt):
        run(interrupted(at), tmp_path, budget_s=300.0)
    before = lines(tmp_path, "visit")
    with pytest.raises(KeyboardInterrupt):
        run(interrupted(150), tmp_path, budget_s=900.0)
    done = run(engine(WORLD), tmp_path, budget_s=900.0)
    assert lines(tmp_path, "visit")[: len(before)] == before
    assert done.engines[0].verdict.arm.startswith("ngram") and 500 < done.seconds <= 990


def test_a_smaller_budget_is_refused(tmp_path):
    run(engine(WORLD), tmp_path, budget_s=300.0)
    with pytest.raises(InputError, match="--budget 60s is less than the 300s"):
        run(engine(WORLD), tmp_path, budget_s=60.0)


def test_settings_that_lacked_time_are_taken_up_again_with_a_larger_budget(tmp_path):
    world = World(by_kind(ngram=1.2, other=1.8))
    run(engine(world), tmp_path, budget_s=45.0)
    measured = {line["arm"] for line in lines(tmp_path, "visit")}
    assert not any(arm.startswith("other") for arm in measured)
    assert run(engine(world), tmp_path, budget_s=1800.0).engines[0].verdict.arm.startswith("other")


def test_a_machine_that_was_busy_before_is_looked_at_again_with_a_larger_budget(tmp_path):
    busy = World(by_kind(ngram=1.4), load=lambda seconds: 50.0)
    assert run(engine(busy), tmp_path, budget_s=60.0).engines[0].verdict.arm is None
    assert run(engine(WORLD), tmp_path, budget_s=900.0).engines[0].verdict.arm.startswith("ngram")


def test_nothing_is_written_before_something_is_measured(tmp_path):
    with pytest.raises(EngineError):
        run(engine(WORLD, will_not_start=lambda s: LAST_LINES), tmp_path)
    assert not (tmp_path / JOURNAL).exists()


def test_other_prompts_and_other_versions_are_refused(tmp_path):
    run(engine(WORLD), tmp_path, budget_s=300.0)
    with pytest.raises(InputError, match="with prompts"):
        run(engine(WORLD), tmp_path, prompts(n=11), budget_s=300.0)
    with pytest.raises(InputError, match=r"with engines \{'simulated': '1.0'\}, now it is \{'simulated': '1.1'\}"):
        run(engine(WORLD, version="1.1"), tmp_path, budget_s=300.0)


def test_another_model_under_the_same_name_is_refused(tmp_path):
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    run(engine(WORLD), tmp_path / "out", budget_s=300.0, model=str(model))
    model.write_bytes(b"GGUF and more")
    with pytest.raises(InputError, match="4 bytes"):
        run(engine(WORLD), tmp_path / "out", budget_s=300.0, model=str(model))


def test_a_file_of_something_else_is_left_as_it_is(tmp_path):
    (tmp_path / JOURNAL).write_text('{"kind": "letter"}\n{"cut o')
    with pytest.raises(InputError, match="no journal of a tuning run"):
        run(engine(WORLD), tmp_path)
    assert (tmp_path / JOURNAL).read_text() == '{"kind": "letter"}\n{"cut o'


def test_other_options_of_the_engine_do_not_fit_the_journal(tmp_path):
    run(engine(WORLD), tmp_path, budget_s=300.0)
    with pytest.raises(InputError, match="does not fit this run"):
        run(engine(WORLD, [OTHER]), tmp_path, budget_s=300.0)


def test_a_failed_arm_is_not_tried_again(tmp_path):
    faults = {"will_not_start": lambda s: LAST_LINES if s.arm.startswith("other") else ""}
    done = run(engine(WORLD, **faults), tmp_path)
    again = engine(WORLD, **faults)
    assert same(run(again, tmp_path), done) and again.clock.now == 0


def test_an_engine_that_never_got_ready_is_tried_again(tmp_path):
    with pytest.raises(EngineError):
        run(engine(WORLD, will_not_start=lambda s: LAST_LINES), tmp_path)
    assert run(engine(WORLD, [NGRAM]), tmp_path).engines[0].verdict.arm.startswith("ngram")
