"""Every outcome of a round with its probability: a `Chance` that follows all branches, and what draws drafts by it.

For proofs: where all outcomes can be counted, a rule is right up to rounding, or it is wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple, TypeVar

import numpy as np
from scipy import stats

from slipstream.decoding.chance import Chance, Stream
from slipstream.decoding.choice import Choice, Sampler
from slipstream.decoding.distribution import Distribution
from slipstream.decoding.draft import ROOT, Draft
from slipstream.decoding.protocols import Logits
from slipstream.decoding.sampling import NO_HISTORY, Chain, Sampling
from slipstream.decoding.verdict import Verdict
from slipstream.decoding.verify import verify
from slipstream.runtimes.markov import MarkovRuntime

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)
Text = tuple[int, ...]
Law = Mapping[Text, float]
"""Probabilities of texts."""

Drafting = Callable[[Text, Choice], Draft]
"""A drafter without a state. Where `choice.draws`, it draws by `choice.chance`."""


class Outcome(NamedTuple):
    draft: Draft
    verdict: Verdict

    @property
    def is_sound(self) -> bool:
        """Whether what was accepted is a path down from the root, and one token more than that is committed."""
        accepted, tokens = self.verdict.accepted, self.verdict.tokens
        return (
            len(tokens) == len(accepted) + 1
            and self.draft.ancestry(accepted[-1] if accepted else ROOT) == list(accepted)
            and self.draft.tokens[list(accepted)].tolist() == list(tokens[:-1])
        )


Round = Callable[[Text, Chance], Outcome]
"""One round behind a text."""


class Path:
    """Implements `Chance`: takes the branches it is told and then the first ones; `others` are those it passed by.

    Decisions are taken to be independent. They are if no number is used twice, so that is checked.
    """

    def __init__(self, told: list[int]) -> None:
        self.probability = 1.0
        self.others: list[list[int]] = []
        self._told = told
        self._taken: list[int] = []
        self._asked: set[tuple[Stream, int]] = set()

    def draw(self, stream: Stream, node: int, distribution: Distribution) -> int:
        return int(distribution.ids[self._branch((stream, node), distribution.probabilities.tolist())])

    def accepts(self, node: int, probability: float) -> bool:
        assert 0 <= probability <= 1
        return self._branch((Stream.ACCEPT, node), [probability, 1 - probability]) == 0

    def _branch(self, name: tuple[Stream, int], probabilities: list[float]) -> int:
        assert name not in self._asked, f"the number of {name} is used twice"
        self._asked.add(name)
        n = len(self._taken)
        if n < len(self._told):
            branch = self._told[n]
        else:
            branch, *others = (i for i, p in enumerate(probabilities) if p > 0)
            self.others += [[*self._taken, other] for other in others]
        self._taken.append(branch)
        self.probability *= probabilities[branch]
        return branch


def branches(run: Callable[[Chance], T]) -> Iterator[tuple[float, T]]:
    """All results that `run` can come to, with their probabilities; it is run once for each path of decisions."""
    paths: list[list[int]] = [[]]
    while paths:
        path = Path(paths.pop())
        result = run(path)
        paths += path.others
        yield path.probability, result


def law_of_rounds(write: Round, prompt: Text, n: int) -> Law:
    """The distribution of the `n` tokens behind the prompt, written in as many rounds as it takes."""
    end = len(prompt) + n

    @cache
    def after(text: Text) -> Law:
        if len(text) == end:
            return {(): 1.0}
        steps: dict[Text, float] = defaultdict(float)
        for probability, (_, verdict) in branches(lambda chance: write(text, chance)):
            steps[verdict.tokens[: end - len(text)]] += probability
        law: dict[Text, float] = defaultdict(float)
        for step, probability in steps.items():
            for rest, p in after(text + step).items():
                law[step + rest] += probability * p
        return law

    return after(prompt)


def own_law(target: MarkovRuntime, sampling: Sampling, prompt: Text, n: int) -> Law:
    """The same of plain decoding: the product of the target's distributions, each behind a committed text."""
    sampler = Sampler(sampling, target.n_vocab)
    law: dict[Text, float] = {(): 1.0}
    for _ in range(n):
        longer: dict[Text, float] = {}
        for text, probability in law.items():
            whole = (*prompt, *text)
            p = sampler.bind(whole).distribution(target.row(whole), ())
            longer |= {(*text, int(i)): probability * x for i, x in zip(p.ids, p.probabilities.tolist(), strict=True)}
        law = longer
    return law


def total_variation(one: Law, other: Law) -> float:
    return sum(abs(one.get(text, 0.0) - other.get(text, 0.0)) for text in {*one, *other}) / 2


def p_value(counts: Mapping[H, int], law: Mapping[H, float]) -> float:
    """Of the χ² test; outcomes expected fewer than five times are counted as one. 0 where the impossible came."""
    n = sum(counts.values())
    if any(law.get(outcome, 0.0) == 0 for outcome in counts):
        return 0.0
    expected = np.array([n * p for p in law.values() if p > 0])
    observed = np.array([counts.get(outcome, 0) for outcome, p in law.items() if p > 0])
    rare = expected < 5
    if rare.any():
        expected = np.append(expected[~rare], expected[rare].sum())
        observed = np.append(observed[~rare], observed[rare].sum())
    return float(stats.chisquare(observed, expected).pvalue)


class _Remembering(Chain):
    """A chain that computes each distribution once: they are pure functions of row and window."""

    def __init__(self, sampling: Sampling, n_vocab: int) -> None:
        super().__init__(sampling, n_vocab)
        self._known: dict[tuple[bytes, bytes], Distribution] = {}

    def distribution(self, row: Logits, window: np.ndarray = NO_HISTORY) -> Distribution:
        key = row.tobytes(), window.tobytes()
        if key not in self._known:
            self._known[key] = super().distribution(row, window)
        return self._known[key]


def rounds(target: MarkovRuntime, sampling: Sampling, draft: Drafting) -> Round:
    """Rounds as the ring has them: draft, rows, `verify`; the chance is the one that is handed in."""
    sampler = Sampler(sampling, target.n_vocab)
    sampler.chain = _Remembering(sampling, target.n_vocab)

    def write(text: Text, chance: Chance) -> Outcome:
        choice = sampler.bind(text)
        choice.chance = chance
        proposal = draft(text, choice)
        return Outcome(proposal, verify(proposal, rows_of(target, text, proposal), choice))

    return write


def rows_of(target: MarkovRuntime, text: Text, draft: Draft) -> Logits:
    """What `verify` reads: the row behind the text, and those behind the nodes."""
    texts = [text]
    for token, parent in zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True):
        texts.append((*texts[parent + 1], token))
    return np.stack([target.row(t) for t in texts])


def tree(paths: Sequence[Text], parents: Sequence[int], q: tuple[Distribution, ...] | None = None) -> Draft:
    """A draft of whole paths, each of which ends in its node's token."""
    tokens = np.array([path[-1] for path in paths], np.int32)
    return Draft(tokens, np.array(parents, np.int32), np.ones(len(paths)), q)


def drawn(model: MarkovRuntime, shape: Sequence[int]) -> Drafting:
    """Draws trees of this shape (the parents of the nodes), siblings without replacement.

    A node for which no token is left is left out, with all behind it.
    """

    def draft(text: Text, choice: Choice) -> Draft:
        place = {ROOT: ROOT}  # where the nodes of the shape stand in the draft
        paths: list[Text] = []
        parents: list[int] = []
        q: list[Distribution] = []
        for node, parent in enumerate(shape):
            if parent not in place:
                continue
            before = () if parent == ROOT else paths[place[parent]]
            siblings = [path[-1] for path, other in zip(paths, parents, strict=True) if other == place[parent]]
            whole = choice.distribution(model.row((*text, *before)), before)
            left = whole.without(siblings)
            if left is None:
                continue
            place[node] = len(paths)
            paths.append((*before, choice.chance.draw(Stream.DRAFT, len(q), left)))
            parents.append(place[parent])
            q.append(whole)
        return tree(paths, parents, tuple(q))

    return draft


def likeliest(model: MarkovRuntime, shape: Sequence[int]) -> Drafting:
    """Trees of this shape that carry the drafter's likeliest tokens, without distributions: nothing is drawn."""

    def draft(text: Text, choice: Choice) -> Draft:
        paths: list[Text] = []
        for node, parent in enumerate(shape):
            before = () if parent == ROOT else paths[parent]
            rank = list(shape[:node]).count(parent)
            order = np.argsort(-model.row((*text, *before)), kind="stable")
            paths.append((*before, int(order[rank])))
        return tree(paths, shape)

    return draft
