"""What a line chart consists of, laid out in percent of its width (from the left) and height (from the top)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from .numbers import MISSING, known
from .scale import Scale

N_STYLES = 6
"""Colours and shapes of marks in the templates; a chart has no more lines."""

Points = Sequence[tuple[float, float | None]]
"""(x, y) in order; a gap where y is None."""


@dataclass(frozen=True)
class Tick:
    """minor: without a label where there is little room."""

    at: float
    label: str
    minor: bool = False


@dataclass(frozen=True)
class Mark:
    """tip: what it stands for, in words."""

    x: float
    y: float
    tip: str


@dataclass(frozen=True)
class Line:
    """path: an SVG path over a square of 100 × 100, empty for marks alone. style: 0 to N_STYLES − 1."""

    name: str
    style: int
    path: str
    marks: tuple[Mark, ...]
    guide: bool = False


@dataclass(frozen=True)
class Figures:
    """A chart's numbers as a table."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Words:
    """What is said around a chart. description: for those who do not see it. x, y: what the axes are, with units."""

    id: str
    title: str
    description: str
    x: str
    y: str


@dataclass(frozen=True)
class Plot:
    words: Words
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Line, ...]
    figures: Figures | None = None
    note: str = ""


@dataclass(frozen=True)
class Axes:
    """Two scales, and how numbers on the upright one are written."""

    x: Scale
    y: Scale
    write_y: Callable[[float], str] = "{:g}".format

    def plot(self, words: Words, lines: Sequence[Line], figures: Figures | None = None, note: str = "") -> Plot:
        """The lines with these axes around them."""
        x_ticks = tuple(Tick(self.x.at(value), f"{value:g}") for value in self.x.ticks)
        y_ticks = tuple(Tick(100.0 - self.y.at(value), self.write_y(value)) for value in self.y.ticks)
        return Plot(words, x_ticks, y_ticks, tuple(lines), figures, note)

    def path(self, points: Points) -> str:
        """Through all points, broken at gaps."""
        steps, pen_up = [], True
        for x, y in points:
            if not (known(x) and known(y)):
                pen_up = True
                continue
            steps.append(f"{'M' if pen_up else 'L'}{self.x.at(x):.2f},{100.0 - self.y.at(y):.2f}")
            pen_up = False
        return "".join(steps)

    def line(self, name: str, style: int, points: Points, tip: Callable[[float, float], str]) -> Line:
        """A line with a mark at every point; `tip` says what a point stands for."""
        marks = tuple(
            Mark(self.x.at(x), 100.0 - self.y.at(y), f"{name}, {tip(x, y)}") for x, y in points if known(x) and known(y)
        )
        return Line(name, style, self.path(points), marks)

    def ended(self, name: str, style: int, points: Points, tip: Callable[[float, float], str]) -> Line:
        """A line of many points with a mark at its end alone."""
        line = self.line(name, style, points, tip)
        return replace(line, marks=line.marks[-1:])


def figures(x_head: str, series: Iterable[tuple[str, Points]], write: Callable[[float], str]) -> Figures:
    """Lines as a table: a row for every x, a column for every line."""
    named = [(name, dict(points)) for name, points in series]
    xs = sorted({x for _, by_x in named for x in by_x})
    rows = tuple((f"{x:g}", *(_cell(by_x.get(x), write) for _, by_x in named)) for x in xs)
    return Figures((x_head, *(name for name, _ in named)), rows)


def _cell(value: float | None, write: Callable[[float], str]) -> str:
    return write(value) if known(value) else MISSING
