"""The answer in words: which setting, or none and why, or that too little was measured to tell.

A setting wins only if the low end of its interval lies above plain decoding. Off is the answer where what may be
gained, or is likely to be, is too little to matter; between the two nothing is decided.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from slipstream.lab.tune_search import NOT_MEASURED, spelt
from slipstream.lab.tune_statistics import Drift
from slipstream.lab.tuned import ArmResult, Ratio, Verdict

LITTLE = 1.05
"""Where no more than this may be gained, and that is not sure, speculation is left off."""

MODEST, SEVERAL = 1.20, 12
"""So it is where no more than that is likely, and this is the most that there may be, on so many prompts or more."""

FEW_TOKENS = 1.15
"""Tokens a pass up to which drafts were hardly ever right."""

UNSTEADY = 0.03
"""Standard deviation between visits of plain decoding from which on it is named."""

UNEVEN = 2.0
"""Fastest ÷ slowest answer of plain decoding from which on another load is suspected."""

PAYS, DOUBTFUL = 0.70, 0.60
"""Acceptance from which speculation is said to pay, and below which to be turned off: a rule of thumb, shown beside
what was measured and deciding nothing (vettedconsumer.com, "Speculative Decoding, Explained", July 2026)."""

PLAIN = "plain"
VERIFICATION = "verification is too dear on this hardware"
MORE = "Go on with --resume and a longer --budget, or give more prompts."

_MEMORY = re.compile(r"out of memory|not enough memory|allocat|bad_alloc|MemoryError|\bOOM\b", re.IGNORECASE)


@dataclass(frozen=True)
class Circumstances:
    """What verdicts of one engine share. fresh: whether judging used other prompts than choosing. drafted: what plain
    decoding drafted. with_draft: names of settings with a draft model. at_once: requests measured together. broke: why
    the engine could not be measured to the end. needed_s: about what the budget should be. plain_speeds: tokens a
    second of each answer of plain decoding."""

    drift: Drift
    fresh: bool
    drafted: int = 0
    with_draft: frozenset[str] = frozenset()
    at_once: int = 1
    broke: str = ""
    needed_s: float = 0.0
    plain_speeds: tuple[float, ...] = ()
    n_unsteady: int = 0

    def prompts(self, n: int) -> str:
        return f"{n} prompts" if self.at_once == 1 else f"{n} groups of {self.at_once} prompts"


def overall(arms: Sequence[ArmResult], chosen: str | None, about: Circumstances) -> Verdict:
    """chosen: the setting that was judged, None where none was left to judge."""
    tried = [arm for arm in arms if arm.overall is not None and arm.state != "failed"]
    measured = {arm.arm: arm.overall for arm in tried if arm.overall is not None and arm.n_drafted != 0}
    if about.drafted > 0:
        return Verdict(None, None, _not_plain(about.drafted))
    if tried and not measured:
        return _idle(tried, arms)
    if not measured:
        return _nothing_measured(arms, about)
    name = chosen if chosen in measured else max(measured, key=lambda name: measured[name].value)
    best = next(arm for arm in arms if arm.arm == name)
    found = _judged(name, measured[name], about, name == chosen)
    if found.arm == PLAIN:
        why = (_why(best, arms, about), _and_drafts(best, arms, about), _memory(arms))
        found = replace(found, reason=" ".join(filter(None, (found.reason, *why))))
    elif found.arm is not None:
        found = replace(found, reason=f"{found.reason}{_texts(best, about)}")
    return replace(found, reason=f"{found.reason}{_missed(arms)}", hint=_hint(best, found.arm))


def in_category(arms: Sequence[ArmResult], chosen: str | None, category: str, about: Circumstances) -> Verdict:
    """chosen: the setting that was judged there."""
    tried = [arm for arm in arms if category in arm.by_category and arm.state != "failed"]
    measured = {arm.arm: arm.by_category[category] for arm in tried if arm.n_drafted != 0}
    if about.drafted > 0:
        return Verdict(None, None, _not_plain(about.drafted))
    if tried and not measured:
        return _idle(tried, arms)
    if not measured:
        return Verdict(None, None, f"Fewer than two prompts were measured. {MORE}")
    name = chosen if chosen in measured else max(measured, key=lambda name: measured[name].value)
    return _judged(name, measured[name], about, name == chosen)


def _idle(tried: Sequence[ArmResult], arms: Sequence[ArmResult]) -> Verdict:
    """Of settings that drafted nothing: no reason to leave speculation off while there are others to try."""
    said = f"Nothing was drafted on these prompts by {', '.join(arm.arm for arm in tried)}."
    missed = _missed(arms)
    return Verdict(None, None, f"{said}{missed} {MORE}") if missed else Verdict(PLAIN, None, said)


def is_decided(found: Ratio | None) -> bool:
    """Whether measuring again would not change the answer."""
    return found is not None and (found.low > 1 or found.high < LITTLE)


def _nothing_measured(arms: Sequence[ArmResult], about: Circumstances) -> Verdict:
    """Of an engine that could not be measured with any setting."""
    if about.broke:
        return Verdict(None, None, about.broke)
    failed = [arm for arm in arms if arm.state == "failed"]
    if failed and all(_MEMORY.search(arm.reason) for arm in failed):
        return Verdict(PLAIN, None, _memory(failed))
    if failed:
        return Verdict(None, None, f"No setting could be measured. {failed[0].arm}: {failed[0].reason}")
    if arms and all(arm.reason.startswith("not run") for arm in arms):
        return Verdict(None, None, f"No speculation can be had here. {_not_run(arms)}")
    if any(arm.tokens_per_s for arm in arms):
        return Verdict(None, None, f"No setting was measured on two prompts, which an interval needs. {MORE}")
    if any(arm.n_compared for arm in arms):
        return Verdict(None, None, "Answers were too short to tell of speed. Give prompts with longer ones.")
    needed = f"a --budget of about {max(math.ceil(about.needed_s / 60), 1)}m{_going_by(about)}."
    return Verdict(None, None, f"The budget was too small to measure any setting. Go on with --resume and {needed}")


def _not_run(arms: Sequence[ArmResult]) -> str:
    """Kinds that are missing for the same reason together, with that of the first: it may name its kind."""
    alike: dict[str, list[ArmResult]] = {}
    for arm in arms:
        alike.setdefault(arm.reason.replace(arm.arm, ""), []).append(arm)
    return " ".join(f"{', '.join(arm.arm for arm in some)} {some[0].reason}." for some in alike.values())


def _judged(name: str, found: Ratio, about: Circumstances, own: bool) -> Verdict:
    """own: whether the figure comes from measurements that did not choose the setting."""
    said = f"{name} is {spelt(found)} times as fast as plain decoding"
    if found.low <= 1 and found.high < LITTLE:
        return Verdict(PLAIN, None, f"{said}.")
    if own and found.low <= 1 and found.value < LITTLE and found.high < MODEST and found.n >= SEVERAL:
        return Verdict(PLAIN, None, f"{said}, on {about.prompts(found.n)}: little is likely to be gained, if anything.")
    if not own:
        because = about.broke or f"no time was left. {MORE}"
        return Verdict(None, found, f"{name} was not judged on measurements of its own: {because}")
    if found.low <= 1:
        reason = f"{said}, measured on {about.prompts(found.n)}.{_unsteady(about.drift)} {MORE}"
        return Verdict(None, found, reason)
    where = " that did not choose it" if about.fresh else ", measured after it was chosen"
    return Verdict(name, found, f"Its interval lies above 1, on {about.prompts(found.n)}{where}.")


def _and_drafts(best: ArmResult, arms: Sequence[ArmResult], about: Circumstances) -> str:
    """What the best setting with a draft model came to, where the best of all has none."""
    drafted = [(arm, arm.overall) for arm in arms if arm.overall is not None and arm.arm in about.with_draft]
    if not drafted or best.arm in about.with_draft:
        return ""
    arm, found = max(drafted, key=lambda pair: pair[1].value)
    return f"With the draft model, {arm.arm} is {spelt(found)} times as fast. {_why(arm, arms, about)}"


def _why(best: ArmResult, arms: Sequence[ArmResult], about: Circumstances) -> str:
    """Why speculation gains nothing: what its tokens a pass would give were passes as cheap as plain ones."""
    tokens, cost = best.mean_tokens_a_pass, best.pass_cost
    if tokens is None or cost is None:
        return "How many drafted tokens were accepted is not known."
    if tokens < FEW_TOKENS and (best.acceptance_rate or 0.0) >= DOUBTFUL:
        accepted = f"{best.acceptance_rate:.0%} of the drafted tokens were accepted"
        return f"Too little is drafted: {accepted}, but that gives only {tokens:.2f} tokens a pass."
    if tokens < FEW_TOKENS:
        rate = f"{best.acceptance_rate:.0%} of the drafted tokens" if best.acceptance_rate is not None else "few tokens"
        return f"Acceptance is too low: {rate} were accepted, which gives {tokens:.2f} tokens a pass."
    return (
        f"Its {tokens:.2f} tokens a pass would make it {tokens:.2f} times as fast were passes as cheap as plain ones, "
        f"but a pass with its draft costs {cost:.2f} of those: {_dear(best, cost, arms, about)}."
    )


def _dear(best: ArmResult, cost: float, arms: Sequence[ArmResult], about: Circumstances) -> str:
    """What makes a pass and its draft cost so many plain passes."""
    if best.arm not in about.with_draft:
        return VERIFICATION
    verification = _verification(best, arms, about)
    if verification is None:
        return f"the draft is too slow, or {VERIFICATION}"
    cause = "the draft is too slow" if cost - verification > verification - 1 else VERIFICATION
    return f"{cause} (verifying takes about {min(verification, cost):.2f} of it, to judge by the others)"


def _verification(best: ArmResult, arms: Sequence[ArmResult], about: Circumstances) -> float | None:
    """What a pass of the width of these drafts costs, in plain passes, as settings without a draft model show it."""
    width = _width(best)
    free = [(_width(a), a.pass_cost) for a in arms if a.arm not in about.with_draft]
    known = sorted((w, c) for w, c in free if w is not None and c is not None and w > 1)
    if width is None or not known:
        return None
    widths, costs = zip((1.0, 1.0), *known, strict=True)
    return float(np.interp(width, widths, costs))


def _width(arm: ArmResult) -> float | None:
    """Mean tokens in a pass: the last one and what was drafted."""
    if arm.mean_tokens_a_pass is None or not arm.acceptance_rate:
        return None
    return 1 + (arm.mean_tokens_a_pass - 1) / arm.acceptance_rate


def _memory(arms: Sequence[ArmResult]) -> str:
    short = [arm.arm for arm in arms if arm.state == "failed" and _MEMORY.search(arm.reason)]
    return f"{', '.join(short)} did not fit into memory." if short else ""


def _unsteady(drift: Drift) -> str:
    between = math.sqrt(drift.variance / 2)
    return f" Plain decoding itself varied by {between:.0%} between visits." if between >= UNSTEADY else ""


def _going_by(about: Circumstances) -> str:
    """What an estimate of time rests on, and whether another load may have made it too long."""
    if not about.plain_speeds:
        return ""
    slowest, fastest = min(about.plain_speeds), max(about.plain_speeds)
    n, plural = len(about.plain_speeds), "s" if len(about.plain_speeds) > 1 else ""
    what = f"{n} answer{plural}" if about.at_once == 1 else f"{n} group{plural} of {about.at_once} answers"
    if n == 1:
        return f", going by {what} at {fastest:.1f} tokens/s"
    found = f", going by {what} at {slowest:.1f} to {fastest:.1f} tokens/s"
    if fastest < UNEVEN * slowest:
        return found
    return f"{found}: something else seems to run on this machine, unless the prompts differ much in length"


def _missed(arms: Sequence[ArmResult]) -> str:
    """How many settings nothing is known of, for want of time."""
    n = sum(arm.overall is None and arm.reason == NOT_MEASURED for arm in arms)
    return f" There was no time for {n} other {'setting' if n == 1 else 'settings'}." if n else ""


def _texts(best: ArmResult, about: Circumstances) -> str:
    if not best.n_compared or best.n_same == best.n_compared:
        return ""
    n = about.n_unsteady
    itself = f"; plain decoding itself gave several for {n} {'prompt' if n == 1 else 'prompts'}" if n else ""
    return f" {best.n_compared - best.n_same} of {best.n_compared} answers are not plain decoding's text{itself}."


def _hint(best: ArmResult, decided: str | None) -> str:
    """What the rule of thumb makes of the acceptance, and whether that is what was measured."""
    rate = best.acceptance_rate
    if rate is None:
        return ""
    said = f"{rate:.0%} of the drafted tokens were accepted. Rule of thumb: "
    if rate >= PAYS:
        measured = {PLAIN: "; measured, it does not", None: "; measured, that is not sure"}.get(decided, "")
        return f"{said}from {PAYS:.0%} on it pays{measured}."
    if rate < DOUBTFUL:
        pays = "; measured, it pays" if decided == best.arm else ""
        return f"{said}below {DOUBTFUL:.0%}, change the draft or turn it off{pays}."
    return ""


def _not_plain(drafted: int) -> str:
    return (
        f"Plain decoding is none here: {drafted} tokens were drafted, so the engine speculates whatever it is asked. "
        "Start it without speculation."
    )
