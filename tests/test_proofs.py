"""What speculative decoding writes has the target's own distribution: proofs of the rules that draw tokens.

Exact proofs follow every outcome of several rounds; statistical ones draw by the keyed numbers that are really used.
Seeds are fixed; a right rule fails a χ² test with probability 10⁻⁴. `test_mutations` shows that wrong rules fail.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from enumeration import (
    Drafting,
    Law,
    Outcome,
    Round,
    Text,
    branches,
    drawn,
    law_of_rounds,
    likeliest,
    own_law,
    p_value,
    rounds,
    total_variation,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from slipstream.decoding import chance as chances
from slipstream.decoding import rejection as rules
from slipstream.decoding.chance import Chance, KeyedChance, Stream
from slipstream.decoding.choice import Choice
from slipstream.decoding.control import Control
from slipstream.decoding.cost import CostCurve
from slipstream.decoding.distribution import Distribution
from slipstream.decoding.draft import EMPTY, ROOT, Draft, chain
from slipstream.decoding.noise import uniform
from slipstream.decoding.protocols import Budget
from slipstream.decoding.sampling import Sampling
from slipstream.decoding.verdict import Verdict
from slipstream.decoding.verify import match
from slipstream.drafters.model import ModelDrafter
from slipstream.runtimes.markov import MarkovRuntime

EXACT = 1e-12
"""Total variation, no more than rounding."""
CHANCE = 1e-4

OPEN = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
SAMPLINGS = {
    "open": OPEN,
    "truncated": Sampling(temperature=0.8, top_k=3, top_p=0.9, min_p=0.1),
    "penalties": replace(OPEN, temperature=1.3, repeat_penalty=1.6, presence_penalty=0.7, repeat_last_n=2),
    "frequency": replace(OPEN, frequency_penalty=0.8, repeat_last_n=-1),
    "bias": replace(OPEN, logit_bias={0: 1.0, 2: -math.inf}),
    "all": Sampling(0.7, 3, 0.95, 0.05, 1.3, 0.4, 0.2, 3, {1: -0.5}),
}
CHAIN = (ROOT, 0, 1)
TREES = {
    "siblings": (ROOT,) * 4,
    "two levels": (ROOT, ROOT, 0, 0, 1),
    "branch behind a token": (ROOT, 0, 0, 0),
}
PROMPT = (1,)


def pair(n_vocab: int, order: int = 2) -> tuple[MarkovRuntime, MarkovRuntime]:
    """A target and a drafter that know nothing of each other."""
    return MarkovRuntime.random(n_vocab, order, 1, scale=1.5), MarkovRuntime.random(n_vocab, order, 2, scale=1.5)


def limited(model: MarkovRuntime, possible: np.ndarray) -> MarkovRuntime:
    """The same model where only some tokens are possible (bool, of the table's shape)."""
    return MarkovRuntime(np.where(possible, model.table, -np.inf).astype(np.float32))


def with_zeros() -> tuple[MarkovRuntime, MarkovRuntime]:
    """Half of the tokens are impossible, others for the target than for the drafter, one at least is not."""
    possible = np.random.default_rng(3).random((2, 4, 4, 4)) < 0.5
    possible[0, ..., 1] |= ~possible[0].any(axis=-1)
    possible[1, ..., 2] |= ~possible[1].any(axis=-1)
    target, drafter = pair(4)
    return limited(target, possible[0]), limited(drafter, possible[1])


def disjoint() -> tuple[MarkovRuntime, MarkovRuntime]:
    even = np.broadcast_to(np.arange(4) % 2 == 0, (4, 4, 4))
    target, drafter = pair(4)
    return limited(target, even), limited(drafter, ~even)


def point_mass() -> tuple[MarkovRuntime, MarkovRuntime]:
    target, drafter = pair(4)
    return target, limited(drafter, drafter.table == drafter.table.max(axis=-1, keepdims=True))


def equal() -> tuple[MarkovRuntime, MarkovRuntime]:
    return pair(3)[0], pair(3)[0]


def nearly_equal() -> tuple[MarkovRuntime, MarkovRuntime]:
    """Logits around 0 that differ by 10⁻⁹, and a token of probability 10⁻¹⁸, or two of them."""
    table = np.random.default_rng(4).normal(0, 1e-3, (3, 3, 3))
    table[..., 2] = -41
    other = table + np.random.default_rng(5).normal(0, 1e-9, table.shape)
    other[..., 2] += np.random.default_rng(6).normal(0, 1, (3, 3))
    return MarkovRuntime(table.astype(np.float32)), MarkovRuntime(other.astype(np.float32))


PAIRS = {
    "random": lambda: pair(3),
    "zeros": with_zeros,
    "disjoint": disjoint,
    "point mass": point_mass,
    "equal": equal,
    "nearly equal": nearly_equal,
}


def distance(target: MarkovRuntime, sampling: Sampling, draft: Drafting, n: int) -> float:
    """The proof: total variation between what is written and what the target writes alone, over texts of n tokens."""
    return total_variation(
        law_of_rounds(rounds(target, sampling, draft), PROMPT, n), own_law(target, sampling, PROMPT, n)
    )


def unsound(target: MarkovRuntime, sampling: Sampling, draft: Drafting) -> float:
    """The probability that a round does not commit a path and one more token."""
    write = rounds(target, sampling, draft)
    return sum(probability for probability, outcome in branches(lambda c: write(PROMPT, c)) if not outcome.is_sound)


def check(target: MarkovRuntime, sampling: Sampling, draft: Drafting, n: int) -> None:
    assert unsound(target, sampling, draft) == 0
    assert distance(target, sampling, draft, n) < EXACT


# Exact, several rounds long


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("models", PAIRS)
@pytest.mark.parametrize("n_drafted", [1, 2, 3])
def test_chains(n_drafted: int, models: str, rule: str) -> None:
    target, drafter = PAIRS[models]()
    check(target, replace(OPEN, verification=rule), drawn(drafter, CHAIN[:n_drafted]), 3)


@pytest.mark.parametrize("models", PAIRS)
@pytest.mark.parametrize("shape", TREES)
def test_trees(shape: str, models: str) -> None:
    """Four siblings are more than most of these drafters have tokens: they exhaust q."""
    target, drafter = PAIRS[models]()
    check(target, replace(OPEN, verification="rejection"), drawn(drafter, TREES[shape]), 3)


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("shape", [CHAIN, *TREES.values()], ids=["chain", *TREES])
def test_point_masses_are_matched_with_drawn_tokens(shape: Sequence[int], rule: str) -> None:
    """In a tree of the likeliest tokens this is the deterministic top-k rule."""
    target, drafter = pair(4)
    check(target, replace(OPEN, verification=rule), likeliest(drafter, shape), 3)


@pytest.mark.parametrize("sampling", list(SAMPLINGS)[1:])
@pytest.mark.parametrize(
    ("rule", "draft", "shape"),
    [
        ("rejection", drawn, CHAIN[:2]),
        ("block", drawn, CHAIN[:2]),
        ("rejection", drawn, (ROOT, ROOT, 0)),
        ("rejection", likeliest, TREES["two levels"]),
    ],
    ids=["rejection", "block", "tree", "top-k tree"],
)
def test_the_whole_chain_of_options(rule: str, draft: Callable[..., Drafting], shape: Sequence[int], sampling: str):
    """Truncation, penalties that look back on the drafted prefix, bias: both sides see them token by token."""
    target, drafter = pair(4 if sampling == "truncated" else 3)
    check(target, replace(SAMPLINGS[sampling], verification=rule), draft(drafter, shape), 3)


@pytest.mark.parametrize("sampling", ["open", "penalties"])
@pytest.mark.parametrize(
    ("rule", "shape"), [("rejection", CHAIN), ("block", CHAIN), *(("rejection", tree) for tree in TREES.values())]
)
def test_five_tokens(rule: str, shape: Sequence[int], sampling: str) -> None:
    target, drafter = pair(2)
    check(target, replace(SAMPLINGS[sampling], verification=rule), drawn(drafter, shape), 5)


# The model drafter and control, exact


def by_model(drafter: MarkovRuntime, min_survival: float, control: Control | None = None) -> Drafting:
    """Drafts of the real model drafter, planned by a real control; their length depends on the text."""
    model = ModelDrafter(drafter, drafter.n_vocab)

    def draft(text: Text, choice: Choice) -> Draft:
        model.begin(0, text)
        proposal = model.propose(0, Budget(3, min_survival), choice)
        nodes = range(len(proposal)) if control is None else control.plan([proposal], 64).nodes[0]
        return proposal.select(nodes) if nodes else EMPTY

    return draft


def choosy() -> Control:
    """Takes a pass of three if the third token is likely enough, and none of two."""
    return Control(CostCurve({1: 1.0, 2: 2.0, 3: 1.9, 4: 2.2, 5: 9.0}))


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("controlled", [False, True])
@pytest.mark.parametrize("sampling", ["open", "all"])
def test_the_model_drafter_stops_by_what_it_knew(sampling: str, controlled: bool, rule: str) -> None:
    target, drafter = pair(3)
    options = replace(SAMPLINGS[sampling], verification=rule)
    draft = by_model(drafter, 0.3, choosy() if controlled else None)
    write = rounds(target, options, draft)
    lengths = {len(outcome.draft) for _, outcome in branches(lambda chance: write(PROMPT, chance))}
    assert len(lengths) > 1, "the drafts differ in length"
    check(target, options, draft, 3)


# How much is accepted


Table = Callable[[Text], Distribution]
"""The distribution behind the tokens of a path."""


def drawn_chain(q: Table, n: int, chance: Chance) -> Draft:
    tokens: list[int] = []
    distributions: list[Distribution] = []
    for node in range(n):
        distributions.append(q(tuple(tokens)))
        tokens.append(chance.draw(Stream.DRAFT, node, distributions[-1]))
    return chain(tokens, [1.0] * n, tuple(distributions))


def accepted(rule: str, p: Table, q: Table, n: int) -> dict[int, float]:
    """The distribution of the accepted length, by enumeration."""

    def run(chance: Chance) -> Verdict:
        return getattr(rules, rule)(drawn_chain(q, n, chance), lambda node, drafted: p(tuple(drafted)), chance)

    law: dict[int, float] = defaultdict(float)
    for probability, verdict in branches(run):
        law[len(verdict.accepted)] += probability
    return law


def accepted_by_theory(rule: str, p: Table, q: Table, n: int) -> dict[int, float]:
    """The same by formula: over all drafts, Π min(p, q) token by token, by block q · Π* p ÷ q never above 1."""
    reached = [1.0, *[0.0] * (n + 1)]
    for i in range(1, n + 1):
        for path in itertools.product(range(10), repeat=i):
            each, whole, likely = 1.0, 1.0, 1.0
            for k, token in enumerate(path):
                pk, qk = p(path[:k]).probability(token), q(path[:k]).probability(token)
                if qk == 0:
                    whole = each = 0.0
                    break
                each *= min(pk, qk)
                whole = min(1.0, whole * pk / qk)
                likely *= qk
            reached[i] += each if rule == "rejection" else whole * likely
    return {i: reached[i] - reached[i + 1] for i in range(n + 1)}


def mean(law: dict[int, float]) -> float:
    return sum(n * probability for n, probability in law.items())


def of(*weights: float) -> Distribution:
    distribution = Distribution.of_weights(np.arange(len(weights)), np.array(weights, np.float64))
    assert distribution is not None
    return distribution


@pytest.mark.parametrize(("rule", "expected"), [("rejection", 10 / 9), ("block", 11 / 9)])
def test_known_means(rule: str, expected: float) -> None:
    """The example of Sun et al. 2024, section 3."""
    law = accepted(rule, lambda path: of(1, 2), lambda path: of(2, 1), 2)
    assert mean(law) == pytest.approx(expected, abs=1e-15)
    assert sum(law.values()) == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_all_but_certain_tokens_that_differ_by_less_than_rounding(rule: str) -> None:
    """1 + 10⁻¹⁸ − 1 is 0: a block divided by it (ZeroDivisionError)."""
    assert mean(accepted(rule, lambda path: of(1, 4e-18), lambda path: of(1, 1e-18), 3)) == pytest.approx(3)


@st.composite
def tables(draw: st.DrawFn, n_vocab: int, n: int) -> Table:
    """Weights from 0 to 5 behind each path of up to n tokens."""
    weights = st.lists(st.integers(0, 5), min_size=n_vocab, max_size=n_vocab).filter(any)
    paths = [path for i in range(n + 1) for path in itertools.product(range(n_vocab), repeat=i)]
    return {path: of(*draw(weights)) for path in paths}.__getitem__


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from([(2, 3), (3, 2), (4, 1)]))
def test_a_block_accepts_at_least_as_much_and_both_as_much_as_theory_says(data: st.DataObject, size: tuple[int, int]):
    n_vocab, n = size
    p, q = data.draw(tables(n_vocab, n)), data.draw(tables(n_vocab, n))
    laws = {}
    for rule in "rejection", "block":
        laws[rule] = accepted(rule, p, q, n)
        with np.errstate(all="raise"):
            theory = accepted_by_theory(rule, p, q, n)
        assert all(laws[rule][i] == pytest.approx(theory[i], abs=1e-14) for i in range(n + 1))
    assert mean(laws["block"]) >= mean(laws["rejection"]) - 1e-14


# Statistical, with the numbers that are really used


N_VOCAB, N_DRAFTED, N_WRITTEN = 10, 2, 3
START = (1, 0)


def table_of(
    seed: int, scale: float, base: np.ndarray | float = 0.0
) -> tuple[np.ndarray, Callable[[Text], Distribution]]:
    logits = base + np.random.default_rng(seed).normal(0, scale, (N_VOCAB,) * 3)
    rows = {ab: of(*np.exp(logits[ab])) for ab in itertools.product(range(N_VOCAB), repeat=2)}
    return logits, lambda text: rows[text[-2:]]


LOGITS, P = table_of(0, 1.5)
Q = table_of(1, 1.0, LOGITS)[1]


def write_keyed(rule: str, text: Text, n: int, chance: Chance) -> Verdict:
    """A round behind the text with a draft of n tokens: drawn, or under "match" the likeliest ones."""
    if rule == "match" or n == 0:
        tokens: Text = ()
        for _ in range(n):
            q = Q(text + tokens)
            tokens += (int(q.ids[q.probabilities.argmax()]),)
        rows = np.empty((n + 1, 0), np.float32)
        return match(
            chain(tokens, [1.0] * n),
            rows,
            lambda row, drafted: chance.draw(Stream.TARGET, len(drafted), P((*text, *drafted))),
        )
    draft = drawn_chain(lambda path: Q(text + path), n, chance)
    return getattr(rules, rule)(draft, lambda node, drafted: P((*text, *drafted)), chance)


def keyed_texts(rule: str, n_seeds: int) -> Iterator[tuple[Text, int]]:
    """Three tokens for each seed, and how many were accepted in the first round. No draft exceeds what is missing."""
    for seed in range(n_seeds):
        text, first = START, -1
        while missing := len(START) + N_WRITTEN - len(text):
            verdict = write_keyed(rule, text, min(N_DRAFTED, missing - 1), chances.KeyedChance(seed, len(text)))
            text += verdict.tokens
            first = len(verdict.accepted) if first < 0 else first
        yield text[len(START) :], first


def keyed_law() -> Law:
    law = {}
    for text in itertools.product(range(N_VOCAB), repeat=N_WRITTEN):
        whole = START + text
        law[text] = math.prod(P(whole[: 2 + i]).probability(whole[2 + i]) for i in range(N_WRITTEN))
    return law


def surprise(rule: str, n_seeds: int) -> float:
    """The proof: −log₁₀ of the χ² test's p-value, over the joint distribution of three tokens; 300 at most."""
    p = p_value(Counter(text for text, _ in keyed_texts(rule, n_seeds)), keyed_law())
    return -math.log10(max(p, 1e-300))


def accepted_in_theory_from_start(rule: str) -> dict[int, float]:
    if rule != "match":
        return accepted_by_theory(rule, lambda path: P(START + path), lambda path: Q(START + path), N_DRAFTED)
    first = int(Q(START).probabilities.argmax())
    second = int(Q((*START, first)).probabilities.argmax())
    one = P(START).probability(first)
    two = one * P((*START, first)).probability(second)
    return {0: 1 - one, 1: one - two, 2: two}


@pytest.mark.parametrize("rule", ["rejection", "block", "match"])
def test_three_tokens_and_the_accepted_length_follow_their_laws(rule: str) -> None:
    written = list(keyed_texts(rule, 100_000))
    assert p_value(Counter(text for text, _ in written), keyed_law()) > CHANCE
    assert p_value(Counter(first for _, first in written), accepted_in_theory_from_start(rule)) > CHANCE


# Coupled: the text is that of plain decoding, seed by seed


def coupled_chain(model: MarkovRuntime, n: int) -> Drafting:
    """Chosen as the target chooses, with the same noise."""

    def draft(text: Text, choice: Choice) -> Draft:
        tokens: list[int] = []
        for _ in range(n):
            tokens.append(choice(model.row((*text, *tokens)), tokens))
        return chain(tokens, [1.0] * n)

    return draft


def coupled_text(target: MarkovRuntime, sampling: Sampling, draft: Drafting, n: int) -> Text:
    write: Round = rounds(target, sampling, draft)
    text = PROMPT
    while len(text) < len(PROMPT) + n:
        ((probability, outcome),) = branches(lambda chance, text=text: write(text, chance))
        assert probability == 1 and outcome.is_sound
        text += outcome.verdict.tokens
    return text[: len(PROMPT) + n]


def plain_text(target: MarkovRuntime, sampling: Sampling, n: int) -> Text:
    return coupled_text(target, sampling, lambda text, choice: EMPTY, n)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("shape", [CHAIN, *TREES.values()], ids=["chain", *TREES])
def test_coupled_writes_the_text_of_plain_decoding(shape: Sequence[int], sampling: str) -> None:
    target, drafter = pair(4)
    drafts = [likeliest(drafter, shape), coupled_chain(drafter, len(shape)), coupled_chain(target, len(shape))]
    for seed in range(20):
        options = replace(SAMPLINGS[sampling], seed=seed)
        plain = plain_text(target, options, 12)
        assert all(coupled_text(target, options, draft, 12) == plain for draft in drafts)


@pytest.mark.parametrize("sampling", ["open", "all"])
def test_coupled_choices_follow_the_distribution(sampling: str) -> None:
    """Texts of three tokens, over seeds."""
    target, drafter = pair(4)
    draft = coupled_chain(drafter, 2)
    texts = (coupled_text(target, replace(SAMPLINGS[sampling], seed=seed), draft, 3) for seed in range(1500))
    counts = Counter(text[len(PROMPT) :] for text in texts)
    assert p_value(counts, own_law(target, SAMPLINGS[sampling], PROMPT, 3)) > CHANCE


# The numbers


def numbers(seed: int) -> np.ndarray:
    """Those of 4 streams, 250 rounds and 32 nodes, the root among them."""
    names = itertools.product(Stream, range(250), range(ROOT, 31))
    return np.array([uniform(seed, *name) for name in names]).reshape(len(Stream), 250, 32)


def is_flat(numbers: np.ndarray, n_cells: int = 256) -> bool:
    cells = np.bincount((numbers.ravel() * n_cells).astype(int), minlength=n_cells)
    return bool(stats.chisquare(cells).pvalue > CHANCE)


def are_apart(a: np.ndarray, b: np.ndarray) -> bool:
    """Uncorrelated, and flat together on the square."""
    correlation = np.corrcoef(a.ravel(), b.ravel())[0, 1]
    return abs(correlation) < 4 / math.sqrt(a.size) and is_flat(((a * 16).astype(int) * 16 + b * 16 // 1) / 256)


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_numbers_of_streams_rounds_and_nodes_are_distinct_flat_and_independent(seed: int) -> None:
    u = numbers(seed)
    assert len(np.unique(u)) == u.size and u.min() >= 0 and u.max() < 1
    assert all(is_flat(stream) for stream in u)
    for one, other in itertools.combinations(u, 2):
        assert are_apart(one, other)
        # The same position in another round: what is drafted anew after a rejection.
        assert are_apart(one[:-1, 1:], other[1:, :-1])
    assert are_apart(u[:, :-1], u[:, 1:]) and are_apart(u[:, :, :-1], u[:, :, 1:])
    assert are_apart(u[:, :-1, 1:], u[:, 1:, :-1])


def test_numbers_along_seeds_are_flat_and_independent() -> None:
    names = list(itertools.product(Stream, (7, 8), (ROOT, 0, 1)))
    u = np.array([[uniform(seed, *name) for seed in range(4096)] for name in names])
    assert len(np.unique(u)) == u.size and all(is_flat(row) for row in u)
    assert all(are_apart(one, other) for one, other in itertools.combinations(u, 2))
    assert are_apart(u[:, :-1], u[:, 1:])


def test_each_decision_is_taken_by_the_number_of_its_name() -> None:
    flat = of(*[1.0] * 1024)
    for stream, n_round, node in itertools.product(Stream, (0, 1, 9), (ROOT, 0, 5)):
        chance, number = KeyedChance(3, n_round), uniform(3, stream, n_round, node)
        assert chance.draw(stream, node, flat) == int(number * 1024)
        if stream == Stream.ACCEPT:
            assert not chance.accepts(node, number) and chance.accepts(node, math.nextafter(number, 1))


# Any draft, any distribution, any temperature


@st.composite
def models(draw: st.DrawFn) -> tuple[MarkovRuntime, MarkovRuntime]:
    """A target and a drafter of up to 4 tokens: impossible tokens, ties, tiny and huge differences, equal rows."""
    n = draw(st.integers(2, 4))
    logit = st.one_of(
        st.just(-math.inf),
        st.integers(-2, 2).map(float),
        st.floats(-50, 50, width=32),
        st.integers(-99, 99).map(lambda i: i * 1e-8),
    )
    row = st.lists(logit, min_size=n, max_size=n).filter(lambda values: max(values) > -math.inf)
    target = draw(st.lists(row, min_size=n, max_size=n))
    rows = [st.one_of(row, st.just(own), st.just([x + 1e-7 * i for i, x in enumerate(own)])) for own in target]
    return MarkovRuntime(np.array(target)), MarkovRuntime(np.array([draw(r) for r in rows]))


shapes = st.integers(1, 4).flatmap(lambda n: st.tuples(*(st.integers(ROOT, i - 1) for i in range(n))))


@settings(max_examples=150, deadline=None)
@given(models(), shapes, st.sampled_from([1e-6, 1e-3, 0.5, 1.0, 3.0, 1e6]), st.booleans())
def test_any_tree_and_distribution(
    models: tuple[MarkovRuntime, MarkovRuntime], shape: tuple[int, ...], temperature: float, penalises: bool
) -> None:
    """Two tokens; those that one round leaves open are the target's."""
    target, drafter = models
    is_chain = shape == tuple(range(ROOT, len(shape) - 1))
    for rule in ["rejection", "block"] if is_chain else ["rejection"]:
        options = replace(OPEN, temperature=temperature, presence_penalty=0.5 * penalises, verification=rule)
        write = rounds(target, options, drawn(drafter, shape))
        law: dict[Text, float] = defaultdict(float)
        outcome: Outcome
        for probability, outcome in branches(lambda chance, write=write: write(PROMPT, chance)):
            assert outcome.is_sound
            step = outcome.verdict.tokens[:2]
            for rest, p in own_law(target, options, PROMPT + step, 2 - len(step)).items():
                law[step + rest] += probability * p
        assert total_variation(law, own_law(target, options, PROMPT, 2)) < EXACT
