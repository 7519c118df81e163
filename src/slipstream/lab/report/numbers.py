"""Numbers and counts as the report writes them, with their units."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeGuard

from slipstream.lab.tuned import Ratio

MISSING = "–"
"""What stands where nothing is known."""

_MANY = 100.0
"""From here on a bound of an interval only says that next to nothing is known."""

_SPACE = "\u00a0"
"""A space that no line ends at."""


def known(value: float | None) -> TypeGuard[float]:
    """Whether it is there and finite."""
    return value is not None and math.isfinite(value)


def factor(value: float | None) -> str:
    """A speed-up: "1.24×", "0.08×", "12.4×"."""
    return f"{_ratio(value)}×" if known(value) else MISSING


def interval(ratio: Ratio) -> str:
    """The 95 % interval of a speed-up: "[1.18–1.31]"; empty where it has none."""
    return f"[{bounds(ratio)}]" if bounds(ratio) else ""


def bounds(ratio: Ratio) -> str:
    """The 95 % interval of a speed-up without brackets: "1.18–1.31", "1.003–1.12", "0.31–many"."""
    return f"{_bound(ratio.low)}–{_bound(ratio.high)}" if known(ratio.low) and known(ratio.high) else ""


def _bound(value: float) -> str:
    """On which side of 1 it lies decides, and is to be seen."""
    if value >= _MANY:
        return "many"
    return f"{value:.3f}" if _ratio(value) == "1.00" and value != 1.0 else _ratio(value)


def _ratio(value: float) -> str:
    return f"{value:.{2 if abs(value) < 9.995 else 1}f}"


def percent(share: float | None) -> str:
    """A share of one: "72 %"."""
    return f"{100 * share:.0f}{_SPACE}%" if known(share) else MISSING


def decimal(value: float | None) -> str:
    """With three digits where there is a point: "0.42", "5.31", "54.1", "1234"."""
    if known(value):
        return f"{value:.{2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0}f}"
    return MISSING


def speed(tokens_per_s: float | None) -> str:
    """As in "54.1 tokens/s"."""
    return f"{decimal(tokens_per_s)}{_SPACE}tokens/s" if known(tokens_per_s) else MISSING


def duration(seconds: float) -> str:
    """As in "0.42 s", "48 s", "9 min 40 s", "1 h 5 min"."""
    if not math.isfinite(seconds):
        return MISSING
    if seconds < 59.5:
        return f"{decimal(seconds) if seconds < 9.995 else round(seconds)}{_SPACE}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}{_SPACE}min {rest}{_SPACE}s"
    return f"{minutes // 60}{_SPACE}h {minutes % 60}{_SPACE}min"


def count(n: int, noun: str, plural: str = "") -> str:
    """As in "1 prompt", "16 prompts"."""
    return f"{n:,}{_SPACE}{noun if n == 1 else plural or noun + 's'}"


def listed(items: Iterable[str]) -> str:
    """As in "chat", "chat and code", "chat, code and edit"; at least one."""
    *most, last = items
    return f"{', '.join(most)} and {last}" if most else last


def in_words(ratio: Ratio, at_once: int = 1) -> str:
    """A speed-up for a tool tip and for those who listen. at_once: requests measured together."""
    of = count(ratio.n, "prompt") if at_once == 1 else f"{count(ratio.n, 'group')} of {at_once} prompts"
    return f"{factor(ratio.value)} {interval(ratio)} the speed of plain decoding, {of}"
