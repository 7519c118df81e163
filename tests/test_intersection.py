"""Drafting by common tokens: drawn from the draft's own distribution over them, read back as the draft's own text."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from enumeration import Drafting, Text, branches
from test_proofs import OPEN, SAMPLINGS, check, choosy
from test_translation import Longest
from toy import AlwaysTake, Clock, ToyRuntime

from slipstream.decoding.choice import Choice, Sampler
from slipstream.decoding.control import Control
from slipstream.decoding.draft import EMPTY, Draft
from slipstream.decoding.protocols import Budget, Rows
from slipstream.decoding.ring import Ring, SequenceState
from slipstream.decoding.sampling import Sampling
from slipstream.drafters.intersection import CommonRuntime, IntersectionDrafter
from slipstream.drafters.translation import twins
from slipstream.runtimes.markov import MarkovRuntime

TARGET = Longest(b"a", b"b", b"ab", b"ba", b"\xc3", b"\xa9", end=b"<end>")
DRAFT = Longest(b"b", b"aa", b"a", b"ab", b"\xa9", b"\xc3", "é".encode(), bos=b"<s>", end=b"</s>")
TWINS = twins(TARGET, DRAFT)
COMMON = {0: 2, 1: 0, 2: 3, 4: 5, 5: 4, 6: 8}
TEXT = [0, 1, 3, 2, 0, 2, 1]
OWN = [7, 2, 0, 0, 2, 3, 2, 3, 0]
"""The text in the draft's tokens, behind its beginning: "ba" has no twin and is two tokens."""

SAMPLED = Sampling(temperature=0.9, seed=3)


def new_drafter(**options: int) -> tuple[IntersectionDrafter, ToyRuntime]:
    runtime = ToyRuntime(DRAFT.n_vocab, **options)
    return IntersectionDrafter(runtime, TARGET, DRAFT, TWINS), runtime


def restricted(runtime: ToyRuntime, own: list[int]) -> np.ndarray:
    """The row behind a text in the draft's tokens, in places of the target's."""
    row = np.full(TARGET.n_vocab, -np.inf, np.float32)
    row[list(COMMON)] = runtime.row(own)[list(COMMON.values())]
    return row


def greedy_choice(text: list[int], options: Sampling | None = None) -> Choice:
    return Sampler(options or Sampling(temperature=0), TARGET.n_vocab).bind(text)


# Reading and rows


def test_rows_are_those_of_the_draft_at_the_common_tokens_and_impossible_elsewhere() -> None:
    inner = ToyRuntime(DRAFT.n_vocab)
    common = CommonRuntime(inner, TARGET, DRAFT, TWINS)
    (logits,) = common.forward([Rows(0, TEXT, 0, 1)]).logits
    assert inner.cache[0] == OWN
    assert np.array_equal(logits, restricted(inner, OWN)[None])
    assert common.held(0) == len(TEXT)


@pytest.mark.parametrize("n_batch", [2, 3, 64])
@pytest.mark.parametrize("n", range(len(TEXT) + 1))
def test_going_back_counts_tokens_of_the_target(n: int, n_batch: int) -> None:
    inner = ToyRuntime(DRAFT.n_vocab, n_batch=n_batch)
    common = CommonRuntime(inner, TARGET, DRAFT, TWINS)
    for at, token in enumerate(TEXT):
        common.forward([Rows(0, [token], at, 1)])
    common.keep(0, n)
    assert inner.cache[0] == [[], OWN[:2], OWN[:3], OWN[:5], OWN[:6], OWN[:7], OWN[:8], OWN][n]
    (logits,) = common.forward([Rows(0, [3, 1], n, 1)]).logits
    own = [*inner.cache[0]]
    assert own[-3:] == [0, 2, 0] and np.array_equal(logits[0], restricted(inner, own))


def test_a_character_in_parts_is_read_byte_by_byte() -> None:
    target = Longest(b"a", b"b", b"a\xc3", b"\xa9b")
    inner = ToyRuntime(DRAFT.n_vocab)
    common = CommonRuntime(inner, target, DRAFT, twins(target, DRAFT))
    common.forward([Rows(0, [0, 2, 3], 0, 1)])
    assert inner.cache[0] == [7, 2, 2, 5, 4, 0]


def test_the_beginning_of_the_one_is_that_of_the_other() -> None:
    target = Longest(b"a", b"b", bos=b"<begin>")
    inner = ToyRuntime(DRAFT.n_vocab)
    CommonRuntime(inner, target, DRAFT, twins(target, DRAFT)).forward([Rows(0, [2, 0, 1], 0, 1)])
    assert inner.cache[0] == [7, 2, 0]


def test_a_pass_that_failed_half_way_is_read_again() -> None:
    inner = ToyRuntime(DRAFT.n_vocab, n_batch=4)
    common = CommonRuntime(inner, TARGET, DRAFT, TWINS)
    real, calls = inner.forward, iter(range(9))

    def forward(rows):
        if next(calls) == 1:
            raise RuntimeError("gives up")
        return real(rows)

    inner.forward = forward
    with pytest.raises(RuntimeError):
        common.forward([Rows(0, TEXT, 0, 1)])
    assert common.held(0) == 0
    common.forward([Rows(0, TEXT, 0, 1)])
    assert inner.cache[0] == OWN


# Drafts


def test_it_proposes_the_likeliest_common_tokens() -> None:
    drafter, runtime = new_drafter()
    drafter.begin(0, TEXT)
    own, wanted = list(OWN), []
    for _ in range(4):
        wanted.append(int(restricted(runtime, own).argmax()))
        own.append(COMMON[wanted[-1]])
    draft = drafter.propose(0, Budget(4), greedy_choice(TEXT))
    assert draft.tokens.tolist() == wanted


@pytest.mark.parametrize("n_accepted", range(4))
def test_what_was_committed_is_what_it_has_read(n_accepted: int) -> None:
    drafter, runtime = new_drafter()
    drafter.begin(0, TEXT)
    draft = drafter.propose(0, Budget(3), greedy_choice(TEXT)).tokens.tolist()
    committed = [*draft[:n_accepted], 3]
    drafter.observe(0, committed)
    drafter.propose(0, Budget(1), greedy_choice([*TEXT, *committed]))
    assert runtime.cache[0] == [*OWN, *(COMMON[t] for t in draft[:n_accepted]), 0, 2]


def test_it_stays_inside_the_context_that_its_own_tokens_fill() -> None:
    drafter, _ = new_drafter(n_ctx=len(OWN) + 2)
    drafter.begin(0, TEXT)
    assert len(drafter.propose(0, Budget(9), greedy_choice(TEXT))) == 2
    drafter.observe(0, [3])
    assert len(drafter.propose(0, Budget(9), greedy_choice([*TEXT, 3]))) == 0


def test_where_all_common_tokens_are_banned_it_says_nothing() -> None:
    """It said that every token is banned, which ended the answer (InputError)."""
    drafter, _ = new_drafter()
    drafter.begin(0, TEXT)
    banned = Sampling(temperature=0, logit_bias={token: -math.inf for token in COMMON})
    assert len(drafter.propose(0, Budget(3), greedy_choice(TEXT, banned))) == 0


# Lossless


SMALL = Longest(b"a", b"b", b"ab", b"ba"), Longest(b"b", b"aa", b"a", b"ab")
MODELS = MarkovRuntime.random(4, 2, 1, scale=1.5), MarkovRuntime.random(4, 2, 2, scale=1.5)


def by_common_tokens(min_survival: float = 0.0, control: Control | None = None) -> Drafting:
    drafter = IntersectionDrafter(MODELS[1], *SMALL, twins(*SMALL))

    def draft(text: Text, choice: Choice) -> Draft:
        drafter.begin(0, text)
        proposal = drafter.propose(0, Budget(3, min_survival), choice)
        nodes = range(len(proposal)) if control is None else control.plan([proposal], 64).nodes[0]
        return proposal.select(nodes) if nodes else EMPTY

    return draft


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("sampling", ["open", "penalties", "all"])
@pytest.mark.parametrize("controlled", [False, True])
def test_the_law_of_the_text_is_that_of_the_target(controlled: bool, sampling: str, rule: str) -> None:
    """Exact, over every outcome; the target's fourth token is none that is ever drafted."""
    options = replace(SAMPLINGS[sampling], verification=rule)
    draft = by_common_tokens(0.25, choosy()) if controlled else by_common_tokens()
    check(MODELS[0], options, draft, 3)


def test_drafts_are_drawn_from_the_normalised_rest() -> None:
    def propose(chance):
        choice = Sampler(replace(OPEN, verification="rejection"), 4).bind((1,))
        choice.chance = chance
        return by_common_tokens()((1,), choice)

    row = np.exp(MODELS[1].row([0]).astype(np.float64))[[2, 0, 3]]
    law = np.zeros(4)
    for probability, draft in branches(propose):
        assert draft.q is not None and draft.q[0].ids.tolist() == [0, 1, 2]
        assert draft.q[0].probabilities == pytest.approx(row / row.sum())
        law[draft.tokens[0]] += probability
    assert law == pytest.approx([*(row / row.sum()), 0])


@pytest.mark.parametrize("sampling", [Sampling(temperature=0), SAMPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("seed", range(3))
def test_in_the_ring_the_text_is_that_of_plain_decoding(seed: int, sampling: Sampling) -> None:
    target = ToyRuntime(TARGET.n_vocab)
    runtime = ToyRuntime(DRAFT.n_vocab, seed=seed)
    texts = []
    for drafters in [], [IntersectionDrafter(runtime, TARGET, DRAFT, TWINS)]:
        ring = Ring(target, drafters, AlwaysTake(4), Clock())
        state = SequenceState(0, Sampler(sampling, TARGET.n_vocab), lambda token: False, 120)
        ring.begin(state, TEXT, 0)
        drafted = 0
        while not state.ended:
            drafted += sum(r.drafted for r in ring.step([state]))
        texts.append(state.tokens)
    assert texts[0] == texts[1] and drafted > 50


@pytest.mark.parametrize("sampling", [Sampling(temperature=0), SAMPLED], ids=["greedy", "coupled"])
def test_the_same_model_under_other_ids_agrees_with_itself(sampling: Sampling) -> None:
    """Above temperature 0 as well: the noise is that of the target's tokens."""
    letters = [bytes([b]) for b in b"abcdefghijklm"]
    target, draft = Longest(*letters), Longest(*letters[::-1])
    model, runtime = ToyRuntime(), ToyRuntime()
    runtime.table = model.table[::-1, ::-1, ::-1].copy()
    drafter = IntersectionDrafter(runtime, target, draft, twins(target, draft))
    ring = Ring(model, [drafter], AlwaysTake(4), Clock())
    state = SequenceState(0, Sampler(sampling, target.n_vocab), lambda token: False, 100)
    ring.begin(state, [3, 1, 4], 0)
    rounds = [r for _ in range(18) for r in ring.step([state])]
    assert all(r.accepted == r.drafted for r in rounds) and sum(r.drafted for r in rounds) > 40
