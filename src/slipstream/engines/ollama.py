"""Ollama, attached to by URL: its native chat, the length of drafts as a request's option, and its Modelfile.

Written after its API and Modelfile documents (`docs/api`, `docs/modelfile.mdx`): a model carries its draft, as `DRAFT`
or as layers of its own, and the option `draft_num_predict` says how many tokens are drafted, 0 for none. Tested
against a stand-in only, not against Ollama itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

from slipstream.errors import EngineError, InputError

from .attached import AttachedEngine, one_speculation
from .checked import check_clock, checked, count, number, printable, reading, whole
from .protocol import Answer, Arrivals, Option, Rendering, Request, Settings
from .refusals import said
from .streaming import posted_lines

KINDS = ("draft",)
DEFAULT_N_MAX = 4


class OllamaEngine(AttachedEngine):
    """Ollama as it runs. The length of drafts can be asked for with a request; it loads the model anew for another."""

    name = "ollama"
    title = "Ollama"
    usual_url = "http://127.0.0.1:11434"

    def _greet(self) -> None:
        version = self._ask("/api/version").get("version")
        if not isinstance(version, str):
            raise EngineError("What answers there is not Ollama: /api/version tells no version.")
        self.version = printable(version)

    def speculative_options(self, settings: Settings) -> tuple[Option, ...]:
        """The model's own draft; whether it has one, Ollama does not tell."""
        why_not = "" if self.is_attached else f"start Ollama and give --url {self.usual_url}"
        return (Option("draft", (1, 2, 4, 6), why_not=why_not),)

    def _check(self, settings: Settings) -> None:
        """Also loads the model with these settings, so that no answer's time holds the loading."""
        options = _options(settings)
        self._ask("/api/chat", {"model": settings.model, "messages": [], "stream": False, "options": options})

    def complete(self, request: Request) -> Answer:
        """Answers one request. Raises EngineError, with Ollama's own words, where it fails or ends too early."""
        client, settings = self._running()
        asked = {
            "model": settings.model,
            "messages": [dict(message) for message in request.messages],
            "stream": True,
            "options": {
                **_options(settings),
                "num_predict": request.n_tokens,
                "temperature": request.temperature,
                "seed": request.seed,
            },
        }
        with closing(posted_lines(client, self.title, "/api/chat", asked, request.n_tokens)) as lines:
            answer, own_s = _read(lines)
        answer = checked(answer, request, self.title)
        if own_s is None:
            return answer
        answer = replace(answer, decode_s=own_s)
        if settings.parallel == 1:
            check_clock(answer, self.title)
        return answer

    def render(self, settings: Settings) -> tuple[Rendering, ...]:
        """The Modelfile with what to do with it, and the options of a request."""
        lines = [f"FROM {settings.model}"]
        lines += [f"DRAFT {settings.draft}"] if settings.draft and settings.speculation else []
        lines += [f"PARAMETER {name} {value}" for name, value in _options(settings).items()]
        return (
            Rendering("Modelfile", "text", "\n".join(lines) + "\n", "Modelfile"),
            Rendering("Command line", "sh", "ollama create my-model -f Modelfile\n", "ollama.sh"),
            Rendering("Request", "json", json.dumps({"options": _options(settings)}, indent=2) + "\n", "ollama.json"),
        )

    def _by_hand(self, settings: Settings) -> str:
        return "ollama serve"


def _options(settings: Settings) -> dict[str, int]:
    """Ollama's options of the settings. Raises InputError for what it has no word for."""
    wanted = one_speculation(settings, "Ollama", KINDS)
    if wanted is not None and wanted.p_min is not None:
        raise InputError(f"Ollama has no threshold of confidence, and p {wanted.p_min:g} is asked for.")
    options = {"num_ctx": settings.n_ctx}
    if settings.n_threads is not None:
        options["num_thread"] = settings.n_threads
    return {**options, "draft_num_predict": 0 if wanted is None else wanted.n_max or DEFAULT_N_MAX}


def _read(lines: Iterator[str]) -> tuple[Answer, float | None]:
    """The answer by arrival, and the seconds that it took by Ollama's own clock; None where that does not tell."""
    arrivals, text = Arrivals(time.perf_counter), list[str]()
    for line in lines:
        event = _event(line) if line.strip() else {}
        with reading("Ollama", line):
            message = event.get("message") or {}
            piece = "".join((message.get("thinking") or "", message.get("content") or ""))
            if piece:
                text.append(piece)
                arrivals.add()
            if event.get("done"):
                n_tokens = event.get("eval_count")
                answer = arrivals.answer(whole("".join(text)), None if n_tokens is None else count(n_tokens))
                return answer, _own_seconds(event)
    raise EngineError("Ollama ended its answer without saying that it is done.")


def _own_seconds(last: Mapping[str, Any]) -> float | None:
    """`eval_duration`, in ns, runs from the prompt's end, which brings the first token."""
    return number(last.get("eval_duration") or 0) / 1e9 or None


def _event(line: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        event = None
    if not isinstance(event, dict):
        raise EngineError(f"Ollama sent what is no event: {printable(line)}")
    if "error" in event:
        raise EngineError(f"Ollama answered an error: {said(line)}")
    return event
