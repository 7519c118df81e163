"""llama.cpp's server: that of the xllamacpp wheel, any `llama-server` program, or one that runs already.

Times are the server's own: `timings.predicted_ms` runs from the choice of the first token to the last verification,
and `predicted_n` counts the first token, too (tools/server/server-context.cpp).
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import httpx

from slipstream.errors import EngineError, InputError, SlipstreamError
from slipstream.models.describe import describe_gguf

from .attached import AS_IT_RUNS, check_served, fixed_at_start, one_more
from .chat_client import ask_json, body, client_at, no_engine, open_client, silent, stream_chat
from .checked import check_clock, checked, count, number, reading
from .llamacpp_options import (
    KINDS,
    Release,
    check,
    options,
    release_of_program,
    release_of_wheel,
    wheel_version,
    why_not,
)
from .llamacpp_settings import arguments, command_line, fields, python
from .metrics import speculation
from .process import ServerProcess, free_port
from .protocol import Answer, Counters, Option, Rendering, Request, Settings

READY_S: Final = 1800.0
TITLE: Final = "llama.cpp"
USUAL_URL: Final = "http://127.0.0.1:8080"
AND: Final = " + "
"""Between kinds that a server runs together."""

_GOES_ON_WITHOUT: Final = re.compile(r"failed to initialize speculative decoding context: (.*)")


@dataclass(frozen=True)
class Attached:
    """A server that runs already.

    kinds: its speculation, () for none. n_slots: requests it answers at once. Both None where it does not tell. served:
    names of its model, as far as it tells.
    """

    url: str
    kinds: tuple[str, ...] | None
    n_slots: int | None
    served: tuple[str, ...] = ()

    def runs(self, settings: Settings) -> bool:
        """As far as it tells: which kinds, and nothing of their lengths and thresholds."""
        wanted = {kind for s in settings.speculation for kind in s.kind.split(AND)}
        unset = all(s.n_max is None and s.p_min is None for s in settings.speculation)
        return self.kinds is None or (unset and wanted == set(self.kinds))


class LlamaCppEngine:
    """Implements `protocol.Engine`. What its n-gram kinds have seen stays from request to request until `stop`."""

    name = "llama.cpp"
    concurrent = True

    def __init__(self, program: str | None = None) -> None:
        """program: a `llama-server`, None for that of the xllamacpp wheel. Raises EngineError for another program."""
        self._program = program
        self._release = release_of_program(program) if program else None
        self.version = self._release.version if self._release else wheel_version()
        self._attached: Attached | None = None
        self._server: ServerProcess | None = None
        self._client: httpx.Client | None = None
        self._model, self._parallel = "", 1
        self._counted = Counters()
        self._counting = threading.Lock()

    def speculative_options(self, settings: Settings) -> tuple[Option, ...]:
        """Each kind of this release; of an attached server, that which it runs.

        Raises ModelError for bad files, and InputError where an attached server has another model or answers fewer
        requests at once.
        """
        if self._attached is None:
            return options(settings, self._known())
        check_served(TITLE, self._attached.url, self._attached.served, settings)
        _check_slots(self._attached, settings)
        runs = AND.join(self._attached.kinds or ())
        others = (Option(kind, why_not=fixed_at_start(TITLE, f"--spec-type {kind}")) for kind in KINDS if kind != runs)
        return (*([Option(runs)] if runs else []), *others)

    def start(self, settings: Settings, progress: Callable[[str], None] = lambda line: None) -> None:
        """Starts a server on a free port. Attached, it only checks that the server is one for these settings."""
        assert self._client is None, "stop comes first"
        self._model, self._parallel, self._counted = settings.model, settings.parallel, Counters()
        if self._attached is not None:
            self._check_attached(self._attached, settings)
            self._client = open_client(self._attached.url)
            return
        check(settings, self._known())
        port = free_port()
        self._server = ServerProcess(self.name, self._command(settings, port))
        try:
            url = f"http://127.0.0.1:{port}"
            self._server.wait_ready(f"{url}/health", READY_S, progress)
            self._client = open_client(url)
            self._check_speculates(self._server, self._client, settings)
        except BaseException:
            self.stop()
            raise

    def attach(self, url: str) -> None:
        """Uses the server at `url`. Raises InputError for what is no URL, EngineError where no llama.cpp answers."""
        client = client_at(url, USUAL_URL)
        self.stop()
        self._attached = None
        with client:
            props = _json(client, "/props")
            if not isinstance(props, dict) or "build_info" not in props:
                raise no_engine(client, f"{TITLE}'s server")
            build = re.match(r"b[1-9]\d*", str(props["build_info"]))
            self.version = build[0] if build else ""
            n_slots = props.get("total_slots")
            known = n_slots if isinstance(n_slots, int) else None
            served = tuple(str(props[name]) for name in ("model_path", "model_alias") if props.get(name))
            self._attached = Attached(str(client.base_url), _running_kinds(client), known, served)

    def complete(self, request: Request) -> Answer:
        """Answers one request, without the prompt cache."""
        assert self._client is not None, "start comes first"
        asked = body(request, self._model, {"cache_prompt": False})
        try:
            answer, extra = stream_chat(self._client, self.name, asked)
        except EngineError as error:
            raise (self._server.explained(error) if self._server else error) from None
        answer = checked(timed(answer, extra.get("timings")), request, TITLE)
        if self._parallel == 1:
            check_clock(answer, TITLE)
        with self._counting:
            self._counted += answer.counters or Counters()
        return answer

    def counters(self) -> Counters | None:
        """The server's own totals, by position too; of a server without `--metrics`, those of our own requests."""
        assert self._client is not None, "start comes first"
        try:
            response = self._client.get("/metrics")
        except httpx.HTTPError as error:
            raise silent(self._client, TITLE, USUAL_URL, error) from None
        found = speculation(response.text, "llamacpp:") if response.status_code == 200 else None
        return self._counted if found is None else found

    def render(self, settings: Settings) -> tuple[Rendering, ...]:
        """The command line, and Python for the wheel.

        Raises InputError for what this release has no setting for, and for what an attached server runs: its lengths
        are not known.
        """
        if self._attached and self._attached.kinds and self._attached.runs(settings):
            message = f"llama.cpp does not tell with which lengths a server runs {settings.arm}."
            raise InputError(message, "The settings are those of the command line that started it.")
        release = Release(self.version) if self._attached else self._known()
        check(settings, release)
        line = command_line(self._program or "llama-server", settings, release)
        return (line,) if self._program or self._attached else (line, python(settings))

    def stop(self) -> None:
        """Ends the server that was started; one attached to goes on, and `start` finds it again."""
        if self._client is not None:
            self._client.close()
        if self._server is not None:
            self._server.stop()
        self._client = self._server = None

    def _known(self) -> Release:
        if self._release is None:
            self._release = release_of_wheel()
        return self._release

    def _command(self, settings: Settings, port: int) -> list[str]:
        if self._program is None:
            ours = {"port": port, "endpoint_metrics": True, "endpoint_slots": True, "cache_ram_mib": 0}
            words = [sys.executable, "-m", f"{__package__}.llamacpp_child"]
            return [*words, json.dumps({**fields(settings), **ours}), str(os.getpid())]
        release = self._known()
        words = [self._program, *arguments(settings, release), "--host", "127.0.0.1", "--port", str(port)]
        words += [flag for flag in ("--metrics", "--slots") if release.flag((flag,))]
        return words + (["--cache-ram", "0"] if release.flag(("--cache-ram",)) else [])

    def _check_speculates(self, server: ServerProcess, client: httpx.Client, settings: Settings) -> None:
        """Where a pair does not fit, llama.cpp says so in its log at most, and decodes plainly."""
        if not settings.speculation:
            return
        logged = _GOES_ON_WITHOUT.search("\n".join(server.last_lines(1000)))
        if logged is None and _speculates(client) is not False:
            return
        own = f"it says: {logged[1]}" if logged else "it does not say why"
        reason = next((r for s in settings.speculation if (r := _reason(s.kind, settings))), own)
        raise EngineError(f"llama.cpp decodes plainly instead of {settings.arm}: {reason}.")

    def _check_attached(self, attached: Attached, settings: Settings) -> None:
        if attached.runs(settings):
            return
        if any(AND in s.kind or s.kind == AS_IT_RUNS for s in settings.speculation):
            raise InputError(f"This server no longer runs {settings.arm}.", "Was it started anew? Begin again.")
        runs = "a speculation" if attached.kinds == (AS_IT_RUNS,) else AND.join(attached.kinds or ())
        asked = settings.arm if settings.speculation else "plain decoding"
        message = (
            f"This server runs {runs or 'no speculation'}, and llama.cpp cannot be asked for {asked} while it runs."
        )
        raise InputError(message, one_more(settings, self.render(settings)[0].text.strip()))


def _check_slots(attached: Attached, settings: Settings) -> None:
    """The others would wait, which is no answering at once."""
    if attached.n_slots is not None and attached.n_slots < settings.parallel:
        raise InputError(
            f"The llama.cpp server at {attached.url} answers {attached.n_slots} at once, not {settings.parallel}.",
            f"Start it with -np {settings.parallel}, or give a smaller --concurrency.",
        )


def timed(answer: Answer, timings: Mapping[str, Any] | None) -> Answer:
    """The answer with the server's own times and counts; by arrival where it gives none.

    Raises EngineError for what are no times and counts.
    """
    if not timings:
        return answer
    with reading(TITLE, timings):
        if timings.get("predicted_ms") is None:
            return answer
        counters = Counters(count(timings.get("draft_n") or 0), count(timings.get("draft_n_accepted") or 0))
        n_tokens, decode_s = count(timings["predicted_n"]), number(timings["predicted_ms"]) / 1e3
    return replace(answer, n_tokens=n_tokens, decode_s=decode_s, counters=counters)


def _reason(kind: str, settings: Settings) -> str:
    """Why a kind does not run, by what the files say; "" where they do not."""
    try:
        target = describe_gguf(Path(settings.model), settings.model)
        draft = describe_gguf(Path(settings.draft), settings.draft) if settings.draft else None
        return why_not(kind, target, draft)
    except SlipstreamError:
        return ""


def _speculates(client: httpx.Client) -> bool | None:
    """What `/slots` says; None where the server keeps them to itself or is too old to say."""
    try:
        slots = _json(client, "/slots")
    except EngineError:
        return None
    told = [slot.get("speculative") for slot in slots if isinstance(slot, dict)] if isinstance(slots, list) else []
    return any(told) if told and None not in told else None


def _running_kinds(client: httpx.Client) -> tuple[str, ...] | None:
    """The speculation of a server that runs: its slots name it once they have answered something, if ever."""
    speculates = _speculates(client)
    if not speculates:
        return () if speculates is False else None
    stream_chat(client, "llama.cpp", body(Request(({"role": "user", "content": "Hi"},), 1), ""))
    slots = _json(client, "/slots")
    with reading(TITLE, slots):
        names = {str(slot.get("params", {}).get("speculative.types", "")) for slot in slots} - {"", "none"}
    if len(names) != 1:
        return (AS_IT_RUNS,)
    return tuple(kind for kind in names.pop().split(",") if kind != "none")


def _json(client: httpx.Client, path: str) -> Any:
    return ask_json(client, TITLE, USUAL_URL, path)
