"""The figures of bench/peers.py: speed-ups by category with bootstrap intervals, arms chosen in hindsight, goals.

A speed-up is the seconds a token of plain decoding ÷ those of an arm: of the sums over a category's prompts (ratio),
or the median over prompts. Intervals are percentiles (95 %) of a bootstrap over prompts, from a fixed seed; means over
categories resample within each category. Where an arm has an engine of its own, plain decoding is that engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from peers_arms import LLAMA, TUNED, baseline
from peers_journal import Measurement, Settings

from slipstream.lab.bootstrap import Floats, generator, interval, resampled


@dataclass(frozen=True)
class Figure:
    """A value and its 95 % interval; none from a single prompt."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Row:
    """One prompt: seconds a token by arm. loop: whether plain decoding's answer is one."""

    id: str
    category: str
    loop: bool
    token_s: Mapping[str, float]
    same: Mapping[str, bool]
    n_drafted: Mapping[str, int | None]
    n_accepted: Mapping[str, int | None]


@dataclass(frozen=True)
class Hindsight:
    """chosen: the arm chosen on each half of the prompts; figure: its seconds on the other half ÷ ours."""

    category: str
    chosen: tuple[str, str]
    figure: Figure


@dataclass(frozen=True)
class Goal:
    """A goal of the project, the figure that answers it and where that figure comes from; None where nothing does."""

    text: str
    target: float
    figure: Figure | None
    where: str = ""

    @property
    def verdict(self) -> str:
        if self.figure is None:
            return "not measured"
        return "met" if self.figure.value >= self.target else "missed"


def rows(complete: Mapping[str, Mapping[str, Measurement]]) -> list[Row]:
    return [_row(arms) for arms in complete.values()]


def _row(arms: Mapping[str, Measurement]) -> Row:
    plain = arms["plain"]
    return Row(
        plain.id,
        plain.category,
        plain.loop,
        {name: m.answer.decode_s / m.answer.n_decoded for name, m in arms.items()},
        {name: m.answer.tokens == arms[baseline(name)].answer.tokens for name, m in arms.items()},
        {name: m.answer.n_drafted for name, m in arms.items()},
        {name: m.answer.n_accepted for name, m in arms.items()},
    )


def by_category(some: Sequence[Row]) -> dict[str, list[Row]]:
    categories: dict[str, list[Row]] = {}
    for row in some:
        categories.setdefault(row.category, []).append(row)
    return categories


def seconds(some: Sequence[Row], arm: str) -> Floats:
    return np.array([row.token_s[arm] for row in some])


def sums_ratio(above: Floats, below: Floats) -> Floats:
    """Ratios of sums along the last axis."""
    quotient: Floats = above.sum(axis=-1) / below.sum(axis=-1)
    return quotient


def median_ratio(above: Floats, below: Floats) -> Floats:
    medians: Floats = np.median(above / below, axis=-1)
    return medians


def draws(above: Floats, below: Floats, of: Callable[[Floats, Floats], Floats] = sums_ratio, stream: int = 0) -> Floats:
    """The statistic of resampled prompts, float64 (N_DRAWS,): both arms of a prompt stay together.

    Categories that are resampled together take a `stream` of random numbers each.
    """
    index = resampled(len(above), generator(stream))
    return of(above[index], below[index])


def figure(value: float, drawn: Floats, n_prompts: int) -> Figure:
    if n_prompts < 2:
        return Figure(value)
    return Figure(value, *interval(drawn))


def speed_up(some: Sequence[Row], arm: str, of: Callable[[Floats, Floats], Floats] = sums_ratio) -> Figure:
    """How many times faster than its plain decoding an arm is over these prompts, at least one."""
    plain, fast = seconds(some, baseline(arm)), seconds(some, arm)
    return figure(float(of(plain, fast)), draws(plain, fast, of), len(some))


def geometric_mean(some: Sequence[Row], arm: str, against: str | None = None) -> Figure:
    """Over categories, of an arm's speed-ups; ÷ that of the arm `against` if one is given."""
    pairs = [(seconds(group, against or baseline(arm)), seconds(group, arm)) for group in by_category(some).values()]
    value = np.exp(np.mean([np.log(sums_ratio(*pair)) for pair in pairs]))
    drawn = np.exp(np.mean([np.log(draws(*pair, stream=i)) for i, pair in enumerate(pairs)], axis=0))
    return figure(float(value), drawn, max(len(above) for above, _ in pairs))


def hindsight(some: Sequence[Row], ours: str, pool: Sequence[str]) -> Hindsight | None:
    """Our arm against the best of a pool in one category, chosen on one half of the prompts, scored on the other.

    Both directions together: the chosen arms' summed seconds a token ÷ ours. None with fewer than two prompts.
    """
    halves = some[0::2], some[1::2]
    if not halves[1]:
        return None
    chosen = [min(pool, key=lambda arm: seconds(half, arm).sum()) for half in halves]
    theirs = np.concatenate([seconds(halves[1], chosen[0]), seconds(halves[0], chosen[1])])
    own = np.concatenate([seconds(halves[1], ours), seconds(halves[0], ours)])
    found = figure(float(sums_ratio(theirs, own)), draws(theirs, own), len(own))
    return Hindsight(some[0].category, (chosen[0], chosen[1]), found)


def never_drafted(some: Sequence[Row], arms: Sequence[str]) -> list[str]:
    """Arms that say how much they drafted, and drafted nothing."""
    told = [arm for arm in arms if any(row.n_drafted[arm] is not None for row in some)]
    return [arm for arm in told if not any(row.n_drafted[arm] for row in some)]


def worst(figures: Mapping[str, Figure]) -> tuple[Figure | None, str]:
    if not figures:
        return None, ""
    name = min(figures, key=lambda name: figures[name].value)
    return figures[name], name


def goals(some: Sequence[Row], settings: Settings) -> list[Goal]:
    """The project's goals, answered by these prompts as far as they can answer them."""
    categories = by_category(some)
    llama = [arm for arm in settings.arms if arm in LLAMA]
    greedy, warm = (categories, {}) if settings.temperature == 0 else ({}, categories)
    auto = "auto" in settings.arms

    plain = {c: speed_up(group, "auto") for c, group in greedy.items() if auto}
    found = [hindsight(group, "auto", llama) for group in greedy.values() if auto and llama]
    against = {h.category: h.figure for h in found if h is not None}
    mean: tuple[Figure | None, str] = (None, "")
    if greedy and auto and llama:
        best = _best_single(some, llama)
        mean = geometric_mean(some, "auto", best), f"against {best}"
    chat = {"chat": speed_up(warm["chat"], "auto")} if auto and "chat" in warm else {}
    draft = {c: speed_up(group, "auto+draft") for c, group in greedy.items() if "auto+draft" in settings.arms}
    return [
        Goal("slipstream auto ÷ plain, worst category", 0.98, *worst(plain)),
        Goal("slipstream auto ÷ llama.cpp's best arm in hindsight, worst category", 1.0, *worst(against)),
        Goal("slipstream auto ÷ llama.cpp's best single arm, geometric mean", 1.15, *mean),
        Goal("above temperature 0, slipstream auto ÷ plain in chat", 0.98, *worst(chat)),
        Goal("slipstream auto with a useless draft ÷ plain, worst category", 0.95, *worst(draft)),
        *_tuned_goals(some, settings, llama),
    ]


def _tuned_goals(some: Sequence[Row], settings: Settings, llama: Sequence[str]) -> list[Goal]:
    """What `slipstream tune` decided for llama.cpp, where it is among the arms."""
    if TUNED not in settings.arms or not llama or not some:
        return []
    best = _best_single(some, llama)
    against = geometric_mean(some, TUNED, best)
    where = f"{settings.tuned} against {best}"
    return [Goal("llama.cpp as tuned ÷ its best arm here, geometric mean", 0.95, against, where)]


def _best_single(some: Sequence[Row], arms: Sequence[str]) -> str:
    """The arm that is fastest over all categories."""
    return max(arms, key=lambda arm: geometric_mean(some, arm).value)
