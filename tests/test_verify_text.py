"""`lab.verify`: passes on a sound runtime with any drafter, and on none that has one of the known faults.

Tiny models, at length; `test_verify_demo` has the demo model, `test_verify_command` the command.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from comparing import FLAT, ONE_APART, PADS, UNKNOWN, asking, build, guesses, head, plain_text, verify
from faults import FAULTS, LastPassesRows, NeighboursRow, ShiftedPosition, StaleRow, TwoKernels
from forced import Fixed, knowing
from tiny_models import write_tiny
from toy import N_VOCAB, AlwaysTake, Clock, Scripted, ToyRuntime

from slipstream import Sampling
from slipstream.decoding.choice import Sampler
from slipstream.decoding.control import Control
from slipstream.decoding.protocols import Drafter
from slipstream.decoding.record import DraftCost
from slipstream.decoding.ring import Ring, SequenceState
from slipstream.drafters.model import ModelDrafter
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.lab.recorder import Recorder, replay
from slipstream.lab.verify import Comparison, Divergence, Report
from slipstream.runtimes.llamacpp import ContextOptions, LlamaModel, LlamaRuntime


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


CONTEXT = ContextOptions(n_ctx=256, n_batch=64, n_threads=1)
SEED = 2
"""Its texts are more varied than those of other seeds."""


@pytest.fixture(scope="module", params=["llama", "gemma3", "lfm2"])
def tiny(request, folder) -> Iterator[tuple[LlamaModel, LlamaRuntime]]:
    path = write_tiny(folder / f"{request.param}.gguf", request.param, SEED)
    with LlamaModel(path) as model, LlamaRuntime(model, CONTEXT.with_rollback(True)) as runtime:
        yield model, runtime


@pytest.fixture(scope="module")
def llama(folder) -> Iterator[tuple[LlamaModel, LlamaRuntime]]:
    path = write_tiny(folder / "another-llama.gguf", "llama", SEED)
    with LlamaModel(path) as model, LlamaRuntime(model, CONTEXT) as runtime:
        yield model, runtime


LETTERS = asking("ABCABCDEFABCABCDEF", "QWERTYUIOP", "XYZZYXYZZYXYZ")
TEMPERATURES = (0.0, 1.0, 6.0)


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
        llm.control = Control(Fixed(FLAT), {"model": DraftCost(0.01)})
        assert verify(llm, LETTERS, TEMPERATURES, 30).passed


@pytest.mark.parametrize("n_prompt", range(245, 251))
def test_a_text_that_fills_the_context(llama, n_prompt):
    """A pass over its last tokens had no room for its padding."""
    model, runtime = llama
    prompts = asking(("ABCABCDEF" * 30)[:n_prompt])
    report = verify(build(model, runtime, [SuffixDrafter()], ONE_APART), prompts, n_tokens=999)
    assert report.passed and all(c.n_tokens == CONTEXT.n_ctx - n_prompt - 1 for c in report.comparisons)


def test_without_known_classes_there_is_the_normal_mode_alone(llama):
    model, runtime = llama
    report = verify(build(model, runtime, [SuffixDrafter()]), LETTERS[:1], n_tokens=10)
    assert [c.mode for c in report.comparisons] == ["normal"] and report.exact_cost is None


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
