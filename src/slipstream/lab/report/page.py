"""From what the page says to HTML: style and script within it, everything escaped, nothing fetched."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from slipstream.lab.tuned import Tuned

from .view import page

SHAPES: Final = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0",
    "M-3.6-3.6h7.2v7.2h-7.2z",
    "M0-4.8L4.6 3.4H-4.6z",
    "M0-5L5 0L0 5L-5 0z",
    "M0 4.8L4.6-3.4H-4.6z",
    "M-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
)
"""Marks of the line charts, one a style: colour is not all that tells them apart."""

_UNPRINTABLE: Final = re.compile("\x1b\\[[0-9;]*m|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Colours of a terminal; characters that HTML has no way to hold, or that turn round the text behind them."""

_OPTION: Final = re.compile(r"\b([np] [0-9.]+)")


def render(tuned: Tuned) -> str:
    """The page as HTML."""
    environment = Environment(
        loader=PackageLoader(__package__ or __name__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    environment.filters["arm"] = _arm
    script = _text("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("page.html").render(
        page=page(tuned),
        shapes=SHAPES,
        style=Markup(_text("page.css")),
        script=Markup(script),
        # Only the page's own script may run, whatever a name or a log line holds.
        policy=f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'",
    )


def _text(name: str) -> str:
    return (files(__package__ or __name__) / "templates" / name).read_text(encoding="utf-8")


def _printable(value: object) -> object:
    if isinstance(value, str) and not isinstance(value, Markup):
        return _UNPRINTABLE.sub(lambda found: "" if found[0].startswith("\x1b[") else "\ufffd", value)
    return value


def _arm(name: str) -> Markup:
    """An arm's name that is not broken between an option and its number."""
    parts = _OPTION.split(str(_printable(name)))
    return Markup("").join(
        Markup('<span class="keep">{}</span>').format(p) if i % 2 else p for i, p in enumerate(parts)
    )
