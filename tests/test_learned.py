"""What `load` remembers between runs: acceptance, records of drafters, and the corpus in a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_cli import slipstream as command  # noqa: F401 (a fixture)
from tiny_models import write_tiny

import slipstream
from slipstream import LLM, Sampling, estimates, loading
from slipstream.decoding.record import Outcome
from slipstream.drafters.corpus_file import open_corpus
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.errors import InputError
from slipstream.runtimes.llamacpp import ContextOptions

GREEDY = Sampling(temperature=0)
CONTEXT = ContextOptions(n_ctx=256, n_batch=64, n_threads=1)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """A cache directory of the test's own; what is learned lies in `acceptance`."""
    monkeypatch.setattr(estimates, "folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(loading, "WIDTHS_KEPT", 1)  # a busy machine has time for few
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path) -> Path:
    return write_tiny(tmp_path / "tiny.gguf", "llama")


def load(model: Path, **options) -> LLM:
    return slipstream.load(model, context_options=CONTEXT, probe_s=0.02, exact=False, **options)


def suffix(llm: LLM) -> SuffixDrafter:
    (drafter,) = (d for d in llm.drafters if isinstance(d, SuffixDrafter))
    return drafter


def teach(llm: LLM) -> list[float]:
    """Makes the first band of the suffix drafter sure."""
    acceptance = suffix(llm).acceptance
    for _ in range(200):
        acceptance.learn(0, True)
    return list(acceptance.rates)


def test_the_next_run_begins_with_what_was_learned(model):
    with load(model) as llm:
        prior = list(suffix(llm).acceptance.rates)
        rates = teach(llm)
        corpus_rates = list(suffix(llm).corpus_acceptance.rates)
    assert rates[0] > prior[0] + 0.5
    with load(model) as llm:
        assert suffix(llm).acceptance.rates == pytest.approx(rates)
        assert suffix(llm).corpus_acceptance.rates == pytest.approx(corpus_rates)


def test_what_an_answer_taught_is_kept(model):
    with load(model) as llm:
        llm.generate("ABCABCDEFABCABCDEF", GREEDY, 60)
        rates = list(suffix(llm).acceptance.rates)
        assert rates != list(SuffixDrafter().acceptance.rates)
    with load(model) as llm:
        assert suffix(llm).acceptance.rates == pytest.approx(rates)


def test_who_does_not_want_to_remember_reads_nothing_and_leaves_nothing(model, cache):
    prior = list(SuffixDrafter().acceptance.rates)
    with load(model, remember=False) as llm:
        teach(llm)
    assert not (cache / "acceptance").exists()
    with load(model) as llm:
        teach(llm)
    (file,) = (cache / "acceptance").iterdir()
    content = file.read_bytes()
    with load(model, remember=False) as llm:
        assert suffix(llm).acceptance.rates == prior
    assert file.read_bytes() == content


def test_plain_decoding_learns_nothing(model, cache):
    with load(model, draft="off") as llm:
        llm.generate("ABC", GREEDY, 4)
    assert not (cache / "acceptance").exists()


def test_each_draft_model_has_a_record_of_its_own(model, tmp_path):
    """And the suffix drafter beside it: who is asked first, and when, is another story with each."""
    draft = write_tiny(tmp_path / "draft.gguf", "llama", seed=1)
    with load(model, draft=draft) as llm:
        before = llm.control.records["model"].speedup
        for _ in range(60):
            llm.control.learn("model", Outcome(tokens=4.0, draft_s=0.001, pass_s=0.02, plain_s=0.02))
        learned = llm.control.records["model"].speedup
        assert abs(learned - before) > 0.5
    with load(model, draft=draft) as llm:
        assert llm.control.records["model"].speedup == pytest.approx(learned)
    with load(model) as llm:
        teach(llm)
    with load(model, draft=draft) as llm:
        assert suffix(llm).acceptance.rates[0] < 0.9


DAMAGED = ["", "{", "[1]", '{"format": 1}', '{"format": 1, "suffix": 3, "records": [1]}']
DAMAGED += ['{"format": 1, "suffix": {"text": {"rates": [2]}}, "records": {"model": ["x", 1, 2]}}']
HUGE = "1" + "0" * 400
DAMAGED += [f'{{"format": 1, "suffix": {{"text": {{"rates": [0.5], "weights": [{HUGE}], "positions": []}}}}}}']
DAMAGED += [f'{{"format": 1, "records": {{"model": [{HUGE}, 1, 1]}}}}']


@pytest.mark.parametrize("damage", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_file_is_as_good_as_none(model, tmp_path, cache, damage):
    draft = write_tiny(tmp_path / "draft.gguf", "llama", seed=1)
    with load(model, draft=draft) as llm:
        speedup = llm.control.records["model"].speedup
        teach(llm)
    (file,) = (cache / "acceptance").iterdir()
    file.write_text(damage)
    with load(model, draft=draft) as llm:
        assert suffix(llm).acceptance.rates == SuffixDrafter().acceptance.rates
        assert llm.control.records["model"].speedup == pytest.approx(speedup)
        rates = teach(llm)
    assert json.loads(file.read_text())["suffix"]["text"]["rates"] == pytest.approx(rates), "and written anew"


PROMPT = "ABCDEFGHIJ"


def test_a_corpus_in_a_file_serves_the_next_run(model, tmp_path):
    path = tmp_path / "corpus.jsonl"
    with load(model, corpus=path) as llm:
        tokens = llm.generate(PROMPT, GREEDY, 20).tokens
    (text,) = map(json.loads, path.read_text().splitlines()[1:])
    assert text[-20:] == list(tokens), "the last text, too"
    with load(model, corpus=path) as llm:
        assert len(suffix(llm).corpus) == len(text) + 1
        assert llm.generate(PROMPT, GREEDY, 20).tokens == tokens


@pytest.mark.parametrize(("corpus", "n_kept"), [("auto", 2), ("off", 0)])
def test_past_requests_are_kept_in_memory_unless_they_shall_not_be(model, corpus, n_kept):
    with load(model, corpus=corpus) as llm:
        for prompt in PROMPT, PROMPT[::-1], "XYZ":
            llm.generate(prompt, GREEDY, 4)
        assert suffix(llm).corpus._n_texts == n_kept


def test_the_corpus_of_another_vocabulary_is_refused(model, tmp_path):
    open_corpus(tmp_path / "corpus.jsonl", "another", 100).add([1, 2, 3])
    with pytest.raises(InputError, match="another vocabulary"):
        load(model, corpus=tmp_path / "corpus.jsonl")


def test_a_file_of_something_else_is_no_corpus(model, tmp_path):
    (tmp_path / "diary.txt").write_text("Dear diary,\n")
    with pytest.raises(InputError, match="no corpus"):
        load(model, corpus=tmp_path / "diary.txt")
    assert (tmp_path / "diary.txt").read_text() == "Dear diary,\n"


RAW = ("--raw", "-n", 20, "-t", 1, "-c", 256, "--temp", 0)


def test_run_keeps_a_corpus(command, model, tmp_path):  # noqa: F811
    path = tmp_path / "corpus.jsonl"
    first = command("run", model, PROMPT, *RAW, "--corpus", path)
    assert first[0] == 0 and len(path.read_text().splitlines()) == 2
    assert command("run", model, PROMPT, *RAW, "--corpus", path) == first
    assert len(path.read_text().splitlines()) == 3


@pytest.mark.parametrize(("path", "said"), [("diary.txt", "is no corpus"), ("none/corpus.jsonl", "cannot be written")])
def test_a_corpus_that_cannot_be_is_told_in_one_line(command, model, tmp_path, path, said):  # noqa: F811
    (tmp_path / "diary.txt").write_text("Dear diary,\n")
    code, out, err = command("run", model, PROMPT, *RAW, "--corpus", tmp_path / path)
    assert (code, out) == (2, "") and err.startswith("slipstream: ") and err.count("\n") == 1 and said in err
