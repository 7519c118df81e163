"""Several running servers of one engine, each with the speculation it was started with, used as one engine.

Their speculation is fixed, so that one server is one setting: to start means to choose the server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from slipstream.errors import EngineError, InputError

from .attached import AS_IT_RUNS
from .chat_client import ask_json, client_at
from .protocol import Answer, Counters, Engine, Option, Rendering, Request, Settings, Speculation


@dataclass(frozen=True)
class Server:
    """One of them. model: the name or path that it serves, "" where it does not tell.

    runs: its speculation in its own words, nothing for plain decoding. known_as: the same, named apart from others'.
    """

    url: str
    engine: Engine
    model: str
    runs: tuple[Speculation, ...]
    known_as: tuple[Speculation, ...]

    def render(self, settings: Settings) -> tuple[Rendering, ...]:
        return self.engine.render(replace(settings, speculation=self.runs))

    def start(self, settings: Settings, progress: Callable[[str], None]) -> None:
        """Attaches anew, since the engines forget at `stop`, and checks that it still runs so."""
        self.engine.attach(self.url)
        self.engine.start(replace(settings, speculation=self.runs), progress)


class SeveralServers:
    """Implements `protocol.Engine`. build: makes the engine of one server. urls: of the servers, one of them plain.

    version: "" until they were asked. They go on running, whatever is called here.
    """

    def __init__(self, build: Callable[[], Engine], urls: Sequence[str]) -> None:
        self._members = tuple((url, build()) for url in urls)
        first = self._members[0][1]
        self.name, self.version, self.concurrent = first.name, "", first.concurrent
        self._servers: tuple[Server, ...] = ()
        self._chosen: Engine | None = None

    def speculative_options(self, settings: Settings) -> tuple[Option, ...]:
        """What any of the servers runs, at all its lengths, and what none does. Asks each server.

        Raises InputError where they cannot be compared: none is plain, two are the same, their versions or models
        differ, or they are told with each request what to run. Raises EngineError where one does not answer.
        """
        asked = [_asked(url, engine, settings) for url, engine in self._members]
        servers = _named_apart([server for server, _ in asked])
        _require_alike(servers)
        _require_plain(servers)
        _require_different(servers)
        self._servers, self.version = servers, servers[0].engine.version
        run = {speculation.kind for server in servers for speculation in server.runs}
        absent = {option.kind: option for _, options in asked for option in options if option.kind not in run}
        return (*_run(servers), *absent.values())

    def start(self, settings: Settings, progress: Callable[[str], None] = lambda line: None) -> None:
        """Uses the server that runs with exactly these settings. Raises InputError where none does."""
        assert self._chosen is None, "stop comes first"
        if not self._servers:
            self.speculative_options(settings)
        server = self._server(settings)
        if server is None:
            raise InputError(
                f"None of the {self.name} servers runs {settings.arm}.",
                f"They run {', '.join(_arm(each) for each in self._servers)}. Start one more with it.",
            )
        self._chosen = server.engine
        try:
            server.start(settings, progress)
        except BaseException:
            self.stop()
            raise

    def attach(self, url: str) -> None:
        """Raises InputError: its URLs are those that it was made with."""
        raise InputError(f"{self.name} is used by several URLs, and {url} is not one of them.", "Give all at once.")

    def complete(self, request: Request) -> Answer:
        """Answers one request, by the server that was chosen."""
        return self._running().complete(request)

    def counters(self) -> Counters | None:
        """The totals of the server that was chosen."""
        return self._running().counters()

    def render(self, settings: Settings) -> tuple[Rendering, ...]:
        """As the server that runs so writes it down, which knows its draft; as the first does where none runs so."""
        server = self._server(settings)
        return server.render(settings) if server else self._members[0][1].render(settings)

    def stop(self) -> None:
        """Lets go of all."""
        for _, engine in self._members:
            engine.stop()
        self._chosen = None

    def _running(self) -> Engine:
        assert self._chosen is not None, "start comes first"
        return self._chosen

    def _server(self, settings: Settings) -> Server | None:
        return next((server for server in self._servers if server.known_as == settings.speculation), None)


def _asked(url: str, engine: Engine, settings: Settings) -> tuple[Server, tuple[Option, ...]]:
    """A server, and the options that it has."""
    try:
        engine.attach(url)
        options = engine.speculative_options(settings)
        runs = _what_it_runs(url, engine, options, replace(settings, speculation=(), draft=None))
    except EngineError as error:
        if url in error.message:
            raise
        raise EngineError(f"At {url}: {error.message}", error.hint) from None
    finally:
        engine.stop()
    return Server(url, engine, _model(url), runs, runs), options


def _what_it_runs(url: str, engine: Engine, options: Sequence[Option], plain: Settings) -> tuple[Speculation, ...]:
    """The only setting that the attached server can be asked for."""
    ways = [Speculation(o.kind, n) for o in options if not o.why_not for n in o.n_max or (None,)]
    refused = _refused(engine, plain) if len(ways) <= 1 else None
    if ways and (len(ways) > 1 or refused is None):
        raise InputError(
            f"The {engine.name} server at {url} is told with each request whether to speculate.", "Give its URL alone."
        )
    if not ways and refused is not None:
        raise InputError(f"At {url}: {refused.message}", "Leave it away.")
    return tuple(ways)


def _refused(engine: Engine, settings: Settings) -> InputError | None:
    """Why an attached server cannot be asked for these settings."""
    try:
        engine.start(settings)
    except InputError as error:
        return error
    return None


def _model(url: str) -> str:
    """What the server says it serves, by OpenAI's list of models; vLLM's `root` is what stands behind its name."""
    with client_at(url, url) as client:
        try:
            models = ask_json(client, url, url, "/v1/models")["data"]
            return str(models[0].get("root") or models[0]["id"])
        except (EngineError, LookupError, TypeError, AttributeError):
            return ""


def _named_apart(servers: Sequence[Server]) -> tuple[Server, ...]:
    """By their places, where several run a kind of which it is not known whether they run it alike."""
    all_run = [speculation for server in servers for speculation in server.runs]
    n_servers = Counter(speculation.kind for speculation in all_run)
    unclear = {some.kind for some in all_run if some.kind == AS_IT_RUNS or some.n_max is None}
    places = _places([server.url for server in servers])
    return tuple(
        replace(server, known_as=tuple(replace(s, kind=f"{s.kind} at {places[server.url]}") for s in server.runs))
        if any(s.kind in unclear and n_servers[s.kind] > 1 for s in server.runs)
        else server
        for server in servers
    )


def _places(urls: Sequence[str]) -> dict[str, str]:
    """The ports, where these tell the servers apart."""
    ports = [urlsplit(url).port for url in urls]
    differ = None not in ports and len(set(ports)) == len(ports)
    return {url: f":{port}" if differ else url for url, port in zip(urls, ports, strict=True)}


def _run(servers: Sequence[Server]) -> list[Option]:
    """What the servers run, each kind with all its lengths."""
    lengths: dict[str, list[int]] = {}
    for server in servers:
        for speculation in server.known_as:
            known = lengths.setdefault(speculation.kind, [])
            known += [] if speculation.n_max is None else [speculation.n_max]
    return [Option(kind, tuple(sorted(known)), is_fixed=True) for kind, known in lengths.items()]


def _require_alike(servers: Sequence[Server]) -> None:
    """What is compared is their speculation, so nothing else may differ, as far as they tell."""
    for what, told in (
        ("versions", {server.url: server.engine.version for server in servers}),
        ("models", {server.url: server.model for server in servers}),
    ):
        if len({value for value in told.values() if value}) > 1:
            raise InputError(
                f"The {servers[0].engine.name} servers have different {what}: {_listed(told)}.",
                "Start all with the same: only their speculation may differ.",
            )


def _require_plain(servers: Sequence[Server]) -> None:
    if all(server.runs for server in servers):
        runs = _listed({server.url: _arm(server) for server in servers})
        raise InputError(
            f"None of the {servers[0].engine.name} servers runs without speculation: {runs}.",
            "Start one more without, to compare with, and give its --url too.",
        )


def _require_different(servers: Sequence[Server]) -> None:
    seen: dict[tuple[Speculation, ...], str] = {}
    for server in servers:
        if server.known_as in seen:
            what = f"run {_arm(server)}" if server.runs else "run without speculation, as far as they tell"
            raise InputError(
                f"{seen[server.known_as]} and {server.url} both {what}.",
                "Leave one of them away, or start it with another speculation.",
            )
        seen[server.known_as] = server.url


def _arm(server: Server) -> str:
    return " + ".join(map(str, server.known_as)) or "plain decoding"


def _listed(told: Mapping[str, str]) -> str:
    return ", ".join(f"{value} at {url}" for url, value in told.items() if value)
