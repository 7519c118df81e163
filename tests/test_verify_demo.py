"""`lab.verify` on the demo model: it passes as it is, and with none of the planted faults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from comparing import ALL, FLAT, ONE_APART, PADS, UNKNOWN, asking, build, guesses, head, plain_text, verify
from faults import FAULTS, ShiftedPosition, StaleRow
from forced import knowing

from slipstream import Sampling
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.lab.verify import Divergence
from slipstream.runtimes.llamacpp import ContextOptions, LlamaModel, LlamaRuntime

pytestmark = pytest.mark.model

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


def test_the_demo_model_passes_in_both_modes(demo_model, demo, demo_text):
    llm = build(demo_model, demo, [SuffixDrafter(), knowing(demo_text, demo.n_vocab)], ALL)
    report = verify(llm, DEMO, [0.0, 0.9], 14)
    assert report.passed and all(c.identical == c.identical_rows == 1 for c in report.comparisons)
    assert all(c.n_drafted > c.n_accepted for c in report.comparisons)


def test_a_drafter_that_knows_nothing_leaves_the_demo_model_alone(demo_model, demo):
    report = verify(build(demo_model, demo, [guesses(demo.n_vocab)]), DEMO, n_tokens=8)
    assert report.passed and report.comparisons[0].identical and not report.comparisons[0].n_accepted


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_demo_models_path_is_found(demo_model, demo, demo_text, fault):
    drafter = head(knowing(demo_text, demo.n_vocab), 2)
    classes = ALL if fault is ShiftedPosition else UNKNOWN
    assert not verify(build(demo_model, demo, [drafter], classes, PADS, fault), DEMO, n_tokens=10).passed


def test_padding_that_stays_is_found_in_exact_mode(demo_model, demo_apart, demo_text):
    """Each round of plain decoding leaves its padding in the cache, as those with drafts do."""
    llm = build(demo_model, demo_apart, [knowing(demo_text, demo_apart.n_vocab)], ONE_APART, FLAT, StaleRow)
    report = verify(llm, DEMO, n_tokens=8)
    assert [c.mode for c in report.comparisons if not c.passed][-1] == "exact"


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
