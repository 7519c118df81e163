"""`lab.verify`: passes on a sound runtime with any drafter, and on none that has one of the known faults.

A fault is planted in the target's path, where both arms and the replay meet it, as they would meet one of our own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_cli import slipstream as command  # noqa: F401 (a fixture)
from test_exact import Fixed, knowing
from tiny_models import write_tiny
from toy import N_VOCAB, AlwaysTake, Clock, Scripted, ToyRuntime

from slipstream import LLM, Sampling, estimates
from slipstream.decoding.choice import Sampler
from slipstream.decoding.control import Control
from slipstream.decoding.protocols import Drafter, Pass, Rows, Runtime
from slipstream.decoding.ring import Ring, SequenceState
from slipstream.decoding.widths import WIDTHS, Band, WidthClasses
from slipstream.drafters.model import ModelDrafter
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.lab.recorder import Recorder, replay
from slipstream.lab.verify import Comparison, Divergence, Report, verify
from slipstream.lab.workload import Prompt
from slipstream.models.template import ChatTemplate
from slipstream.runtimes.llamacpp import ContextOptions, LlamaModel, LlamaRuntime

FLAT = {1: 1.0, 33: 1.001}
PADS = {1: 1.0, 2: 0.98, 3: 0.97, 4: 0.5, 5: 4.0, 8: 9.0, 33: 99.0}
"""Passes of four are cheapest: shorter ones are padded to it."""
ALL = WidthClasses((Band(64, 8, (WIDTHS,), 0.0, 0),))
ONE_APART = WidthClasses((Band(64, 8, ((1,), WIDTHS[1:]), 0.5, 0),))
UNKNOWN = WidthClasses()
RAW = ChatTemplate("{{ messages[0].content }}")


def asking(*texts: str) -> list[Prompt]:
    return [Prompt(f"prompt {i}", "test", ({"role": "user", "content": text},)) for i, text in enumerate(texts)]


class Passing:
    """Hands everything on to a sound runtime."""

    def __init__(self, inner: Runtime) -> None:
        self.inner = inner
        self.n_vocab, self.n_ctx, self.n_seq_max = inner.n_vocab, inner.n_ctx, inner.n_seq_max
        self.n_batch, self.max_rollback = inner.n_batch, inner.max_rollback

    def forward(self, rows: Sequence[Rows]) -> Pass:
        return self.inner.forward(rows)

    def keep(self, seq: int, n_tokens: int) -> None:
        self.inner.keep(seq, n_tokens)

    def held(self, seq: int) -> int:
        return self.inner.held(seq)

    def floor(self, seq: int) -> int:
        return self.inner.floor(seq)


class WrongRemoval(Passing):
    """After a removal the cache holds `extra` rows more than anyone knows, and all that follows stands so far off."""

    extra = 0
    n_padding = 0

    def left(self, n_dropped: int) -> int:
        raise NotImplementedError

    def forward(self, rows: Sequence[Rows]) -> Pass:
        self.n_padding = rows[0].n_padding
        return self.inner.forward([replace(rows[0], start=rows[0].start + self.extra)])

    def keep(self, seq: int, n_tokens: int) -> None:
        n_dropped = self.held(seq) - n_tokens
        if n_tokens == 0:
            self.extra = 0
        elif n_dropped > 0:
            self.extra += self.left(n_dropped)
        self.inner.keep(seq, n_tokens + self.extra)

    def held(self, seq: int) -> int:
        return self.inner.held(seq) - self.extra


class StaleRow(WrongRemoval):
    """One of the rejected tokens stays in the cache."""

    def left(self, n_dropped: int) -> int:
        return 1


class ShiftedPosition(WrongRemoval):
    """One row too many is removed, so that what follows stands one position too low."""

    def left(self, n_dropped: int) -> int:
        return -1


class PaddingStays(WrongRemoval):
    """Nothing was rejected, but the padding stays in the cache."""

    def left(self, n_dropped: int) -> int:
        return n_dropped if n_dropped == self.n_padding else 0


class NeighboursRow(Passing):
    """In passes of several tokens each row is the next one's."""

    def forward(self, rows: Sequence[Rows]) -> Pass:
        done = self.inner.forward(rows)
        logits = done.logits[0]
        if len(rows[0].tokens) == 1 or len(logits) < 2:
            return done
        return Pass((np.concatenate([logits[1:], logits[-1:]]),), done.widths)


class LastPassesRows(Passing):
    """In passes of several tokens the second row is what the pass before had there: logits that were not copied."""

    before: np.ndarray | None = None

    def forward(self, rows: Sequence[Rows]) -> Pass:
        done = self.inner.forward(rows)
        logits = done.logits[0].copy()
        if len(logits) < 2:
            return done
        stale, self.before = self.before, logits[1].copy()
        if stale is not None:
            logits[1] = stale
        return Pass((logits,), done.widths)


FAULTS: list[type[Passing]] = [StaleRow, ShiftedPosition, PaddingStays, NeighboursRow, LastPassesRows]
Fault = Callable[[Runtime], Runtime]


def build(
    model: LlamaModel,
    runtime: LlamaRuntime,
    drafters: Sequence[Drafter],
    classes: WidthClasses = UNKNOWN,
    curve: dict[int, float] = FLAT,
    fault: Fault = lambda runtime: runtime,
) -> LLM:
    runtime.keep(0, 0)
    return LLM(model.tokenizer, fault(runtime), Control(Fixed(curve)), drafters, RAW, classes)


def plain_text(model: LlamaModel, runtime: LlamaRuntime, prompt: Prompt, sampling: Sampling, n: int) -> list[int]:
    """Prompt and answer of plain decoding, by a sound runtime."""
    llm = build(model, runtime, [])
    answer = llm.generate(prompt.messages, sampling, n)
    return [*llm.prompt_tokens(prompt.messages), *answer.tokens]


def head(drafter: Scripted, n: int) -> Scripted:
    """No more than n tokens at a time."""
    return Scripted(lambda seq, text: drafter.script(seq, text)[:n])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


CONTEXT = ContextOptions(n_ctx=256, n_batch=64, n_threads=1)
SEED = 2
"""Its texts are more varied than those of other seeds."""


@pytest.fixture(scope="module", params=["llama", "gemma3", "lfm2"])
def tiny(request, folder) -> Iterator[tuple[LlamaModel, LlamaRuntime]]:
    path = write_tiny(folder / f"{request.param}.gguf", request.param, SEED)
    with LlamaModel(path) as model, LlamaRuntime(model, CONTEXT.with_rollback(33)) as runtime:
        yield model, runtime


@pytest.fixture(scope="module")
def llama(folder) -> Iterator[tuple[LlamaModel, LlamaRuntime]]:
    path = write_tiny(folder / "another-llama.gguf", "llama", SEED)
    with LlamaModel(path) as model, LlamaRuntime(model, CONTEXT) as runtime:
        yield model, runtime


LETTERS = asking("ABCABCDEFABCABCDEF", "QWERTYUIOP", "XYZZYXYZZYXYZ")
TEMPERATURES = (0.0, 1.0, 6.0)


def guesses(n_vocab: int) -> Scripted:
    """Knows nothing."""
    rng = np.random.default_rng(0)
    return Scripted(lambda seq, text: rng.integers(0, n_vocab, 1 + len(text) % 7).tolist())


@pytest.mark.parametrize(
    ("drafter", "curve"), [("knowing", FLAT), ("knowing", PADS), ("suffix", FLAT), ("guesses", PADS), ("none", PADS)]
)
def test_a_sound_runtime_passes_in_both_modes(tiny, drafter, curve):
    model, runtime = tiny
    known = plain_text(model, runtime, LETTERS[0], Sampling(temperature=0), 60)
    n_vocab = runtime.n_vocab
    drafters: dict[str, list[Drafter]] = {
        "knowing": [knowing(known, n_vocab)],
        "suffix": [SuffixDrafter()],
        "guesses": [guesses(n_vocab)],
        "none": [],
    }
    told: list[float] = []
    llm = build(model, runtime, drafters[drafter], ONE_APART, curve)
    report = verify(llm, LETTERS[:2], TEMPERATURES, 40, progress=told.append)
    modes = [(t, mode) for t in TEMPERATURES for mode in ("normal", "exact")]
    assert report.passed and [(c.temperature, c.mode) for c in report.comparisons] == modes
    for c in report.comparisons:
        assert c.passed and c.prompts == 2 and c.identical + len(c.divergences) == 2 and not c.faults
        assert (c.n_drafted > 0) == (drafter != "none") and c.n_accepted <= c.n_drafted
        if c.mode == "exact":
            assert c.identical == c.identical_rows == 2
        if drafter == "guesses":
            assert c.n_accepted < 0.3 * c.n_drafted, "a bad drafter only lowers acceptance"
    assert told == sorted(told) and told[-1] == 1.0 and report.exact_cost is not None
    assert runtime.held(0) == 0


def test_a_draft_model_passes(llama, folder):
    model, runtime = llama
    draft = write_tiny(folder / "draft.gguf", "llama", seed=5)
    with LlamaModel(draft) as small, LlamaRuntime(small, CONTEXT) as small_runtime:
        drafter = ModelDrafter(small_runtime, runtime.n_vocab)
        llm = build(model, runtime, [SuffixDrafter(), drafter], ONE_APART)
        llm.control = Control(Fixed(FLAT), {"model": 0.01})
        assert verify(llm, LETTERS, TEMPERATURES, 30).passed


def test_without_known_classes_there_is_the_normal_mode_alone(llama):
    model, runtime = llama
    report = verify(build(model, runtime, [SuffixDrafter()]), LETTERS[:1], n_tokens=10)
    assert [c.mode for c in report.comparisons] == ["normal"] and report.exact_cost is None


def check_divergence(
    d: Divergence, model: LlamaModel, runtime: LlamaRuntime, prompt: Prompt, sampling: Sampling
) -> None:
    text = plain_text(model, runtime, prompt, sampling, d.position + 1)
    assert text[-1] == d.plain != d.speculative
    assert d.prompt == prompt.id and d.difference > 0
    if sampling.greedy:
        assert 0 <= d.gap <= 2 * d.difference, "each of the two logits moved by that much at most"


class TwoKernels(Passing):
    """Sound, but it computes passes of one token in another way than all others: logits move by up to half."""

    def forward(self, rows: Sequence[Rows]) -> Pass:
        done = self.inner.forward(rows)
        if len(rows[0].tokens) + rows[0].n_padding == 1:
            return done
        move = np.random.default_rng(0).uniform(-0.5, 0.5, self.n_vocab).astype(np.float32)
        return Pass((done.logits[0] + move,), done.widths)


def test_partings_that_the_width_explains_are_told_and_pass(llama):
    model, runtime = llama
    prompts = asking(*("ABCDEFGHIJKLMNOPQRSTUVWXYZ"[i : i + 9] for i in range(8)))
    llm = build(model, runtime, [guesses(runtime.n_vocab)], fault=TwoKernels)
    report = verify(llm, prompts, TEMPERATURES, 40, seed=40)
    assert report.passed
    assert all(c.identical + len(c.divergences) == len(prompts) for c in report.comparisons)
    partings = [(c.temperature, d) for c in report.comparisons for d in c.divergences]
    assert {temperature for temperature, _ in partings} == set(TEMPERATURES)
    for temperature, d in partings:
        assert d.explained and not d.reason and 0 < d.difference < 0.6
        n = [p.id for p in prompts].index(d.prompt)
        llm = build(model, runtime, [], fault=TwoKernels)
        sampling = Sampling(temperature=temperature, seed=40 + n)
        plain = llm.generate(prompts[n].messages, sampling, d.position + 1)
        assert plain.tokens[-1] == d.plain != d.speculative and len(plain.tokens) == d.position + 1
        if sampling.greedy:
            assert 0 <= d.gap <= 2 * d.difference, "each of the two logits moved by that much at most"


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("n_draft", [1, 2])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(llama, fault, n_draft, temperature):
    """In normal mode a shift that every removal brings is the same in a replay: exact mode finds it."""
    model, runtime = llama
    known = plain_text(model, runtime, LETTERS[0], Sampling(temperature=temperature), 40)
    drafter = head(knowing(known, runtime.n_vocab, 3), n_draft)
    classes = ONE_APART if fault is ShiftedPosition else UNKNOWN
    sound = verify(build(model, runtime, [drafter], classes, PADS), LETTERS[:1], [temperature], 40)
    assert sound.passed and sum(c.n_accepted for c in sound.comparisons) > 5
    faulty = verify(build(model, runtime, [drafter], classes, PADS, fault), LETTERS[:1], [temperature], 40)
    assert not faulty.passed
    for c in faulty.comparisons:
        told = len(c.faults) + sum(not d.explained and bool(d.reason) for d in c.divergences)
        assert c.passed or told or c.identical_rows < c.identical


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("fault", [StaleRow, ShiftedPosition, NeighboursRow, LastPassesRows])
def test_exact_mode_finds_a_fault_that_plain_decoding_has_too(llama, fault, temperature):
    """Where width 1 stands alone, plain decoding pads, and takes rows back in every round."""
    model, runtime = llama
    for drafter in Scripted(lambda seq, text: []), guesses(runtime.n_vocab), SuffixDrafter():
        report = verify(build(model, runtime, [drafter], ONE_APART, FLAT, fault), LETTERS[:1], [temperature], 20)
        assert [c.passed for c in report.comparisons if c.mode == "exact"] == [False]


def test_what_was_drafted_never_comes_again_in_the_replay():
    """A draft of the text's first token was replayed as it was, and so a row that came from it."""

    class SeesDrafts(ToyRuntime):
        def forward(self, rows):
            result = super().forward(rows)
            drafted = rows[0].tokens[1:]
            if len(drafted) and rows[0].n_outputs == len(rows[0].tokens):
                result.logits[0][0] += np.float32(0.01) * drafted[0]
            return result

    def write(first: int) -> bool:
        runtime = Recorder(SeesDrafts())
        state = SequenceState(0, Sampler(Sampling(temperature=0), N_VOCAB), lambda token: False, 30)
        ring = Ring(runtime, [Scripted(lambda seq, text: [first] * 2)], AlwaysTake(2), Clock())
        ring.begin(state, [first, 1, 4], 0)
        while not state.ended:
            ring.step([state])
        return replay(SeesDrafts(), runtime.passes, state.tokens, len(state.tokens) - 1).wrong_at is not None

    assert all(write(first) for first in range(2, N_VOCAB))


def test_an_answer_after_a_comparison(llama):
    """The cache was emptied behind the LLM's back, which then found its prompt there."""
    model, runtime = llama
    llm = build(model, runtime, [SuffixDrafter()])
    want = llm.generate("ABCABC", Sampling(temperature=0), 8)
    verify(llm, LETTERS[:1], n_tokens=4)
    assert llm.generate("ABCABC", Sampling(temperature=0), 8).tokens == want.tokens


def compared(**changes) -> Comparison:
    return Comparison(
        **{"mode": "exact", "temperature": 0.0, "prompts": 3, "identical": 3, "identical_rows": 3, **changes}
    )


def test_what_passes():
    explained = Divergence("a", 3, 5, 6, 0.1, 0.2, True)
    unexplained = replace(explained, explained=False, reason="another row")
    assert compared().passed and compared(mode="normal", identical_rows=0).passed
    assert not compared(identical_rows=2).passed, "a bit that differs"
    assert not compared(faults=["a row"]).passed and not compared(mode="normal", faults=["a row"]).passed
    assert compared(mode="normal", identical=2, divergences=[explained]).passed
    assert not compared(mode="normal", identical=2, divergences=[explained, unexplained]).passed
    assert not compared(identical=2, identical_rows=2, divergences=[explained]).passed
    assert Report([compared(), compared(mode="normal")]).passed
    assert not Report([compared(), compared(identical_rows=2)]).passed


def test_what_exact_mode_costs():
    normal, exact = compared(mode="normal", n_tokens=100, plain_s=2.0), compared(n_tokens=50, plain_s=1.5)
    assert Report([normal, exact]).exact_cost == pytest.approx(1.5)
    assert Report([normal]).exact_cost is None
    fast = compared(n_tokens=100, plain_s=2.0, speculative_tokens=90, speculative_s=0.9)
    assert fast.speedup == pytest.approx(2.0) and compared().speedup is None


DEMO = asking("Repeat: one two three, one two three, one two")
DEMO_CONTEXT = ContextOptions(n_ctx=128, n_batch=64, n_threads=1)


@pytest.fixture(scope="module")
def demo_model(smollm2_path) -> Iterator[LlamaModel]:
    with LlamaModel(smollm2_path) as model:
        yield model


@pytest.fixture(scope="module")
def demo(demo_model) -> Iterator[LlamaRuntime]:
    with LlamaRuntime(demo_model, DEMO_CONTEXT) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def demo_apart(demo_model) -> Iterator[LlamaRuntime]:
    """Without flash attention width 1 stands alone."""
    with LlamaRuntime(demo_model, replace(DEMO_CONTEXT, flash_attn="off")) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def demo_text(demo_model, demo) -> list[int]:
    return plain_text(demo_model, demo, DEMO[0], Sampling(temperature=0), 16)


@pytest.mark.model
def test_the_demo_model_passes_in_both_modes(demo_model, demo, demo_text):
    llm = build(demo_model, demo, [SuffixDrafter(), knowing(demo_text, demo.n_vocab)], ALL)
    report = verify(llm, DEMO, [0.0, 0.9], 14)
    assert report.passed and all(c.identical == c.identical_rows == 1 for c in report.comparisons)
    assert all(c.n_drafted > c.n_accepted for c in report.comparisons)


@pytest.mark.model
def test_a_drafter_that_knows_nothing_leaves_the_demo_model_alone(demo_model, demo):
    report = verify(build(demo_model, demo, [guesses(demo.n_vocab)]), DEMO, n_tokens=8)
    assert report.passed and report.comparisons[0].identical and not report.comparisons[0].n_accepted


@pytest.mark.model
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_demo_models_path_is_found(demo_model, demo, demo_text, fault):
    drafter = head(knowing(demo_text, demo.n_vocab), 2)
    classes = ALL if fault is ShiftedPosition else UNKNOWN
    assert not verify(build(demo_model, demo, [drafter], classes, PADS, fault), DEMO, n_tokens=10).passed


@pytest.mark.model
def test_padding_that_stays_is_found_in_exact_mode(demo_model, demo_apart, demo_text):
    """Each round of plain decoding leaves its padding in the cache, as those with drafts do."""
    llm = build(demo_model, demo_apart, [knowing(demo_text, demo_apart.n_vocab)], ONE_APART, FLAT, StaleRow)
    report = verify(llm, DEMO, n_tokens=8)
    assert [c.mode for c in report.comparisons if not c.passed][-1] == "exact"


@pytest.mark.model
def test_a_parting_of_the_demo_model_is_explained(demo_model, demo_apart):
    llm = build(demo_model, demo_apart, [guesses(demo_apart.n_vocab)])
    partings: list[Divergence] = []
    for seed in range(15):
        report = verify(llm, asking("My"), [1.5], 10, seed)
        assert report.passed
        partings += report.comparisons[0].divergences
        if partings:
            break
    (d,) = partings  # about one in three parts
    assert d.explained and 0 < d.difference < 4 and 0 < d.position < 10 and d.plain != d.speculative


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
    (tmp_path / "prompts.jsonl").write_text(
        "".join(json.dumps({"prompt": p.messages[0]["content"]}) + "\n" for p in LETTERS)
    )
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
