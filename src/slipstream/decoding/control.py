"""Control: how far to draft, and whether to draft at all, for the most tokens a second.

Each round takes the number of drafted tokens, zero included, that maximises expected tokens ÷ expected time:
(sequences + Σ survival of the drafted tokens) ÷ t(width), with the measured t(w) and the drafters' own survival
estimates. A drafter that costs time is asked only where its record says that this pays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .cost import MAX_WIDTH, CostCurve
from .draft import Draft
from .probes import Probes
from .protocols import Budget
from .record import DraftCost, Outcome, Record

FLOOR = 0.02
"""A token less likely than this is never worth looking at, even where a wider pass is as cheap."""

REST_STEP = 0.1
HORIZON = 128
"""Reading a long backlog must pay within this many tokens, or as many as were written, or those that are left."""

FIRST_PLAIN, PLAIN_EVERY, PLAIN_IN_A_ROW = 12, 100, 8
DRIFT_EVERY, DRIFT = 8, 0.2
"""A plain round tells what plain decoding costs now: after so many others, or a few if the scale of costs moved."""


@dataclass(frozen=True)
class Plan:
    """What goes into a pass: the nodes to verify of each sequence's draft, and the width to pad to.

    seconds: what the pass is expected to take.
    """

    nodes: tuple[tuple[int, ...], ...]
    width: int
    seconds: float


@dataclass(frozen=True)
class Standing:
    """Where a sequence stands: its tokens, those of them that were written, and those that may still come; what the
    drafter would have to read first."""

    n_context: int = 0
    n_left: int = HORIZON
    backlog: int = 0
    n_written: int = 0


ANYWHERE = Standing()

WIDTH = "width"
"""The name of probes of what passes cost, among those of drafters."""


class Control:
    """Decides; keeps the cost curve and the drafters' records up to date. Time reaches it as numbers only.

    `draft_costs` names the drafters that cost time; the others are free.
    `widths`: the only widths that a pass may have, ascending, in exact mode; empty: any.
    """

    def __init__(
        self, cost: CostCurve, draft_costs: Mapping[str, DraftCost] | None = None, widths: Sequence[int] = ()
    ) -> None:
        self.cost = cost
        self.widths = tuple(widths)
        self.records = {name: Record(seconds, cost) for name, seconds in (draft_costs or {}).items()}
        n = len(self.records)
        self.probes = Probes({WIDTH: 0.2 if n else 0.4, **dict.fromkeys(self.records, 0.8 / max(n, 1))})
        self._probing: set[str] = set()
        self._expected_rate = 0.0
        self._n_since_plain = 0
        self._n_plain_in_a_row = 0
        self._plain_every = FIRST_PLAIN
        self._plain_is_due = False
        self._token_s = 0.0

    def plain_token_s(self, n_context: int) -> float:
        """Seconds that a token of plain decoding costs now: a pass over one token, and choosing it."""
        return self.plain_s(n_context) + self._token_s

    def plain_s(self, n_context: int) -> float:
        """Seconds of a pass of plain decoding."""
        return self.cost.time(self.widths[0] if self.widths else 1, n_context)

    def _fits(self, base: int, widest: int, limit: int, n_context: int) -> list[int]:
        """The width to compute n tokens in, for n = base … widest: the cheapest that is allowed, at most `limit`.

        The list ends where exact mode allows none.
        """
        if not self.widths:
            return [self.cost.cheapest(n, limit, n_context) for n in range(base, widest + 1)]
        allowed = [w for w in self.widths if base <= w <= limit]
        seconds = {w: self.cost.time(w, n_context) for w in allowed}
        cheapest = [min(allowed[i:], key=seconds.__getitem__) for i in range(len(allowed))]
        counts = range(base, min(widest, allowed[-1] if allowed else 0) + 1)
        return [next(c for w, c in zip(allowed, cheapest, strict=True) if w >= n) for n in counts]

    def budget(self, drafter: str, room: int, so_far: float = 0.0, standing: Standing = ANYWHERE) -> Budget | None:
        """How far `drafter` may go where the best draft so far promises `so_far` tokens a second.

        None: don't ask it. `room` bounds the draft.
        """
        room = min(room, (self.widths[-1] if self.widths else MAX_WIDTH) - 1)
        if room < 1:
            return None
        if self._plain_is_due:
            return None
        record = self.records.get(drafter)
        plain_s = self.plain_s(standing.n_context)
        if record is None:
            return Budget(room, self._floor(plain_s, standing.n_context))
        best = max(so_far * plain_s, 1.0)
        reading_s = record.reading_s(standing.backlog)
        gain_s = min(standing.n_left, max(HORIZON, standing.n_written)) * plain_s * (1 / best - 1 / record.hope)
        self._probing.discard(drafter)
        if gain_s <= reading_s:
            if not self.probes.may(drafter, record.probe_s(plain_s) + reading_s):
                return None
            self._probing.add(drafter)
        # What the time, of drafting and of verifying, would bring elsewhere.
        rate = max(record.speedup, best) / plain_s
        widths = self._fits(1, 1 + room, 1 + room, standing.n_context)
        price = tuple(rate * self.cost.time(w, standing.n_context) for w in widths)
        return Budget(room, FLOOR, price, rate * record.token_s)

    def hope(self, drafter: str) -> float:
        """The speed, in plain decoding's, that asking a drafter promises; without bound for a free one."""
        record = self.records.get(drafter)
        return math.inf if record is None else record.hope

    def _floor(self, plain_s: float, n_context: int) -> float:
        """The survival below which even half of what a token adds to a pass would never be worth it."""
        added = min((self.cost.time(1 + n, n_context) - plain_s) / n for n in (3, 7, 15, MAX_WIDTH - 1))
        return max(FLOOR, min(0.5 * added / plain_s, 0.5))

    def asked(self, drafter: str, n_steps: int, backlog: int, seconds: float) -> None:
        """A drafter that was asked took so many seconds for `n_steps` tokens, reading its backlog first."""
        if drafter in self.records:
            self.records[drafter].learn_cost(n_steps, backlog, seconds)

    def rate(self, draft: Draft, n_context: int = 0) -> float:
        """Expected tokens a second of a pass over the best part of this draft alone, drafting not counted."""
        return self._best([draft], MAX_WIDTH, n_context)[0]

    def plan(self, drafts: Sequence[Draft], limit: int, n_context: int = 0) -> Plan:
        """The nodes worth verifying of one draft a sequence, in a pass of at most `limit` tokens.

        `n_context`: how long the sequences are, on average.
        """
        if self._plain_is_due and not any(map(len, drafts)):
            limit = len(drafts)  # not padded either: width 1 is what is to be measured
        rate, nodes, width = self._best(drafts, limit, n_context)
        self._probing.discard(WIDTH)
        if len(drafts) == 1 and not self.widths and drafts[0].q is None:
            nodes, width = self._probe_width(drafts[0], len(nodes), width, limit, rate, n_context)
        chosen: list[list[int]] = [[] for _ in drafts]
        for sequence, node in nodes:
            chosen[sequence].append(node)
        return Plan(tuple(tuple(sorted(c)) for c in chosen), width, self.cost.time(width, n_context))

    def _best(self, drafts: Sequence[Draft], limit: int, n_context: int) -> tuple[float, list[tuple[int, int]], int]:
        # A draft whose tokens were drawn is verified whole: its survival tells of the tokens, so to cut by it would
        # change what the target writes. Its length was decided before.
        taken = [(i, n) for i, draft in enumerate(drafts) if draft.q is not None for n in range(len(draft))]
        base = len(drafts) + len(taken)
        tokens = len(drafts) + sum(float(draft.survival.sum()) for draft in drafts if draft.q is not None)
        # Survival never rises along a path and the sort is stable: every head of this list is a set of trees.
        free = [(i, draft) for i, draft in enumerate(drafts) if draft.q is None]
        nodes = sorted((-s, i, n) for i, draft in free for n, s in enumerate(draft.survival.tolist()))
        fits = self._fits(base, min(base + len(nodes), limit), limit, n_context)
        best = tokens / self.cost.time(fits[0], n_context), 0, fits[0]
        for k, width in enumerate(fits[1:], 1):
            tokens -= nodes[k - 1][0]
            rate = tokens / self.cost.time(width, n_context)
            if rate > best[0]:
                best = rate, k, width
        return best[0], taken + [(i, n) for _, i, n in nodes[: best[1]]], best[2]

    def _probe_width(
        self, draft: Draft, n_best: int, width: int, limit: int, rate: float, n_context: int
    ) -> tuple[list[tuple[int, int]], int]:
        """Verifies more of a draft than should pay, now and then: passes may cost less than was measured."""
        n = min(2 * n_best + 1, len(draft), limit - 1)
        if n > n_best:
            gain = float(draft.survival[n_best:n].sum())
            loss_s = self.cost.time(1 + n, n_context) - self.cost.time(width, n_context) - gain / rate
            if self.probes.may(WIDTH, loss_s):
                self._probing.add(WIDTH)
                self._expected_rate = rate
                n_best, width = n, 1 + n
        return [(0, node) for node in range(n_best)], width

    def done(
        self,
        widths: Sequence[int],
        pass_s: float,
        total_s: float,
        n_tokens: int,
        n_context: int = 0,
        n_sequences: int = 1,
    ) -> None:
        """A round gave `n_tokens` in a pass of `pass_s` seconds, computed in `widths` behind `n_context` tokens.

        `total_s`: the seconds of the whole round, drafting left out: what is not the pass was for choosing tokens and
        keeping books, which plain decoding spends too.
        """
        self.probes.passed(total_s)
        rest_s = min((total_s - pass_s) / n_tokens, 4 * self._token_s + pass_s)  # a machine may have slept
        self._token_s += REST_STEP * (rest_s - self._token_s)
        if len(widths) != 1:
            return
        (width,) = widths
        self.cost.observe(width, pass_s, n_context)
        if WIDTH in self._probing:
            loss_s = pass_s - n_tokens / self._expected_rate
            self.probes.spent(WIDTH, loss_s, loss_s < 0)
        self._plain_is_due = self._wants_plain(width) and n_sequences == 1 and self.widths[:1] in ((), (1,))

    def _wants_plain(self, width: int) -> bool:
        """Whether the next round should be plain, so that what plain decoding costs stays known."""
        was_due = self._plain_is_due
        self._n_since_plain = 0 if width == 1 or was_due else self._n_since_plain + 1
        if was_due:
            # As long as such rounds are a surprise, more of them tell more.
            self._n_plain_in_a_row += 1
            if width == 1 and not self.cost.is_settled and self._n_plain_in_a_row < PLAIN_IN_A_ROW:
                return True
        self._n_plain_in_a_row = 0
        drifted = abs(self.cost.drift) > DRIFT and self._n_since_plain >= DRIFT_EVERY
        if drifted or self._n_since_plain >= self._plain_every:
            self._plain_every = min(2 * self._plain_every, PLAIN_EVERY)
            return True
        return False

    def learn(self, drafter: str, outcome: Outcome) -> None:
        """What came of asking a drafter that costs time."""
        self.records[drafter].learn(outcome, drafter in self._probing)
        if drafter in self._probing:
            lost_s = outcome.pass_s - outcome.tokens * outcome.plain_s
            self.probes.spent(drafter, outcome.draft_s + max(lost_s, 0.0), outcome.was_right)
