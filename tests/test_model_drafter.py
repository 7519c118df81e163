"""The model drafter over a toy runtime: its cache is that of the text, whatever was accepted, asked or begun."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from enumeration import branches, own_law, p_value
from toy import N_VOCAB, AlwaysTake, Clock, ToyRuntime

from slipstream.decoding.chance import Chance
from slipstream.decoding.choice import Sampler
from slipstream.decoding.control import Control
from slipstream.decoding.cost import CostCurve
from slipstream.decoding.draft import Draft
from slipstream.decoding.protocols import Budget
from slipstream.decoding.record import DraftCost
from slipstream.decoding.ring import Ring, SequenceState
from slipstream.decoding.sampling import Sampling
from slipstream.drafters.model import ModelDrafter

TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9]
SAMPLINGS = [Sampling(temperature=0), Sampling(temperature=0.9, seed=3)]


greedy = Sampler(Sampling(temperature=0), N_VOCAB).bind([])


def continuation(model: ToyRuntime, text: list[int], n: int) -> list[int]:
    text = list(text)
    for _ in range(n):
        text.append(int(model.row(text).argmax()))
    return text[-n:]


def proposed(drafter: ModelDrafter, n: int, seq: int = 0) -> list[int]:
    return drafter.propose(seq, Budget(n), greedy).tokens.tolist()


def new_drafter(**options) -> tuple[ModelDrafter, ToyRuntime]:
    runtime = ToyRuntime(**options)
    return ModelDrafter(runtime, N_VOCAB), runtime


@pytest.mark.parametrize("n", [1, 2, 5])
def test_it_proposes_what_its_model_would_write(n):
    drafter, runtime = new_drafter()
    drafter.begin(0, TEXT)
    draft = drafter.propose(0, Budget(n), greedy)
    assert draft.tokens.tolist() == continuation(runtime, TEXT, n) and draft.is_chain
    assert all(np.diff(draft.survival) <= 0) and 0 < draft.survival[-1] <= 1


@pytest.mark.parametrize("n_proposed", [1, 3, 6])
@pytest.mark.parametrize("n_accepted", range(7))
def test_a_draft_accepted_in_part_leaves_the_cache_of_the_text(n_proposed, n_accepted):
    drafter, runtime = new_drafter()
    drafter.begin(0, TEXT)
    draft = proposed(drafter, n_proposed)
    accepted = draft[:n_accepted]
    true = continuation(runtime, TEXT + accepted, 1)[0]
    bonus = true if len(accepted) == n_proposed else (draft[len(accepted)] + 1) % N_VOCAB
    drafter.observe(0, [*accepted, bonus])
    text = [*TEXT, *accepted, bonus]
    assert runtime.cache[0] == text[: len(runtime.cache[0])], "no row of a rejected token stays"
    assert proposed(drafter, 4) == continuation(runtime, text, 4)
    assert runtime.cache[0][: len(text)] == text


def test_one_that_is_not_asked_for_several_rounds_catches_up():
    drafter, runtime = new_drafter(n_batch=4)
    drafter.begin(0, TEXT)
    assert not runtime.passes, "reading is put off until it is asked"
    drafter.observe(0, [1, 2, 3])
    assert proposed(drafter, 3) == continuation(runtime, [*TEXT, 1, 2, 3], 3)
    drafter.observe(0, [7])
    for token in range(9):
        drafter.observe(0, [token, token])
    text = [*TEXT, 1, 2, 3, 7, *np.repeat(np.arange(9), 2).tolist()]
    assert proposed(drafter, 3) == continuation(runtime, text, 3)


def test_a_draft_that_nobody_judged_is_forgotten():
    drafter, runtime = new_drafter()
    drafter.begin(0, TEXT)
    first = proposed(drafter, 5)
    assert proposed(drafter, 2) == first[:2], "the pass of the target failed and is tried again"
    drafter.observe(0, [12, 11])
    assert proposed(drafter, 3) == continuation(runtime, [*TEXT, 12, 11], 3)


@pytest.mark.parametrize("n_shared", [0, 1, 7, len(TEXT) - 1, len(TEXT)])
@pytest.mark.parametrize("tail", [[], [12], [12, 0, 12]])
def test_a_text_that_begins_alike_keeps_its_rows(n_shared, tail):
    """Without a tail the cache holds all of the text: there was no row to propose from (IndexError)."""
    drafter, runtime = new_drafter()
    drafter.begin(0, TEXT)
    drafter.observe(0, [*proposed(drafter, 3), 0])
    n_before = len(runtime.passes)
    text = TEXT[:n_shared] + tail
    if not text:
        return
    drafter.begin(0, text)
    assert proposed(drafter, 3) == continuation(runtime, text, 3)
    assert runtime.cache[0][: len(text)] == text
    assert runtime.passes[n_before][0].start == min(n_shared, len(text) - 1), "only the rest is read"


@pytest.mark.parametrize("failing", range(4))
def test_a_failing_pass_of_the_draft_does_no_lasting_harm(failing):
    drafter, runtime = new_drafter(n_batch=8)
    drafter.begin(0, TEXT)
    real, n_calls = runtime.forward, iter(range(100))

    def forward(rows):
        if next(n_calls) == failing:
            runtime.fail = RuntimeError("gives up")
        return real(rows)

    runtime.forward = forward
    with pytest.raises(RuntimeError):
        proposed(drafter, 5)
    assert proposed(drafter, 5) == continuation(runtime, TEXT, 5)


@pytest.mark.parametrize("n_draft", [N_VOCAB - 4, N_VOCAB, N_VOCAB + 5])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "0.9"])
def test_no_token_is_proposed_that_the_target_lacks(n_draft, sampling):
    drafter = ModelDrafter(ToyRuntime(n_vocab=n_draft), N_VOCAB)
    sampler, text = Sampler(sampling, N_VOCAB), [3, 1, 4, 1, 5, 2]
    drafter.begin(0, text)
    seen = set()
    for _ in range(40):
        draft = drafter.propose(0, Budget(5), sampler.bind(text)).tokens.tolist()
        seen |= set(draft)
        committed = [draft[0], int(text[-1] * 3 + 1) % min(n_draft, N_VOCAB)]
        text += committed
        drafter.observe(0, committed)
    assert max(seen) < min(n_draft, N_VOCAB) and len(seen) > 3


def test_a_target_token_that_the_draft_lacks_does_not_stop_it():
    """Padding tokens of the target are beyond a smaller draft's vocabulary."""
    runtime = ToyRuntime(n_vocab=N_VOCAB - 2)
    drafter = ModelDrafter(runtime, N_VOCAB)
    drafter.begin(0, TEXT[:5])
    drafter.observe(0, [*proposed(drafter, 2), N_VOCAB - 1])
    assert drafter.propose(0, Budget(2), greedy).tokens.tolist() == []


def test_it_stays_inside_its_own_context():
    drafter, _ = new_drafter(n_ctx=len(TEXT) + 3)
    drafter.begin(0, TEXT)
    assert len(proposed(drafter, 9)) == 3
    drafter.observe(0, [1, 2, 3, 4])
    assert proposed(drafter, 9) == []


def test_it_stops_where_it_is_no_longer_sure():
    drafter, _ = new_drafter()
    drafter.begin(0, TEXT)
    draft = drafter.propose(0, Budget(30, 0.3), greedy)
    assert len(draft) < 30 and all(draft.survival >= 0.3)


def test_sequences_are_kept_apart_and_an_ended_one_is_forgotten():
    drafter, runtime = new_drafter()
    drafter.begin(0, TEXT)
    drafter.begin(2, TEXT[::-1])
    assert proposed(drafter, 3) == continuation(runtime, TEXT, 3)
    assert proposed(drafter, 3, seq=2) == continuation(runtime, TEXT[::-1], 3)
    drafter.end(0)
    drafter.end(0)
    assert runtime.cache[0] == [] and runtime.cache[2]
    drafter.begin(0, TEXT[3:])
    assert proposed(drafter, 3) == continuation(runtime, TEXT[3:], 3)


def test_the_rates_it_learns_are_those_that_came_true():
    drafter, _ = new_drafter()
    drafter.begin(0, TEXT)
    before = list(drafter.acceptance.rates)
    for _ in range(20):
        draft = proposed(drafter, 3)
        drafter.observe(0, [(draft[0] + 1) % N_VOCAB])
    assert sum(drafter.acceptance.rates) < sum(before)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "0.9"])
@pytest.mark.parametrize("seed", [0, 1])
def test_in_the_ring_the_text_is_that_of_plain_decoding(sampling, seed):
    """Seed 0 drafts with the target's own distribution, seed 1 with another model."""
    target, draft = ToyRuntime(), ToyRuntime(seed=seed)
    prompts = [TEXT, TEXT[::-1]]
    texts: list[list[list[int]]] = []
    for drafters in ([], [ModelDrafter(draft, N_VOCAB)]):
        ring = Ring(target, drafters, AlwaysTake(4), Clock())
        for _ in range(2):  # the second time, both caches hold the text already
            states = [SequenceState(i, Sampler(sampling, N_VOCAB), lambda token: False, 60) for i in range(2)]
            accepted = 0
            for state, prompt in zip(states, prompts, strict=True):
                ring.begin(state, prompt, 0)
            while live := [s for s in states if not s.ended]:
                accepted += sum(r.accepted for r in ring.step(live))
            texts.append([s.tokens for s in states])
    assert texts[0] == texts[1] == texts[2] == texts[3]
    if seed == 0:
        assert accepted > 60, "the same model with the same noise agrees with itself"


@pytest.mark.parametrize("max_rollback", [0, 8])
def test_a_model_that_goes_back_over_one_pass_alone_cannot_draft(max_rollback):
    """It drafted, and the first rejected token was an error: each drafted token is a pass of its own."""
    with pytest.raises(AssertionError, match="must go back"):
        ModelDrafter(ToyRuntime(max_rollback=max_rollback), N_VOCAB)


DRAWN = Sampling(temperature=0.9, presence_penalty=0.3, verification="rejection")


def test_drawn_tokens_carry_the_distribution_they_were_drawn_from():
    """After the whole chain of options, the penalties seeing what is drafted; all of them are drawn."""
    drafter, runtime = new_drafter(n_vocab=N_VOCAB, seed=2)
    drafter.begin(0, TEXT)
    chain = Sampler(DRAWN, N_VOCAB).chain
    first = set()
    for seed in range(200):
        choice = Sampler(replace(DRAWN, seed=seed), N_VOCAB).bind(TEXT)
        draft = drafter.propose(0, Budget(4), choice)
        assert draft.q is not None and len(draft.q) == len(draft) == 4 and draft.is_chain
        tokens = draft.tokens.tolist()
        for i, q in enumerate(draft.q):
            text = TEXT + tokens[:i]
            expected = chain.distribution(runtime.row(text), np.array(text, np.int32))
            assert np.array_equal(q.ids, expected.ids) and np.array_equal(q.probabilities, expected.probabilities)
            assert q.probability(tokens[i]) > 0
        first.add(tokens[0])
    assert first == set(chain.distribution(runtime.row(TEXT), np.array(TEXT, np.int32)).ids)


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_it_stops_by_what_it_knew_before_a_token_was_drawn(rule):
    """Over all drafts that it can draw: those that begin alike go on or stop alike, equally sure of the next token."""
    drafter, _ = new_drafter(n_vocab=4)
    drafter.begin(0, [3, 1])
    choice = Sampler(replace(DRAWN, verification=rule), 4).bind([3, 1])

    def propose(chance: Chance) -> Draft:
        choice.chance = chance
        return drafter.propose(0, Budget(4, 0.2), choice)

    drafts = [draft for _, draft in branches(propose)]
    assert len({len(draft) for draft in drafts}) > 1 and len(drafts) > 4
    next_survival: dict[tuple[int, ...], float] = {}
    for draft in drafts:
        for i, survival in enumerate([*draft.survival, 0.0][:4]):
            begun = tuple(draft.tokens[:i])
            assert next_survival.setdefault(begun, survival) == survival


def controls() -> dict[str, Control]:
    """Drafts of three tokens, and drafts that end where one more would not pay."""
    curve = CostCurve({1: 0.001, 33: 0.0011})
    return {"always": AlwaysTake(3), "cost curve": Control(curve, {"model": DraftCost(0.0003)})}


@pytest.mark.parametrize("control", controls())
@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_in_the_ring_drawn_drafts_leave_the_joint_distribution_of_four_tokens_alone(rule, control):
    """χ² over seeds, which are fixed: a right rule fails with probability 10⁻⁴. The drafter learns all the while."""
    target, draft = ToyRuntime(n_vocab=4), ToyRuntime(n_vocab=4, seed=1)
    draft.table = target.table + draft.table / 2
    options, prompt = replace(DRAWN, verification=rule), [3, 1]
    ring = Ring(
        target,
        [ModelDrafter(draft, 4)],
        controls()[control],
        lambda: 0.001 * len(target.passes) + 0.0003 * len(draft.passes),
    )
    counts: Counter[tuple[int, ...]] = Counter()
    lengths: Counter[int] = Counter()
    for seed in range(2500):
        state = SequenceState(0, Sampler(replace(options, seed=seed), 4), lambda token: False, 200)
        ring.begin(state, prompt, 0)
        while len(state.tokens) < len(prompt) + 4:
            lengths += Counter(r.drafted for r in ring.step([state]))
        counts[tuple(state.tokens[len(prompt) :][:4])] += 1
    assert p_value(counts, own_law(target, options, tuple(prompt), 4)) > 1e-4
    assert lengths[0] < 100 and (len(lengths) > 2 or control == "always")
