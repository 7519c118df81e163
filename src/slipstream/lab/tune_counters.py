"""What an engine counted of one setting, and whether that can be: counters that contradict the answers are not used."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import add

from slipstream.engines.protocol import Answer, Counters, Settings
from slipstream.lab.tune_visit import Visit

UNKNOWN_LENGTH = 32
"""Taken for the longest draft where a setting names none."""

CHEAPER = 1.15
"""Passes with a draft are never cheaper than plain ones, so speed may exceed tokens a pass by noise alone."""


@dataclass(frozen=True)
class Tally:
    """counters: None where the engine tells none. n_decoded: tokens that passes of decoding brought. lie: what cannot
    be of these counters; empty where they can."""

    counters: Counters | None
    n_decoded: int
    lie: str = ""

    @property
    def trusted(self) -> Counters | None:
        return None if self.lie else self.counters

    @property
    def mean_tokens_a_pass(self) -> float | None:
        known = self.trusted
        return known.mean_tokens_a_pass(self.n_decoded) if known and known.drafted else None


def tally(visits: Iterable[Visit], settings: Settings, speed: float | None = None) -> Tally:
    """Over all visits of a setting. speed: against plain decoding, where it is known."""
    visits = [visit for visit in visits if visit.measured]
    answers = [answer for v in visits for m in v.measured.values() for _, answer in m.answers]
    n_decoded = sum(map(_n_decoded, answers))
    each = [visit.counters for visit in visits]
    known = [counters for counters in each if counters is not None]
    if not known or len(known) < len(each):
        return Tally(None, n_decoded)
    total = reduce(add, known)
    longest = max((s.n_max or UNKNOWN_LENGTH for s in settings.speculation), default=UNKNOWN_LENGTH)
    is_known = all(s.n_max for s in settings.speculation)
    lie = next((lie for counters in known if (lie := _impossible(counters))), "")
    lie = lie or (_too_long(total, longest) if is_known else "")
    lie = lie or _contradiction(total, n_decoded, answers, longest) or _unlikely(total, n_decoded, speed)
    return Tally(total, n_decoded, lie)


def _n_decoded(answer: Answer) -> int:
    """All tokens but the first, which comes with the prompt; all where it came with a draft's, as of transformers."""
    with_draft = bool(answer.arrivals) and answer.arrivals[0][1] > 1
    return answer.n_tokens if with_draft else max(answer.n_tokens - 1, 0)


def _impossible(c: Counters) -> str:
    """What contradicts itself."""
    numbers = [c.drafted, c.accepted, c.drafts or 0, *c.accepted_at, *c.drafted_at]
    if min(numbers) < 0:
        return f"{min(numbers)} of something were counted"
    if c.accepted > c.drafted:
        return f"{c.accepted} tokens accepted of {c.drafted} drafted"
    if c.drafts is not None and c.drafts > c.drafted:
        return f"{c.drafts} drafts of {c.drafted} tokens"
    if c.drafts is not None and c.accepted_at and c.accepted_at[0] > c.drafts:
        return f"{c.accepted_at[0]} first tokens accepted of {c.drafts} drafts"
    if any(later > earlier for earlier, later in zip(c.accepted_at, c.accepted_at[1:], strict=False)):
        return "more tokens accepted at a later place of the draft than at the one before"
    if any(accepted > drafted for accepted, drafted in zip(c.accepted_at, c.drafted_at, strict=False)):
        return "more tokens accepted at a place of the draft than drafted there"
    return ""


def _too_long(c: Counters, longest: int) -> str:
    """More than the setting allows a draft to have."""
    if c.drafts is not None and c.accepted > c.drafts * longest:
        return f"{c.accepted} tokens accepted of {c.drafts} drafts of at most {longest}"
    return ""


def _contradiction(c: Counters, n_decoded: int, answers: list[Answer], longest: int) -> str:
    """What contradicts the answers: each draft ends in a token of the target's own. A last draft may be cut off."""
    cut_off = len(answers) * (longest + 1)
    if c.accepted + (c.drafts or 0) > n_decoded + cut_off:
        return f"{c.accepted} tokens accepted, but {n_decoded} written"
    at_most = n_decoded * longest // (longest + 1) + len(answers) * longest
    if c.accepted > at_most:
        return f"{c.accepted} tokens accepted of {n_decoded} written, in drafts of at most {longest}"
    return ""


def _unlikely(c: Counters, n_decoded: int, speed: float | None) -> str:
    """A gain that the counted tokens cannot explain."""
    n_passes = n_decoded - c.accepted
    if speed is None or n_passes <= 0:
        return ""
    tokens = n_decoded / n_passes
    return (
        f"{tokens:.2f} tokens a pass, but at least {speed:.2f} times the speed"
        if speed > CHEAPER * max(tokens, 1)
        else ""
    )
