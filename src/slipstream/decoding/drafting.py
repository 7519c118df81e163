"""Who drafts: asks the drafters that promise to pay, lets one continue another's draft, keeps the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .choice import Choice
from .control import FLOOR, Control, Standing
from .cost import MAX_WIDTH, Clock
from .draft import EMPTY, Draft, chain
from .protocols import Budget, Drafter


@dataclass(frozen=True)
class Asked:
    """A drafter's answer: its draft, the tokens that it read first, and the seconds it took."""

    drafter: str
    draft: Draft
    backlog: int
    seconds: float


@dataclass(frozen=True)
class Proposal:
    """The draft to verify, its authors in the order of their tokens, and everyone who was asked."""

    draft: Draft = EMPTY
    authors: tuple[str, ...] = ()
    asked: tuple[Asked, ...] = ()


class Drafting:
    """Asks drafters: the free ones first, in the order given, then those that cost time, the most promising first."""

    def __init__(self, drafters: Sequence[Drafter], control: Control, clock: Clock) -> None:
        self.drafters = drafters
        self.control = control
        self.clock = clock

    def propose(self, seq: int, room: int, choice: Choice, standing: Standing) -> Proposal:
        """The most promising draft of at most `room` tokens; later ones are asked for where control sees a gain."""
        best, rate = Proposal(), 0.0
        asked: list[Asked] = []
        for drafter in sorted(self.drafters, key=lambda d: self.control.hope(d.name), reverse=True):
            backlog = drafter.backlog(seq)
            here = replace(standing, backlog=backlog) if backlog else standing
            budget = self.control.budget(drafter.name, room, rate, here)
            if budget is None:
                continue
            answer = self._ask(drafter, seq, budget, choice, backlog)
            self.control.asked(drafter.name, max(len(answer.draft), 1), answer.backlog, answer.seconds)
            asked.append(answer)
            if len(answer.draft) == 0:
                continue
            if answer.draft.q is not None:
                # Its tokens were drawn: to prefer another draft now would be to choose by what was drawn.
                return Proposal(answer.draft, (drafter.name,), tuple(asked))
            proposal = self._continued(drafter, answer.draft, seq, room, choice)
            proposed = self.control.rate(proposal.draft, standing.n_context) if len(self.drafters) > 1 else 0.0
            if proposed >= rate:
                best, rate = proposal, proposed
        return replace(best, asked=tuple(asked))

    def everything(self, seq: int, choice: Choice) -> tuple[Asked, ...]:
        """The full proposal of every drafter at this place, whether or not it would pay."""
        budget = Budget(MAX_WIDTH - 1, FLOOR, aside=True)
        return tuple(self._ask(drafter, seq, budget, choice, drafter.backlog(seq)) for drafter in self.drafters)

    def _ask(self, drafter: Drafter, seq: int, budget: Budget, choice: Choice, backlog: int) -> Asked:
        began = self.clock()
        draft = drafter.propose(seq, budget, choice)
        seconds = self.clock() - began
        # Drafts are in topological order: the head of one that is too long is a draft.
        return Asked(drafter.name, draft.select(range(min(len(draft), budget.max_tokens))), backlog, seconds)

    def _continued(self, drafter: Drafter, draft: Draft, seq: int, room: int, choice: Choice) -> Proposal:
        """The draft of a drafter that costs time, with what a free one says to go on with."""
        room = min(room, MAX_WIDTH - 1) - len(draft)
        alive = float(draft.survival[-1])
        other = next((d for d in self.drafters if d.can_continue and d is not drafter), None)
        if other is None or drafter.can_continue or room < 1 or not draft.is_chain:
            return Proposal(draft, (drafter.name,))
        tail = other.propose(seq, Budget(room, FLOOR / alive), choice, draft.tokens.tolist())
        if len(tail) == 0:
            return Proposal(draft, (drafter.name,))
        tokens = np.concatenate([draft.tokens, tail.tokens])
        survival = np.concatenate([draft.survival, alive * tail.survival])
        return Proposal(chain(tokens.tolist(), survival.tolist()), (drafter.name, other.name))
