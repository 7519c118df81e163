"""Control, without a clock: known costs, simulated acceptance."""

import numpy as np
import pytest

from slipstream.decoding.control import FIRST_PLAIN, PLAIN_EVERY, PLAIN_IN_A_ROW, Control, Standing
from slipstream.decoding.cost import CostCurve
from slipstream.decoding.draft import chain
from slipstream.decoding.probes import LONGEST_WAIT, SHARE, Probes
from slipstream.decoding.record import DraftCost

DEAR = {1: 0.020, 2: 0.037, 3: 0.048, 4: 0.040, 8: 0.051, 16: 0.078, 32: 0.160}
FREE = {1: 0.020, 33: 0.0205}
GPU = {1: 0.020, 8: 0.021, 16: 0.023, 32: 0.030}


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


def test_more_is_drafted_where_drafting_is_cheap():
    cheap, dear = (Control(CostCurve(GPU), {"model": DraftCost(token_s)}) for token_s in (0.0005, 0.008))
    lengths = []
    for control in cheap, dear:
        budget = control.budget("model", 16)
        assert budget is not None
        lengths.append(next((n for n in range(1, 16) if not budget.pays(n, 0.8 ** (n + 1), 0.8)), 16))
    assert lengths[0] > 2 * lengths[1] > 0


def test_a_long_backlog_is_read_only_where_enough_is_left_to_write():
    control = Control(CostCurve(GPU), {"model": DraftCost(0.002, read_s=0.001)})
    assert control.budget("model", 16, 0.0, Standing(n_left=200, backlog=500)) is not None
    assert control.budget("model", 16, 0.0, Standing(n_left=10, backlog=500)) is None


def test_a_drafter_is_not_asked_where_the_draft_at_hand_promises_more():
    control = Control(CostCurve(GPU), {"model": DraftCost(0.002)})
    assert control.budget("model", 16, so_far=100.0) is not None
    assert control.budget("model", 16, so_far=400.0) is None


def test_after_many_wide_passes_one_plain_round_tells_what_plain_decoding_costs():
    control = Control(CostCurve(GPU))
    plain = []
    for number in range(600):
        asked = control.budget("suffix", 16) is not None
        if not asked:
            plain.append(number)
        control.done([8 if asked else 1], 0.021 if asked else 0.020, 0.021, 4)
    waits = np.diff(plain)
    assert plain[0] == FIRST_PLAIN and list(waits) == sorted(waits) and waits[-1] == PLAIN_EVERY + 1


def test_as_long_as_plain_rounds_are_a_surprise_the_next_one_is_plain_too():
    control = Control(CostCurve({1: 0.080, 8: 0.084}))  # measured while something else was at work
    plain = []
    for number in range(FIRST_PLAIN + 12):
        asked = control.budget("suffix", 16) is not None
        plain += [] if asked else [number]
        control.done([8 if asked else 1], 0.084 if asked else 0.020, 0.1, 4)
    assert 3 <= len(plain) <= PLAIN_IN_A_ROW and plain == list(range(FIRST_PLAIN, FIRST_PLAIN + len(plain)))
    assert control.cost.time(1) == pytest.approx(0.020, rel=0.25)


def test_probes_wait_longer_each_time_they_fail_and_not_at_all_after_a_success():
    probes = Probes({"it": 1.0})
    tried = []
    for number in range(2000):
        probes.passed(1.0)
        if probes.may("it", 0.5):
            tried.append(number)
            probes.spent("it", 0.5, succeeded=number > 1500)
    waits = np.diff([t for t in tried if t < 1500])
    assert list(waits) == sorted(waits) and waits[-1] == LONGEST_WAIT > 2 * waits[0]
    assert max(np.diff([t for t in tried if t > 1700])) <= 51, "only the share of the time limits it now"
    assert probes.spent_s <= SHARE * probes.total_s


@pytest.mark.parametrize("seed", range(3))
def test_noise_in_the_times_does_not_make_a_sure_loss_look_like_a_gain(seed):
    rng, control = np.random.default_rng(seed), Control(CostCurve(DEAR))
    lengths = []
    for _ in range(200):
        plan = control.plan([draft(0.3, 8)], 512)
        lengths.append(len(plan.nodes[0]))
        noise = np.exp(rng.normal(0, 0.1)) * (5 if rng.random() < 0.03 else 1)
        seconds = CostCurve(DEAR).time(plan.width) * noise
        control.done([plan.width], seconds, seconds, 1)
    assert np.mean(lengths) < 0.3
