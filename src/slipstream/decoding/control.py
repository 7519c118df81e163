"""Control: how far to draft, and whether to draft at all, for the most tokens a second.

Each round takes the number of drafted tokens, zero included, that maximises expected tokens ÷ expected time:
(sequences + Σ survival of the drafted tokens) ÷ t(width), with the measured t(w) and the drafters' own survival
estimates. A drafter that costs time is asked only where its record says that this pays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .cost import MAX_WIDTH, CostCurve
from .draft import Draft
from .protocols import Budget

FLOOR = 0.02
"""A token less likely than this is never worth looking at, even where a wider pass is as cheap."""

PRIOR_ACCEPTANCE = 0.7
PRIOR_ASKS = 3.0
ASKS_REMEMBERED = 30.0
REST_STEP = 0.1
PROBE_SHARE = 0.01
"""The share of all time that may go into asking a drafter that does not seem to pay."""


@dataclass(frozen=True)
class Plan:
    """What goes into a pass: the nodes to verify of each sequence's draft, and the width to pad to."""

    nodes: tuple[tuple[int, ...], ...]
    width: int


class Record:
    """What control knows of a drafter that costs time: tokens gained and seconds spent each time it was asked."""

    def __init__(self, token_s: float, cost: CostCurve) -> None:
        self.token_s = token_s
        n, self.tokens = _best_length(PRIOR_ACCEPTANCE, token_s, cost)
        self.draft_s = n * token_s
        self.pass_s = cost.time(1 + n)
        self._asks = PRIOR_ASKS

    def learn(self, tokens: float, draft_s: float, pass_s: float) -> None:
        """`tokens` the round gave (the bonus token included) for these seconds of drafting and verifying."""
        self._asks = min(self._asks + 1.0, ASKS_REMEMBERED)
        self.tokens += (tokens - self.tokens) / self._asks
        self.pass_s += (pass_s - self.pass_s) / self._asks
        # A draft that first had to catch up with the text took longer than the next one will.
        self.draft_s += (min(draft_s, 4 * self.draft_s) - self.draft_s) / self._asks

    @property
    def rate(self) -> float:
        """Expected tokens a second of a round in which this drafter is asked."""
        return self.tokens / (self.draft_s + self.pass_s)


class Control:
    """Decides; keeps the cost curve and the drafters' records up to date. Time reaches it as numbers only.

    `token_s` names the drafters that cost time, with the seconds a drafted token takes; the others are free.
    `widths`: the only widths that a pass may have, ascending, in exact mode; empty: any.
    """

    def __init__(self, cost: CostCurve, token_s: dict[str, float] | None = None, widths: Sequence[int] = ()) -> None:
        self.cost = cost
        self.widths = tuple(widths)
        self.records = {name: Record(seconds, cost) for name, seconds in (token_s or {}).items()}
        self._total_s = 0.0
        self._probe_s = 0.0
        self._probing = False
        self._token_s = 0.0

    @property
    def plain_token_s(self) -> float:
        """Seconds that a token of plain decoding costs now: a pass over one token, and choosing it."""
        return self._plain_s + self._token_s

    @property
    def _plain_s(self) -> float:
        return self.cost.time(self.widths[0] if self.widths else 1)

    def _fits(self, base: int, widest: int, limit: int) -> list[int]:
        """The width to compute n tokens in, for n = base … widest: the cheapest that is allowed, at most `limit`.

        The list ends where exact mode allows none.
        """
        if not self.widths:
            return [self.cost.cheapest(n, limit) for n in range(base, widest + 1)]
        allowed = [w for w in self.widths if base <= w <= limit]
        cheapest = [min(allowed[i:], key=self.cost.time) for i in range(len(allowed))]
        counts = range(base, min(widest, allowed[-1] if allowed else 0) + 1)
        return [next(c for w, c in zip(allowed, cheapest, strict=True) if w >= n) for n in counts]

    def budget(self, drafter: str, room: int, rate_so_far: float = 0.0) -> Budget | None:
        """How far `drafter` may go where the best draft so far promises `rate_so_far` tokens a second.

        None: don't ask it. `room` bounds the draft.
        """
        room = min(room, (self.widths[-1] if self.widths else MAX_WIDTH) - 1)
        if room < 1:
            return None
        record = self.records.get(drafter)
        if record is None:
            return Budget(room, FLOOR)
        self._probing = False
        if record.rate <= max(rate_so_far, 1 / self._plain_s):
            if self._probe_s + record.draft_s > PROBE_SHARE * self._total_s:
                return None
            self._probing = True
        # One more token must bring at least what the time would bring elsewhere.
        verify_s = (self.cost.time(min(4, 1 + room)) - self.cost.time(1)) / min(3, room)
        rate = max(record.rate, 1 / self._plain_s)
        return Budget(room, max(FLOOR, min(0.9, rate * (record.token_s + max(verify_s, 0.0)))))

    def asked(self, drafter: str, draft_s: float) -> None:
        """A drafter that was asked took `draft_s` seconds."""
        self._total_s += draft_s
        if drafter in self.records and self._probing:
            self._probe_s += draft_s

    def rate(self, draft: Draft) -> float:
        """Expected tokens a second of a pass over the best part of this draft alone, drafting not counted."""
        return self._best([draft], MAX_WIDTH)[0]

    def plan(self, drafts: Sequence[Draft], limit: int) -> Plan:
        """The nodes worth verifying of one draft a sequence, in a pass of at most `limit` tokens."""
        _, nodes, width = self._best(drafts, limit)
        chosen: list[list[int]] = [[] for _ in drafts]
        for sequence, node in nodes:
            chosen[sequence].append(node)
        return Plan(tuple(tuple(sorted(c)) for c in chosen), width)

    def _best(self, drafts: Sequence[Draft], limit: int) -> tuple[float, list[tuple[int, int]], int]:
        # A draft whose tokens were drawn is verified whole: its survival tells of the tokens, so to cut by it would
        # change what the target writes. Its length was decided before.
        taken = [(i, n) for i, draft in enumerate(drafts) if draft.q is not None for n in range(len(draft))]
        base = len(drafts) + len(taken)
        tokens = len(drafts) + sum(float(draft.survival.sum()) for draft in drafts if draft.q is not None)
        # Survival never rises along a path and the sort is stable: every head of this list is a set of trees.
        free = [(i, draft) for i, draft in enumerate(drafts) if draft.q is None]
        nodes = sorted((-s, i, n) for i, draft in free for n, s in enumerate(draft.survival.tolist()))
        fits = self._fits(base, min(base + len(nodes), limit), limit)
        best = tokens / self.cost.time(fits[0]), 0, fits[0]
        for k, width in enumerate(fits[1:], 1):
            tokens -= nodes[k - 1][0]
            rate = tokens / self.cost.time(width)
            if rate > best[0]:
                best = rate, k, width
        return best[0], taken + [(i, n) for _, i, n in nodes[: best[1]]], best[2]

    def done(self, widths: Sequence[int], pass_s: float, rest_s: float, n_tokens: int) -> None:
        """A round gave `n_tokens` in a pass of `pass_s` seconds, computed in `widths`.

        `rest_s`: the seconds for choosing tokens and keeping books, which plain decoding spends too.
        """
        self._total_s += pass_s + rest_s
        self._token_s += REST_STEP * (rest_s / n_tokens - self._token_s)
        if len(widths) == 1:
            self.cost.observe(widths[0], pass_s)

    def learn(self, drafter: str, tokens: float, draft_s: float, pass_s: float) -> None:
        """What a round gained in which `drafter` was asked: measured if verified, else what it promised."""
        if drafter in self.records:
            self.records[drafter].learn(tokens, draft_s, pass_s)


def _best_length(acceptance: float, token_s: float, cost: CostCurve) -> tuple[int, float]:
    """The best draft length at a constant acceptance, and the tokens it brings (Leviathan et al. 2022, eq. 1)."""
    best_rate, best = 0.0, (1, 1.0 + acceptance)
    tokens = 1.0
    for n in range(1, MAX_WIDTH):
        tokens += acceptance**n
        rate = tokens / (cost.time(1 + n) + n * token_s)
        if rate > best_rate:
            best_rate, best = rate, (n, tokens)
    return best
