"""Chat templates: from messages to the prompt text, as the model's maker wrote it in Jinja.

Rendered in a sandbox, see `sandbox`, with what templates expect of transformers.
"""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Final

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from slipstream.errors import InputError, TemplateError
from slipstream.models.gguf import GGUF
from slipstream.models.sandbox import Sandbox, check_growth

_HINT: Final = "Use --template FILE with another template, or --raw for none."


@dataclass(frozen=True)
class ChatTemplate:
    """A template's source, with the texts of the tokens that begin and end a text."""

    source: str
    bos: str = ""
    eos: str = ""

    @classmethod
    def of(cls, gguf: GGUF, name: str = "default") -> ChatTemplate:
        """The template in a model's file (read with its arrays). Raises TemplateError if there is none."""
        templates = gguf.chat_templates
        if name not in templates:
            others = f" of that name, but: {', '.join(templates)}" if templates else ""
            raise TemplateError(f"{gguf.path.name} holds no chat template{others}.", _HINT)
        return cls(templates[name], gguf.token_text(gguf.bos_id), gguf.token_text(gguf.eos_id))

    @property
    def knows_thinking(self) -> bool:
        """Whether the template can be told to think or not."""
        return re.search(r"\b(enable_)?thinking\b", self.source) is not None

    def render(
        self,
        messages: Sequence[Mapping[str, str]],
        add_generation_prompt: bool = True,
        enable_thinking: bool | None = None,
        **extra: object,
    ) -> str:
        """The prompt's text. Messages have a role and a content, else InputError. Raises TemplateError."""
        if not isinstance(messages, Sequence) or not all(isinstance(m, Mapping) for m in messages):
            raise InputError(
                "The messages are not a list of messages.", 'Each is a mapping: {"role": …, "content": …}.'
            )
        template = self._compiled
        values: dict[str, object] = {"tools": None, "documents": None}
        if enable_thinking is not None:
            values |= {"enable_thinking": enable_thinking, "thinking": enable_thinking}
        values |= {"bos_token": self.bos, "eos_token": self.eos} | extra
        values |= {"messages": [dict(m) for m in messages], "add_generation_prompt": add_generation_prompt}
        try:
            self._sandbox.begin()
            return template.render(values)
        except _Refusal as error:
            raise TemplateError(f"The chat template refuses: {_one_line(error)}", "") from None
        except Exception as error:  # a template can raise whatever Python can
            raise _broken(error, _line_of(error)) from error

    @cached_property
    def _sandbox(self) -> Sandbox:
        names = {"raise_exception": _refuse, "strftime_now": _strftime_now}
        return Sandbox([_Generation, loopcontrols], names, {"tojson": _tojson})

    @cached_property
    def _compiled(self) -> jinja2.Template:
        try:
            return self._sandbox.template(self.source)
        except jinja2.TemplateSyntaxError as error:
            raise _broken(error, error.lineno) from error
        except Exception as error:  # such as RecursionError
            raise _broken(error, None) from error


class _Refusal(jinja2.TemplateError):
    """Raised by the template itself, about the messages."""


class _Generation(Extension):
    """{% generation %}: marks what the assistant says, for training. Here only its body counts."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> str:
    raise _Refusal(message)


def _strftime_now(layout: str) -> str:
    check_growth("strftime_now", layout, 256)  # as far as a width in it reaches
    return datetime.now().strftime(layout)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike jinja2's own, it keeps <, > and & as they are."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _line_of(error: Exception) -> int | None:
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == "<template>"]
    return lines[-1] if lines else None


def _broken(error: Exception, line: int | None) -> TemplateError:
    where = f" at line {line}" if line is not None else ""
    return TemplateError(f"The chat template fails{where}: {_one_line(error)}.", _HINT)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
