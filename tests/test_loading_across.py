"""`load` with a draft of another vocabulary: both ways of drafting, the text of plain decoding, and what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from enumeration import Drafting as Drafts
from enumeration import Text
from gguf_files import write_gguf
from test_cli import slipstream as command  # noqa: F401 (a fixture)
from test_intersection import MODELS, SMALL
from test_proofs import OPEN, check
from tiny_models import LETTERS, write_tiny
from toy import AlwaysTake, Clock

import slipstream
from slipstream import LLM, Sampling, estimates
from slipstream.decoding.choice import Choice
from slipstream.decoding.control import ANYWHERE, Control
from slipstream.decoding.cost import CostCurve
from slipstream.decoding.draft import Draft
from slipstream.decoding.drafting import Drafting
from slipstream.decoding.record import DraftCost, Outcome
from slipstream.drafters.intersection import IntersectionDrafter
from slipstream.drafters.model import ModelDrafter
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.drafters.text_drafter import TextDrafter
from slipstream.drafters.translation import twins
from slipstream.errors import ModelError, PairError
from slipstream.lab.verify import verify
from slipstream.lab.workload import Prompt
from slipstream.models.template import ChatTemplate
from slipstream.runtimes.llamacpp import ContextOptions
from slipstream.runtimes.markov import MarkovRuntime

GREEDY = Sampling(temperature=0)
COUPLED = Sampling(temperature=0.8, seed=3)
CONTEXT = ContextOptions(n_ctx=256, n_batch=64, n_threads=1)
OTHER = ("AB", "CD", "BA", *LETTERS[:2:-1])
"""The tiny model's letters under other ids, a few as pairs: texts of the two have other tokens."""

TEXT = "ABCABCDEFABCABCDEFDEFABABCD"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "folder", lambda: tmp_path / "cache")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "target.gguf", "llama")


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "draft.gguf", "llama", pieces=OTHER)


def load(model: Path, draft: Path | str, **options: object) -> LLM:
    return slipstream.load(model, draft=draft, context_options=CONTEXT, probe_s=0.02, **options)  # type: ignore[arg-type]


def eager(llm: LLM, *names: str, n: int = 4) -> LLM:
    """Drafts by these alone, and in every round, whether or not that pays."""
    llm.drafters = tuple(drafter for drafter in llm.drafters if drafter.name in names)
    widths, llm.control = llm.control.widths, AlwaysTake(n)
    llm.control.widths = widths
    return llm


def test_it_drafts_by_common_tokens_and_by_text_each_in_a_context_of_its_own(target: Path, draft: Path) -> None:
    with load(target, draft) as llm:
        suffix, common, text = llm.drafters
        assert isinstance(suffix, SuffixDrafter) and isinstance(text, TextDrafter)
        assert isinstance(common, IntersectionDrafter)
        assert common.runtime is not text.runtime and text.runtime.n_vocab == len(OTHER) + 2
        assert set(llm.control.records) == {"model-common", "model-text"}
        assert all(record.token_s > 0 for record in llm.control.records.values())


def test_with_one_vocabulary_nothing_is_translated(target: Path, tmp_path: Path) -> None:
    with load(target, write_tiny(tmp_path / "same.gguf", "llama", seed=1)) as llm:
        assert [type(drafter) for drafter in llm.drafters] == [SuffixDrafter, ModelDrafter]


@pytest.mark.parametrize("names", [("model-common",), ("model-text",), ("suffix", "model-common", "model-text")])
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("options", [GREEDY, COUPLED, replace(COUPLED, repeat_penalty=1.3)], ids=lambda s: "")
def test_the_text_is_that_of_plain_decoding(
    target: Path, draft: Path, options: Sampling, exact: bool, names: Sequence[str]
) -> None:
    """In both directions: the one draft has tokens of two letters, the other lacks them."""
    for one, other in ((target, draft), (draft, target)):
        with load(one, other, exact=exact) as llm:
            eager(llm, *names)
            answers = [llm.generate(TEXT, options, 60, speculate=speculate) for speculate in (False, True)]
        assert answers[0].tokens == answers[1].tokens
        assert answers[1].statistics.n_drafted > 10 and set(answers[1].statistics.by_drafter) >= set(names)


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_under_the_rejection_rules_it_drafts_in_both_ways_and_a_seed_gives_a_text(
    target: Path, draft: Path, rule: str
) -> None:
    options = replace(COUPLED, verification=rule)
    for name in "model-common", "model-text":
        with load(target, draft, exact=True) as llm:
            answers = [eager(llm, name).generate(TEXT, options, 40) for _ in range(2)]
        assert answers[0].tokens == answers[1].tokens
        assert answers[0].statistics.by_drafter[name][0] > 5


def test_verify_finds_the_same_text_and_the_same_bits(target: Path, draft: Path) -> None:
    with load(target, draft) as llm:
        llm.template = ChatTemplate("{{ messages[0].content }}")
        prompts = [Prompt(str(i), "test", ({"role": "user", "content": TEXT[i:]},)) for i in range(3)]
        report = verify(eager(llm, "model-common", "model-text"), prompts, (0.0, 0.8), 24, 0, ("normal", "exact"))
    assert report.passed and all(c.identical == c.prompts and c.n_drafted for c in report.comparisons)


def test_what_was_learned_of_each_way_is_there_at_the_next_load(target: Path, draft: Path) -> None:
    with load(target, draft) as llm:
        for _ in range(60):
            llm.control.learn("model-text", Outcome(tokens=4.0, draft_s=0.001, pass_s=0.02, plain_s=0.02))
        learned = {name: record.speedup for name, record in llm.control.records.items()}
    with load(target, draft) as llm:
        assert {name: r.speedup for name, r in llm.control.records.items()} == pytest.approx(learned, rel=0.01)
        assert llm.control.hope("model-text") > llm.control.hope("model-common")


# What is refused


def test_a_recurrent_model_of_another_vocabulary_cannot_draft(target: Path, tmp_path: Path) -> None:
    with pytest.raises(PairError, match="cannot draft: its architecture"):
        load(target, write_tiny(tmp_path / "mamba.gguf", "mamba", pieces=OTHER))


def test_a_head_cannot_draft(target: Path, tmp_path: Path) -> None:
    head = write_gguf(tmp_path / "head.gguf", extra={"llama.nextn_predict_layers": 1})
    with pytest.raises(PairError, match=r"head\.gguf cannot draft: it is an MTP head"):
        load(target, head)


def test_a_draft_without_weights_is_an_error_for_a_person(target: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"other\.gguf cannot be loaded"):
        load(target, write_gguf(tmp_path / "other.gguf"))


# Both ways in one round


def both(faster: str) -> Drafts:
    """Control asks for drafts, one of the two ways being far cheaper. Nothing is learned from round to round."""
    pair = twins(*SMALL)

    def draft(text: Text, choice: Choice) -> Draft:
        runtimes = [MarkovRuntime(MODELS[1].table) for _ in range(2)]
        drafters = [IntersectionDrafter(runtimes[0], *SMALL, pair), TextDrafter(runtimes[1], *SMALL, pair)]
        costs = {drafter.name: DraftCost(0.01 if drafter.name == faster else 0.1) for drafter in drafters}
        for drafter in drafters:
            drafter.begin(0, text)
        control = Control(CostCurve({1: 1.0, 33: 1.1}), costs)
        proposal = Drafting(drafters, control, Clock()).propose(0, 2, choice, ANYWHERE)
        assert proposal.asked[0].drafter == faster
        return proposal.draft

    return draft


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("faster", ["model-common", "model-text"])
def test_whoever_is_asked_first_the_law_of_the_text_is_that_of_the_target(faster: str, rule: str) -> None:
    """Exact, over every outcome. A draft that was drawn is never weighed against one that was not."""
    check(MODELS[0], replace(OPEN, verification=rule), both(faster), 3)


# A real pair


QWEN = "SLIPSTREAM_QWEN_MODEL"
PROMPT = "def area(width, height):\n    return width * height\n\ndef volume(width, height, depth):\n    return"


@pytest.mark.model
@pytest.mark.skipif(QWEN not in os.environ, reason=f"{QWEN} names no Qwen2.5-Coder model")
@pytest.mark.parametrize("swapped", [False, True], ids=["smollm2 for qwen", "qwen for smollm2"])
def test_a_real_pair_writes_the_text_of_plain_decoding(smollm2_path: Path, swapped: bool) -> None:
    """With the prompt read anew and in passes of three tokens at most: their rows are bit by bit those of plain
    decoding (docs/lossless.md)."""
    one, other = Path(os.environ[QWEN]), smollm2_path
    with load(*((other, one) if swapped else (one, other)), exact=False) as llm:
        for options in GREEDY, COUPLED:
            plain = llm.generate(PROMPT, options, 24, speculate=False)
            for name in "model-common", "model-text":
                drafters = llm.drafters
                llm.forget()
                answer = eager(llm, name, n=2).generate(PROMPT, options, 24)
                llm.drafters = drafters
                assert answer.tokens == plain.tokens
                assert answer.statistics.n_accepted > 3 or options is COUPLED


@pytest.mark.model
@pytest.mark.skipif(QWEN not in os.environ, reason=f"{QWEN} names no Qwen2.5-Coder model")
def test_the_statistics_and_the_trace_of_a_real_pair_name_both_ways(command, smollm2_path, tmp_path) -> None:  # noqa: F811
    trace = tmp_path / "trace.jsonl"
    options = ["--draft", smollm2_path, "--raw", "-n", 12, "--temp", 0, "-t", 1, "-c", 256, "--trace", trace]
    code, out, err = command("run", os.environ[QWEN], PROMPT, *options, "--json")
    assert (code, err) == (0, "")
    assert set(json.loads(out)["statistics"]["by_drafter"]) >= {"suffix", "model-common", "model-text"}
    head = json.loads(trace.read_text(encoding="utf-8").splitlines()[0])
    assert head["drafters"] == ["suffix", "model-common", "model-text"]
