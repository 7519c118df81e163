"""What the engines have in common that are not started here but attached to: SGLang, Ollama, LM Studio."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

import httpx

from slipstream.errors import EngineError, InputError

from .chat_client import ask_json, client_at, no_engine, open_client
from .protocol import Counters, Rendering, Settings, Speculation

AS_IT_RUNS: Final = "as it runs"
"""The kind of a server that speculates and does not tell with what."""


class AttachedEngine(ABC):
    """A server that somebody else has started, reached by its URL; `start` only checks what it can be asked for.

    A subclass names the engine (`name` for programs, `title` for people, `usual_url`), greets a server (`_greet`),
    checks settings against it (`_check`), renders them and says how to start the program (`_by_hand`).
    """

    name = ""
    title = ""
    usual_url = ""
    concurrent = True

    def __init__(self) -> None:
        self.version = ""
        self._url: str | None = None
        self._client: httpx.Client | None = None
        self._settings: Settings | None = None

    @property
    def is_attached(self) -> bool:
        return self._url is not None

    def attach(self, url: str) -> None:
        """Uses the server at `url`. Raises InputError for what is no URL, EngineError where nobody answers as it would.

        A path of `/v1` behind the address is left away: that is how its users know it.
        """
        client = client_at(url, self.usual_url)
        self.stop()
        self._client = client
        try:
            self._greet()
        except EngineError:
            self.stop()
            raise
        self._url = str(client.base_url)

    def start(self, settings: Settings, progress: Callable[[str], None] = lambda line: None) -> None:
        """Notes what to ask for from now on.

        Raises InputError, with the command to start the program by hand, where nothing is attached or where the
        settings cannot be had of the server as it runs.
        """
        if self._url is None:
            self._refuse(f"{self.title} is not started from here.", settings)
        if self._client is None:
            self._client = open_client(self._url)
        self._check(settings)
        self._settings = settings

    def counters(self) -> Counters | None:
        """None: no totals that can be told apart by request; what an answer tells stands with the answer."""
        return None

    def stop(self) -> None:
        """Closes the connection; the server goes on, and `start` finds it again."""
        if self._client is not None:
            self._client.close()
        self._client = None
        self._settings = None

    @abstractmethod
    def render(self, settings: Settings) -> tuple[Rendering, ...]: ...

    @abstractmethod
    def _greet(self) -> None:
        """Reads the version and what else is to be known; raises EngineError where this is another server."""

    @abstractmethod
    def _check(self, settings: Settings) -> None:
        """Raises InputError for settings that the attached server cannot be asked for."""

    @abstractmethod
    def _by_hand(self, settings: Settings) -> str:
        """The command, on one line, with which a user starts the program with these settings."""

    def _refuse(self, message: str, settings: Settings) -> NoReturn:
        command = self._by_hand(settings)
        raise InputError(message, f"Start it yourself with `{command}`, then give --url {self.usual_url}.")

    def _running(self) -> tuple[httpx.Client, Settings]:
        assert self._client is not None and self._settings is not None, "start comes first"
        return self._client, self._settings

    def _ask(self, path: str, asked: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One request and its JSON object. Raises EngineError, with the server's own words."""
        assert self._client is not None
        data = ask_json(self._client, self.title, self.usual_url, path, asked)
        if not isinstance(data, dict):
            raise no_engine(self._client, self.title, str(data))
        return data


def check_served(title: str, url: str, served: Sequence[str], settings: Settings) -> None:
    """Raises InputError where a server serves another model than is named; a part of the name or of its file will do.

    served: the names that it gives it, none where it tells none.
    """
    own = _short(settings.model)
    if served and not any(own in _short(name) or _short(name) in own for name in served):
        hint = "Name the model that it serves, or give another --url."
        raise InputError(f"The {title} server at {url} serves {served[0]}, not {settings.model}.", hint)


def _short(model: str) -> str:
    return model.replace("\\", "/").rstrip("/").rpartition("/")[2].lower().removesuffix(".gguf")


def fixed_at_start(title: str, how: str) -> str:
    """Why a kind cannot be had of a server that was started with something else. how: the arguments that ask for it."""
    return f"it is fixed when {title} starts: start one more server with {how} and give each its --url"


def one_more(settings: Settings, command: str) -> str:
    """What to do where servers of an engine are started with other settings. command: which starts one with these."""
    if settings.speculation:
        return f"Start one more with `{command}`, on a port of its own, and give each its --url."
    return (
        f"Start a second one without speculation, on a port of its own, with `{command}`, "
        "and give both URLs, each by --url."
    )


def one_speculation(settings: Settings, title: str, known: tuple[str, ...]) -> Speculation | None:
    """The only speculation of the settings, None for plain decoding.

    Raises InputError for more than one, and for a kind that this engine has no word for.
    """
    if len(settings.speculation) > 1:
        raise InputError(f"{title} runs one speculation at a time, not {settings.arm}.")
    for speculation in settings.speculation:
        if speculation.kind not in known:
            raise InputError(f"{title} knows no speculation {speculation.kind!r}.", f"It has {', '.join(known)}.")
        return speculation
    return None


def needs_draft(settings: Settings, title: str, kind: str) -> str:
    """The draft of the settings. Raises InputError where there is none."""
    if settings.draft is None:
        raise InputError(f"{title}'s {kind} needs a draft.", "Name one with --draft.")
    return settings.draft
