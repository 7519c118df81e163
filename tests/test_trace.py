"""Traces: nothing changes for being traced, every place of the text has its proposals, a file is read as written."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from made_traces import STEPS, copying, loaded, traced, write
from test_bad_input import tiny  # noqa: F401 (a fixture)
from test_cli import slipstream as command  # noqa: F401 (a fixture)
from test_ring import GREEDY, PROMPTS, SAMPLINGS, new_state, plain, run
from toy import N_VOCAB, AlwaysTake, Scripted, ToyRuntime
from toy import Clock as Ticking

from slipstream.decoding.control import Control
from slipstream.decoding.cost import CostCurve
from slipstream.decoding.ring import Ring
from slipstream.decoding.statistics import Round
from slipstream.decoding.trace import TracedRound
from slipstream.drafters.model import ModelDrafter
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.errors import InputError
from slipstream.lab.simulated import Clock, OnClock
from slipstream.lab.trace import TraceWriter, read

TEXTS = [copying(80, seed) for seed in range(3)]


class Listed:
    """A trace in memory; writing a round takes `write_s` of the clock."""

    def __init__(self, clock: Clock | None = None, write_s: float = 0.0) -> None:
        self.requests: list[tuple[list[int], int]] = []
        self.rounds: list[TracedRound] = []
        self.clock, self.write_s = clock, write_s

    def request(self, prompt: Sequence[int], first: int) -> None:
        self.requests.append((list(prompt), first))

    def round(self, done: TracedRound) -> None:
        self.rounds.append(done)
        if self.clock is not None:
            self.clock.now += self.write_s


DRAWN = [replace(SAMPLINGS[1], verification=rule) for rule in ("rejection", "block")]


@pytest.mark.parametrize("sampling", [*SAMPLINGS, *DRAWN], ids=["greedy", "0.7", "1.2", "rejection", "block"])
@pytest.mark.parametrize("n_seqs", [1, 3])
def test_a_traced_text_is_the_same(sampling, n_seqs):
    """The drafts have a fixed length: under the rejection rules the text depends on how far is drafted."""
    prompts = [list(p) for p in PROMPTS[:n_seqs]]
    texts = []
    for trace in None, Listed():
        states = [new_state(seq, sampling, prompt) for seq, prompt in enumerate(prompts)]
        drafters = [SuffixDrafter(), ModelDrafter(ToyRuntime(seed=1), N_VOCAB)][sampling in DRAWN :]
        run(Ring(ToyRuntime(), drafters, AlwaysTake(3), Ticking(), trace), states, prompts)
        texts.append([state.tokens for state in states])
    assert texts[0] == texts[1]
    if sampling not in DRAWN:
        assert texts[0] == [plain(seq, sampling, prompt) for seq, prompt in enumerate(prompts)]


def answered(trace: Listed | None, clock: Clock, curve: CostCurve | None = None) -> list[Round]:
    """Three requests to control and the suffix drafter, in simulated time."""
    drafters = [OnClock(SuffixDrafter(), 0.001, clock)]
    return write(TEXTS, drafters, Control(curve or CostCurve(STEPS)), clock, trace)


def test_all_counts_and_times_are_those_of_a_run_without_a_trace():
    """Asking at every place takes simulated time, as writing does; it teaches nobody anything, and is not counted."""
    untraced = answered(None, Clock())
    clock = Clock()
    rounds = answered(Listed(clock, write_s=5.0), clock)
    assert list(map(approximately, rounds)) == list(map(approximately, untraced))
    assert sum(r.accepted for r in untraced) > 50


def approximately(done: Round) -> Round:
    """Without the rounding errors of a clock that has gone far."""
    return replace(done, **{name: round(getattr(done, name), 6) for name in ("draft_s", "pass_s", "total_s")})


def test_the_time_of_tracing_does_not_look_like_that_of_plain_decoding():
    """Control reckons with what a round takes beside its pass."""
    rests = []
    for write_s in 0.0, 5.0:
        clock = Clock()
        control = Control(CostCurve(STEPS))
        write(TEXTS, [SuffixDrafter()], control, clock, Listed(clock, write_s))
        rests.append(control.plain_token_s(0) - control.plain_s(0))
    assert rests == pytest.approx([0.0, 0.0], abs=1e-9)


def test_with_several_sequences_the_tracing_of_one_is_not_counted_for_the_next():
    prompts = [list(p) for p in PROMPTS]
    clock = Clock()
    ring = Ring(ToyRuntime(), [SuffixDrafter()], AlwaysTake(3), clock, Listed(clock, write_s=5.0))
    rounds = run(ring, [new_state(seq, GREEDY, prompt) for seq, prompt in enumerate(prompts)], prompts)
    assert {round(r.total_s, 9) for r in rounds} == {0.0}


def test_every_place_of_the_text_has_what_all_would_have_proposed():
    prompt = list(PROMPTS[0])
    whole = plain(0, GREEDY, prompt)
    knowing = Scripted(lambda seq, text: whole[len(text) :], "knowing")
    wrong = Scripted(lambda seq, text: [(len(text) + 1) % N_VOCAB], "wrong")
    trace = Listed()
    rounds = run(
        Ring(ToyRuntime(), [wrong, knowing], AlwaysTake(4), Ticking(), trace), [new_state(0, GREEDY, prompt)], [prompt]
    )
    assert trace.requests == [(prompt, whole[len(prompt)])]
    assert [done.tokens for done in trace.rounds] == [done.tokens for done in rounds], "one line a round"
    places = [place for done in trace.rounds for place in done.proposals]
    assert len(places) == len(whole) - len(prompt) - 1, "one before each token but the first"
    for at, place in enumerate(places, len(prompt) + 1):
        assert [asked.drafter for asked in place] == ["wrong", "knowing"]
        assert [asked.draft.tokens.tolist() for asked in place] == [[(at + 1) % N_VOCAB], whole[at : at + 32]]


SHARED = (
    *("seq", "n_context", "tokens", "drafter", "drafted", "accepted", "width"),
    *("pass_s", "draft_s", "total_s"),
)


def test_a_traced_round_says_what_the_round_said_and_what_was_expected_of_its_pass():
    clock = Clock()
    trace = Listed(clock)
    rounds = answered(trace, clock)
    for said, done in zip(trace.rounds, rounds, strict=True):
        assert {name: getattr(said, name) for name in SHARED} == {name: getattr(done, name) for name in SHARED}
        assert said.predicted_s == pytest.approx(said.pass_s), "the curve is right here"


def test_a_trace_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "trace.jsonl"
    rounds = traced(path, TEXTS, acceptance=0.8, categories=["edit", "chat", "edit"])
    (found,) = read(path)
    assert found.model == "made-up" and found.widths == () and found.cost.measured == STEPS
    assert found.draft_costs["model"] == pytest.approx((0.002, 0.0002))
    assert [(r.prompt, r.answer) for r in found.requests] == [(text.prompt, text.answer) for text in TEXTS]
    assert [r.category for r in found.requests] == ["edit", "chat", "edit"]
    assert [s for r in found.requests for s in r.measured] == [r.pass_s for r in rounds]
    for request in found.requests:
        assert set(request.said) == {"suffix", "model"}
        assert all(list(said) == list(range(len(request.answer) - 1)) for said in request.said.values())
        assert all(len(said.tokens) == len(said.survival) for of in request.said.values() for said in of.values())
    assert [said.seconds for said in found.requests[0].said["suffix"].values()] == pytest.approx([0.0001] * 79)


def test_what_a_drafter_said_at_a_place_is_found_there(tmp_path):
    path = tmp_path / "trace.jsonl"
    traced(path, TEXTS, acceptance=1.0)
    for request in read(path)[0].requests:
        for place, said in request.said["model"].items():
            assert said.tokens == tuple(request.answer[place + 1 : place + 1 + len(said.tokens)])


def test_the_lines_of_a_file(tmp_path):
    path = tmp_path / "trace.jsonl"
    rounds = traced(path, TEXTS[:1], categories=["edit"])
    head, request, *lines = map(json.loads, path.read_text().splitlines())
    assert head["kind"] == "run" and head["slipstream_trace"] == 1 and head["drafters"] == ["suffix"]
    assert request == {"kind": "request", "category": "edit", "prompt": TEXTS[0].prompt, "first": TEXTS[0].answer[0]}
    assert len(lines) == len(rounds) and {line["kind"] for line in lines} == {"round"}
    assert set(lines[0]) == {
        *("kind", "predicted_s", "proposals"),
        *SHARED,
    }
    assert set(lines[0]["proposals"][0][0]) == {"drafter", "tokens", "survival", "backlog", "seconds"}


def test_a_trace_that_is_there_is_gone_on_with(tmp_path):
    path = tmp_path / "trace.jsonl"
    traced(path, TEXTS[:1])
    traced(path, TEXTS[1:], model="another")
    assert [(run.model, len(run.requests)) for run in read(path)] == [("made-up", 1), ("another", 2)]


def test_a_last_line_cut_short_is_left_out_and_gone_on_behind(tmp_path):
    path = tmp_path / "trace.jsonl"
    traced(path, TEXTS[:1])
    path.write_bytes(path.read_bytes()[:-30])
    (found,) = read(path)
    (request,) = found.requests
    assert request.answer == TEXTS[0].answer[: len(request.answer)] and 0 < len(request.answer) < 80
    traced(path, TEXTS[1:])
    assert [len(run.requests) for run in read(path)] == [1, 2]


def test_a_damaged_line_on_the_way_is_named(tmp_path):
    path = tmp_path / "trace.jsonl"
    traced(path, TEXTS[:1])
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:4], lines[4][:-20], *lines[5:]]) + "\n")
    with pytest.raises(InputError, match="line 5"):
        read(path)


HEAD = {"kind": "run", "slipstream_trace": 1, "model": "m", "drafters": [], "draft_costs": {}, "widths": []}
HEAD["cost"] = {"seconds": {"1": 0.02}}
REQUEST = {"kind": "request", "category": "", "prompt": [1, 2], "first": 3}
SAID = {"drafter": "model", "tokens": [4], "survival": [0.5], "backlog": 0, "seconds": 0.001}
ROUND = {"kind": "round", "tokens": [4], "proposals": [[SAID]], "predicted_s": 0.02, "pass_s": 0.02}


def lines(*data: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in data)


def misheard(**changes: Any) -> bytes:
    """A round on the way in which a drafter said something else."""
    return lines(HEAD, REQUEST, {**ROUND, "proposals": [[{**SAID, **changes}]]}, ROUND, ROUND)


NO_TRACE = {
    "nothing": b"",
    "a text": b"Dear diary,\nthe day\nwas long\n",
    "not UTF-8": b"\xff\xfe\x00",
    "a list": b"[1]\n[2]\n[3]\n",
    "deep": b"[" * 100_000,
    "no request": lines(HEAD),
    "no round": lines(HEAD, REQUEST),
    "a round of nothing": lines(HEAD, REQUEST, {**ROUND, "tokens": [], "proposals": []}),
    "widths that are none": lines({**HEAD, "widths": [4, 2]}, REQUEST, ROUND),
    "a request without a run": lines(REQUEST, REQUEST, REQUEST),
    "a round without a request": lines(HEAD, ROUND, REQUEST, ROUND),
    "another format": lines({**HEAD, "slipstream_trace": 2}, REQUEST, ROUND),
    "no cost": lines({**HEAD, "cost": {}}, REQUEST, ROUND),
    "drafting for nothing": lines({**HEAD, "draft_costs": {"model": [0.0, 0.0]}}, REQUEST, ROUND),
    "another kind": lines(HEAD, {"kind": "other"}, REQUEST, ROUND),
    "a prompt that is none": lines(HEAD, {**REQUEST, "prompt": "ab"}, REQUEST, ROUND),
    "a token below 0": lines(HEAD, {**REQUEST, "prompt": [1, -2]}, REQUEST, ROUND),
    "a token of no vocabulary": lines(HEAD, {**REQUEST, "first": 1 << 31}, REQUEST, ROUND),
    "survival above 1": misheard(survival=[7]),
    "survival nan": misheard(survival=[float("nan")]),
    "seconds nan": misheard(seconds=float("nan")),
    "seconds below 0": misheard(seconds=-1),
    "passes that take no time": lines(HEAD, REQUEST, {**ROUND, "predicted_s": 0}, ROUND, ROUND),
    "a huge number": lines(HEAD, REQUEST, {**ROUND, "pass_s": 10**400}, ROUND, ROUND),
}  # fmt: skip


@pytest.mark.parametrize("content", NO_TRACE.values(), ids=NO_TRACE)
def test_a_file_that_is_no_trace_is_refused(tmp_path, content):
    path = tmp_path / "mine"
    path.write_bytes(content)
    with pytest.raises(InputError, match="mine") as refused:
        read(path)
    assert refused.value.hint


def test_the_lines_that_are_damaged_above_are_otherwise_good(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(lines(HEAD, REQUEST, ROUND, ROUND))
    assert read(path)[0].requests[0].answer == [3, 4, 4]


@pytest.mark.parametrize("content", [b"Dear diary,\n", b'{"kind": "other"}\n', b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_a_foreign_file_is_never_written_to(tmp_path, content):
    path = tmp_path / "mine"
    path.write_bytes(content)
    with pytest.raises(InputError, match="mine is not a trace"):
        TraceWriter(path, loaded(Control(CostCurve(STEPS)), []), "m")
    assert path.read_bytes() == content


@pytest.mark.parametrize("path", ["none/trace.jsonl", "."])
def test_a_path_where_no_file_can_be_is_refused(tmp_path, path):
    with pytest.raises(InputError, match="cannot be written"):
        TraceWriter(tmp_path / path, loaded(Control(CostCurve(STEPS)), []), "m")


RAW = ("--raw", "-n", 24, "-t", 1, "-c", 256, "--temp", 0, "--json")


def test_run_writes_a_trace_of_what_it_did(command, tiny, tmp_path):  # noqa: F811
    path = tmp_path / "trace.jsonl"
    plain_text = json.loads(command("run", tiny, "ABCABCABC", *RAW)[1])["text"]
    code, out, err = command("run", tiny, "ABCABCABC", *RAW, "--trace", path)
    said = json.loads(out)
    assert (code, err, said["text"]) == (0, "", plain_text)
    (found,) = read(path)
    (request,) = found.requests
    assert found.model == str(tiny) and request.answer == said["tokens"]
    rounds = [line for line in map(json.loads, path.read_text().splitlines()) if line["kind"] == "round"]
    counts = said["statistics"]
    assert len(rounds) == counts["target_passes"]
    assert [sum(line[name] for line in rounds) for name in ("drafted", "accepted")] == [
        counts["drafted"],
        counts["accepted"],
    ]


def test_chat_writes_a_request_for_each_turn(command, tiny, tmp_path, monkeypatch):  # noqa: F811
    path, template = tmp_path / "trace.jsonl", tmp_path / "plain.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    monkeypatch.setattr("sys.stdin", io.StringIO("ABC\nDEF\n\n"))
    options = ("--template", template, "-n", 6, "-t", 1, "-c", 256, "--temp", 0)
    code, _, err = command("chat", tiny, *options, "--trace", path)
    assert (code, err) == (0, "")
    (found,) = read(path)
    assert [len(request.answer) for request in found.requests] == [6, 6]
    assert found.requests[1].prompt[: len(found.requests[0].prompt)] == found.requests[0].prompt


def test_run_refuses_to_write_into_a_foreign_file(command, tiny, tmp_path):  # noqa: F811
    path = tmp_path / "diary.txt"
    path.write_text("Dear diary,\n")
    code, out, err = command("run", tiny, "ABC", *RAW, "--trace", path)
    assert (code, out) == (2, "") and err.startswith("slipstream: ") and err.count("\n") == 1
    assert "is not a trace" in err and path.read_text() == "Dear diary,\n"
