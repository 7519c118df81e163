"""The proofs see what is wrong: each defect is planted in the source, and a proof that passes without it fails.

A proof says how far off a rule is: by total variation, by the probability of an unsound verdict, or by the χ² test's
−log₁₀ p. A defect counts as seen only where it is far beyond what the proof lets pass.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from enumeration import Drafting, drawn
from test_proofs import CHAIN, EXACT, OPEN, SAMPLINGS, by_model, choosy, distance, pair, surprise, unsound

from slipstream.decoding import rejection as rules
from slipstream.decoding.chance import KeyedChance
from slipstream.decoding.choice import Choice
from slipstream.decoding.control import Control
from slipstream.decoding.distribution import Distribution
from slipstream.decoding.sampling import Sampling
from slipstream.drafters.model import ModelDrafter

# Proofs


@dataclass(frozen=True, eq=False)
class Proof:
    """run: how far off the rules are; passes: how far at most if they are right; far: how far at least if wrong."""

    run: Callable[[], float]
    passes: float
    far: float


def exact(rule: str, draft: Callable[[], Drafting], sampling: Sampling = OPEN, n_vocab: int = 3, n: int = 3) -> Proof:
    options = replace(sampling, verification=rule)
    return Proof(lambda: distance(pair(n_vocab)[0], options, draft(), n), EXACT, 1e-3)


def of_shape(*shape: int, n_vocab: int = 3) -> Callable[[], Drafting]:
    return lambda: drawn(pair(n_vocab)[1], shape)


def sound(rule: str) -> Proof:
    target, drafter = pair(3)
    return Proof(lambda: unsound(target, replace(OPEN, verification=rule), drawn(drafter, CHAIN)), 0.0, 1e-3)


def statistical(rule: str) -> Proof:
    return Proof(lambda: surprise(rule, 20_000), 4.0, 12.0)


REJECTION, BLOCK = (exact(rule, of_shape(*CHAIN)) for rule in ("rejection", "block"))
BLOCK_OF_FOUR = exact("block", of_shape(-1, 0, n_vocab=4), n_vocab=4)
TREE = exact("rejection", of_shape(-1, -1, -1, 0))
MODEL_REJECTION, MODEL_BLOCK = (exact(rule, lambda: by_model(pair(3)[1], 0.3)) for rule in ("rejection", "block"))
CONTROL = exact("rejection", lambda: by_model(pair(3)[1], 0.02, choosy()))
PENALTIES_REJECTION, PENALTIES_BLOCK = (
    exact(rule, of_shape(*CHAIN), SAMPLINGS["penalties"]) for rule in ("rejection", "block")
)
KEYED_REJECTION, KEYED_BLOCK = statistical("rejection"), statistical("block")


# Defects


Plant = Callable[[pytest.MonkeyPatch], None]


def edit(function: Callable[..., Any], *edits: tuple[str, str]) -> Plant:
    """Plants the function with passages of its source replaced, wherever the package knows it by name."""
    home = sys.modules[function.__module__]
    owner, _, name = function.__qualname__.rpartition(".")

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        source = textwrap.dedent(inspect.getsource(function))
        for old, new in edits:
            assert source.count(old) == 1, f"{function.__name__} should hold {old!r} once"
            source = source.replace(old, new)
        names = dict(vars(home))
        exec("from __future__ import annotations\n" + source, names)
        modules = [module for key, module in sys.modules.items() if key.startswith("slipstream.")]
        for place in [getattr(home, owner)] if owner else modules:
            if vars(place).get(name) is function:
                monkeypatch.setattr(place, name, names[name])

    return plant


def residual(weights: Callable[[np.ndarray, np.ndarray, float], np.ndarray]) -> Plant:
    """Plants another residual of p and q."""

    def excess(p: Distribution, q: Distribution, share: float = 1.0) -> np.ndarray:
        return weights(p.probabilities, np.array([q.probability(int(token)) for token in p.ids]), share)

    return lambda monkeypatch: monkeypatch.setattr(rules, "excess", excess)


def together(*plants: Plant) -> Plant:
    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        for one in plants:
            one(monkeypatch)

    return plant


ABSOLUTE = residual(lambda p, q, share: abs(share * p - q))
WHOLE = residual(lambda p, q, share: p)

NO_BONUS = edit(rules.rejection, ("tokens.append(chance", "draft.children(parent) and tokens.append(chance"))
NO_BONUS_OF_BLOCK = edit(rules.block, ("(*drafted[:accepted], bonus)", "(*drafted[:accepted], bonus)[:n]"))

DRAW = "choice.chance.draw(Stream.DRAFT, len(q), distribution)"
SQUARE = "Distribution.of_weights(distribution.ids, distribution.probabilities**2)"
DRAWN_FROM_ANOTHER = edit(ModelDrafter._draw, (DRAW, DRAW.replace("distribution", SQUARE)))
NOT_DRAWN_AT_ALL = edit(ModelDrafter._draw, (DRAW, "int(distribution.ids[distribution.probabilities.argmax()])"))

TOKEN_RESIDUAL = edit(rules.block, ("of_weights(p.ids, weights)", "of_weights(p.ids, excess(p, draft.q[i]))"))
TOKEN_SHARE = edit(rules.block, ("excess(p, draft.q[i], share)", "excess(p, draft.q[i])"))
FIRST_FAILURE = edit(rules.block, ("left = i, rest", "left = i, rest\n        else:\n            break"))

BLIND_PENALTIES = edit(Choice.distribution, ("self._window(drafted, self._past)", "self._past"))

SIBLING_STAYS = edit(rules._child, ("rejected.append(token)", "pass"))
P_STAYS = edit(rules._child, ("p = p if rest is None else rest", "pass"))
TESTED_BY_WHOLE_P = edit(
    rules._child,
    ("rejected: list[int] = []", "rejected, whole = [], p"),
    ("p.probability(token) /", "whole.probability(token) /"),
)

TEST_BY_DRAFT = edit(KeyedChance.accepts, ("Stream.ACCEPT", "Stream.DRAFT"))
RESIDUAL_BY_TEST, RESIDUAL_BY_DRAFT = (
    edit(KeyedChance.draw, ("_seed, stream,", f"_seed, {other} if stream == Stream.RESIDUAL else stream,"))
    for other in ("Stream.ACCEPT", "Stream.DRAFT")
)
BY_POSITION = together(
    edit(KeyedChance.draw, ("self._round, node", "0, self._round + node")),
    edit(KeyedChance.accepts, ("self._round, node", "0, self._round + node")),
)

CUT_BY_TOKEN = edit(
    ModelDrafter._draw,
    ("band = band_of(float(distribution", f"token = {DRAW}\n        band = band_of(float(distribution"),
    ("distribution.probabilities.max()", "distribution.probability(token)"),
    (f"text.proposed.append({DRAW})", "text.proposed.append(token)"),
)
CONTROL_CUTS = edit(
    Control._best,
    ("if draft.q is not None for n in", "if False for n in"),
    ("for draft in drafts if draft.q is not None)", "for draft in drafts if False)"),
    ("if draft.q is None]", "]"),
)

MUTATIONS: dict[str, tuple[Plant, Proof]] = {
    "residual |p − q|, rejection": (ABSOLUTE, REJECTION),
    "residual |p − q|, tree": (ABSOLUTE, TREE),
    "residual |p − q|, block": (ABSOLUTE, BLOCK),
    "residual p, rejection": (WHOLE, REJECTION),
    "residual p, tree": (WHOLE, TREE),
    "residual p, block": (WHOLE, BLOCK),
    "no bonus token, rejection": (NO_BONUS, sound("rejection")),
    "no bonus token, block": (NO_BONUS_OF_BLOCK, sound("block")),
    "q is not what was drawn from, rejection": (DRAWN_FROM_ANOTHER, MODEL_REJECTION),
    "q is not what was drawn from, block": (DRAWN_FROM_ANOTHER, MODEL_BLOCK),
    "q for a token that was not drawn, rejection": (NOT_DRAWN_AT_ALL, MODEL_REJECTION),
    "q for a token that was not drawn, block": (NOT_DRAWN_AT_ALL, MODEL_BLOCK),
    "block draws from the token's residual": (TOKEN_RESIDUAL, BLOCK_OF_FOUR),
    "block draws from the token's residual and tests by it": (TOKEN_SHARE, BLOCK),
    "block stops at the first failure": (FIRST_FAILURE, BLOCK),
    "penalties don't see the draft, rejection": (BLIND_PENALTIES, PENALTIES_REJECTION),
    "penalties don't see the draft, block": (BLIND_PENALTIES, PENALTIES_BLOCK),
    "a rejected sibling stays in q": (SIBLING_STAYS, TREE),
    "p stays whole after a rejection": (P_STAYS, TREE),
    "the next sibling is tested by the whole p": (TESTED_BY_WHOLE_P, TREE),
    "the test uses the draft's number, rejection": (TEST_BY_DRAFT, KEYED_REJECTION),
    "the test uses the draft's number, block": (TEST_BY_DRAFT, KEYED_BLOCK),
    "the residual uses a test's number": (RESIDUAL_BY_TEST, KEYED_REJECTION),
    "the residual uses a draft's number": (RESIDUAL_BY_DRAFT, KEYED_REJECTION),
    # Token by token nothing is looked at beyond the rejected token, so that only a block is harmed by this.
    "numbers by position alone, block": (BY_POSITION, KEYED_BLOCK),
    "a draft is cut by the token drawn, rejection": (CUT_BY_TOKEN, MODEL_REJECTION),
    "a draft is cut by the token drawn, block": (CUT_BY_TOKEN, MODEL_BLOCK),
    "control cuts what was drawn": (CONTROL_CUTS, CONTROL),
}

off_without_defect = cache(lambda proof: proof.run())


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_planted_defect_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, proof = MUTATIONS[name]
    assert off_without_defect(proof) <= proof.passes
    plant(monkeypatch)
    assert proof.run() > proof.far > proof.passes


def test_the_first_token_alone_does_not_show_a_wrong_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why proofs look at joint distributions: the residual behind an accepted token is nothing to the first one."""
    TOKEN_RESIDUAL(monkeypatch)
    one, two = (exact("block", of_shape(-1, 0, n_vocab=4), n_vocab=4, n=n).run() for n in (1, 2))
    assert one < EXACT and two > 1e-3


@pytest.mark.parametrize(("plant", "proof"), [(NO_BONUS, REJECTION), (NO_BONUS_OF_BLOCK, BLOCK)])
def test_the_text_does_not_show_a_missing_bonus_token(
    plant: Plant, proof: Proof, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why verdicts are counted as well: the next round writes what this one left out."""
    plant(monkeypatch)
    assert proof.run() < EXACT
