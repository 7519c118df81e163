"""LM Studio, attached to by URL: chat by its REST API, the draft model of a request, and how to write its settings.

Written after its documents and sources (REST API v0; `draft_model` and its counts since 0.3.10; `lms load`; the
SDK's `LLMLoadModelConfig` and `LLMPredictionConfig`). Tested against a stand-in only, not against LM Studio itself.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from slipstream.errors import EngineError

from .attached import AttachedEngine, needs_draft, one_speculation
from .chat_client import behind_first_round, body, stream_chat
from .checked import checked, count, printable, reading
from .protocol import Answer, Counters, Option, Rendering, Request, Settings, Speculation

REQUESTED = "draft_model"
LOADED = ("draft-mtp", "draft-simple")
KINDS = (REQUESTED, *LOADED)
PATH = "/api/v0/chat/completions"


class LmStudioEngine(AttachedEngine):
    """LM Studio as it runs. A draft model can be asked for with a request; the rest is fixed when a model is loaded.

    version: of the runtime that answered, once one has; the REST API tells none of its own.
    """

    name = "lmstudio"
    title = "LM Studio"
    usual_url = "http://127.0.0.1:1234"

    def _greet(self) -> None:
        if not isinstance(self._ask("/api/v0/models").get("data"), list):
            raise EngineError("What answers there is not LM Studio: /api/v0/models lists no models.")

    def speculative_options(self, settings: Settings) -> tuple[Option, ...]:
        """The draft model of a request; what is set by loading says how to load."""
        absent = "" if self.is_attached else f"start its server and give --url {self.usual_url}"
        reload = "it is set when the model is loaded: lms load with --speculative-{}"
        return (
            Option(REQUESTED, needs_draft=True, why_not=absent),
            *(Option(kind, needs_draft=kind == "draft-simple", why_not=reload.format(kind)) for kind in LOADED),
        )

    def _check(self, settings: Settings) -> None:
        wanted = one_speculation(settings, self.title, KINDS)
        if wanted is None:
            return
        if wanted.kind in LOADED:
            message = f"LM Studio's {wanted.kind} is set when a model is loaded and cannot be asked for with a request."
            self._refuse(message, settings)
        needs_draft(settings, self.title, wanted.kind)
        if wanted.n_max is not None or wanted.p_min is not None:
            message = f"A request to LM Studio names the draft model and nothing else, but {wanted} is asked for."
            self._refuse(message, settings)

    def complete(self, request: Request) -> Answer:
        """Answers one request. Raises EngineError also where LM Studio drafts though plain decoding is asked for."""
        client, settings = self._running()
        more = {"draft_model": settings.draft} if settings.speculation else {}
        answer, extra = stream_chat(client, self.title, body(request, settings.model, more), PATH)
        answer = checked(answer, request, self.title)
        with reading(self.title, extra):
            self.version = _version(extra) or self.version
            counters = counted(extra)
        if not settings.speculation and counters is not None and counters.drafted:
            hint = f"Load it without: lms load {shlex.quote(settings.model)} --no-speculative-draft-mtp"
            raise EngineError(f"{settings.model} is loaded with speculation, and plain decoding is asked for.", hint)
        answer = behind_first_round(answer) if settings.speculation else answer
        return replace(answer, counters=counters)

    def render(self, settings: Settings) -> tuple[Rendering, ...]:
        """How to load the model, and for a draft model of requests how to ask for it."""
        wanted = one_speculation(settings, self.title, KINDS)
        load = _load_command(wanted, settings)
        shown = [
            Rendering("Command line", "sh", load + "\n", "lmstudio.sh"),
            Rendering("Load fields of the SDK", "json", _json(_load_fields(wanted, settings)), "lmstudio-load.json"),
        ]
        if wanted is not None and wanted.kind == REQUESTED:
            draft = needs_draft(settings, self.title, REQUESTED)
            fields = _prediction_fields(wanted, draft)
            asked = {"model": settings.model, "draft_model": draft}
            shown += [
                Rendering("Prediction fields of the SDK", "json", _json(fields), "lmstudio-prediction.json"),
                Rendering("Request (REST)", "json", _json(asked), "lmstudio-request.json"),
                Rendering("Python (SDK)", "python", _python(settings, fields), "lmstudio_example.py"),
            ]
        return tuple(shown)

    def _by_hand(self, settings: Settings) -> str:
        wanted = one_speculation(settings, self.title, KINDS)
        return f"lms server start && {_load_command(wanted, settings)}"


def counted(extra: Mapping[str, Any]) -> Counters | None:
    """The counts of an answer: `stats` holds them by the documents, `usage` in newer versions.

    A draft that was too short to be considered counts as ignored: it was never verified, so it is none in our words.
    Raises TypeError, ValueError or AttributeError for counts that are none.
    """
    for place in ("stats", "usage"):
        counts = extra.get(place) or {}
        total, accepted = counts.get("total_draft_tokens_count"), counts.get("accepted_draft_tokens_count")
        if total is not None and accepted is not None:
            ignored = count(counts.get("ignored_draft_tokens_count") or 0)
            return Counters(count(count(total) - ignored), count(accepted))
    return None


def _version(extra: Mapping[str, Any]) -> str:
    runtime = extra.get("runtime") or {}
    return printable(f"{runtime.get('name', '')} {runtime.get('version', '')}".strip())


def _load_command(wanted: Speculation | None, settings: Settings) -> str:
    words = ["lms", "load", settings.model, "--context-length", str(settings.n_ctx)]
    words += ["--parallel", str(settings.parallel), *_load_flags(wanted, settings), "--yes"]
    return shlex.join(words)


def _load_flags(wanted: Speculation | None, settings: Settings) -> list[str]:
    if wanted is None or wanted.kind == REQUESTED:
        return ["--no-speculative-draft-mtp"]
    flags = [f"--speculative-{wanted.kind}"]
    if wanted.kind == "draft-simple":
        flags += ["--speculative-draft-model", needs_draft(settings, "LM Studio", wanted.kind)]
    flags += [] if wanted.n_max is None else ["--speculative-draft-max-tokens", str(wanted.n_max)]
    least = "--speculative-draft-min-continue-probability"
    return flags + ([] if wanted.p_min is None else [least, f"{wanted.p_min:g}"])


def _load_fields(wanted: Speculation | None, settings: Settings) -> dict[str, Any]:
    fields: dict[str, Any] = {"contextLength": settings.n_ctx, "maxParallelPredictions": settings.parallel}
    fields["speculativeDraftMtp"] = wanted is not None and wanted.kind == "draft-mtp"
    if wanted is None or wanted.kind == REQUESTED:
        return fields
    if wanted.kind == "draft-simple":
        fields["speculativeDraftModel"] = needs_draft(settings, "LM Studio", wanted.kind)
    if wanted.n_max is not None:
        fields["speculativeDraftMaxTokens"] = wanted.n_max
    if wanted.p_min is not None:
        fields["speculativeDraftMinContinueProbability"] = wanted.p_min
    return fields


def _prediction_fields(wanted: Speculation, draft: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"draftModel": draft}
    if wanted.n_max is not None:
        fields["speculativeDecodingNumDraftTokensExact"] = wanted.n_max
    if wanted.p_min is not None:
        fields["speculativeDecodingMinContinueDraftingProbability"] = wanted.p_min
    return fields


def _python(settings: Settings, fields: Mapping[str, Any]) -> str:
    return (
        "import lmstudio\n\n"
        f"model = lmstudio.llm({settings.model!r}, config={{'contextLength': {settings.n_ctx}}})\n"
        f"result = model.respond('Hello', config={dict(fields)!r})\n"
        "print(result, result.stats.accepted_draft_tokens_count)\n"
    )


def _json(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, indent=2, ensure_ascii=False) + "\n"
