"""What a tuning run writes down, and how it goes on where it was stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulated_engines import LAST_LINES, SimulatedEngine, World, prompts
from tuning import NGRAM, OTHER, by_kind, engine, run

from slipstream.engines.protocol import Answer, Request, Settings
from slipstream.errors import EngineError, InputError
from slipstream.lab import json_lines
from slipstream.lab.tune import JOURNAL
from slipstream.lab.tune_journal import Budget, Journal
from slipstream.lab.tune_tasks import Task
from slipstream.lab.tune_visit import Visit
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
        ({"programs": {"simulated": "/opt/other"}}, "programs"),
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
    run(engine(world), tmp_path, budget_s=25.0)
    measured = {line["arm"] for line in lines(tmp_path, "visit")}
    assert not any(arm.startswith("other") for arm in measured)
    assert run(engine(world), tmp_path, budget_s=1800.0).engines[0].verdict.arm.startswith("other")


def test_a_machine_that_was_busy_before_is_looked_at_again_with_a_larger_budget(tmp_path):
    busy = World(by_kind(ngram=1.4), load=lambda seconds: 50.0)
    assert run(engine(busy), tmp_path, budget_s=60.0).engines[0].verdict.arm is None
    assert run(engine(WORLD), tmp_path, budget_s=900.0).engines[0].verdict.arm.startswith("ngram")


def test_a_larger_budget_takes_up_the_others_though_the_machine_was_slow_when_the_first_was_measured(tmp_path):
    world = World(by_kind(ngram=1.0, other=1.5), load=lambda seconds: 20.0)
    first = run(engine(world, [NGRAM, OTHER]), tmp_path, budget_s=500.0)
    assert not any(line["arm"].startswith("other") for line in lines(tmp_path, "visit")), first
    done = run(engine(replace(world, load=lambda seconds: 1.0), [NGRAM, OTHER]), tmp_path, budget_s=1500.0)
    assert done.engines[0].verdict.arm.startswith("other")


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


def test_the_unfinished_last_line_stays_until_this_run_writes_one(tmp_path):
    run(engine(WORLD), tmp_path, budget_s=300.0)
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(b'{"kind": "measurement", "engine": "simul')
    before = (tmp_path / JOURNAL).read_bytes()
    with pytest.raises(InputError, match="with model"):
        run(engine(WORLD), tmp_path, budget_s=300.0, model="other")
    with pytest.raises(InputError, match="less than"):
        run(engine(WORLD), tmp_path, budget_s=60.0)
    assert (tmp_path / JOURNAL).read_bytes() == before


@pytest.mark.parametrize(
    "text",
    [
        '{"my":"precious data"}',
        '{"kind": "ru',
        "",
        "\n\n",
        '{"kind": "visit"}\n',
        '\ufeff{"kind": "run"}\n',
        "[" * 9999,
    ],
)
def test_what_no_run_wrote_is_refused_and_left_as_it_is(tmp_path, text):
    (tmp_path / JOURNAL).write_text(text, encoding="utf-8")
    with pytest.raises(
        InputError, match=r"journal\.jsonl is (no journal of a tuning run|damaged in line 1): .*Start a new run"
    ):
        run(engine(WORLD), tmp_path)
    assert (tmp_path / JOURNAL).read_text(encoding="utf-8") == text


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """The lines of a short run."""
    folder = tmp_path_factory.mktemp("written")
    run(engine(WORLD), folder, budget_s=60.0)
    return lines(folder)


Damage = Callable[[dict[str, Any]], object]

DAMAGES: dict[str, tuple[str, Damage]] = {
    **{
        f"run without {name}": ("run", lambda d, n=name: d.pop(n))
        for name in ("settings", "budget_s", "began", "command")
    },
    "budget of words": ("run", lambda d: d.update(budget_s="x")),
    "negative budget": ("run", lambda d: d.update(budget_s=-5)),
    "no date": ("run", lambda d: d.update(began="yesterday")),
    "settings as a list": ("run", lambda d: d.update(settings=[1])),
    **{
        f"visit without {name}": ("visit", lambda d, n=name: d.pop(n))
        for name in ("engine", "concurrency", "arm", "tasks", "measured", "refused", "answer_s", "spent_s", "version")
    },
    "time of words": ("visit", lambda d: d.update(answer_s="x")),
    "negative time": ("visit", lambda d: d.update(spent_s=-1e9)),
    "unknown counters": ("visit", lambda d: d.update(counters=[1])),
    "measured what is not there": ("visit", lambda d: d.update(measured=["nope"])),
    "engine as a list": ("visit", lambda d: d.update(engine=["simulated"])),
    **{
        f"measurement without {name}": ("measurement", lambda d, n=name: d.pop(n))
        for name in ("task", "category", "n_tokens", "seconds", "answers")
    },
    "seconds of words": ("measurement", lambda d: d.update(seconds="x")),
    "negative seconds": ("measurement", lambda d: d.update(seconds=-1)),
    "no number": ("measurement", lambda d: d.update(seconds=float("nan"))),
    "no end": ("measurement", lambda d: d.update(seconds=float("inf"))),
    "far too many tokens": ("measurement", lambda d: d.update(n_tokens=10**400)),
    "a truth for a number": ("measurement", lambda d: d.update(n_tokens=True)),
    "category of another type": ("measurement", lambda d: d.update(category=5)),
    "another answer": ("measurement", lambda d: d.update(answers=[["p", {"z": 1}]])),
    "arrivals of one number": ("measurement", lambda d: d["answers"][0][1].update(arrivals=[1])),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_line_is_named(tmp_path, written, name):
    kind, damage = DAMAGES[name]
    number = next(i for i, line in enumerate(written, start=1) if line["kind"] == kind)
    changed = json.loads(json.dumps(written))
    damage(changed[number - 1])
    refused(tmp_path, changed, rf"journal\.jsonl is damaged in line {number}: .*Start a new run")


def refused(folder: Path, changed: list[dict], match: str) -> None:
    text = "".join(json.dumps(line) + "\n" for line in changed)
    (folder / JOURNAL).write_text(text)
    with pytest.raises(InputError, match=match):
        run(engine(WORLD), folder, budget_s=60.0)
    assert (folder / JOURNAL).read_text() == text


def test_lines_that_are_missing_or_stand_there_twice_are_named(tmp_path, written):
    first_visit = next(i for i, line in enumerate(written) if line["kind"] == "visit")
    refused(tmp_path, written[:1] + written[2:], f"damaged in line {first_visit}: what it measured .* is not there")
    refused(tmp_path, written[1:], "damaged in line 1: no run began before")
    again = written[: first_visit + 1] + written[1:]
    refused(tmp_path, again, f"damaged in line {2 * first_visit + 1}: it is the same as line {first_visit + 1}")
    points = [{"width": 1, "n_context": 512, "ratio": 0.0}]
    refused(tmp_path, [*written, {"kind": "cost", "points": points}], f"damaged in line {len(written) + 1}: points")


def test_other_prompts_under_the_same_task_and_an_empty_visit_do_not_fit(tmp_path, written):
    first_visit = next(i for i, line in enumerate(written) if line["kind"] == "visit")
    for at, change in ((1, {"answers": [["nobody", written[1]["answers"][0][1]]]}), (first_visit, {"measured": []})):
        changed = [{**line, **change} if i == at else line for i, line in enumerate(written)]
        refused(tmp_path, changed, f"does not fit this run in line {first_visit + 1}")


@pytest.mark.parametrize("rubbish", [b"[" * 100_000 + b"\n", b"\xff\xfe\n", b"{}\n", b"\0" * 50 + b"\n"])
def test_rubbish_in_the_middle_is_named(tmp_path, written, rubbish):
    text = json.dumps(written[0]).encode() + b"\n" + rubbish
    (tmp_path / JOURNAL).write_bytes(text)
    with pytest.raises(InputError, match="is no journal of a tuning run: line 2 "):
        run(engine(WORLD), tmp_path)
    assert (tmp_path / JOURNAL).read_bytes() == text


def journal(path: Path) -> Journal:
    return Journal(path, {"model": "big"}, {"began": "2026-01-01", "command": ""}, Budget(60.0, lambda: 0.0))


@pytest.fixture
def open_journal(tmp_path: Path) -> Iterator[Journal]:
    """One that a visit was written to, and whose run is alive."""
    with journal(tmp_path / JOURNAL) as made:
        made.visited(("simulated", 1), ["a"], Visit("plain", {}, {"a": "no"}, 0.0, 1.0), "1.0")
        yield made


def test_a_folder_that_another_run_writes_to_is_refused_until_its_end(tmp_path, open_journal):
    with pytest.raises(InputError, match=rf"{tmp_path.name} is being written by another run"):
        journal(tmp_path / JOURNAL)
    open_journal.close()
    with journal(tmp_path / JOURNAL) as again:
        task = Task("a", "chat", ())
        assert again.replayed(("simulated", 1), "plain", [task], "1.0") is not None


def test_two_runs_that_began_in_an_empty_folder_do_not_mix(tmp_path):
    with journal(tmp_path / JOURNAL) as first, journal(tmp_path / JOURNAL) as second:
        first.costs(())
        with pytest.raises(InputError, match="is being written by another run"):
            second.costs(())
    assert [line["kind"] for line in lines(tmp_path)] == ["run", "cost"]


class Attached(SimulatedEngine):
    """A server that tells its version once it is attached to."""

    server = "1.0"

    def attach(self, url: str) -> None:
        super().attach(url)
        self.version = self.server


def attached(server: str) -> Attached:
    plain = engine(WORLD)
    made = Attached(plain.clock, plain.options, plain.world, version="")
    made.server = server
    return made


def test_a_server_of_another_version_is_refused(tmp_path):
    asked = {"urls": {"simulated": ("http://127.0.0.1:1",)}}
    run(attached("1.0"), tmp_path, budget_s=60.0, **asked)
    before = (tmp_path / JOURNAL).read_bytes()
    for budget_s in (60.0, 900.0):
        with pytest.raises(InputError, match=r"measured with simulated '1\.0', now it is '2\.0'"):
            run(attached("2.0"), tmp_path, budget_s=budget_s, **asked)
    assert (tmp_path / JOURNAL).read_bytes() == before
    assert run(attached("1.0"), tmp_path, budget_s=900.0, **asked).engines[0].verdict.arm.startswith("ngram")


def test_any_text_can_be_kept_and_read_again(tmp_path):
    told = ({"role": "system", "content": "\ud800"},)
    some = [replace(prompt, id=f"{prompt.id} \udc80", messages=(*told, *prompt.messages)) for prompt in prompts()]
    odd = {"text": lambda s, p: f"\ud800 {p} \u2028 é", "version": "1 \udcff"}
    done = run(engine(WORLD, **odd), tmp_path, some)
    again = engine(WORLD, **odd)
    assert same(run(again, tmp_path, some), done) and again.asked == []


def test_a_journal_that_cannot_be_read_or_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "folder" / JOURNAL).mkdir(parents=True)
    with pytest.raises(InputError, match=r"journal\.jsonl cannot be read and written: Is a directory"):
        run(engine(WORLD), tmp_path / "folder")
    run(engine(WORLD), tmp_path, budget_s=60.0)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", denied)
        with pytest.raises(InputError, match=r"journal\.jsonl cannot be read and written: Permission denied"):
            run(engine(WORLD), tmp_path, budget_s=60.0)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(InputError, match="new cannot be written to"):
        run(engine(WORLD), tmp_path / "new")


@pytest.mark.parametrize("n_lines", [1, 30])
def test_a_disk_that_is_full_ends_the_run_and_is_no_failure_of_a_setting(tmp_path, monkeypatch, n_lines):
    append = json_lines.append

    def full_for_a_moment(path: Path, line: dict) -> None:
        if len(lines(tmp_path)) == n_lines and line["kind"] == "measurement":
            raise OSError(28, "No space left on device")
        append(path, line)

    with monkeypatch.context() as patch:
        patch.setattr(json_lines, "append", full_for_a_moment)
        with pytest.raises(InputError, match=r"journal\.jsonl cannot be written: No space left on device"):
            run(engine(WORLD), tmp_path, budget_s=300.0)
    assert len(lines(tmp_path)) == n_lines
    assert run(engine(WORLD), tmp_path, budget_s=300.0).engines[0].verdict.arm.startswith("ngram")


def denied(path: Path) -> bytes:
    raise PermissionError(13, "Permission denied")
