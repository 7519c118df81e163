"""Drafting by text: what the draft writes, in the target's tokens; whatever it is, the target's text stays the same."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from enumeration import Drafting, Text, branches, rounds
from test_intersection import MODELS, SMALL
from test_proofs import SAMPLINGS, check
from test_translation import Longest, anew
from toy import AlwaysTake, Clock, ToyRuntime

from slipstream.decoding.choice import Choice, Sampler
from slipstream.decoding.draft import Draft
from slipstream.decoding.protocols import Budget, Drafter
from slipstream.decoding.ring import Ring, SequenceState
from slipstream.decoding.sampling import Sampling
from slipstream.drafters.intersection import IntersectionDrafter
from slipstream.drafters.model import N_BANDS
from slipstream.drafters.text_drafter import TextDrafter
from slipstream.drafters.translation import GrowingText, spelt, twins
from slipstream.runtimes.markov import MarkovRuntime

E = "é".encode()
TARGET = Longest(b"a", b"b", b"ab", b"ba", E[:1], E[1:], b" ", end=b"<end>")
DRAFT = Longest(b"b", b"aa", b"a", b" a", E, b"bb", b" ", E[:1], E[1:], "\ufffd".encode(), bos=b"<s>", end=b"<end>")
TWINS = twins(TARGET, DRAFT)
GREEDY, SAMPLED = Sampling(temperature=0), Sampling(temperature=0.9, seed=3)


def targets(*pieces: bytes) -> list[int]:
    return [TARGET.pieces.index(piece) for piece in pieces]


def choice(text: list[int], options: Sampling = GREEDY) -> Choice:
    return Sampler(options, TARGET.n_vocab).bind(text)


def follows(**after: bytes | tuple[bytes, ...]) -> MarkovRuntime:
    """A draft that is sure of what follows each of its tokens; b" " follows where nothing is said."""
    n = DRAFT.n_vocab
    table = np.zeros((n, n), np.float32)
    table[:, DRAFT.pieces.index(b" ")] = 5
    for piece, then in after.items():
        table[DRAFT.pieces.index(piece.encode()), DRAFT.pieces.index(then)] = 20
    return MarkovRuntime(table)


def drafter_of(runtime: MarkovRuntime) -> TextDrafter:
    return TextDrafter(runtime, TARGET, DRAFT, TWINS)


def proposed(drafter: TextDrafter, text: list[int], n: int = 4, options: Sampling = GREEDY) -> list[bytes]:
    draft = drafter.propose(0, Budget(n), choice(text, options))
    assert draft.is_chain and draft.q is None
    assert all(np.diff(draft.survival) <= 0) and all((draft.survival > 0) & (draft.survival <= 1))
    return [TARGET.piece(token, special=True) for token in draft.tokens]


# What it proposes


def test_it_proposes_its_text_in_the_tokens_of_the_target() -> None:
    drafter = drafter_of(follows(b=b"a", a=b"b"))
    text = targets(b"a", b" ", b"b")
    drafter.begin(0, text)
    assert proposed(drafter, text) == [b"ab", b"ab", b"ab", b"a"]


def test_behind_a_token_that_ends_within_a_character_it_proposes_the_rest() -> None:
    drafter = drafter_of(follows(a=E, é=b"b"))
    text = targets(b"a")
    drafter.begin(0, text)
    drafter.observe(0, targets(E[:1]))
    assert proposed(drafter, [*text, *targets(E[:1])], 2) == [E[1:], b"b"]


def test_behind_the_beginning_of_another_character_it_says_nothing() -> None:
    drafter = drafter_of(follows(a=b"b"))
    text = targets(b"a", E[:1])
    drafter.begin(0, text)
    assert proposed(drafter, text) == []
    assert drafter.runtime.held(0) == 2, "one token was written, and it did not fit"


def test_the_end_of_its_text_is_the_end_of_the_targets() -> None:
    drafter = drafter_of(follows(a=b"b", b=b"<end>"))
    text = targets(b"b", b"a")
    drafter.begin(0, text)
    assert proposed(drafter, text) == [b"b", b"<end>"]


def test_whichever_token_ends_its_text_the_targets_end_follows() -> None:
    class TwoEnds(Longest):
        def is_eog(self, token: int) -> bool:
            return token in (self.bos, self.eos)

    draft = TwoEnds(*DRAFT.pieces[:-2], bos=b"<s>", end=b"<end>")
    drafter = TextDrafter(follows(a=b"<s>"), TARGET, draft, twins(TARGET, draft))
    text = targets(b"b", b"a")
    drafter.begin(0, text)
    assert proposed(drafter, text) == [b"<end>"]


def test_it_does_not_go_on_behind_a_control_token() -> None:
    drafter = drafter_of(follows(a=b"b", b=b"<s>"))
    text = targets(b"b", b"a")
    drafter.begin(0, text)
    assert proposed(drafter, text) == [b"b"]


def test_no_more_is_proposed_than_was_asked_for() -> None:
    drafter = drafter_of(follows(a=b"bb", bb=b"bb"))
    text = targets(b" ", b"a")
    drafter.begin(0, text)
    assert [len(proposed(drafter, text, n)) for n in (1, 2, 3, 4)] == [1, 2, 3, 4]


def test_it_stays_inside_its_own_context() -> None:
    runtime = follows(b=b"a", a=b"b")
    text = targets(b"b", b"a")
    runtime.n_ctx = 5
    drafter = drafter_of(runtime)
    drafter.begin(0, text)
    assert proposed(drafter, text, 9) == [b"ba"]
    drafter.observe(0, targets(b"b", b"b", b"b", b"a"))
    assert proposed(drafter, [*text, *targets(b"b", b"b", b"b", b"a")]) == []


def test_where_all_that_it_could_write_is_banned_it_says_nothing() -> None:
    target, draft = Longest(b"a", b"b", b"c"), Longest(b"b", b"a")
    drafter = TextDrafter(ToyRuntime(2), target, draft, twins(target, draft))
    drafter.begin(0, [0, 1])
    banned = Sampling(temperature=0, logit_bias={0: -math.inf, 1: -math.inf})
    assert len(drafter.propose(0, Budget(3), Sampler(banned, 3).bind([0, 1]))) == 0


# Survival


def test_a_token_is_as_sure_as_all_that_is_written_in_it_and_the_last_one_is_a_case_of_its_own() -> None:
    runtime = follows(b=b"a", a=b"b")
    b, a = DRAFT.pieces.index(b"b"), DRAFT.pieces.index(b"a")
    others = math.log(DRAFT.n_vocab - 1)
    runtime.table[:] = 0
    runtime.table[b, a] = others + math.log(0.75 / 0.25)  # 75 %
    runtime.table[a, b] = others + math.log(0.82 / 0.18)  # 82 %
    drafter = drafter_of(runtime)
    text = targets(b" ", b"b")
    drafter.begin(0, text)
    assert proposed(drafter, text, 2) == [b"ab", b"a"]
    bands = drafter._texts[0].bands
    assert bands == [int(0.75 * 0.82 * N_BANDS), N_BANDS + int(0.75 * N_BANDS)]


def test_the_rates_it_learns_are_those_that_came_true() -> None:
    drafter = drafter_of(follows(b=b"a", a=b"b"))
    text = targets(b" ", b"b")
    drafter.begin(0, text)
    for _ in range(30):
        assert proposed(drafter, text, 3)[:2] == [b"ab", b"ab"]
        committed = targets(b"ab", b" ", b"b")
        drafter.observe(0, committed)
        text += committed
    rates = drafter.acceptance.rates
    assert 0.4 < rates[N_BANDS - 1] < 0.7, "the first of two was right"


def test_it_stops_where_it_is_no_longer_sure() -> None:
    drafter = drafter_of(ToyRuntime(DRAFT.n_vocab))
    text = targets(b" ", b"a", b"b")
    drafter.begin(0, text)
    draft = drafter.propose(0, Budget(30, 0.3), choice(text))
    assert 0 < len(draft) < 30 and all(draft.survival >= 0.3)


# Its own text


def check_cache(runtime: ToyRuntime, text: list[int]) -> None:
    """Behind the text stands what was drafted last."""
    own = anew(DRAFT, spelt(TARGET, text))
    assert runtime.cache[0][: len(own)] == own


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_committed_its_cache_is_that_of_the_text(seed: int) -> None:
    rng = np.random.default_rng(seed)
    runtime = ToyRuntime(DRAFT.n_vocab, n_batch=8, seed=seed)
    drafter = drafter_of(runtime)
    text = rng.integers(0, TARGET.n_vocab, 30).tolist()
    drafter.begin(0, text)
    for _ in range(40):
        options = GREEDY if rng.random() < 0.5 else SAMPLED
        kept: list[int] = []
        if rng.random() < 0.7:
            draft = drafter.propose(0, Budget(4), choice(text, options))
            check_cache(runtime, text)
            kept = draft.tokens[: rng.integers(0, len(draft) + 1)].tolist()
        committed = [*kept, int(rng.integers(0, TARGET.n_vocab))]
        drafter.observe(0, committed)
        text += committed


def test_a_draft_that_comes_true_is_not_read_again() -> None:
    runtime = ToyRuntime(DRAFT.n_vocab)
    runtime.table[:] = follows(b=b" ", a=b"b").table
    drafter = drafter_of(runtime)
    text = targets(b" ", b"b", b" ", b"b")
    drafter.begin(0, text)
    draft = drafter.propose(0, Budget(3), choice(text)).tokens.tolist()
    n_held, n_passes = runtime.held(0), len(runtime.passes)
    drafter.observe(0, draft)
    assert drafter.backlog(0) == 1
    drafter.propose(0, Budget(1), choice(text + draft))
    check_cache(runtime, text + draft)
    assert runtime.passes[n_passes][0].start == n_held, "only its last token was never computed"


def test_a_text_that_begins_alike_keeps_its_rows() -> None:
    runtime = ToyRuntime(DRAFT.n_vocab)
    drafter = drafter_of(runtime)
    text = targets(b" ", b"b", b" ", b"b", b"a", b"b", b" ", b" ")
    drafter.begin(0, text)
    drafter.propose(0, Budget(2), choice(text))
    other = [*text[:4], *targets(b" ", b" ")]
    drafter.begin(0, other)
    assert runtime.held(0) == 5, "the beginning and four more"
    drafter.propose(0, Budget(1), choice(other))
    check_cache(runtime, other)


@pytest.mark.parametrize("failing", range(5))
def test_a_failing_pass_of_the_draft_does_no_lasting_harm(failing: int) -> None:
    text = targets(*[b" ", b"b", b" ", b"b", b"a"] * 3)
    drafter, other = (drafter_of(follows(b=b"a", a=b"b")) for _ in range(2))
    runtime = drafter.runtime
    runtime.n_batch = 6
    real, calls = runtime.forward, iter(range(100))

    def forward(rows):
        if next(calls) == failing:
            raise RuntimeError("gives up")
        return real(rows)

    runtime.forward = forward
    drafter.begin(0, text)
    other.begin(0, text)
    with pytest.raises(RuntimeError):
        proposed(drafter, text, 5)
    assert proposed(drafter, text, 5) == proposed(other, text, 5)


def test_an_ended_sequence_is_forgotten() -> None:
    runtime = ToyRuntime(DRAFT.n_vocab)
    drafter = drafter_of(runtime)
    for seq in 0, 2:
        drafter.begin(seq, targets(b"a"))
        drafter.propose(seq, Budget(1), choice(targets(b"a")))
    drafter.end(0)
    drafter.end(0)
    assert runtime.cache[0] == [] and runtime.cache[2]


# Lossless


def by_text(text: Text, choice: Choice) -> Draft:
    drafter = TextDrafter(MODELS[1], *SMALL, twins(*SMALL))
    drafter.begin(0, text)
    return drafter.propose(0, Budget(3), choice)


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_law_of_the_text_is_that_of_the_target(sampling: str, rule: str) -> None:
    """Exact, over every outcome of three tokens."""
    options = replace(SAMPLINGS[sampling], verification=rule)
    draft: Drafting = by_text
    outcomes = branches(lambda chance: rounds(MODELS[0], options, draft)((1,), chance))
    assert any(outcome.verdict.accepted for _, outcome in outcomes)
    check(MODELS[0], options, draft, 3)


@pytest.mark.parametrize("options", [GREEDY, SAMPLED, replace(SAMPLED, repeat_penalty=1.3)], ids=lambda s: "")
@pytest.mark.parametrize("seed", range(3))
def test_in_the_ring_the_text_is_that_of_plain_decoding(seed: int, options: Sampling) -> None:
    target = ToyRuntime(TARGET.n_vocab)
    texts = []
    for drafters in [], [drafter_of(ToyRuntime(DRAFT.n_vocab, seed=seed))]:
        ring = Ring(target, drafters, AlwaysTake(4), Clock())
        states = [SequenceState(i, Sampler(options, TARGET.n_vocab), lambda token: False, 80) for i in range(2)]
        for state, prompt in zip(states, (targets(b"a", b" ", b"b"), targets(b"b", E[:1], E[1:])), strict=True):
            ring.begin(state, prompt, 0)
        drafted = 0
        while live := [s for s in states if not s.ended]:
            drafted += sum(r.drafted for r in ring.step(live))
        texts.append([s.tokens for s in states])
    assert texts[0] == texts[1] and drafted > 5


@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "coupled"])
def test_the_same_model_under_other_ids_agrees_with_itself(options: Sampling) -> None:
    """Above temperature 0 as well: the noise is that of the target's tokens."""
    letters = [bytes([b]) for b in b"abcdefghijklm"]
    target, draft = Longest(*letters), Longest(*letters[::-1])
    model, runtime = ToyRuntime(), ToyRuntime()
    runtime.table = model.table[::-1, ::-1, ::-1].copy()
    ring = Ring(model, [TextDrafter(runtime, target, draft, twins(target, draft))], AlwaysTake(4), Clock())
    state = SequenceState(0, Sampler(options, target.n_vocab), lambda token: False, 100)
    ring.begin(state, [3, 1, 4], 0)
    done = [r for _ in range(18) for r in ring.step([state])]
    assert all(r.accepted == r.drafted for r in done) and sum(r.drafted for r in done) > 40


# A real pair


N_NEW = 24
PROMPTS = (
    "def area(width, height):\n    return width * height\n\ndef volume(width, height, depth):\n    return",
    "日本の四季は、春、夏、秋、冬です。春には🌸が咲き、",
)


@pytest.mark.model
@pytest.mark.skipif("SLIPSTREAM_QWEN_MODEL" not in os.environ, reason="SLIPSTREAM_QWEN_MODEL names no model")
@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "coupled"])
def test_smollm2_drafts_for_qwen(smollm2_path: Path, options: Sampling) -> None:
    """In passes of three tokens at most, whose rows are those of plain decoding bit by bit (docs/lossless.md)."""
    from slipstream.runtimes.llamacpp import ContextOptions, LlamaModel, LlamaRuntime

    context = ContextOptions(n_ctx=256, n_threads=1)
    with (
        LlamaModel(Path(os.environ["SLIPSTREAM_QWEN_MODEL"])) as target,
        LlamaModel(smollm2_path) as draft,
        LlamaRuntime(target, context) as runtime,
        LlamaRuntime(draft, context) as small,
    ):
        vocabularies = target.tokenizer, draft.tokenizer
        pair = twins(*vocabularies)
        assert pair.n_common > 20_000
        arms: dict[str, list[Drafter]] = {
            "plain": [],
            "text": [TextDrafter(small, *vocabularies, pair)],
            "common": [IntersectionDrafter(small, *vocabularies, pair)],
        }
        for prompt in PROMPTS:
            texts, accepted = {}, {}
            for name, drafters in arms.items():
                small.keep(0, 0)
                ring = Ring(runtime, drafters, AlwaysTake(2), Clock())
                tokens = target.tokenizer.tokenize(prompt, add_special=True, parse_special=True)
                limit = len(tokens) + N_NEW
                state = SequenceState(0, Sampler(options, runtime.n_vocab), lambda token: False, limit)
                ring.begin(state, tokens, 0)
                accepted[name] = 0
                while not state.ended:
                    accepted[name] += sum(r.accepted for r in ring.step([state]))
                for drafter in drafters:
                    drafter.end(0)
                texts[name] = state.tokens
            assert texts["text"] == texts["common"] == texts["plain"]
            assert prompt is not PROMPTS[0] or min(accepted["text"], accepted["common"]) > 3
            check_growing(texts["plain"], *vocabularies)


def check_growing(tokens: list[int], target, draft) -> None:
    """Token by token, a text is to the draft's tokenizer what it is as a whole."""
    growing = GrowingText(draft)
    for n, token in enumerate(tokens, 1):
        growing.append(target.piece(token, special=True))
        whole = spelt(target, tokens[:n])
        text = whole[: len(whole) - len(growing.held)].decode("utf-8", "replace")
        assert growing.tokens == draft.tokenize(text, add_special=False, parse_special=True)
