"""The ring over a toy runtime: whatever is drafted, the text is that of plain decoding, and the cache is the text's."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from forced import Fixed
from toy import N_VOCAB, AlwaysTake, Clock, Scripted, ToyRuntime

from slipstream.decoding.choice import Sampler
from slipstream.decoding.control import Control
from slipstream.decoding.cost import CostCurve
from slipstream.decoding.ring import Ring, SequenceState
from slipstream.decoding.sampling import Sampling
from slipstream.decoding.statistics import Round
from slipstream.drafters.model import ModelDrafter
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.errors import InputError

GREEDY = Sampling(temperature=0)
SAMPLINGS = [GREEDY, Sampling(temperature=0.7, seed=5), Sampling(temperature=1.2, top_k=0, top_p=1, min_p=0, seed=9)]
PENALISED = Sampling(temperature=0.7, seed=5, repeat_penalty=1.3, presence_penalty=0.5, repeat_last_n=20)
PROMPTS = ([3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4])
N_NEW = 60


def never(token: int) -> bool:
    return False


def new_state(seq: int, sampling: Sampling, prompt: list[int], n_new: int = N_NEW, is_end=never) -> SequenceState:
    own = Sampling(**{**vars(sampling), "seed": sampling.seed + seq})
    return SequenceState(seq, Sampler(own, N_VOCAB), is_end, len(prompt) + n_new)


def plain(seq: int, sampling: Sampling, prompt: list[int], n_new: int = N_NEW, is_end=never, **runtime) -> list[int]:
    """The text of plain decoding, straight from the model: no ring, no cache."""
    state, model, tokens = new_state(seq, sampling, prompt, n_new, is_end), ToyRuntime(**runtime), list(prompt)
    for _ in range(n_new):
        tokens.append(state.sampler.bind(tokens)(model.row(tokens), ()))
        if is_end(tokens[-1]):
            break
    return tokens


def run(ring: Ring, states: list[SequenceState], prompts: list[list[int]]) -> list[Round]:
    """All sequences to their ends, as many as live in each pass; checks what holds after each round."""
    for state, prompt in zip(states, prompts, strict=True):
        ring.begin(state, prompt, 0)
    rounds: list[Round] = []
    while live := [s for s in states if not s.ended]:
        before = {s.seq: len(s.tokens) for s in live}
        done = ring.step(live)
        assert [r.seq for r in done] == [s.seq for s in live]
        for r, state in zip(done, live, strict=True):
            assert tuple(state.tokens[before[r.seq] :]) == r.tokens and r.n_context == before[r.seq]
            ended_inside = len(r.tokens) == r.accepted and state.is_end(r.tokens[-1])
            assert len(r.tokens) == r.accepted + 1 or ended_inside
            assert r.accepted <= r.drafted and bool(r.drafted) == bool(r.drafter)
            assert len(state.tokens) <= min(state.limit, ring.runtime.n_ctx)
        rounds += done
    for state in states:
        assert ring.runtime.cache[state.seq] == state.tokens[:-1]
    return rounds


def scripts(answers: dict[int, list[int]]) -> dict[str, Scripted]:
    """Drafters that know the true texts, or nothing at all."""
    rng = np.random.default_rng(1)

    def true(seq: int, text: list[int]) -> list[int]:
        return answers[seq][len(text) :]

    def wrong(seq: int, text: list[int]) -> list[int]:
        return [(t + 1) % N_VOCAB for t in true(seq, text)]

    def random(seq: int, text: list[int]) -> list[int]:
        tokens = true(seq, text)[: rng.integers(0, 9)]
        return [int(rng.integers(N_VOCAB)) if rng.random() < 0.3 else t for t in tokens]

    def long(seq: int, text: list[int]) -> list[int]:
        return true(seq, text) + [0] * 500

    made = {name: Scripted(script, name) for name, script in dict(right=true, wrong=wrong, random=random).items()}
    made["too long"] = Scripted(long, "too long")
    made["too long"].obeys = False
    return made


def controls() -> dict[str, Control]:
    return {
        "always 3": AlwaysTake(3),
        "free passes": Control(CostCurve({1: 1.0, 33: 1.1})),
        "steep": Control(CostCurve({w: float(w) for w in range(1, 34)})),
    }


@pytest.mark.parametrize("control", controls())
@pytest.mark.parametrize("drafter", ["right", "wrong", "random", "too long"])
@pytest.mark.parametrize("sampling", [*SAMPLINGS, PENALISED], ids=["greedy", "0.7", "1.2", "penalties"])
@pytest.mark.parametrize("n_seqs", [1, 3])
def test_any_draft_leaves_the_text_alone(n_seqs, sampling, drafter, control):
    prompts = [list(p) for p in PROMPTS[:n_seqs]]
    answers = {seq: plain(seq, sampling, prompt) for seq, prompt in enumerate(prompts)}
    scripted, suffix = scripts(answers)[drafter], SuffixDrafter()
    ring = Ring(ToyRuntime(), [suffix, scripted], controls()[control], Clock())
    states = [new_state(seq, sampling, prompt) for seq, prompt in enumerate(prompts)]
    rounds = run(ring, states, prompts)
    assert {s.seq: s.tokens for s in states} == answers
    assert scripted.texts == answers, "every drafter is told the whole text"
    if drafter == "right" and control != "steep":
        assert len(rounds) < n_seqs * N_NEW / 2


def test_what_a_round_says():
    answers = {0: plain(0, GREEDY, list(PROMPTS[0]))}
    right = scripts(answers)["right"]
    ring = Ring(ToyRuntime(), [right], AlwaysTake(4), Clock())
    rounds = run(ring, [new_state(0, GREEDY, list(PROMPTS[0]))], [list(PROMPTS[0])])
    first, last = rounds[0], rounds[-1]
    assert (first.drafted, first.accepted, first.drafter, first.width) == (4, 4, "right", 5)
    assert sum(len(r.tokens) for r in rounds) == N_NEW - 1, "the prefill gave the first"
    assert last.drafted <= 4 and first.total_s >= first.draft_s + first.pass_s > 0


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "0.7", "1.2"])
@pytest.mark.parametrize("n", [1, 4, 9])
def test_an_end_inside_an_accepted_draft_ends_the_text_there(sampling, n):
    prompt = list(PROMPTS[0])
    whole = plain(0, sampling, prompt)
    inside = 0
    for end in set(whole[len(prompt) :]):
        text = plain(0, sampling, prompt, is_end=end.__eq__)
        right = Scripted(lambda seq, told: whole[len(told) :], "right")
        runtime = ToyRuntime()
        state = new_state(0, sampling, prompt, is_end=end.__eq__)
        rounds = run(Ring(runtime, [right], AlwaysTake(n), Clock()), [state], [prompt])
        assert state.tokens == text and state.tokens[-1] == end and state.ended
        assert runtime.cache[0] == text[:-1]
        inside += bool(rounds) and len(rounds[-1].tokens) == rounds[-1].accepted == rounds[-1].drafted
    assert inside or n == 1, "at least one end lay inside a draft"


def test_a_sequence_that_ends_leaves_the_others_alone():
    prompts = [list(p) for p in PROMPTS]
    end = plain(1, GREEDY, prompts[1])[len(prompts[1]) + 7]
    ends = (never, end.__eq__, never)
    answers = {seq: plain(seq, GREEDY, prompt, is_end=ends[seq]) for seq, prompt in enumerate(prompts)}
    states = [new_state(seq, GREEDY, prompt, is_end=ends[seq]) for seq, prompt in enumerate(prompts)]
    run(Ring(ToyRuntime(), [scripts(answers)["random"]], AlwaysTake(5), Clock()), states, prompts)
    assert {s.seq: s.tokens for s in states} == answers


@pytest.mark.parametrize("drafter", ["right", "too long"])
@pytest.mark.parametrize("n_new", range(1, 9))
def test_the_limit_is_reached_and_never_exceeded(n_new, drafter):
    prompt = list(PROMPTS[2])
    whole = {0: plain(0, GREEDY, prompt)}
    state = new_state(0, GREEDY, prompt, n_new)
    run(Ring(ToyRuntime(), [scripts(whole)[drafter]], AlwaysTake(32), Clock()), [state], [prompt])
    assert state.tokens == whole[0][: len(prompt) + n_new]


@pytest.mark.parametrize("n_ctx", range(13, 24))
@pytest.mark.parametrize("curve", [{1: 1.0, 33: 1.1}, {1: 1.0, 2: 0.5, 3: 0.9, 4: 0.4}], ids=["flat", "padding"])
def test_the_context_is_filled_to_its_last_place(n_ctx, curve):
    prompt = list(PROMPTS[2])
    whole = {0: plain(0, GREEDY, prompt)}
    state = SequenceState(0, Sampler(GREEDY, N_VOCAB), never, n_ctx)
    run(Ring(ToyRuntime(n_ctx=n_ctx), [scripts(whole)["right"]], Control(CostCurve(curve)), Clock()), [state], [prompt])
    assert state.tokens == whole[0][:n_ctx]


@pytest.mark.parametrize("drafter", ["right", "wrong", "random", "too long"])
@pytest.mark.parametrize("max_rollback", [1, 2, 5])
@pytest.mark.parametrize("n_seqs", [1, 3])
def test_no_more_is_drafted_than_the_cache_can_drop(n_seqs, max_rollback, drafter):
    prompts = [list(p) for p in PROMPTS[:n_seqs]]
    answers = {seq: plain(seq, GREEDY, prompt) for seq, prompt in enumerate(prompts)}
    runtime = ToyRuntime(max_rollback=max_rollback)
    padded = Control(CostCurve({1: 1.0, 2: 0.9, 4: 0.5, 33: 0.6}))
    states = [new_state(seq, GREEDY, prompt) for seq, prompt in enumerate(prompts)]
    rounds = run(Ring(runtime, [scripts(answers)[drafter]], padded, Clock()), states, prompts)
    assert {s.seq: s.tokens for s in states} == answers
    assert max(r.drafted for r in rounds) <= max_rollback


def test_a_runtime_that_cannot_go_back_decodes_plainly():
    answers = {0: plain(0, GREEDY, list(PROMPTS[0]))}
    right = scripts(answers)["right"]
    ring = Ring(ToyRuntime(max_rollback=0), [right], Control(CostCurve({1: 1.0, 4: 0.3})), Clock())
    rounds = run(ring, [new_state(0, GREEDY, list(PROMPTS[0]))], [list(PROMPTS[0])])
    assert len(rounds) == N_NEW - 1 and all((r.drafted, r.width) == (0, 1) for r in rounds)
    assert not right.texts, "nobody was even told"


def test_without_drafters_decoding_is_plain_even_where_a_wider_pass_is_cheaper():
    state = new_state(0, GREEDY, list(PROMPTS[0]))
    rounds = run(Ring(ToyRuntime(), [], Control(CostCurve({1: 1.0, 4: 0.3})), Clock()), [state], [list(PROMPTS[0])])
    assert rounds and all((r.drafted, r.width) == (0, 1) for r in rounds)
    assert state.tokens == plain(0, GREEDY, list(PROMPTS[0]))


@pytest.mark.parametrize("error", [RuntimeError("llama.cpp gives up"), KeyboardInterrupt()], ids=["error", "Ctrl-C"])
@pytest.mark.parametrize("n_seqs", [1, 3])
def test_a_failing_pass_leaves_every_text_as_it_was(n_seqs, error):
    prompts = [list(p) for p in PROMPTS[:n_seqs]]
    answers = {seq: plain(seq, SAMPLINGS[1], prompt) for seq, prompt in enumerate(prompts)}
    runtime, drafter = ToyRuntime(), scripts(answers)["random"]
    ring = Ring(runtime, [SuffixDrafter(), drafter], AlwaysTake(4), Clock())
    states = [new_state(seq, SAMPLINGS[1], prompt) for seq, prompt in enumerate(prompts)]
    for state, prompt in zip(states, prompts, strict=True):
        ring.begin(state, prompt, 0)
    for i in itertools.count():
        live = [s for s in states if not s.ended]
        if not live:
            break
        if i % 3 == 1:
            before = [list(s.tokens) for s in states]
            runtime.fail = error
            with pytest.raises(type(error)):
                ring.step(live)
            assert [s.tokens for s in states] == before == [drafter.texts[s.seq] for s in states]
            assert [runtime.cache[s.seq] for s in states] == [t[:-1] for t in before]
        ring.step(live)
    assert {s.seq: s.tokens for s in states} == answers


def test_a_failing_choice_takes_the_pass_back():
    answers = {0: plain(0, GREEDY, list(PROMPTS[0]))}
    runtime = ToyRuntime()
    ring = Ring(runtime, [scripts(answers)["wrong"]], AlwaysTake(4), Clock())
    state = new_state(0, GREEDY, list(PROMPTS[0]))
    ring.begin(state, list(PROMPTS[0]), 0)
    before, good = list(state.tokens), state.sampler
    state.sampler = Sampler(Sampling(temperature=0, logit_bias={t: -np.inf for t in range(N_VOCAB)}), N_VOCAB)
    with pytest.raises(InputError):
        ring.step([state])
    assert state.tokens == before and runtime.cache[0] == before[:-1]
    state.sampler = good
    while not state.ended:
        ring.step([state])
    assert state.tokens == answers[0]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "0.7", "1.2"])
@pytest.mark.parametrize("n_seqs", [1, 3])
def test_padding_to_a_cheaper_pass_leaves_the_text_alone(n_seqs, sampling):
    curve = Fixed({1: 1.0, 2: 0.9, 3: 2.0, 4: 0.5, 5: 3.0, 6: 2.9, 8: 1.0, 33: 9.0})
    prompts = [list(p) for p in PROMPTS[:n_seqs]]
    answers = {seq: plain(seq, sampling, prompt) for seq, prompt in enumerate(prompts)}
    runtime = ToyRuntime()
    states = [new_state(seq, sampling, prompt) for seq, prompt in enumerate(prompts)]
    rounds = run(Ring(runtime, [scripts(answers)["random"]], Control(curve), Clock()), states, prompts)
    assert {s.seq: s.tokens for s in states} == answers
    padding = [sum(r.n_padding for r in rows) for rows in runtime.passes]
    assert any(padding) and any(r.width > 1 + r.drafted for r in rounds)


@pytest.mark.parametrize("n_batch", [1, 2, 5])
@pytest.mark.parametrize("n_seqs", [1])
def test_small_batches(n_batch, n_seqs):
    prompt = list(PROMPTS[2])
    answers = {0: plain(0, GREEDY, prompt)}
    state = new_state(0, GREEDY, prompt)
    run(Ring(ToyRuntime(n_batch=n_batch), [scripts(answers)["random"]], AlwaysTake(9), Clock()), [state], [prompt])
    assert state.tokens == answers[0]


@pytest.mark.parametrize("n_cached", range(12))
def test_a_prompt_is_read_behind_what_the_cache_holds(n_cached):
    prompt = list(PROMPTS[2])
    runtime = ToyRuntime(n_batch=5)
    ring = Ring(runtime, [], AlwaysTake(1), Clock())
    ring.begin(new_state(0, GREEDY, prompt), prompt, 0)
    state = new_state(0, GREEDY, prompt)
    done = ring.begin(state, prompt, n_cached)
    assert runtime.cache[0] == prompt and state.tokens == plain(0, GREEDY, prompt, 1)
    assert done.tokens == tuple(state.tokens[-1:]) and done.n_context == len(prompt)


def test_a_prompt_that_fails_on_the_way_can_be_begun_again():
    prompt = list(PROMPTS[2])
    runtime = ToyRuntime(n_batch=5)
    ring = Ring(runtime, [], AlwaysTake(1), Clock())
    state = new_state(0, GREEDY, prompt)
    runtime.fail = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        ring.begin(state, prompt, 0)
    assert not state.tokens and runtime.cache[0] == prompt[: len(runtime.cache[0])]
    ring.begin(state, prompt, 0)
    assert state.tokens == plain(0, GREEDY, prompt, 1)


@pytest.mark.parametrize(("n_batch", "n_live"), [(2, 1), (16, 4), (1, 1)])
def test_drawn_drafts_never_make_a_pass_wider_than_a_batch(n_batch, n_live):
    runtime, small = ToyRuntime(n_batch=n_batch), ToyRuntime(seed=1)
    sampling = Sampling(temperature=0.9, verification="rejection")
    ring = Ring(runtime, [ModelDrafter(small, N_VOCAB)], AlwaysTake(9), Clock())
    states = [SequenceState(i, Sampler(sampling, N_VOCAB), lambda token: False, 20) for i in range(n_live)]
    for state in states:
        ring.begin(state, [3, 1, 4], 0)
    while live := [state for state in states if not state.ended]:
        ring.step(live)
    assert max(sum(len(r.tokens) for r in rows) for rows in runtime.passes) <= n_batch
