"""What control knows of a drafter that costs time: what its own passes take, and what asking it has brought."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .acceptance import expected_tokens
from .cost import MAX_WIDTH, CostCurve

PRIOR_ACCEPTANCE = 0.7
PRIOR_ASKS = 3.0
ASKS_REMEMBERED, PROBES_REMEMBERED = 100.0, 8.0
CHANGE = math.log(1.7)
"""Where the last outcomes differ by this factor from all that is remembered, the text has changed."""

PRIOR_VARIANCE = 4.0
DOUBT, DOUBTED = 3.0, 40.0
"""The benefit of doubt, in standard errors, and the number of asks in which it wears off."""

COST_STEP, COST_CLIP = 0.1, 0.7
USUAL_BACKLOG = 8
"""Tokens that a drafter reads in passing: those of a round or two."""


@dataclass(frozen=True)
class DraftCost:
    """What a drafter's own passes cost: seconds for each drafted token, and for each token of the text it reads."""

    token_s: float
    read_s: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """What came of asking a drafter.

    tokens: what the round gave, the bonus token included; where another draft was verified, what this one promised.
    draft_s, backlog: seconds of drafting, and the tokens that were read first. pass_s, plain_s: what is expected of
    the pass, and of a plain one, at that time. was_right: whether all that was seen of the draft was what came.
    """

    tokens: float
    draft_s: float
    pass_s: float
    plain_s: float
    backlog: int = 0
    was_right: bool = False


@dataclass(frozen=True)
class _Mean:
    """Means over outcomes. cost: of drafting and verifying, in plain passes, so that a busy hour changes nothing."""

    tokens: float
    cost: float
    draft_s: float

    def towards(self, new: _Mean, step: float) -> _Mean:
        return _Mean(
            self.tokens + step * (new.tokens - self.tokens),
            self.cost + step * (new.cost - self.cost),
            self.draft_s + step * (new.draft_s - self.draft_s),
        )


class Record:
    """What control knows of a drafter that costs time: tokens gained and time spent each time it was asked."""

    def __init__(self, cost: DraftCost, curve: CostCurve) -> None:
        self.token_s, self.read_s = cost.token_s, cost.read_s
        self._mean = self._latest = _expected(cost.token_s, curve)
        self._asks = self._all_asks = PRIOR_ASKS
        self._variance = PRIOR_VARIANCE

    def learn_cost(self, n_steps: int, backlog: int, seconds: float) -> None:
        """So many steps, one a token, took so long, reading `backlog` tokens of the text included."""
        expected = n_steps * self.token_s + self.reading_s(backlog)
        factor = math.exp(COST_STEP * max(-COST_CLIP, min(COST_CLIP, math.log(max(seconds, 1e-9) / expected))))
        self.token_s, self.read_s = self.token_s * factor, self.read_s * factor

    def learn(self, outcome: Outcome, is_probe: bool = False) -> None:
        """One more outcome. Those of probes are few: what is remembered is then what the last of them say."""
        # What it first had to read will not come again; an interrupted draft shall not count in full.
        draft_s = min(max(outcome.draft_s - self.reading_s(outcome.backlog), self.token_s), 4 * self._mean.draft_s)
        new = _Mean(outcome.tokens, (draft_s + outcome.pass_s) / outcome.plain_s, draft_s)
        self._all_asks += 1.0
        self._asks = min(self._asks + 1.0, PROBES_REMEMBERED if is_probe else ASKS_REMEMBERED)
        self._variance += ((new.tokens - self._mean.tokens) ** 2 - self._variance) / self._asks
        self._mean = self._mean.towards(new, 1.0 / self._asks)
        self._latest = self._latest.towards(new, 1.0 / PROBES_REMEMBERED)
        if self._asks > PROBES_REMEMBERED and abs(math.log(self._latest.tokens / self._mean.tokens)) > CHANGE:
            self._mean, self._asks = self._latest, PROBES_REMEMBERED

    def reading_s(self, backlog: int) -> float:
        """Seconds for a backlog, beyond what comes with each round."""
        return max(backlog - USUAL_BACKLOG, 0) * self.read_s

    def probe_s(self, plain_s: float) -> float:
        """Seconds that asking it is expected to cost where it does not pay: drafting, and a pass too wide."""
        return max(self._mean.draft_s, (self._mean.cost - self._mean.tokens) * plain_s)

    @property
    def speedup(self) -> float:
        """Expected speed, in plain decoding's, of a round in which it is asked."""
        return self._mean.tokens / self._mean.cost

    @property
    def hope(self) -> float:
        """The same with the benefit of doubt, for deciding whether to ask."""
        error = math.sqrt(self._variance / self._all_asks)
        doubt = DOUBT * error * max(1.0 - self._all_asks / DOUBTED, 0.0)
        return (self._mean.tokens + doubt) / self._mean.cost

    def to_data(self) -> list[float]:
        """What was learned, as plain data for `restore`."""
        return [self._mean.tokens, self._mean.cost, self._mean.draft_s]

    def restore(self, data: Any) -> None:
        """Takes over what `to_data` described; nothing where the data is damaged."""
        try:
            tokens, cost, draft_s = map(float, data)
        except (TypeError, ValueError, OverflowError):
            return
        if 1.0 <= tokens <= MAX_WIDTH and 0.0 < cost < 1e6 and 0.0 < draft_s < 1e3:
            self._mean = self._latest = _Mean(tokens, cost, draft_s)
            self._asks, self._all_asks = PROBES_REMEMBERED, DOUBTED


def _expected(token_s: float, curve: CostCurve) -> _Mean:
    """The best draft length at the prior acceptance, before anything is known."""

    def cost(n: int) -> float:
        return (curve.time(1 + n) + n * token_s) / curve.time(1)

    n = max(range(1, MAX_WIDTH), key=lambda n: expected_tokens(PRIOR_ACCEPTANCE, n) / cost(n))
    return _Mean(expected_tokens(PRIOR_ACCEPTANCE, n), cost(n), n * token_s)
