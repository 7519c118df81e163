"""SGLang, attached to by URL: its chat completions, the speculation it runs, and its command line.

Written after its documentation and sources of 0.5.23 (`/server_info`, `/flush_cache`, `return_spec_tokens_details`
of #33518). Tested against a stand-in only, not against SGLang itself.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx

from slipstream.errors import InputError

from .attached import AttachedEngine, fixed_at_start, needs_draft, one_more, one_speculation
from .chat_client import body, stream_chat
from .checked import LONGEST_DRAFT, checked, count, printable, reading
from .protocol import Answer, Counters, Option, Rendering, Request, Settings, Speculation

CHAINED = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
"""Kinds that take steps, top-k and draft tokens, all three of them."""

KINDS = (*CHAINED, "NGRAM")
DRAFTED = ("EAGLE", "EAGLE3", "STANDALONE")
"""Kinds with a model of their own; NEXTN is part of the target, NGRAM needs none."""

DEFAULT_N_MAX = {"NGRAM": 11}
"""What SGLang takes for n-grams, its 12 tokens of a pass less one; 3 where nothing stands here."""


@dataclass(frozen=True)
class Running:
    """Speculation of a server: its algorithm, "" for none; tokens of a draft; whether that is a chain; draft model."""

    kind: str = ""
    n_max: int | None = None
    is_chain: bool = True
    draft: str | None = None


class SglangEngine(AttachedEngine):
    """SGLang as it runs. Its speculation is fixed when it starts: another arm means another server."""

    name = "sglang"
    title = "SGLang"
    usual_url = "http://127.0.0.1:30000"

    def __init__(self) -> None:
        super().__init__()
        self._found = Running()

    def _greet(self) -> None:
        info = self._ask("/server_info")
        self.version = printable(info.get("version") or "")
        self._found = running(info)

    def speculative_options(self, settings: Settings) -> tuple[Option, ...]:
        """All kinds; only the one that the attached server runs, at its length, can be had of it."""
        found, how = self._found, "--speculative-algorithm {}"
        return tuple(
            Option(kind, () if found.n_max is None else (found.n_max,))
            if self.is_attached and kind == found.kind
            else Option(kind, needs_draft=kind in DRAFTED, why_not=fixed_at_start(self.title, how.format(kind)))
            for kind in KINDS
        )

    def _runs(self, kind: str) -> bool:
        return self.is_attached and _plain_name(kind) == _plain_name(self._found.kind)

    def _check(self, settings: Settings) -> None:
        wanted = one_speculation(settings, self.title, KINDS)
        self._greet()  # it may have been started anew since
        self.render(settings)  # refuses what SGLang never has
        if wanted is None and not self._found.kind:
            return
        if wanted is not None and self._runs(wanted.kind) and wanted.n_max in (None, self._found.n_max):
            return
        n = f" with drafts of {self._found.n_max}" if self._found.n_max and self._found.kind else ""
        runs = f"{self._found.kind or 'no speculation'}{n}"
        asked = "plain decoding" if wanted is None else str(wanted)
        message = f"This server runs {runs}, and SGLang cannot be asked for {asked} while it runs."
        raise InputError(message, one_more(settings, self._by_hand(settings)))

    def complete(self, request: Request) -> Answer:
        """Answers one request, behind an empty prompt cache unless others are being answered."""
        client, settings = self._running()
        with contextlib.suppress(httpx.HTTPError):  # refused while other requests run
            client.post("/flush_cache")
        asked = body(request, settings.model, {"return_spec_tokens_details": True})
        answer, extra = stream_chat(client, self.title, asked)
        own = extra.get("sglext")
        with reading(self.title, own):
            details = (own or {}).get("spec_tokens_details")
            counters = counted(details, self._found.is_chain) if details else None
        return replace(checked(answer, request, self.title), counters=counters)

    def render(self, settings: Settings) -> tuple[Rendering, ...]:
        """The command line. Raises InputError for what SGLang has no flag for."""
        return (Rendering("Command line", "sh", self._by_hand(settings) + "\n", "sglang.sh"),)

    def _by_hand(self, settings: Settings) -> str:
        words = ["python", "-m", "sglang.launch_server", "--model-path", settings.model]
        words += ["--context-length", str(settings.n_ctx)]
        # Any speculation would set it to 48: plain decoding would be compared at another batch size.
        words += ["--max-running-requests", str(settings.parallel)]
        wanted = one_speculation(settings, self.title, KINDS)
        if wanted is not None and settings.draft is None and self._runs(wanted.kind):
            settings = replace(settings, draft=self._found.draft)
        words += [] if wanted is None else _flags(wanted, settings)
        return shlex.join(words)


def _flags(wanted: Speculation, settings: Settings) -> list[str]:
    if wanted.p_min is not None:
        raise InputError(f"SGLang has no threshold of confidence, and p {wanted.p_min:g} is asked for.")
    words = ["--speculative-algorithm", wanted.kind]
    draft = needs_draft(settings, "SGLang", wanted.kind) if wanted.kind in DRAFTED else settings.draft
    if draft is not None and wanted.kind != "NGRAM":
        words += ["--speculative-draft-model-path", draft]
    n_max = wanted.n_max or DEFAULT_N_MAX.get(wanted.kind, 3)
    if wanted.kind in CHAINED:
        words += ["--speculative-num-steps", str(n_max), "--speculative-eagle-topk", "1"]
    return [*words, "--speculative-num-draft-tokens", str(n_max + 1)]


def running(info: Mapping[str, Any]) -> Running:
    """What `/server_info` says of a server's speculation: it holds the arguments that the server was started with."""
    kind = printable(info.get("speculative_algorithm") or "").upper()
    width, steps = info.get("speculative_num_draft_tokens"), info.get("speculative_num_steps")
    n_max = width - 1 if isinstance(width, int) else steps if isinstance(steps, int) else None
    n_max = n_max if n_max is not None and 0 < n_max <= LONGEST_DRAFT else None
    is_chain = info.get("speculative_eagle_topk") in (None, 1) and kind != "NGRAM"
    draft = info.get("speculative_draft_model_path")
    return Running(kind, n_max, is_chain, draft if isinstance(draft, str) else None)


def counted(details: Mapping[str, Any], is_chain: bool) -> Counters | None:
    """The `spec_tokens_details` of an answer in the house's words; None where they lack the counts.

    Entry k of the histogram are the passes with k accepted tokens. Raises TypeError or ValueError for counts that are
    none.
    """
    found = [details.get(f"spec_{name}") for name in ("verify_ct", "num_proposed_drafts", "num_correct_drafts")]
    if None in found:
        return None
    passes, drafted, accepted = map(count, found)
    histogram = [count(n) for n in details.get("spec_correct_drafts_histogram") or ()]
    accepted_at = tuple(sum(histogram[i + 1 :]) for i in range(len(histogram) - 1))
    of_one_length = is_chain and passes > 0 and drafted % passes == 0 and drafted // passes <= LONGEST_DRAFT
    drafted_at = (passes,) * (drafted // passes) if of_one_length else ()
    return Counters(drafted, accepted, passes, accepted_at, drafted_at)


def _plain_name(kind: str) -> str:
    """NEXTN is another name for EAGLE with layers of the target's own; the server reports either."""
    return "EAGLE" if kind.upper() == "NEXTN" else kind.upper()
