"""A sandbox for chat templates, which come with models from anywhere and may be hostile.

jinja2's own keeps them from Python's insides and from changing what they are given. What it leaves open is bounded
here: the length of every text and list that a template makes, of all of them together, and the time. Every loop step,
call, filter and growing operator is counted. Not bounded: one operation on the largest texts, which may take seconds,
and the compiling of a huge template.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from itertools import chain
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.filters import make_attrgetter
from jinja2.runtime import Context
from jinja2.sandbox import MAX_RANGE, ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

Filter = Callable[..., Any]

_MAX_NUMBER: Final = 1 << 64
_MAX_EXPONENT: Final = 64
_MAX_LENGTH: Final = 1 << 24
"""Characters of a text, or of all in a list with its items: a conversation of four million tokens."""

_ITEM: Final = 8

_MAX_GROWTH: Final = 1 << 26
_MAX_WORK: Final = 1 << 28
_MAX_SECONDS: Final = 10
_FORMATS: Final = frozenset({"%", "format", "format_map"})
_GROWING: Final = _FORMATS | {
    *("center", "ljust", "rjust", "zfill", "expandtabs", "translate", "replace"),
    *("indent", "wordwrap", "slice", "batch", "tojson", "xmlattr", "urlize", "round"),
}
"""Methods and filters whose result may be much longer than what they are given."""

_MAX_LAYOUT: Final = 1 << 14
_WIDE: Final = re.compile(r"%(\([^)]*\))?[^a-zA-Z%]*(\d{5}|\*)|\{[^{}]*\d{5}|\{[^{}]+\{")
"""A width in a format that alone may take all memory, or comes from elsewhere."""


class Sandbox(ImmutableSandboxedEnvironment):
    """jinja2's sandbox with bounds; blocks are trimmed as in transformers.

    extensions, names, filters: what templates know beside jinja2's own.
    """

    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(
        self, extensions: Sequence[type[Extension]], names: Mapping[str, Any], filters: Mapping[str, Filter]
    ) -> None:
        # Not optimised: else constant expressions would be computed, unbounded, while the template is compiled.
        super().__init__(trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=extensions)
        del self.globals["lipsum"]
        self.globals |= {"namespace": _Namespace, **names}
        self.filters = {name: self._bounded(name, filter) for name, filter in {**self.filters, **filters}.items()}
        self.filters |= {"join": self._join, "_counted": self.counted, "_made": self.made}
        self.begin()

    def template(self, source: str) -> jinja2.Template:
        return self.from_string(_Counting().visit(self.parse(source)))

    def begin(self) -> None:
        """Before each rendering."""
        self._deadline = time.monotonic() + _MAX_SECONDS
        self._left = _MAX_WORK

    def counted(self, value: Any) -> Any:
        """The value itself, once the memory that it takes and the time are accounted for."""
        self._left -= len(value) if isinstance(value, str | list | tuple | dict) else 1
        if self._left < 0:
            raise SecurityError("its texts or lists grow too large")
        if time.monotonic() > self._deadline:
            raise SecurityError(f"it takes longer than {_MAX_SECONDS} seconds")
        return value

    def made(self, value: Any) -> Any:
        """The value itself, counted, and refused where it is too heavy when printed or compared."""
        if _weight(value, _MAX_LENGTH) > _MAX_LENGTH:
            raise SecurityError("its texts or lists grow too large")
        return self.counted(value)

    def concat(self, texts: Iterable[str]) -> str:
        """Joins what the template puts out, at every level: that of blocks and macros too."""
        kept, length = [], 0
        for text in texts:
            length += len(text)
            if length > _MAX_LENGTH:
                raise SecurityError("its text grows too large")
            kept.append(text)
        joined: str = self.counted("".join(kept))
        return joined

    def call(self, context: Context, callee: Any, /, *args: Any, **named: Any) -> Any:
        method = getattr(callee, "__wrapped__", callee)
        text = getattr(method, "__self__", None)
        if isinstance(text, str) and method.__name__ == "join" and len(args) == 1:
            return self._join(args[0], text)
        if isinstance(text, str) and method.__name__ in _GROWING:
            check_growth(method.__name__, text, *args, *named.values())
        return self.made(super().call(context, callee, *args, **named))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        numbers = [abs(value) for value in (left, right) if isinstance(value, int | float)]
        exponent = numbers[-1] if operator == "**" and numbers else 0
        if operator.startswith("*") and (max(numbers, default=0) > _MAX_NUMBER or exponent > _MAX_EXPONENT):
            raise SecurityError(f"{operator} would grow too large")
        if operator != "+" and len(numbers) < 2 and not (operator == "%" and isinstance(left, int | float)):
            check_growth(operator, left, right)
        return self.made(super().call_binop(context, operator, left, right))

    def _bounded(self, name: str, filter: Filter) -> Filter:
        @wraps(filter)
        def bounded(*args: Any, **named: Any) -> Any:
            if name in _GROWING:
                check_growth(name, *args, *named.values())
            return self.made(filter(*args, **named))

        return bounded

    def _join(self, values: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
        if attribute is not None:
            values = map(make_attrgetter(self, attribute), values)
        return self.concat(str(part) for i, value in enumerate(values) for part in ((d, value) if i else (value,)))


class _Namespace(Namespace):
    """Short when printed: what it holds is not weighed with it."""

    def __repr__(self) -> str:
        return "<namespace>"


def check_growth(operation: str, *values: Any) -> None:
    """Before an operation whose result may be as long as the product of what it is given."""
    layout = str(values[0]) if operation in _FORMATS else ""
    if len(layout) > _MAX_LAYOUT or _WIDE.search(layout) or math.prod(sorted(map(_factor, values))[-2:]) > _MAX_GROWTH:
        raise SecurityError(f"{operation} would grow too large")


def _factor(value: object) -> float:
    if isinstance(value, int | float):
        return max(1, abs(value))
    return MAX_RANGE if isinstance(value, Iterator) else max(1, _weight(value, _MAX_GROWTH))


def _weight(value: object, limit: int) -> int:
    """Characters and items (at `_ITEM`) of a value, each as often as it is in it; counting ends beyond the limit."""
    if isinstance(value, str | range):
        return len(value)
    if not isinstance(value, list | tuple | dict):
        return 1
    total = 1
    for part in chain(value.keys(), value.values()) if isinstance(value, dict) else value:
        total += _weight(part, limit - total) + _ITEM
        if total > limit:
            break
    return total


class _Counting(NodeTransformer):
    """Has every step of a loop counted, and every value that is made without a call."""

    def generic_visit(self, node: nodes.Node, *args: Any, **named: Any) -> nodes.Node:
        super().generic_visit(node, *args, **named)
        if isinstance(node, nodes.For):
            step = _through("_counted", nodes.Const(None), node)
            node.body.insert(0, nodes.ExprStmt(step, lineno=node.lineno))
        elif isinstance(node, nodes.Concat):
            return _through("join", nodes.List(node.nodes), node)
        elif isinstance(node, nodes.List | nodes.Dict) or (isinstance(node, nodes.Tuple) and node.ctx == "load"):
            return _through("_made", node, node)
        elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            return _through("_counted", node, node)
        return node


def _through(filter: str, value: Any, at: nodes.Node) -> nodes.Filter:
    return nodes.Filter(value, filter, [], [], None, None, lineno=at.lineno)
