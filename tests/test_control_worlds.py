"""Control in worlds whose truth is known, without a clock: regret, turning off, coming back, many sequences."""

import numpy as np
import pytest
from scenarios import GPU, HOPELESS, STEPS, WORLDS, Helper, World, constant, controlled, fixed, from_token, play, rate

from slipstream.decoding.control import Control
from slipstream.decoding.cost import CostCurve
from slipstream.decoding.probes import SHARE
from slipstream.lab.simulate import FixedLength

LEARNING = 200
"""Rounds until control must know its way."""


@pytest.mark.parametrize("name", WORLDS)
def test_after_200_rounds_regret_against_the_best_fixed_choice_is_under_five_percent(name):
    """The fixed choices, each drafter at each length and plain decoding, are compared from the same token on."""
    world = WORLDS[name]
    mine = controlled(world)
    written = sum(len(done.tokens) for step in mine[:LEARNING] for _, done in step.rounds)
    best = max(rate(steps, from_token(steps, written)) for steps in fixed(world).values())
    assert rate(mine, LEARNING) > 0.95 * best


@pytest.mark.parametrize("name", HOPELESS)
def test_speculation_that_cannot_pay_is_off_within_thirty_rounds(name):
    rounds = [done for step in controlled(HOPELESS[name])[30:] for _, done in step.rounds]
    assert np.mean([done.drafted > 0 for done in rounds]) < 0.02


@pytest.mark.parametrize("name", HOPELESS)
def test_where_nothing_can_be_gained_little_is_lost(name):
    world = HOPELESS[name]
    plain = play(world, Control(CostCurve(world.seconds)), [])
    assert rate(controlled(world)) > 0.98 * rate(plain)


def test_probes_take_one_percent_of_the_time_at_most():
    world = WORLDS["a cheap poor drafter"]
    control = Control(CostCurve(world.seconds), world.costs())
    play(world, control, list(world.helpers))
    assert 0 < control.probes.spent_s <= SHARE * control.probes.total_s


@pytest.mark.parametrize(("name", "pays"), [("acceptance falls", False), ("acceptance rises", True)])
def test_when_the_text_changes_a_drafter_goes_off_or_comes_back(name, pays):
    steps = controlled(WORLDS[name])
    before, after = from_token(steps, 900), from_token(steps, 1500)
    drafted = [done.drafted > 0 for step in steps for _, done in step.rounds]
    assert np.mean(drafted[30:before]) > 0.9 if not pays else np.mean(drafted[30:before]) < 0.05
    assert np.mean(drafted[after:]) > 0.9 if pays else np.mean(drafted[after:]) < 0.05


BATCHES = {1: 0.020, 8: 0.021, 16: 0.022, 32: 0.026, 64: 0.040, 128: 0.078, 256: 0.154}
"""A machine that reads its weights once for some thirty tokens, and then computes."""


def loaded(n_parallel: int, control: Control) -> float:
    world = World(BATCHES, {"suffix": Helper(constant(0.8))}, n_tokens=600 if n_parallel < 16 else 200)
    world_s = CostCurve(BATCHES, max_width=256)
    return rate(play(world, control, ["suffix"], n_parallel, lambda width, n_context: world_s.time(width)))


@pytest.mark.parametrize("n_parallel", [1, 4, 16, 64])
def test_with_many_sequences_the_budget_is_near_that_of_the_best_common_length(n_parallel):
    """From one sequence, where ten tokens are worth drafting, to 64, where hardly one is."""
    curve = CostCurve(BATCHES, max_width=256)
    best = max(loaded(n_parallel, FixedLength(curve, n, {})) for n in (0, 1, 2, 3, 4, 6, 8, 12))
    assert loaded(n_parallel, Control(curve)) > 0.95 * best


def test_of_many_sequences_those_that_survive_get_the_tokens():
    """Half of the sequences copy, half write anew: in a full pass the copying ones alone draft."""
    copying = Helper(constant(0.9), confidence=0.95, odd=Helper(constant(0.2), confidence=0.15))
    world = World(BATCHES, {"suffix": copying}, n_tokens=300)
    steps = play(world, Control(CostCurve(BATCHES, max_width=256)), ["suffix"], 32)
    drafted = [[done.drafted for step in steps[20:60] for n, done in step.rounds if n % 2 == odd] for odd in (0, 1)]
    assert np.mean(drafted[0]) > 1.0 and np.mean(drafted[1]) < 0.1


def test_the_length_falls_as_the_load_rises():
    world = World(BATCHES, {"suffix": Helper(constant(0.8))}, n_tokens=300)
    lengths = []
    for n_parallel in 1, 8, 32, 64:
        steps = play(world, Control(CostCurve(BATCHES, max_width=256)), ["suffix"], n_parallel)
        lengths.append(np.mean([done.drafted for step in steps[20:] for _, done in step.rounds]))
    assert lengths == sorted(lengths, reverse=True) and lengths[0] > 2 * lengths[-1]


def test_worlds_are_fair():
    """What is compared against really drafts: a length of 4 on a free good drafter beats plain decoding."""
    world = World(GPU, {"suffix": Helper(constant(0.8))}, n_tokens=400)
    four = play(world, FixedLength(CostCurve(STEPS), 4, {}), ["suffix"])
    assert rate(four) > 2.5 * rate(play(world, Control(CostCurve(GPU)), []))
