"""What is learned of acceptance: by band and position, forgotten when the text changes, kept between runs."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from slipstream.decoding.acceptance import KEPT, MEMORY, POSITION_WEIGHT, Acceptance, expected_tokens, group


def learn(acceptance: Acceptance, band: int, accepted: bool, n: int) -> Acceptance:
    for _ in range(n):
        acceptance.learn(band, accepted)
    return acceptance


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("n", [0, 1, 5])
def test_expected_tokens_are_the_sum_of_what_survives(rate, n):
    assert expected_tokens(rate, n) == pytest.approx(sum(rate**i for i in range(n + 1)))


def test_each_band_learns_for_itself():
    acceptance = learn(Acceptance([0.5, 0.5], 10.0), 0, True, 300)
    assert acceptance.rate(0, 0) > 0.9
    assert acceptance.rate(1, 0) == 0.5


def test_a_prior_gives_way_as_its_weight_says():
    light, heavy = (learn(Acceptance([0.2], weight), 0, True, 5).rates[0] for weight in (2.0, 50.0))
    assert light == pytest.approx((2 * 0.2 + 5) / 7)
    assert heavy == pytest.approx((50 * 0.2 + 5) / 55)


def test_each_position_learns_for_itself():
    acceptance = Acceptance([0.5], 10.0)
    for _ in range(200):
        acceptance.learn_at(0, 0, True)
        acceptance.learn_at(0, 5, False)
    assert acceptance.rate(0, 0) > 0.9 and acceptance.rate(0, 5) < 0.1
    assert acceptance.rate(0, 1) == acceptance.rate(0, 12) == 0.5, "where nothing was seen, the band's"


def test_far_positions_are_learned_together():
    """The first two alone, then groups that double: of far ones there is too little to tell them apart."""
    assert [group(p) for p in (0, 1, 2, 3, 4, 7, 8, 31)] == [0, 1, 2, 2, 3, 3, 4, 4]


def test_a_position_seldom_seen_is_taken_to_be_like_its_band():
    acceptance = Acceptance([0.5], 10.0)
    acceptance.learn_at(0, 2, False)
    assert acceptance.rate(0, 2) == pytest.approx(0.5 * POSITION_WEIGHT / (POSITION_WEIGHT + 1))
    assert acceptance.rates == [0.5], "the band is told by learn alone"


def test_a_rate_recovers_within_a_few_tokens_when_the_text_changes():
    acceptance = learn(Acceptance([0.5], 10.0), 0, True, 1000)
    for _ in range(100):
        acceptance.learn_at(0, 0, True)
    learn(acceptance, 0, False, 20)
    assert acceptance.rates[0] < 0.4, f"a mean over {MEMORY:.0f} would still say 0.9"
    assert acceptance.rate(0, 0) < 0.4, "what positions were like before counts no more"
    learn(acceptance, 0, True, 20)
    assert acceptance.rates[0] > 0.6


def test_chance_is_not_taken_for_a_change():
    acceptance, rng = Acceptance([0.5], 10.0), np.random.default_rng(0)
    rates = []
    for accepted in rng.random(4000) < 0.5:
        acceptance.learn(0, bool(accepted))
        rates.append(acceptance.rates[0])
    assert np.std(rates[200:]) < 0.07, "the last sixteen alone would give 0.09"


def test_what_is_typical_follows_the_bands_that_are_met():
    acceptance = Acceptance([0.2, 0.8], 10.0)
    for _ in range(300):
        acceptance.meet(1)
    assert acceptance.typical(0) > 0.7
    for _ in range(600):
        acceptance.meet(0)
    assert acceptance.typical(0) < 0.3


def test_what_is_typical_at_a_position_is_what_was_seen_there():
    acceptance = Acceptance([0.5], 10.0)
    for _ in range(200):
        acceptance.learn_at(0, 1, False)
    assert acceptance.typical(1) < 0.1 < acceptance.typical(0) == 0.5


def learned() -> Acceptance:
    acceptance = learn(Acceptance([0.5, 0.5, 0.5], 10.0), 1, True, 1000)
    for _ in range(100):
        acceptance.learn_at(1, 3, False)
    return acceptance


def test_what_was_learned_survives_being_stored():
    before, after = learned(), Acceptance([0.5, 0.5, 0.5], 10.0)
    after.restore(json.loads(json.dumps(before.to_data(), allow_nan=False)))
    assert after.rates == before.rates and after.rates[1] > 0.9
    assert after.rate(1, 2) < 0.4 < after.rate(1, 0), "positions too"


def test_what_another_run_learned_weighs_less():
    before, after = learned(), Acceptance([0.5, 0.5, 0.5], 10.0)
    after.restore(json.loads(json.dumps(before.to_data())))
    rate = before.rates[1]
    for acceptance in before, after:
        acceptance.learn(1, False)
    assert before.rates[1] == pytest.approx(rate * (1 - 1 / MEMORY))
    assert after.rates[1] == pytest.approx(rate * (1 - 1 / (KEPT + 1)))


CELLS = [[[1.0, 0.5]] * 5] * 3
GOOD = {"rates": [0.1, 0.2, 0.3], "weights": [1.0, 2.0, 3.0], "positions": CELLS}
DAMAGED = [
    *(None, [], "rates", 3, {}, {"rates": [0.1, 0.2, 0.3]}),
    *({**GOOD, "rates": rates} for rates in ([0.1], [0.1] * 4, None, [0.1, 0.2, "0.3"], {"a": 1}, [0.1, 0.2, [1]])),
    *({**GOOD, "rates": [0.1, 0.2, rate]} for rate in (1.5, -0.1, math.nan, math.inf, None)),
    *({**GOOD, "weights": [1.0, 2.0, weight]} for weight in (-1.0, math.nan, math.inf, "3", 10**400)),
    *({**GOOD, "positions": at} for at in (CELLS[:2], [CELLS[0], CELLS[0], CELLS[0][:4]], [3, 4, 5], "abc")),
    *({**GOOD, "positions": [*CELLS[:2], [*CELLS[0][:4], at]]} for at in ([1.0], [1.0, 1.5], [-1.0, 0.5], [1, 2, 3])),
]


@pytest.mark.parametrize("data", DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_data_changes_nothing(data):
    acceptance = learned()
    before = json.dumps(acceptance.to_data())
    acceptance.restore(data)
    assert json.dumps(acceptance.to_data()) == before


def test_the_data_that_is_damaged_above_is_otherwise_good():
    acceptance = learned()
    acceptance.restore(GOOD)
    assert acceptance.rates == GOOD["rates"]
