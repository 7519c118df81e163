"""Ollama, attached to by URL: its native chat, the length of drafts as a request's option, and its Modelfile.

Written after its API and Modelfile documents (`docs/api`, `docs/modelfile.mdx`): a model carries its draft, as `DRAFT`
or as layers of its own, and the option `draft_num_predict` says how many tokens are drafted, 0 for none. Tested
against a stand-in only, not against Ollama itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from slipstream.errors import EngineError, InputError

from .attached import AttachedEngine, one_speculation
from .chat_client import said
from .protocol import Answer, Arrivals, Option, Rendering, Request, Settings

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
        self.version = version

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
        arrivals, text = Arrivals(time.perf_counter), []
        for event in _events(client, asked):
            message = event.get("message") or {}
            piece = str(message.get("thinking") or "") + str(message.get("content") or "")
            if piece:
                text.append(piece)
                arrivals.add()
            if event.get("done"):
                return _timed(arrivals.answer("".join(text), event.get("eval_count")), event)
        raise EngineError("Ollama ended its answer without saying that it is done.")

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


def _timed(answer: Answer, last: Mapping[str, Any]) -> Answer:
    """By Ollama's own clock: `eval_duration`, in ns, runs from the prompt's end, which brings the first token."""
    duration = last.get("eval_duration")
    if not isinstance(duration, int) or duration <= 0:
        return answer
    return Answer(answer.text, answer.n_tokens, answer.ttft_s, duration / 1e9, answer.arrivals)


def _events(client: httpx.Client, asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The objects of a streamed answer, one a line."""
    try:
        with client.stream("POST", "/api/chat", json=dict(asked)) as response:
            if response.status_code != 200:
                response.read()
                raise EngineError(f"Ollama answered status {response.status_code}: {said(response.text)}")
            for line in response.iter_lines():
                if line.strip():
                    yield _event(line)
    except httpx.HTTPError as error:
        message = f"Ollama does not answer: {type(error).__name__} {error}".rstrip(" .")
        raise EngineError(f"{message}.") from None


def _event(line: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise EngineError(f"Ollama sent what is no event: {line[:200]}")
    if "error" in event:
        raise EngineError(f"Ollama answered an error: {said(line)}")
    return event
