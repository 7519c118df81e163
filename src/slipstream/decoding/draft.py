"""A draft: the tree of tokens that a drafter proposes to follow a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .distribution import Distribution

ROOT = -1
"""The parent of a draft's first tokens: the last committed token of the sequence."""


@dataclass(frozen=True, eq=False)
class Draft:
    """Proposed tokens in topological order: a parent stands before its children. A chain is the simplest tree.

    tokens:   int32 (n,), token ids.
    parents:  int32 (n,), the index of each token's parent in the draft, `ROOT` for the first ones.
    survival: float64 (n,), the estimated probability that the token and all its ancestors are accepted;
              never increasing along a path. Whatever ranks, cuts or budgets drafts reads this alone.
    q:        for each token the distribution it was drawn from; of siblings, which are drawn without replacement in
              the order they stand, the whole one behind their parent. None for point masses.
    """

    tokens: NDArray[np.int32]
    parents: NDArray[np.int32]
    survival: NDArray[np.float64]
    q: tuple[Distribution, ...] | None = None

    def __post_init__(self) -> None:
        n = len(self.tokens)
        assert self.parents.shape == self.survival.shape == (n,), "one parent and one survival a token"
        assert self.q is None or len(self.q) == n, "one distribution a token"
        assert all(ROOT <= p < i for i, p in enumerate(self.parents.tolist())), "a parent stands before its children"

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        return bool(self.parents.tolist() == list(range(-1, len(self) - 1)))

    def select(self, nodes: Sequence[int]) -> Draft:
        """The draft of these nodes alone (ascending indices); the parent of each must be among them or `ROOT`."""
        if len(nodes) == len(self):
            return self
        index = np.asarray(nodes, dtype=np.intp)
        place = np.full(len(self) + 1, ROOT, dtype=np.int32)  # the last entry is that of ROOT itself
        place[index] = np.arange(len(index), dtype=np.int32)
        q = None if self.q is None else tuple(self.q[i] for i in nodes)
        return Draft(self.tokens[index], place[self.parents[index]], self.survival[index], q)

    def children(self, node: int) -> list[int]:
        """Indices of the tokens whose parent is `node`, in the draft's order."""
        return [i for i, parent in enumerate(self.parents.tolist()) if parent == node]

    def ancestry(self, node: int) -> list[int]:
        """Indices of the path from the root down to `node`, `node` included; empty for `ROOT`."""
        path: list[int] = []
        while node != ROOT:
            path.append(node)
            node = int(self.parents[node])
        return path[::-1]


def chain(tokens: Sequence[int], survival: Sequence[float], q: tuple[Distribution, ...] | None = None) -> Draft:
    """A draft in which each token follows the one before it."""
    n = len(tokens)
    return Draft(
        np.asarray(tokens, dtype=np.int32),
        np.arange(-1, n - 1, dtype=np.int32),
        np.asarray(survival, dtype=np.float64),
        q,
    )


EMPTY = chain([], [])
