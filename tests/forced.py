"""Drafting as a test wants it: so many tokens each time, by a drafter that knows the text, whatever the clock says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from toy import Scripted

from slipstream import LLM
from slipstream.decoding.control import ANYWHERE, Control, Standing
from slipstream.decoding.cost import CostCurve
from slipstream.decoding.protocols import Budget, Drafter


class Fixed(CostCurve):
    """Learns nothing from the clock, so that a test does the same each time."""

    def observe(self, width: int, seconds: float, n_context: int = 0) -> None: ...


class Forced(Control):
    """Asks for `n` tokens, and takes them all: a wider pass costs it next to nothing."""

    def __init__(self, n: int, widths: Sequence[int]) -> None:
        super().__init__(Fixed({1: 1.0, 33: 1.001}), widths=widths)
        self.n = n

    def budget(self, drafter: str, room: int, so_far: float = 0.0, standing: Standing = ANYWHERE) -> Budget | None:
        return super().budget(drafter, min(room, self.n), so_far, standing)


def knowing(text: Sequence[int], n_vocab: int, wrong_every: int = 4) -> Scripted:
    """Knows a text, and errs at every fourth of its tokens: every length is accepted sooner or later."""

    def script(seq: int, told: list[int]) -> list[int]:
        at = len(told)
        return [(t + 1) % n_vocab if (at + i) % wrong_every == 0 else t for i, t in enumerate(text[at:])]

    return Scripted(script)


@contextmanager
def drafting(llm: LLM, n: int, drafters: Sequence[Drafter]) -> Iterator[None]:
    """Other drafters for a while, n tokens at a time."""
    before = llm.control, llm.drafters
    llm.control, llm.drafters = Forced(n, llm.control.widths), tuple(drafters)
    try:
        yield
    finally:
        llm.control, llm.drafters = before


def forget(llm: LLM) -> None:
    """Leaves nothing in the cache."""
    llm.runtime.keep(0, 0)
    llm._cached = []
    llm._cached_exactly = True
