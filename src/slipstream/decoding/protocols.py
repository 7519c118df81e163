"""The two things that the round needs from outside: a runtime that computes logits, drafters that propose.

Both are protocols, so that the core knows no library; `runtimes/` and `drafters/` implement them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from .draft import Draft

if TYPE_CHECKING:
    from .acceptance import Acceptance
    from .choice import Choice

Logits = NDArray[np.float32]
"""Rows of raw logits, float32 (n_rows, n_vocab)."""


@dataclass(frozen=True)
class Rows:
    """What one sequence puts into a pass: `tokens` at the positions from `start` on.

    The cache holds exactly the positions below `start` of `seq` before the pass, and `start + len(tokens) +
    n_padding` after it. Logits are computed for the last `n_outputs` tokens. Padding follows the tokens at the
    next positions, only to make the pass wider: no output is asked of it. It consists of the token `filler`, or of
    the last of `tokens`: which one must not matter.
    """

    seq: int
    tokens: Sequence[int]
    start: int
    n_outputs: int
    n_padding: int = 0
    filler: int | None = None


@dataclass(frozen=True)
class Pass:
    """The result of one forward call.

    logits: for each `Rows` asked, float32 (n_outputs, n_vocab): views into the library's memory, valid until
            the runtime's next call.
    widths: the numbers of tokens that were really computed together, one for each pass of the library.
    """

    logits: tuple[Logits, ...]
    widths: tuple[int, ...]


class Runtime(Protocol):
    """Computes logits over the KV cache of several sequences, numbered 0 … n_seq_max − 1.

    Between calls the cache of a sequence holds a prefix of its tokens. `max_rollback` is the number of rows that
    `keep` may drop from the end: None for any number. Elsewhere these must be rows of the last pass, at least one of
    which stays, and once only until the next pass. With 0, for an architecture that cannot go back, only
    `keep(seq, 0)` works, as it does everywhere.
    """

    n_vocab: int
    n_ctx: int
    n_seq_max: int
    n_batch: int
    max_rollback: int | None

    def forward(self, rows: Sequence[Rows]) -> Pass:
        """Computes the rows and appends them to the caches of their sequences.

        Raises RuntimeLibraryError if the library fails, KeyboardInterrupt if the user interrupts a long pass;
        the caches then hold no more than what `start` said of them, and can be used again.
        """

    def keep(self, seq: int, n_tokens: int) -> None:
        """Keeps the first `n_tokens` positions of a sequence's cache and drops the rest.

        Raises RuntimeLibraryError if `n_tokens` is neither 0 nor as much as `floor` says.
        """

    def held(self, seq: int) -> int:
        """How many positions the cache of a sequence holds."""

    def floor(self, seq: int) -> int:
        """The fewest positions, other than none, that `keep` can go back to now."""


@dataclass(frozen=True)
class Budget:
    """How far a drafter may go: at most `max_tokens`, none of less than `min_survival`.

    price: for a drafter that costs time, what a pass over n drafted tokens costs, n = 0 … max_tokens; step: what
    computing one of them costs; both in tokens that the time would bring elsewhere. aside: asked only to know what it
    would say; nothing is learned from such a draft.
    """

    max_tokens: int
    min_survival: float = 0.0
    price: tuple[float, ...] = ()
    step: float = 0.0
    aside: bool = False

    def pays(self, n_drafted: int, survival: float, rate: float, computed: bool = False) -> bool:
        """Whether to go on behind `n_drafted` tokens, if the next one survives with `survival` and more may follow.

        `rate`: conditional acceptance of what follows. `computed`: the next token costs no step any more.
        """
        value, cost = 0.0, -self.step if computed else 0.0
        for n in range(n_drafted + 1, len(self.price)):
            value += survival
            cost += self.step
            if value > cost + self.price[n] - self.price[n_drafted]:
                return True
            survival *= rate
        return not self.price


class Drafter(Protocol):
    """Proposes what may follow a sequence. Keeps a state of its own for each sequence; never touches the target.

    Every drafter observes every committed token, whoever proposed it, so that its state is that of the text.
    `can_continue`: whether it proposes what follows drafted tokens of another drafter, too.
    `acceptances`: what it has learned of how often it is right, by names of its own.
    """

    name: str
    can_continue: bool
    acceptances: Mapping[str, Acceptance]

    def begin(self, seq: int, tokens: Sequence[int]) -> None:
        """Starts (or starts afresh) the sequence `seq` with the tokens that were read."""

    def backlog(self, seq: int) -> int:
        """How many tokens of the sequence it has to read before it can propose; 0 where that costs nothing."""

    def propose(self, seq: int, budget: Budget, choice: Choice, behind: Sequence[int] = ()) -> Draft:
        """A draft of at most `budget.max_tokens`, empty where there is nothing to say. Commits nothing.

        `behind`: drafted tokens that the draft is to follow, with a survival counted from there on.

        `choice` picks tokens as the target would, given logits; a drafter without logits has no use for it. Where
        `choice.draws`, a drafter that draws its tokens says from which distributions, and decides whether to go on
        by what it knew before it drew: a draft that is cut for the token it drew changes what the target writes.
        """

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Appends committed tokens to the sequence."""

    def end(self, seq: int) -> None:
        """Forgets the sequence."""
