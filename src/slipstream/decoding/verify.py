"""Verification: which drafted tokens the target would have written itself, and the token that follows them."""

from __future__ import annotations

from dataclasses import dataclass

from .draft import ROOT, Draft
from .protocols import Choose, Logits


@dataclass(frozen=True)
class Verdict:
    """The outcome of one draft.

    accepted: indices of the draft's accepted nodes, a path from the root down; empty if there is none.
    tokens:   what to commit: the tokens of that path, then the bonus token; always one more than accepted.
    """

    accepted: tuple[int, ...]
    tokens: tuple[int, ...]


def verify(draft: Draft, rows: Logits, choose: Choose) -> Verdict:
    """Walks down the draft as long as it carries the token that the target chooses.

    rows: raw logits, float32 (1 + n, n_vocab): row 0 follows the last committed token, row i + 1 follows node i of
    the draft. Only the rows on the path are read. `choose` is the target's own choice, a pure function of (row,
    drafted prefix): arg-max, or the choice coupled to counter-based noise. So what is committed is what plain
    decoding would have written, token by token, whatever was drafted.
    """
    assert len(rows) == 1 + len(draft), "one row for the root and one for each node"
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
