"""Charts over time: an answer as it came, and an arm's answers in the course of the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from slipstream.lab.tuned import Sample, Timeline

from .chart import Axes, Line, Mark, Plot, Words
from .numbers import count, duration, known, percent, speed
from .scale import SHARES, Scale, around, from_zero

Course = list[tuple[float, float]]
"""(Seconds, a number that belongs there), in order."""

_MAX_POINTS = 300
_N_WINDOWS = 40
_WINDOW = 0.1
"""Share of an answer's time over which its momentary speed is taken."""

_IN_BURST = 0.25
"""Pieces that follow each other within this share of the mean gap count as one burst."""

_MINUTES_FROM_S = 180.0


def answer(chart_id: str, arm: str, timeline: Timeline) -> tuple[Plot, ...]:
    """One answer in an arm and plain: tokens so far, and tokens/s, over the time since the first of them."""
    both = [(arm, _clean(timeline.arm)), ("plain decoding", _clean(timeline.plain))]
    both = [(name, course) for name, course in both if len(course) > 1 and course[-1][0] > 0.0]
    if not both:
        return ()
    x = from_zero([course[-1][0] for _, course in both], tight=True)
    said = [f"{name}: {count(round(course[-1][1]), 'token')} in {duration(course[-1][0])}" for name, course in both]
    words = Words(
        f"{chart_id}-tokens", "Tokens so far", "; ".join(said) + ".", "seconds since the first token", "tokens"
    )
    so_far = _lines(x, words, [(name, _thinned(course)) for name, course in both], lambda n: count(round(n), "token"))
    said = [f"{name}: {speed(mean_speed(course))} behind the first token" for name, course in both]
    words = Words(f"{chart_id}-speed", "Speed in the answer", "; ".join(said) + ".", words.x, "tokens/s")
    return so_far, _lines(x, words, [(name, _speeds(course)) for name, course in both], speed)


def mean_speed(course: Course) -> float:
    """Tokens a second behind the first piece."""
    (began, first), (ended, last) = course[0], course[-1]
    return (last - first) / (ended - began)


def _clean(points: Sequence[tuple[float, int]]) -> Course:
    """In order, and from its first piece on: reading the prompt is not what drafts can speed up."""
    course = sorted((t, float(n)) for t, n in points if known(t) and known(n))
    return [(t - course[0][0], n) for t, n in course]


def _thinned(course: Course) -> Course:
    return [*course[: -1 : max(1, len(course) // _MAX_POINTS)], course[-1]]


def _speeds(course: Course) -> Course:
    """Tokens a second in windows from the first token to the last; a burst counts as spread since the one before."""
    times, tokens = np.array(course).T
    gaps = np.diff(times)
    ends = np.append(gaps > _IN_BURST * gaps.mean(), True)
    times, tokens = times[ends], tokens[ends]
    half = _WINDOW / 2 * (times[-1] - times[0])
    middles = np.linspace(times[0] + half, times[-1] - half, _N_WINDOWS)
    gained = np.interp(middles + half, times, tokens) - np.interp(middles - half, times, tokens)
    return [(float(t), float(n)) for t, n in zip(middles, gained / (2 * half), strict=True)]


def _lines(x: Scale, words: Words, both: Sequence[tuple[str, Course]], write: Callable[[float], str]) -> Plot:
    axes = Axes(x, from_zero([y for _, course in both for _, y in course]))
    lines = [
        axes.ended(name, i, course, lambda t, y: f"{write(y)} after {duration(t)}")
        for i, (name, course) in enumerate(both)
    ]
    return axes.plot(words, lines)


def run(chart_id: str, arm: str, samples: Sequence[Sample]) -> tuple[Plot, ...]:
    """An arm's answers in the course of the run: their speed beside plain decoding's, and their acceptance."""
    samples = [sample for sample in samples if known(sample.at_s)]
    if not samples:
        return ()
    in_minutes = any(sample.at_s > _MINUTES_FROM_S for sample in samples)
    label = f"{'minutes' if in_minutes else 'seconds'} of measuring"
    unit = 60.0 if in_minutes else 1.0
    x = around([sample.at_s / unit for sample in samples])
    shown = f" of {count(len(samples), 'answer')} of {arm}, in the order of the run"
    speeds = _dots(
        samples,
        unit,
        x,
        Words(f"{chart_id}-speed", "Speed of each answer", f"Tokens a second{shown}.", label, "tokens/s"),
        [(arm, _speed), ("plain decoding around it", _plain_speed)],
        speed,
    )
    accepted = _dots(
        samples,
        unit,
        x,
        Words(f"{chart_id}-accepted", "Acceptance of each answer", f"Acceptance{shown}.", label, "accepted of drafted"),
        [(arm, _acceptance)],
        percent,
        SHARES,
    )
    return tuple(plot for plot in (speeds, accepted) if plot)


def _speed(sample: Sample) -> float | None:
    return sample.tokens_per_s


def _plain_speed(sample: Sample) -> float | None:
    return sample.plain_tokens_per_s


def _acceptance(sample: Sample) -> float | None:
    return sample.acceptance_rate


def _dots(
    samples: Sequence[Sample],
    unit: float,
    x: Scale,
    words: Words,
    series: Sequence[tuple[str, Callable[[Sample], float | None]]],
    write: Callable[[float], str],
    y: Scale | None = None,
) -> Plot | None:
    """A dot a sample, no lines between them: neighbours in time may be of different categories."""
    found = [(name, [(s, v) for s in samples if known(v := read(s))]) for name, read in series]
    values = [value for _, pairs in found for _, value in pairs]
    if not values:
        return None
    axes = Axes(x, y or from_zero(values), percent if y else "{:g}".format)
    lines = []
    for i, (name, pairs) in enumerate((name, pairs) for name, pairs in found if pairs):
        marks = [
            Mark(axes.x.at(s.at_s / unit), 100.0 - axes.y.at(v), f"{name}, {s.category}: {write(v)}") for s, v in pairs
        ]
        lines.append(Line(name, i, "", tuple(marks)))
    return axes.plot(words, lines)
