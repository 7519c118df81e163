"""A draft is a tree; a chain is the simplest one."""

import numpy as np
import pytest

from slipstream.decoding.draft import EMPTY, ROOT, Draft, chain


def tree() -> Draft:
    """Node 0 with children 1 and 2, node 3 under 2, and node 4 beside node 0."""
    return Draft(
        np.array([5, 6, 7, 8, 9], dtype=np.int32),
        np.array([ROOT, 0, 0, 2, ROOT], dtype=np.int32),
        np.array([0.9, 0.5, 0.4, 0.3, 0.1]),
    )


def test_a_chain_is_a_tree_of_one_branch():
    draft = chain([4, 5, 6], [0.9, 0.8, 0.7])
    assert draft.is_chain and draft.parents.tolist() == [ROOT, 0, 1]
    assert draft.ancestry(2) == [0, 1, 2] and draft.children(1) == [2]


def test_a_tree_knows_children_and_ancestry():
    draft = tree()
    assert not draft.is_chain
    assert draft.children(ROOT) == [0, 4] and draft.children(0) == [1, 2]
    assert draft.ancestry(3) == [0, 2, 3] and draft.ancestry(ROOT) == []


def test_selecting_nodes_keeps_their_parents():
    part = tree().select([0, 2, 3])
    assert part.tokens.tolist() == [5, 7, 8] and part.parents.tolist() == [ROOT, 0, 1]
    assert tree().select([0, 4]).parents.tolist() == [ROOT, ROOT]
    assert len(tree().select([])) == 0


def test_a_child_before_its_parent_is_refused():
    with pytest.raises(AssertionError, match="parent"):
        Draft(np.array([1, 2], dtype=np.int32), np.array([1, ROOT], dtype=np.int32), np.array([0.1, 0.2]))


def test_the_empty_draft_is_empty():
    assert len(EMPTY) == 0 and EMPTY.is_chain and EMPTY.children(ROOT) == []
