"""Plain data, as JSON gives it, as the dataclass that it was written from: each field there, and of its type."""

from __future__ import annotations

import types
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

MAX = 2**53
"""No count and no time is greater; numbers up to it are exact as floats."""


def built(kind: Any, data: Any, name: str = "this") -> Any:
    """Data as what a field's type says. Fields without a default must be there; those that nobody knows are left out.

    Raises ValueError for data that does not fit, with the field's name.
    """
    if kind in (str, int, float, bool):
        return _value(kind, data, name)
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return None if data is None else built(next(k for k in inner if k is not type(None)), data, name)
    if origin is tuple:
        return _tuple(inner, data, name)
    if origin is Literal:
        return data if data in inner else _refuse(data, name)
    if origin is not None:  # a Mapping
        _require(dict, data, name)
        return {key: built(inner[1], item, name) for key, item in data.items()}
    return _dataclass(kind, data, name) if is_dataclass(kind) else data


def _tuple(inner: tuple[Any, ...], data: Any, name: str) -> tuple[Any, ...]:
    _require(list, data, name)
    kinds = [inner[0]] * len(data) if inner[-1] is Ellipsis else inner
    if len(kinds) != len(data):
        _refuse(data, name)
    return tuple(built(kind, item, name) for kind, item in zip(kinds, data, strict=True))


def _dataclass(kind: Any, data: Any, name: str) -> Any:
    _require(dict, data, name)
    values = {}
    for field, hint in _fields(kind):
        if field.name in data:
            values[field.name] = built(hint, data[field.name], field.name)
        elif field.default is MISSING:
            raise ValueError(f"{field.name} is missing")
    return kind(**values)


@cache
def _fields(kind: Any) -> list[tuple[Field[Any], Any]]:
    hints = get_type_hints(kind)
    return [(field, hints[field.name]) for field in fields(kind)]


def _value(kind: Any, data: Any, name: str) -> Any:
    is_number = kind in (int, float)
    fits = isinstance(data, (int, float) if kind is float else kind)
    if not fits or isinstance(data, bool) != (kind is bool) or (is_number and not abs(data) <= MAX):
        _refuse(data, name)
    return data


def _require(kind: type, data: Any, name: str) -> None:
    if not isinstance(data, kind):
        _refuse(data, name)


def _refuse(data: Any, name: str) -> Any:
    raise ValueError(f"{name} cannot be {str(data)[:60]!r}")
