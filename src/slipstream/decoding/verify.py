"""Verification: which drafted tokens the target would have written itself, and the token that follows them.

    rule        draft           randomness
    greedy      any tree        none: the arg-max
    coupled     any tree        noise of (seed, position, token), the same for plain decoding: same seed, same text
    rejection   any tree        drawn, with the distribution each token was drawn from; see `rejection`
    block       a chain         the same, verified as a whole; see `rejection`

Under the last two a draft without distributions (point masses) is matched with tokens drawn from the target, which
is the best that any rule can do for it: in a tree this is the deterministic top-k rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .choice import Choice
from .draft import ROOT, Draft
from .protocols import Logits
from .rejection import block, rejection
from .verdict import Verdict


def verify(draft: Draft, rows: Logits, choice: Choice) -> Verdict:
    """The verdict on a draft by the rule of its sequence.

    rows: raw logits, float32 (1 + n, n_vocab): row 0 follows the last committed token, row i + 1 follows node i of
    the draft.
    """
    assert len(rows) == 1 + len(draft), "one row for the root and one for each node"
    if not draft.q or not choice.draws:
        return match(draft, rows, choice)
    rule = block if choice.rule == "block" else rejection
    return rule(draft, lambda node, drafted: choice.distribution(rows[node + 1], drafted), choice.chance)


def match(draft: Draft, rows: Logits, choose: Callable[[Logits, Sequence[int]], int]) -> Verdict:
    """Walks down the draft as long as it carries the token that the target chooses.

    Only the rows on the path are read. `choose` is the target's own choice, a pure function of (row, drafted
    prefix). So what is committed is what plain decoding would have written, token by token, whatever was drafted.
    """
    drafted, parents = draft.tokens.tolist(), draft.parents.tolist()
    accepted: list[int] = []
    tokens: list[int] = []
    node: int | None = ROOT
    while node is not None:
        token = choose(rows[node + 1], tokens)
        tokens.append(token)
        after = range(node + 1, len(drafted))
        node = next((i for i in after if parents[i] == node and drafted[i] == token), None)
        if node is not None:
            accepted.append(node)
    return Verdict(tuple(accepted), tuple(tokens))
