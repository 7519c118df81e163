"""Exact mode on llama.cpp: the same tokens and bit-identical log-probabilities, whatever is drafted.

The tiny models do it at length and on every kind of cache; the demo model shows it where it is meant to be used, also
without flash attention, where width 1 stands alone and plain decoding pads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from forced import Fixed, drafting, forget, knowing
from tiny_models import write_tiny
from width_toy import WIDTHS_OF

import slipstream
from slipstream import LLM, Sampling, estimates
from slipstream.decoding.protocols import Drafter
from slipstream.decoding.widths import PAGE, WIDTHS, Band, WidthClasses
from slipstream.drafters.model import ModelDrafter
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.llm import Completion
from slipstream.runtimes.llamacpp import ContextOptions, LlamaModel, LlamaRuntime

SAMPLINGS = {
    "greedy": Sampling(temperature=0),
    "0.7": Sampling(temperature=0.7, seed=3),
    "1.2": Sampling(temperature=1.2, top_k=0, top_p=1, min_p=0, seed=4),
    "top-p": Sampling(temperature=1.0, top_k=0, top_p=0.8, min_p=0, seed=5),
    "penalties": Sampling(temperature=0.9, repeat_penalty=1.3, presence_penalty=0.4, repeat_last_n=30, seed=6),
}
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


def answer(llm: LLM, prompt: str, sampling: Sampling, n: int | None, speculate: bool) -> Completion:
    """Goes on behind the end of the text: all answers are as long as asked for."""
    generation = llm.stream(prompt, sampling, n, speculate=speculate, ignore_end=True, logprobs=3)
    for _ in generation:
        pass
    return generation.completion()


Ask = Callable[[bool], Completion]


def check_arms(llm: LLM, prompt: list[int], ask: Ask, lengths: Sequence[int], drafters: Sequence[Drafter]) -> None:
    """Plain decoding, the LLM's own drafters, forced lengths, and other drafters one by one."""
    plain = ask(False)
    assert plain.statistics.exact and not plain.statistics.n_drafted and len(plain.logprobs) == len(plain.tokens)
    drafted = [ask(True)]
    whole = [*prompt, *plain.tokens]
    for n in lengths:
        with drafting(llm, n, [knowing(whole, llm.runtime.n_vocab)]):
            drafted.append(ask(True))
            s = drafted[-1].statistics
            if llm.control.widths != (1,):
                assert s.n_accepted > 0 and (n < 4 or s.n_accepted < s.n_drafted), "and some were rejected"
    for drafter in drafters:
        with drafting(llm, 5, [drafter]):
            drafted.append(ask(True))
    for answer in drafted:
        assert answer.tokens == plain.tokens
        assert answer.logprobs == plain.logprobs, "to the last bit"
        assert answer.text == plain.text and answer.statistics.exact


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The estimates of this file's tiny models."""
    path = tmp_path_factory.mktemp("tiny")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(estimates, "folder", lambda: path)
        yield path


CONTEXT = ContextOptions(n_ctx=320, n_batch=128, n_threads=1)
SEED = 2
"""Its texts are more varied than those of other seeds."""


def load_tiny(folder: Path, architecture: str, **options) -> LLM:
    path = folder / f"{architecture}.gguf"
    if not path.exists():
        write_tiny(path, architecture, SEED)
    options = {"context_options": CONTEXT, "probe_s": 0.02, "exact": True, "width_probe": "whole", **options}
    return slipstream.load(path, template=TEMPLATE, **options)


@pytest.fixture(scope="module")
def tiny_drafts(folder) -> Iterator[list[Drafter]]:
    """The same model, which is always right, and another, which never is."""
    paths = [write_tiny(folder / f"draft-{seed}.gguf", "llama", seed) for seed in (SEED, 7)]
    models = [LlamaModel(path) for path in paths]
    runtimes = [LlamaRuntime(model, CONTEXT) for model in models]
    yield [ModelDrafter(runtime, runtime.n_vocab) for runtime in runtimes]
    for opened in *runtimes, *models:
        opened.close()


OTHER_KINDS = [("llama", "off"), ("gemma3", "auto"), ("lfm2", "auto"), ("mamba", "auto")]
LETTERS = "ABCABCDEFABCABCDEFABCABC"


KINDS = [
    *(("llama", "auto", sampling) for sampling in SAMPLINGS),
    *((*kind, sampling) for kind in OTHER_KINDS for sampling in ("0.7", "penalties")),
]


@pytest.mark.parametrize(("architecture", "flash_attn", "sampling"), KINDS)
def test_to_the_end_of_the_context_on_any_kind_of_cache(folder, tiny_drafts, architecture, flash_attn, sampling):
    with load_tiny(folder, architecture, context_options=replace(CONTEXT, flash_attn=flash_attn)) as llm:
        assert llm.control.widths == WIDTHS_OF.get(architecture, WIDTHS[1:])

        def ask(speculate: bool) -> Completion:
            forget(llm)
            return answer(llm, LETTERS, SAMPLINGS[sampling], None, speculate)

        prompt = llm.prompt_tokens(LETTERS)
        check_arms(llm, prompt, ask, (3, 31), tiny_drafts)
        assert len(prompt) + len(ask(True).tokens) == CONTEXT.n_ctx > PAGE


@pytest.mark.parametrize("architecture", ["llama", "lfm2"])
def test_behind_the_probes_reach_nothing_is_said_to_be_exact(folder, architecture):
    options = ContextOptions(n_ctx=1024, n_batch=64, n_threads=1)
    with load_tiny(folder, architecture, context_options=options, width_probe="short") as llm:
        assert llm.classes.reach == 2 * PAGE
        for n_prompt, n_new, exact in (100, 50, True), (490, 10, True), (490, 60, False), (600, 10, False):
            text = (LETTERS * 30)[:n_prompt]
            for speculate in True, False:
                forget(llm)
                said = answer(llm, text, SAMPLINGS["0.7"], n_new, speculate)
                assert said.statistics.exact == exact


def test_what_follows_an_inexact_answer_in_the_cache_is_not_exact(folder):
    with load_tiny(folder, "llama", exact=False) as llm:
        assert llm.control.widths == ()
        first = llm.generate(LETTERS, SAMPLINGS["greedy"], 20)
        assert first.statistics.n_drafted and not first.statistics.exact, "widths 1 and others, which part here"
        second = llm.generate(LETTERS + first.text + "XY", SAMPLINGS["greedy"], 1, speculate=False)
        assert second.statistics.n_cached > len(LETTERS) - 2 and not second.statistics.exact
        fresh = llm.generate("XYZ", SAMPLINGS["greedy"], 5, speculate=False)
        assert fresh.statistics.n_cached == 0 and fresh.statistics.exact


@pytest.mark.parametrize("speculate", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "lfm2", "mamba"])
def test_the_same_prompt_twice_gives_the_same_bits_though_it_lies_in_the_cache(folder, architecture, speculate):
    """Its last token was read in one pass with the rest at first, and alone the second time."""
    with load_tiny(folder, architecture) as llm:
        text, sampling = (LETTERS * 5)[:100], SAMPLINGS["0.7"]
        first = llm.generate(text, sampling, 10, speculate=False, logprobs=2)
        second = llm.generate(text, sampling, 10, speculate=speculate, logprobs=2)
        assert first.statistics.exact and second.statistics.exact
        assert (second.tokens, second.logprobs) == (first.tokens, first.logprobs)


Turn = tuple[str, list[str]]
"""What is asked, and the stop strings."""


@dataclass(frozen=True)
class Said:
    """An answer, and how many tokens the cache held behind its last but one when it was given."""

    answer: Completion
    n_behind: int


def chat(
    llm: LLM, sampling: Sampling, turns: Sequence[Turn], answers: Sequence[Completion] = (), n: int = 0
) -> list[Said]:
    """A conversation; n tokens at a time are drafted by one who knows the answers. Plain decoding where n is 0."""
    forget(llm)
    messages: list[dict[str, str]] = []
    said: list[Said] = []
    for turn, (question, stop) in enumerate(turns):
        messages.append({"role": "user", "content": question})
        known = [*llm.prompt_tokens(messages), *(answers[turn].tokens if answers else ())]
        with drafting(llm, max(n, 1), [knowing(known, llm.runtime.n_vocab, 97), SuffixDrafter()]):
            answer = llm.generate(messages, sampling, 14, stop, speculate=n > 0, logprobs=2)
        n_text = answer.statistics.n_prompt + len(answer.tokens) - 1
        said.append(Said(answer, llm.runtime.held(0) - n_text))
        messages.append({"role": "assistant", "content": answer.text})
    return said


def check_chat(llm: LLM, sampling: Sampling, questions: Sequence[str], lengths: Sequence[int]) -> None:
    """Three turns; the second is ended by a stop string, and a draft went on behind it."""
    first = chat(llm, sampling, [(question, []) for question in questions[:2]])
    text = first[1].answer.text
    stop = text[len(text) // 2 :][:3]
    turns = [(question, [stop] if turn == 1 else []) for turn, question in enumerate(questions)]
    plain = [said.answer for said in chat(llm, sampling, turns)]
    assert plain[1].finish_reason == "stop" and stop not in plain[1].text
    known = [plain[0], first[1].answer, plain[2]]
    for n in lengths:
        drafted = chat(llm, sampling, turns, known, n)
        for said, true in zip(drafted, plain, strict=True):
            one = said.answer
            assert (one.text, one.tokens, one.logprobs) == (true.text, true.tokens, true.logprobs)
            assert one.statistics.exact and true.statistics.exact and one.statistics.n_accepted
            assert one.statistics.n_cached == true.statistics.n_cached
        assert drafted[1].n_behind > 0 or n < 5


@pytest.mark.parametrize("sampling", ["greedy", "1.2", "penalties"])
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "lfm2"])
def test_a_chat_with_a_stop_string_inside_a_draft(folder, architecture, sampling):
    with load_tiny(folder, architecture) as llm:
        check_chat(llm, SAMPLINGS[sampling], ["ABCABC", "DEFGHI", "XYZXYZ"], (2, 9))


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "lfm2"])
def test_what_a_draft_wrote_behind_a_stop_string_is_not_found_in_the_cache(folder, architecture):
    """Plain decoding would have to read it."""
    with load_tiny(folder, architecture) as llm:
        whole = llm.generate(LETTERS, SAMPLINGS["1.2"], 20, speculate=False)
        known = [*llm.prompt_tokens(LETTERS), *whole.tokens]
        for start in range(1, 6):
            stop = whole.text[start : start + 2]
            arms = []
            for speculate in False, True:
                forget(llm)
                with drafting(llm, 12, [knowing(known, llm.runtime.n_vocab, 1000)]):
                    stopped = llm.generate(LETTERS, SAMPLINGS["1.2"], 20, [stop], speculate=speculate)
                n_text = stopped.statistics.n_prompt + len(stopped.tokens) - 1
                assert llm.runtime.held(0) > n_text or not speculate, "it wrote there"
                after = llm.generate(LETTERS + whole.text[:12] + "Z", SAMPLINGS["0.7"], 6, logprobs=2)
                assert after.statistics.exact and after.statistics.n_cached <= n_text
                arms.append((after.tokens, after.logprobs, after.statistics.n_cached))
            assert arms[0] == arms[1]


def test_a_pass_with_a_number_of_outputs_that_was_not_compared_is_not_exact(folder, monkeypatch):
    """Ten wide with nine outputs: rows without an output leave the last layer early."""
    with load_tiny(folder, "llama", exact=False) as llm:
        monkeypatch.setattr(llm, "classes", WidthClasses((Band(64, 8, (WIDTHS,), 0.0, 0),)))
        known = [*llm.prompt_tokens(LETTERS), *llm.generate(LETTERS, SAMPLINGS["greedy"], 40).tokens]
        for n, exact in (7, True), (8, False):
            forget(llm)
            with drafting(llm, n, [knowing(known, llm.runtime.n_vocab, 1000)]):
                llm.control.cost = Fixed({1: 1.0, 8: 1.1, 9: 1.2, 10: 1.0, 33: 9.0})
                answer = llm.generate(LETTERS, SAMPLINGS["greedy"], 1 + 2 * (n + 1))
            assert answer.statistics.n_accepted == 2 * n and answer.statistics.exact == exact


def test_a_text_that_shares_a_beginning_with_what_was_drafted(folder):
    """How far a recurrent cache could be taken back depended on how the answer before had been drafted."""
    with load_tiny(folder, "lfm2") as llm:
        text = (LETTERS * 5)[:90]
        answer = llm.generate(text, SAMPLINGS["greedy"], 12, speculate=False)
        known = [*llm.prompt_tokens(text), *answer.tokens]
        for kept in range(1, 12):
            again = []
            for speculate in False, True:
                forget(llm)
                with drafting(llm, 5, [knowing(known, llm.runtime.n_vocab, 1000)]):
                    llm.generate(text, SAMPLINGS["greedy"], 12, speculate=speculate)
                shorter = text + "".join(chr(ord("A") + t - 2) for t in answer.tokens[:kept])
                again.append(llm.generate(shorter + "B", SAMPLINGS["greedy"], 4, speculate=False, logprobs=2))
            assert again[0].logprobs == again[1].logprobs and again[0].statistics.exact


DEMO_PROMPT = "Repeat: one two three, one two three, one two"
N_NEW = 10


@pytest.fixture(scope="module")
def demo_cache(session_cache: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(estimates, "folder", lambda: session_cache / "slipstream")
        yield


def load_demo(path: Path, flash_attn: str, **options) -> LLM:
    context = ContextOptions(n_ctx=512 if flash_attn == "auto" else 256, n_threads=1, flash_attn=flash_attn)
    return slipstream.load(path, context_options=context, exact=True, probe_s=0.2, template=TEMPLATE, **options)


@pytest.fixture(scope="module", params=["auto", "off"])
def demo(request, demo_cache, smollm2_path, small_draft_path) -> Iterator[LLM]:
    """The demo model with a small draft model; without flash attention its width 1 stands alone."""
    with load_demo(smollm2_path, request.param, draft=small_draft_path) as llm:
        assert llm.control.widths == (WIDTHS if request.param == "auto" else WIDTHS[1:])
        yield llm


@pytest.mark.model
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_demo_model_with_any_drafter_and_any_length(demo, sampling):
    chosen = SAMPLINGS[sampling]

    def ask(speculate: bool) -> Completion:
        return answer(demo, DEMO_PROMPT, chosen, N_NEW, speculate)

    demo.generate(DEMO_PROMPT, chosen, 1)
    check_arms(demo, demo.prompt_tokens(DEMO_PROMPT), ask, (1, 3, 7), demo.drafters)


@pytest.mark.model
def test_a_chat_of_the_demo_model(demo):
    check_chat(demo, Sampling(temperature=0.7, seed=2), ["Say one two three.", "And four?", "Again."], (9,))
