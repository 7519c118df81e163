"""Log-probabilities: those of the target's raw logits, one for each token, with speculation as without."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.special import log_softmax
from test_cli import slipstream as command  # noqa: F401 (a fixture)
from tiny_models import write_tiny
from toy import N_VOCAB, AlwaysTake, Clock, Scripted, ToyRuntime

import slipstream
from slipstream import LLM, Sampling, estimates
from slipstream.decoding.choice import Sampler
from slipstream.decoding.logprobs import MAX_TOP, TokenLogprob, token_logprob
from slipstream.decoding.ring import Ring, SequenceState
from slipstream.errors import InputError
from slipstream.runtimes.llamacpp import ContextOptions

GREEDY = Sampling(temperature=0)
ROUNDING = 1e-12


def wanted(row: np.ndarray) -> np.ndarray:
    """Log-softmax in float64, by scipy."""
    return log_softmax(row.astype(np.float64))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("n_vocab", [2, 13, 1000, 151_936])
def test_a_log_probability_is_that_of_a_float64_log_softmax(n_vocab, scale):
    rng = np.random.default_rng(n_vocab)
    row = rng.normal(0, scale, n_vocab).astype(np.float32)
    reference = wanted(row)
    for token in {0, n_vocab - 1, int(row.argmax()), int(row.argmin())}:
        said = token_logprob(row, token, 5)
        assert said.token == token
        assert said.logprob == pytest.approx(reference[token], rel=ROUNDING, abs=ROUNDING)
        for one, logprob in said.top:
            assert logprob == pytest.approx(reference[one], rel=ROUNDING, abs=ROUNDING)


@given(arrays.arrays(np.float32, 40, elements=st.floats(-(2.0**127), 2.0**127, width=32)), st.integers(0, 39))
def test_logits_of_any_size(row, token):
    """Two equal logits of 1e20 had a log-probability of 0 each."""
    said = token_logprob(row, token, 40)
    assert said.logprob == pytest.approx(wanted(row)[token], rel=ROUNDING, abs=ROUNDING)
    assert math.fsum(math.exp(p) for _, p in said.top) == pytest.approx(1)


def test_a_token_without_any_probability():
    row = np.array([0.0, -np.inf, 1.0], dtype=np.float32)
    assert token_logprob(row, 1, 3) == TokenLogprob(
        1, -math.inf, ((2, pytest.approx(wanted(row)[2])), (0, pytest.approx(wanted(row)[0])), (1, -math.inf))
    )


@pytest.mark.parametrize("n_top", [1, 2, 3, 12, 13, 50, 100])
@pytest.mark.parametrize("n_vocab", [13, 5000])
def test_the_top_are_the_likeliest_in_order(n_vocab, n_top):
    row = np.random.default_rng(n_top).normal(0, 2, n_vocab).astype(np.float32)
    top = token_logprob(row, 3, n_top).top
    assert [token for token, _ in top] == np.argsort(-row, kind="stable")[:n_top].tolist()
    assert len(top) == min(n_top, n_vocab)


@given(st.lists(st.integers(0, 4), min_size=2, max_size=200), st.integers(1, 100))
def test_among_equals_the_lower_token_comes_first(levels, n_top):
    row = np.array(levels, dtype=np.float32)
    top = [token for token, _ in token_logprob(row, 0, n_top).top]
    assert top == sorted(range(len(row)), key=lambda token: (-row[token], token))[:n_top]


def test_no_top_asked_for():
    row = np.random.default_rng(0).normal(0, 2, 50).astype(np.float32)
    assert token_logprob(row, 7, 0).top == () and token_logprob(row, 7, 0).logprob == token_logprob(row, 7, 9).logprob


def test_the_same_bits_give_the_same_numbers_wherever_they_lie():
    rows = np.random.default_rng(0).normal(0, 2, (3, 5000)).astype(np.float32)
    strided = np.repeat(rows[1:2], 2, axis=1)[:, ::2]
    assert token_logprob(rows[1], 7, 9) == token_logprob(rows[1].copy(), 7, 9) == token_logprob(strided[0], 7, 9)


def write(drafters: Sequence[Scripted], n_top: int | None, sampling: Sampling) -> tuple[list[int], list[TokenLogprob]]:
    ring = Ring(ToyRuntime(), drafters, AlwaysTake(5), Clock())
    state = SequenceState(0, Sampler(sampling, N_VOCAB), lambda token: False, 44, n_top)
    rounds = [ring.begin(state, [3, 1, 4, 1], 0)]
    while not state.ended:
        rounds += ring.step([state])
    assert all(len(done.logprobs) == (0 if n_top is None else len(done.tokens)) for done in rounds)
    return state.tokens, [said for done in rounds for said in done.logprobs]


SAMPLINGS = {
    "greedy": GREEDY,
    "penalties and bias": Sampling(0.8, seed=3, repeat_penalty=1.5, logit_bias={2: -math.inf, 5: 2.0}),
    "filters": Sampling(1.2, top_k=3, top_p=0.8, seed=1),
}


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_they_are_those_of_the_raw_rows_whatever_the_chain_and_the_draft(sampling):
    tokens, plain = write([], 4, SAMPLINGS[sampling])
    model = ToyRuntime()
    for at, said in enumerate(plain, 4):
        reference = wanted(model.row(tokens[:at]))
        assert said.token == tokens[at] and said.logprob == pytest.approx(reference[tokens[at]], rel=ROUNDING)
        assert [token for token, _ in said.top] == np.argsort(-reference, kind="stable")[:4].tolist()
    wrong_now_and_then = Scripted(lambda seq, text: [t if i % 3 else 0 for i, t in enumerate(tokens[len(text) :], 1)])
    assert write([wrong_now_and_then], 4, SAMPLINGS[sampling]) == (tokens, plain)
    assert write([wrong_now_and_then], None, SAMPLINGS[sampling]) == (tokens, [])
    assert write([], 0, SAMPLINGS[sampling])[1] == [TokenLogprob(said.token, said.logprob, ()) for said in plain]


TEXT = "ABCABCDEFABCABCDEFABCABC"
CONTEXT = ContextOptions(n_ctx=256, n_batch=64, n_threads=1)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """A tiny model in exact mode."""
    folder: Path = tmp_path_factory.mktemp("tiny")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(estimates, "folder", lambda: folder)
        path = write_tiny(folder / "llama.gguf", "llama")
        with slipstream.load(path, context_options=CONTEXT, probe_s=0.02, exact=True) as loaded:
            yield loaded


@pytest.mark.parametrize("speculate", [False, True])
def test_one_for_each_token_and_for_the_one_that_ended_the_text(llm, speculate, monkeypatch):
    sampling = Sampling(temperature=0.8, seed=1)
    llm.generate(TEXT, sampling, 1)  # from here on the prompt lies in the cache, each time
    whole = llm.generate(TEXT, sampling, 60, speculate=False, logprobs=2)
    for n in range(2, 30):
        end = whole.tokens[n - 1]
        if end in whole.tokens[: n - 1]:
            continue
        monkeypatch.setattr(llm.tokenizer, "is_eog", end.__eq__)
        answer = llm.generate(TEXT, sampling, 60, speculate=speculate, logprobs=2)
        assert answer.finish_reason == "stop" and answer.tokens == whole.tokens[:n]
        assert answer.logprobs == whole.logprobs[:n] and answer.logprobs[-1].token == end


@pytest.mark.parametrize("speculate", [False, True])
def test_none_behind_a_stop_string(llm, speculate):
    sampling = Sampling(temperature=1.0, seed=3)
    llm.generate(TEXT, sampling, 1)
    whole = llm.generate(TEXT, sampling, 40, speculate=False, logprobs=2)
    for start in range(2, 20, 3):
        stop = whole.text[start : start + 2]
        answer = llm.generate(TEXT, sampling, 40, [stop], speculate=speculate, logprobs=2)
        assert answer.finish_reason == "stop" and stop not in answer.text
        assert [said.token for said in answer.logprobs] == list(answer.tokens)
        assert answer.logprobs == whole.logprobs[: len(answer.tokens)]


def test_they_come_with_the_pieces(llm):
    generation = llm.stream(TEXT, Sampling(seed=2), 20, logprobs=1)
    for _ in generation:
        assert [said.token for said in generation.logprobs] == generation.tokens
    assert llm.generate(TEXT, Sampling(seed=2), 20).logprobs == ()


@pytest.mark.parametrize("n", [0, 1, MAX_TOP])
def test_how_many_may_be_asked_for(llm, n):
    answer = llm.generate(TEXT, GREEDY, 4, logprobs=n)
    assert all(len(said.top) == min(n, llm.runtime.n_vocab) for said in answer.logprobs) and len(answer.logprobs) == 4


@pytest.mark.parametrize("n", [-1, MAX_TOP + 1, 10**9, 2.5, "3"])
def test_how_many_may_not(llm, n):
    with pytest.raises(InputError, match=r"logprobs is .*\n?.*from 0 to 100"):
        llm.stream(TEXT, GREEDY, 4, logprobs=n)
    assert llm.generate(TEXT, GREEDY, 2, logprobs=1).logprobs


@pytest.mark.model
def test_the_command_gives_them_with_json(command, smollm2_path):  # noqa: F811
    arguments = ["run", smollm2_path, "One two three one two", "--raw", "--threads", 1, "--ctx", 512, "--temp", 0]
    code, out, err = command(*arguments, "-n", 6, "--json", "--logprobs", 3)
    data = json.loads(out)
    assert (code, err) == (0, "") and [said["token"] for said in data["logprobs"]] == data["tokens"]
    assert "".join(said["text"] for said in data["logprobs"]) == data["text"]
    for said in data["logprobs"]:
        assert len(said["top"]) == 3 and said["logprob"] == said["top"][0]["logprob"] <= 0, "it was the likeliest"
        assert [one["logprob"] for one in said["top"]] == sorted((one["logprob"] for one in said["top"]), reverse=True)
        assert all(set(one) == {"token", "text", "logprob"} for one in said["top"])
    plain = json.loads(command(*arguments, "-n", 6, "--json", "--logprobs", 3, "--draft", "off")[1])
    assert plain["logprobs"] == data["logprobs"] and data["statistics"]["exact"]
    assert "logprobs" not in json.loads(command(*arguments, "-n", 1, "--json")[1])
