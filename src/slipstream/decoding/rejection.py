"""Rules for drafts whose tokens were drawn: what is committed has the target's distribution, whatever q was.

Both are pure functions of the draft, the target's distributions and the decisions of a `Chance`; every random
decision is asked from it, with its probability, so that a proof can follow all branches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .chance import Chance, Stream
from .distribution import Distribution, excess
from .draft import ROOT, Draft
from .verdict import Verdict

Target = Callable[[int, Sequence[int]], Distribution]
"""The target's distribution after node i of the draft (`ROOT`: after the last commit), given the tokens on its path."""


def rejection(draft: Draft, target: Target, chance: Chance) -> Verdict:
    """Accepts a token x with min(1, p(x) ÷ q(x)), else goes on with the normalised positive part of p − q.

    Leviathan et al. 2022, arXiv 2211.17192, algorithm 1; for trees multi-round rejection without replacement, Chen et
    al. 2024 (Sequoia), arXiv 2402.12374, algorithm 2: the next child of the same parent meets what is left of p, and
    a q without the children rejected before it. After an accepted leaf a bonus token is drawn from p.
    """
    assert draft.q is not None
    accepted: list[int] = []
    tokens: list[int] = []
    node: int | None = ROOT
    while node is not None:
        parent = node
        node, rest = _child(draft, parent, target(parent, tokens), chance)
        if node is None:
            stream = Stream.RESIDUAL if draft.children(parent) else Stream.TARGET
            tokens.append(chance.draw(stream, parent, rest))
        else:
            accepted.append(node)
            tokens.append(int(draft.tokens[node]))
    return Verdict(tuple(accepted), tuple(tokens))


def _child(draft: Draft, parent: int, p: Distribution, chance: Chance) -> tuple[int | None, Distribution]:
    """The first accepted child of a node, or None and what is left of p."""
    assert draft.q is not None
    rejected: list[int] = []
    for node in draft.children(parent):
        token = int(draft.tokens[node])
        q = draft.q[node].without(rejected) if rejected else draft.q[node]
        assert q is not None, "a token was drawn, so something was left to draw"
        if chance.accepts(node, min(1.0, p.probability(token) / q.probability(token))):
            return node, p
        rest = Distribution.of_weights(p.ids, excess(p, q))
        # Nothing is left where p equals q: then nothing is ever rejected, but for the last bit of a rounded ratio.
        p = p if rest is None else rest
        rejected.append(token)
    return None, p


def block(draft: Draft, target: Target, chance: Chance) -> Verdict:
    """Verifies a chain as a whole, which accepts at least as much as token by token.

    Sun et al. 2024, arXiv 2403.10444, algorithm 2: each length i has a test of its own; the longest that passes is
    accepted, however many before it failed.
    """
    assert draft.q is not None and draft.is_chain
    drafted = draft.tokens.tolist()
    n = len(drafted)
    share, accepted = 1.0, 0
    p = target(ROOT, ())
    left: Distribution | None = Distribution.of_weights(p.ids, excess(p, draft.q[0])) or p
    for i in range(1, n + 1):
        share = min(1.0, share * p.probability(drafted[i - 1]) / draft.q[i - 1].probability(drafted[i - 1]))
        if share == 0:
            break  # no longer head of the draft can be what the target writes
        p = target(i - 1, drafted[:i])
        if i == n:
            probability, rest = share, p
        else:
            weights = excess(p, draft.q[i], share)
            mass = float(weights.sum())
            # p equals q and all before was certain: so will the next token be, and this test does not matter.
            probability = 1.0 if mass == 0 and share == 1 else mass / (mass + (1.0 - share))
            rest = Distribution.of_weights(p.ids, weights) or p
        if chance.accepts(i - 1, probability):
            accepted, left = i, rest
    stream = Stream.TARGET if accepted == n else Stream.RESIDUAL
    assert left is not None
    bonus = chance.draw(stream, accepted - 1, left)
    return Verdict(tuple(range(accepted)), (*drafted[:accepted], bonus))
