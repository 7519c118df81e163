"""From coarse to fine: which settings to try next, which to give up, and which may have won. Knows no engine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from slipstream.engines.protocol import Option, Settings, Speculation
from slipstream.lab.report.numbers import interval
from slipstream.lab.tune_statistics import Drift, Point, ratio, scores, versus
from slipstream.lab.tuned import Ratio

MAX_N = 64
NEAR = 1.2
LEAD = 0.05
"""As a logarithm: by so much an arm must lead in a category to be kept for it alone."""

ALIKE = 1.03
"""Arms of which none may be faster than the best by more need no further telling apart."""

HOPELESS = math.log(1 / 1.5)
"""An arm slower than that on each task of two visits needs no interval; in one visit the machine may have been away."""

PROMISING = math.log(0.9)
"""Nothing is tried around a best arm that is slower than that."""

MAX_FINER = 4
NOT_MEASURED = "the budget did not suffice for it"
OUTRUN = "others were better when time ran short"


@dataclass
class Arm:
    """One setting that is tried. out: why it no longer is; empty while it is."""

    settings: Settings
    option: Option
    out: str = ""

    @property
    def name(self) -> str:
        return self.settings.arm


def coarse(settings: Settings, options: Iterable[Option], per_kind: int = 2) -> list[Arm]:
    """Each kind that can be run, at one or two lengths, or all where they are fixed. No draft where none is needed."""
    alone = replace(settings, draft=None)
    return [
        Arm(_with(settings if option.needs_draft else alone, Speculation(option.kind, n)), option)
        for option in options
        if not option.why_not
        for n in ((option.n_max or (None,)) if option.is_fixed else _spread(option.n_max, per_kind))
    ]


def finer(best: Arm, tried: Iterable[str]) -> list[Arm]:
    """Settings around the best one that were not tried: its length up and down, then its confidence threshold."""
    if len(best.settings.speculation) > 1 or best.option.is_fixed:
        return []
    (now,) = best.settings.speculation
    known = set(tried)
    lengths = _around(now.n_max, _lengths(now, known)) if now.n_max is not None else []
    found = [replace(now, n_max=n) for n in lengths] + [replace(now, p_min=p) for p in best.option.p_min]
    arms = (Arm(_with(best.settings, speculation), best.option) for speculation in found)
    return [arm for arm in arms if arm.name not in known][:MAX_FINER]


def combined(arms: Sequence[Arm], points: Sequence[Point]) -> list[Arm]:
    """The two best kinds that gain and that the engine runs together, unless tried; the better one first."""
    known = scores(points)
    gaining = [arm for arm in arms if not arm.out and arm.option.combines and known.get(arm.name, 0.0) > 0]
    gaining = sorted((arm for arm in gaining if len(arm.settings.speculation) == 1), key=lambda arm: -known[arm.name])
    other = next((arm for arm in gaining[1:] if arm.option.kind != gaining[0].option.kind), None)
    if other is None:
        return []
    one, two = gaining[0].settings, other.settings
    both = replace(one, speculation=one.speculation + two.speculation, draft=one.draft or two.draft)
    return [Arm(both, gaining[0].option)] if both.arm not in {arm.name for arm in arms} else []


def best_of(arms: Sequence[Arm], points: Sequence[Point], category: str | None = None) -> Arm | None:
    """The fastest of those still tried, overall or in one category; None where none was measured."""
    some = [p for p in points if category in (None, p.category)]
    by_name = {arm.name: arm for arm in arms if not arm.out}
    known = {name: value for name, value in scores(some).items() if name in by_name}
    return by_name[max(known, key=lambda name: known[name])] if known else None


def drop(arms: Sequence[Arm], points: Sequence[Point], drift: Drift) -> None:
    """Gives up arms whose interval lies below plain decoding or below the best, unless a category is theirs."""
    best = best_of(arms, points)
    for arm in arms:
        if arm.out or best is None:
            continue
        reason = _below_plain(arm, points, drift) or (_below_best(arm, best, points, drift) if arm != best else "")
        if reason and not _leads(arm, best, points):
            arm.out = reason


def is_settled(arms: Sequence[Arm], points: Sequence[Point], drift: Drift) -> bool:
    """Whether no arm may be noticeably faster than the best one."""
    best = best_of(arms, points)
    if best is None:
        return True
    others = (versus(points, arm.name, best.name, drift) for arm in arms if not arm.out and arm != best)
    return all(found is not None and found.high < ALIKE for found in others)


def ranked(arms: Sequence[Arm], points: Sequence[Point]) -> list[Arm]:
    """Those still tried: first the best and what leads in a category, then the others; not measured yet is worst."""
    known = scores(points)
    best = best_of(arms, points)
    first = [arm for arm in (best, *leaders(arms, points, best).values()) if arm is not None]
    alive = [arm for arm in arms if not arm.out]
    return sorted(alive, key=lambda arm: (arm not in first, -known.get(arm.name, -math.inf)))


def give_up(arms: Iterable[Arm], points: Sequence[Point]) -> None:
    """For want of time."""
    measured = {p.arm for p in points}
    for arm in arms:
        arm.out = OUTRUN if arm.name in measured else NOT_MEASURED


def take_up(arms: Iterable[Arm]) -> None:
    """Goes on with those that were given up for want of time."""
    for arm in arms:
        if is_outrun(arm):
            arm.out = ""


def is_outrun(arm: Arm) -> bool:
    """Whether it was given up for want of time."""
    return arm.out in (OUTRUN, NOT_MEASURED)


def leaders(arms: Sequence[Arm], points: Sequence[Point], best: Arm | None) -> dict[str, Arm]:
    """By category, the arm that leads there, where that is another one than the best of all and does it clearly."""
    found: dict[str, Arm] = {}
    for category in dict.fromkeys(p.category for p in points):
        arm = best_of(arms, points, category)
        if arm is not None and arm != best and category in _led(arm, best, points):
            found[category] = arm
    return found


def _below_plain(arm: Arm, points: Sequence[Point], drift: Drift) -> str:
    own = [p for p in points if p.arm == arm.name]
    found = ratio(own, drift)
    is_hopeless = len({p.block for p in own}) > 1 and max(p.log_ratio for p in own) < HOPELESS
    if found is not None and (found.high < 1 or is_hopeless):
        return f"slower than plain decoding: {spelt(found)}"
    return ""


def _below_best(arm: Arm, best: Arm, points: Sequence[Point], drift: Drift) -> str:
    found = versus(points, arm.name, best.name, drift)
    return f"slower than {best.name}: {spelt(found)} of its speed" if found is not None and found.high < 1 else ""


def _leads(arm: Arm, best: Arm, points: Sequence[Point]) -> bool:
    return bool(_led(arm, best if arm != best else None, points))


def _led(arm: Arm, best: Arm | None, points: Sequence[Point]) -> list[str]:
    """Categories with at least two of an arm's tasks, where it leads plain decoding and the best arm."""
    found = []
    for category in dict.fromkeys(p.category for p in points):
        known = scores([p for p in points if p.category == category])
        n = sum(p.arm == arm.name and p.category == category for p in points)
        other = known.get(best.name, 0.0) if best is not None else 0.0
        if n >= 2 and known[arm.name] > max(other, 0.0) + LEAD:
            found.append(category)
    return found


def spelt(found: Ratio) -> str:
    """In words, "1.24 [1.18–1.31]"."""
    return f"{found.value:.2f} {interval(found)}"


def _with(settings: Settings, speculation: Speculation) -> Settings:
    return replace(settings, speculation=(speculation,))


def _spread(values: Sequence[int], n: int) -> Sequence[int | None]:
    """One value from the middle, or two from a third and two thirds."""
    if not values:
        return [None]
    if n == 1 or len(values) == 1:
        return [values[len(values) // 2]]
    third = (len(values) - 1) // 3
    return [values[third], values[-1 - third]]


def _lengths(now: Speculation, tried: Iterable[str]) -> list[int]:
    """Lengths tried with this kind and threshold."""
    return [n for n in range(1, MAX_N + 1) if str(replace(now, n_max=n)) in set(tried)]


def _around(n: int, tried: Sequence[int]) -> list[int]:
    """Half-way, as ratios go, to the next shorter and longer length; half and twice where there is none."""
    shorter = max((t for t in tried if t < n), default=None)
    longer = min((t for t in tried if t > n), default=None)
    down = n // 2 if shorter is None else round(math.sqrt(shorter * n))
    up = min(2 * n, MAX_N) if longer is None else round(math.sqrt(n * longer))
    return [m for m in (down, up) if m >= 1 and not any(_is_near(m, t) for t in (n, shorter, longer))]


def _is_near(n: int, other: int | None) -> bool:
    """Whether the two are too close for their difference to be measured."""
    return other is not None and max(n, other) < NEAR * min(n, other)
