"""`load` and `LLM` on the demo model: texts, ends, the cache between answers, statistics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from forced import Fixed
from tiny_models import write_tiny

import slipstream
from slipstream import LLM, Sampling, estimates, loading
from slipstream.decoding.control import Control
from slipstream.decoding.cost import CostCurve
from slipstream.decoding.record import DraftCost
from slipstream.drafters.model import ModelDrafter
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.errors import InputError, PairError, SlipstreamError, TemplateError
from slipstream.llm import Completion
from slipstream.runtimes.llamacpp import ContextOptions, LlamaModel, LlamaRuntime

model_needed = pytest.mark.model
GREEDY = Sampling(temperature=0)
CONTEXT = ContextOptions(n_ctx=512, n_threads=1)
REPETITIVE = "猫は椅子で眠る。犬は庭で遊ぶ。\n猫は椅子で眠る。犬は庭で遊ぶ。\n猫は椅子で"
EDIT = "Repeat this exactly:\nfor i in range(10):\n    print(i)\nfor j in range(10):\n    print(j)"
FLAT = {1: 1.0, 33: 1.5}


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def weights(smollm2_path: Path) -> Iterator[LlamaModel]:
    with LlamaModel(smollm2_path) as model:
        yield model


@pytest.fixture(scope="module")
def template(smollm2_path: Path):
    from slipstream.models.gguf import read_gguf
    from slipstream.models.template import ChatTemplate

    return ChatTemplate.of(read_gguf(smollm2_path))


@pytest.fixture(scope="module")
def runtime(weights: LlamaModel) -> Iterator[LlamaRuntime]:
    with LlamaRuntime(weights, CONTEXT) as runtime:
        yield runtime


@pytest.fixture
def llm(weights, template, runtime) -> LLM:
    """A fresh LLM over one context; wide passes cost little to it, so that it drafts."""
    runtime.keep(0, 0)
    return LLM(weights.tokenizer, runtime, Control(CostCurve(FLAT)), [SuffixDrafter()], template)


@pytest.fixture
def fresh(weights, template):
    """Makes LLMs with contexts of their own."""

    @contextmanager
    def make(options: ContextOptions = CONTEXT) -> Iterator[LLM]:
        with LlamaRuntime(weights, options) as own:
            yield LLM(weights.tokenizer, own, Control(CostCurve(FLAT)), [SuffixDrafter()], template)

    return make


def decoded(llm: LLM, tokens: tuple[int, ...]) -> str:
    return b"".join(map(llm.tokenizer.piece, tokens)).decode("utf-8", "replace")


@model_needed
def test_a_stop_string_ends_the_answer_wherever_tokens_part(llm):
    whole = llm.generate(EDIT, GREEDY, 24, speculate=False).text
    for start in 5, 11, 20:
        stop = whole[start : start + 7]
        for speculate in False, True:
            answer = llm.generate(EDIT, GREEDY, 24, [stop], speculate=speculate)
            assert answer.text == whole[: whole.index(stop)] and answer.finish_reason == "stop"
            assert stop in decoded(llm, answer.tokens), "the tokens are those up to the stop string"
            assert stop not in decoded(llm, answer.tokens[:-1])
            assert answer.statistics.n_tokens == len(answer.tokens)


@model_needed
def test_what_might_become_a_stop_string_is_shown_in_the_end(llm):
    whole = llm.generate(EDIT, GREEDY, 12)
    assert llm.generate(EDIT, GREEDY, 12, [whole.text[-3:] + "\0"]).text == whole.text


@model_needed
@pytest.mark.parametrize("speculate", [False, True])
def test_characters_come_whole(llm, speculate):
    generation = llm.stream(REPETITIVE, GREEDY, 24, speculate=speculate)
    pieces = [piece.text for piece in generation]
    answer = generation.completion()
    raw = b"".join(map(llm.tokenizer.piece, answer.tokens))
    assert answer.text == "".join(pieces) == raw.decode("utf-8", "replace")
    assert any(ord(c) > 0x3000 for c in answer.text)
    assert "\N{REPLACEMENT CHARACTER}" not in raw.decode("utf-8", "ignore")
    assert "\N{REPLACEMENT CHARACTER}" not in answer.text[:-1], "nothing but a character cut off at the very end"


@model_needed
@pytest.mark.parametrize("n", [1, 2, 7])
def test_max_tokens(llm, n):
    answer = llm.generate(EDIT, GREEDY, n)
    assert len(answer.tokens) == n == answer.statistics.n_tokens and answer.finish_reason == "length"


@model_needed
def test_an_answer_ends_by_itself(llm):
    answer = llm.generate(user("Say yes."), GREEDY, 100)
    assert answer.finish_reason == "stop" and llm.tokenizer.is_eog(answer.tokens[-1])
    assert "<|im_end|>" not in answer.text and answer.text == decoded(llm, answer.tokens[:-1])


@model_needed
@pytest.mark.parametrize(
    "arguments",
    [
        {"prompt": "word " * 600},
        {"prompt": ""},
        {"prompt": "a", "max_tokens": 0},
        {"prompt": "a", "stop": [""]},
        {"prompt": "a", "sampling": Sampling(logit_bias={10**6: 1.0})},
    ],
)
def test_what_cannot_be_asked(llm, arguments):
    with pytest.raises(InputError):
        llm.stream(**arguments)
    assert llm.generate("a", GREEDY, 2).tokens, "and the model is as it was"


@model_needed
def test_messages_without_a_template(weights, runtime):
    runtime.keep(0, 0)
    with pytest.raises(TemplateError, match="no chat template"):
        LLM(weights.tokenizer, runtime, Control(CostCurve(FLAT)), []).stream(user("a"))


@model_needed
@pytest.mark.parametrize("speculate", [False, True])
def test_a_context_that_fills_up_ends_the_answer(fresh, speculate):
    with fresh(ContextOptions(n_ctx=48, n_threads=1)) as small:
        answer = small.generate("one two three one two three one two three", GREEDY, speculate=speculate)
        assert answer.finish_reason == "length"
        assert answer.statistics.n_prompt + len(answer.tokens) == 48


@model_needed
@pytest.mark.parametrize("leave", ["break", "close", "never started", "another one"])
def test_an_answer_left_early_leaves_the_model_usable(llm, fresh, leave):
    generation = llm.stream(EDIT, GREEDY, 60)
    if leave != "never started":
        for i, _ in enumerate(generation):
            if i == 3:
                break
    if leave == "close":
        generation.close()
    if leave != "another one":
        assert leave == "never started" or generation.finish_reason == "interrupted"
    after = llm.generate(EDIT + "\nAgain:", GREEDY, 16)
    with fresh() as other:
        assert after.tokens == other.generate(EDIT + "\nAgain:", GREEDY, 16).tokens
    assert list(generation) == [] and generation.completion().finish_reason == "interrupted"


@model_needed
def test_an_error_on_the_way_leaves_the_model_usable(llm, runtime, monkeypatch):
    want = llm.generate(EDIT, GREEDY, 12)
    real, calls = runtime.forward, iter(range(100))

    def forward(rows):
        if next(calls) == 3:
            raise RuntimeError("gives up")
        return real(rows)

    monkeypatch.setattr(runtime, "forward", forward)
    with pytest.raises(RuntimeError):
        llm.generate(EDIT, GREEDY, 60)
    assert llm.generate(EDIT, GREEDY, 12).tokens == want.tokens


@model_needed
def test_a_second_turn_reuses_the_cache_and_gives_the_same_answer(llm, fresh):
    messages = user("Name two colours.")
    first = llm.generate(messages, GREEDY, 20)
    assert first.statistics.n_cached == 0
    messages += [{"role": "assistant", "content": first.text}, *user("And one more?")]
    second = llm.generate(messages, GREEDY, 16)
    assert second.statistics.n_cached > len(llm.prompt_tokens(messages[:1]))
    with fresh() as other:
        # Read as the first one read it: the widths of the passes are part of the arithmetic.
        other.generate(messages[:1], GREEDY, 20, speculate=False)
        assert other.generate(messages, GREEDY, 16, speculate=False).tokens == second.tokens
    with fresh() as other:
        unread = other.generate(messages, GREEDY, 16)
        assert unread.statistics.n_cached == 0 and unread.tokens == second.tokens


@model_needed
def test_the_same_prompt_twice_reads_its_last_token_alone(llm):
    first = llm.generate(EDIT, GREEDY, 10)
    second = llm.generate(EDIT, GREEDY, 10)
    assert second.tokens == first.tokens
    assert second.statistics.n_cached == second.statistics.n_prompt - 1


@model_needed
def test_the_same_prompt_twice_with_a_draft_model(weights, runtime, template, small_draft_path):
    """The draft's cache held all of it, and there was no row to draft from: an IndexError."""
    runtime.keep(0, 0)
    with LlamaModel(small_draft_path) as small, LlamaRuntime(small, CONTEXT) as small_runtime:
        drafter = ModelDrafter(small_runtime, runtime.n_vocab)
        control = Control(Fixed({1: 1.0, 33: 1.01}), {"model": DraftCost(1e-4)})
        llm = LLM(weights.tokenizer, runtime, control, [drafter], template)
        answers = [llm.generate(user("Hello!"), GREEDY, 12, speculate=s) for s in (True, True, False)]
    assert answers[0].tokens == answers[1].tokens == answers[2].tokens
    assert answers[1].statistics.n_drafted > 0


@model_needed
def test_statistics_add_up(llm):
    generation = llm.stream(REPETITIVE, GREEDY, 40)
    pieces = list(generation)
    s = generation.completion().statistics
    assert s.n_tokens == len(generation.tokens) == 1 + s.n_decoded
    assert generation.finish_reason == "length"
    assert s.n_decoded == s.n_rounds + s.n_accepted, "a bonus token each round, and what was accepted"
    assert s.n_drafted >= s.n_accepted > 0
    assert sum(s.accepted) == s.n_accepted and s.acceptance_rate == s.n_accepted / s.n_drafted
    assert all(0 <= rate <= 1 for rate in s.acceptance_by_position)
    assert [sum(c[i] for c in s.by_drafter.values()) for i in (0, 1)] == [s.n_drafted, s.n_accepted]
    assert s.tokens_per_second > 0 and s.ttft_s > 0 and s.decode_s > 0 and s.mean_tokens_per_pass > 1
    assert any(piece.drafted for piece in pieces) and not all(piece.drafted for piece in pieces)
    data = json.loads(json.dumps(s.to_data(), allow_nan=False))
    assert data["tokens"] == s.n_tokens and data["by_drafter"]["suffix"]["accepted"] == s.n_accepted


@model_needed
def test_without_speculation_nothing_is_drafted(llm):
    s = llm.generate(EDIT, GREEDY, 12, speculate=False).statistics
    assert s.n_drafted == 0 and s.n_rounds == 11 and s.acceptance_rate is None and not s.by_drafter


@model_needed
def test_a_banned_token_is_never_written(llm):
    token = llm.generate(EDIT, GREEDY, 1).tokens[0]
    for sampling in Sampling(temperature=0, logit_bias={token: float("-inf")}), Sampling(logit_bias={token: -1e30}):
        assert token not in llm.generate(EDIT, sampling, 16).tokens


@model_needed
def test_a_seed_gives_the_same_text_with_and_without_drafts(llm):
    for seed in range(3):
        sampling = Sampling(temperature=0.9, seed=seed, repeat_penalty=1.1)
        assert llm.generate(EDIT, sampling, 16).tokens == llm.generate(EDIT, sampling, 16, speculate=False).tokens


@model_needed
def test_a_closed_model_says_so(smollm2_path, own_cache):
    """It read freed memory."""
    llm = slipstream.load(smollm2_path, draft="off", context_options=CONTEXT)
    generation = llm.stream("a b c", GREEDY, 30)
    assert next(iter(generation))
    running = llm.stream("a b c", GREEDY, 30)
    iterator = iter(running)
    next(iterator)
    llm.close()
    llm.close()
    assert list(iterator) == [] and running.finish_reason == "interrupted"
    for use in (lambda: llm.generate("a"), lambda: llm.stream("a"), lambda: llm.prompt_tokens("a")):
        with pytest.raises(SlipstreamError, match="closed"):
            use()


def new_load(path: Path, told: list[str], **options) -> Completion:
    with slipstream.load(
        path,
        context_options=CONTEXT,
        probe_s=1.0,
        exact=False,
        progress=lambda doing, done: told.append(doing),
        **options,
    ) as llm:
        return llm.generate(EDIT, GREEDY, 6)


@pytest.fixture
def empty_cache(tmp_path, monkeypatch, own_cache) -> Path:
    monkeypatch.setattr(estimates, "folder", lambda: tmp_path)
    monkeypatch.setattr(loading, "WIDTHS_KEPT", 1)  # a busy machine has time for few
    return tmp_path / "cost"


@model_needed
def test_what_was_measured_serves_the_next_load(smollm2_path, empty_cache):
    first: list[str] = []
    second: list[str] = []
    assert new_load(smollm2_path, first).tokens == new_load(smollm2_path, second).tokens
    assert any("measuring" in doing for doing in first) and not any("measuring" in doing for doing in second)


@model_needed
@pytest.mark.parametrize("damage", ["", "{", "[1]", '{"format": 1, "seconds": {"2": 0.1}}'])
def test_a_damaged_cost_file_is_measured_anew(smollm2_path, empty_cache, damage):
    new_load(smollm2_path, [])
    (file,) = empty_cache.iterdir()
    file.write_text(damage)
    told: list[str] = []
    new_load(smollm2_path, told)
    assert any("measuring" in doing for doing in told)
    assert json.loads(file.read_text())["seconds"]["1"] > 0


@model_needed
def test_a_cost_file_with_a_number_beyond_all_floats_is_measured_anew(smollm2_path, empty_cache):
    new_load(smollm2_path, [])
    (file,) = empty_cache.iterdir()
    file.write_text('{"format": 1, "seconds": {"1": 1' + "0" * 400 + "}}")
    new_load(smollm2_path, [])
    assert 0 < json.loads(file.read_text())["seconds"]["1"] < 60


@model_needed
@pytest.mark.parametrize("n_batch", [1, 4])
def test_a_batch_smaller_than_the_probe_s_prefix(smollm2_path, empty_cache, n_batch):
    options = ContextOptions(n_ctx=64, n_threads=1, n_batch=n_batch)
    with slipstream.load(smollm2_path, context_options=options, probe_s=0.1) as llm:
        assert llm.generate("one two three", GREEDY, 4).tokens


@model_needed
def test_a_loaded_draft_model_drafts_for_the_same_text(smollm2_path, small_draft_path, own_cache):
    answers = []
    for draft in "off", small_draft_path:
        with slipstream.load(smollm2_path, draft=draft, context_options=CONTEXT, probe_s=0.2) as llm:
            answers.append(llm.generate(user("Hello!"), GREEDY, 10).tokens)
    assert answers[0] == answers[1]


def tiny(tmp_path: Path, architecture: str, **options) -> LLM:
    path = write_tiny(tmp_path / f"{architecture}.gguf", architecture)
    context = ContextOptions(n_ctx=256, n_batch=64, n_threads=1)
    return slipstream.load(path, context_options=context, probe_s=0.05, **options)


TINY_TEXT = "ABCABCDEFABCABCDEFABCABC"


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "lfm2", "mamba"])
def test_any_kind_of_cache_gives_the_same_text_after_whatever_happened(tmp_path, empty_cache, architecture):
    """Texts that share a beginning with what the cache holds, answers left early, failed passes."""
    with tiny(tmp_path, architecture) as llm:
        prompts = [TINY_TEXT, TINY_TEXT[:-2], TINY_TEXT + "XYZ", TINY_TEXT, TINY_TEXT[:5]]
        wanted = []
        for prompt in prompts:
            llm.runtime.keep(0, 0)
            llm._cached = []
            wanted.append(llm.generate(prompt, GREEDY, 20, speculate=False).tokens)
        for speculate in False, True:
            for prompt, want in zip(prompts, wanted, strict=True):
                assert llm.generate(prompt, GREEDY, 20, speculate=speculate).tokens == want
                for i, _ in enumerate(llm.stream(prompt, GREEDY, 20, speculate=speculate)):
                    if i == 4:
                        break


@pytest.mark.parametrize("architecture", ["llama", "lfm2", "mamba"])
@pytest.mark.parametrize("failing", [0, 1, 3])
def test_any_kind_of_cache_survives_a_pass_that_fails(tmp_path, empty_cache, architecture, failing, monkeypatch):
    """Recurrent models hold nothing after it."""
    with tiny(tmp_path, architecture) as llm:
        want = llm.generate(TINY_TEXT, GREEDY, 12, speculate=False).tokens
        real, calls = llm.runtime._decode, iter(range(1000))

        def decode(width):
            real(width)
            if next(calls) == failing:
                raise KeyboardInterrupt

        monkeypatch.setattr(llm.runtime, "_decode", decode)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(TINY_TEXT + "A", GREEDY, 30, speculate=False)
        assert llm.generate(TINY_TEXT, GREEDY, 12, speculate=False).tokens == want


@pytest.mark.parametrize("architecture", ["lfm2", "mamba"])
def test_a_recurrent_model_cannot_draft(tmp_path, empty_cache, architecture):
    draft = write_tiny(tmp_path / "draft.gguf", architecture)
    with pytest.raises(PairError, match="cannot draft"):
        tiny(tmp_path, "llama", draft=draft)
