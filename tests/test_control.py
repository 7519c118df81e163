"""Control, without a clock: known costs, simulated acceptance."""

import numpy as np
import pytest

from slipstream.decoding.control import PROBE_SHARE, Control
from slipstream.decoding.cost import CostCurve
from slipstream.decoding.draft import EMPTY, chain

DEAR = {1: 0.020, 2: 0.037, 3: 0.048, 4: 0.040, 8: 0.051, 16: 0.078, 32: 0.160}
FREE = {1: 0.020, 33: 0.0205}


def draft(acceptance: float, n: int):
    return chain(range(n), np.cumprod([acceptance] * n))


def length(control: Control, *drafts, limit: int = 512) -> int:
    return sum(map(len, control.plan(drafts, limit).nodes))


def test_a_draft_that_will_be_rejected_is_not_verified():
    plan = Control(CostCurve(DEAR)).plan([draft(0.2, 8)], 512)
    assert plan.nodes == ((),) and plan.width == 1


def test_a_sure_draft_is_verified_whole():
    assert length(Control(CostCurve(FREE)), draft(0.99, 20)) == 20


def test_the_length_is_the_one_with_the_most_expected_tokens_a_second():
    cost = CostCurve(DEAR)
    for acceptance in (0.3, 0.5, 0.7, 0.8, 0.9, 0.97):
        proposal = draft(acceptance, 31)
        rate = [
            (1 + proposal.survival[:n].sum()) / min(map(cost.time, (n + 1, cost.cheapest(n + 1, 99))))
            for n in range(32)
        ]
        assert length(Control(CostCurve(DEAR)), proposal) == int(np.argmax(rate))


def test_a_pass_over_three_is_padded_to_four_where_four_is_cheaper():
    plan = Control(CostCurve(DEAR)).plan([chain([1, 2], [0.99, 0.98])], 512)
    assert plan.nodes == ((0, 1),) and plan.width == 4


def test_the_pass_keeps_to_its_limit():
    plan = Control(CostCurve(FREE)).plan([draft(0.99, 20)], 6)
    assert plan.width <= 6 and len(plan.nodes[0]) == 5


def test_several_sequences_share_a_pass_by_survival():
    plan = Control(CostCurve(FREE)).plan([draft(0.8, 6), draft(0.5, 6)], limit=8)
    assert len(plan.nodes[0]) > len(plan.nodes[1]) > 0
    assert sum(map(len, plan.nodes)) == 6


def test_a_drafter_that_costs_nothing_is_always_asked_and_none_without_room():
    control = Control(CostCurve(DEAR))
    assert control.budget("suffix", 100) is not None
    assert control.budget("suffix", 0) is None


def simulate(control: Control, acceptance, token_s: float, rounds: int, rng) -> tuple[float, list[bool]]:
    """Plays rounds with one drafter that costs time: (tokens a second, whether it was asked in each round)."""
    tokens, seconds, asked = 0.0, 0.0, []
    for number in range(rounds):
        budget = control.budget("model", 16)
        proposal, draft_s = EMPTY, 0.0
        alpha = acceptance(number)
        if budget is not None:
            survival = [s for s in np.cumprod([alpha] * budget.max_tokens) if s >= budget.min_survival]
            proposal = chain(range(len(survival)), survival)
            draft_s = token_s * max(1, len(survival))
            control.asked("model", draft_s)
        plan = control.plan([proposal], 512)
        n = len(plan.nodes[0])
        accepted = next((i for i in range(n) if rng.random() > alpha), n)
        pass_s = CostCurve(DEAR).time(plan.width)
        if budget is not None:
            control.learn("model", 1 + accepted, draft_s, pass_s)
        control.done([plan.width], pass_s, 0.0, 1 + accepted)
        tokens, seconds = tokens + 1 + accepted, seconds + draft_s + pass_s
        asked.append(budget is not None)
    return tokens / seconds, asked


def test_a_useless_model_is_left_alone_within_thirty_rounds():
    control = Control(CostCurve(DEAR), {"model": 0.006})
    rate, asked = simulate(control, lambda number: 0.05, 0.006, 400, np.random.default_rng(1))
    assert sum(asked[30:60]) <= 2
    assert rate / (1 / 0.020) > 0.97


def test_a_good_model_is_asked_and_pays():
    control = Control(CostCurve(DEAR), {"model": 0.002})
    rate, asked = simulate(control, lambda number: 0.9, 0.002, 300, np.random.default_rng(2))
    assert sum(asked) > 290 and rate / (1 / 0.020) > 1.5


def test_a_model_that_was_off_comes_back_when_the_text_changes():
    control = Control(CostCurve(DEAR), {"model": 0.002})
    _, asked = simulate(control, lambda n: 0.05 if n < 200 else 0.9, 0.002, 3000, np.random.default_rng(3))
    assert sum(asked[100:200]) < 20 and sum(asked[-200:]) > 150


def test_probes_of_a_useless_model_take_one_percent_of_the_time_at_most():
    control = Control(CostCurve(DEAR), {"model": 0.006})
    simulate(control, lambda number: 0.0, 0.006, 2000, np.random.default_rng(4))
    assert 0 < control._probe_s <= PROBE_SHARE * control._total_s * 1.5


@pytest.mark.parametrize("seed", range(3))
def test_noise_in_the_times_does_not_make_a_sure_loss_look_like_a_gain(seed):
    rng, control = np.random.default_rng(seed), Control(CostCurve(DEAR))
    lengths = []
    for _ in range(200):
        plan = control.plan([draft(0.3, 8)], 512)
        lengths.append(len(plan.nodes[0]))
        noise = np.exp(rng.normal(0, 0.1)) * (5 if rng.random() < 0.03 else 1)
        control.done([plan.width], CostCurve(DEAR).time(plan.width) * noise, 0.0, 1)
    assert np.mean(lengths) < 0.3
