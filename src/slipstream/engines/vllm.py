"""vLLM: `vllm serve` started or attached to, its chat completions, its counters, its settings written down.

Its speculation is fixed when it starts (`--speculative-config`): each arm is another start. Read from vLLM 0.32
(`vllm/config/speculative.py`, `vllm/v1/spec_decode/metrics.py`) and run with its CPU build of that release.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import httpx

from slipstream.errors import EngineError, InputError

from .attached import AS_IT_RUNS, check_served, one_more
from .chat_client import ask, ask_json, body, client_at, no_engine, open_client, stream_chat
from .checked import checked, printable
from .metrics import speculation
from .process import ServerProcess, free_port
from .protocol import Answer, Counters, Option, Rendering, Request, Settings, Speculation
from .vllm_options import kinds_fixed, kinds_here, speculative_config
from .vllm_program import SERVER_MODULE, Program, find_program

READY_S: Final = 1800.0
CPU_CACHE: Final = "VLLM_CPU_KVCACHE_SPACE"
CPU_CACHE_GIB: Final = "4"
"""The CPU build would take nearly all memory for its KV cache, or not start; the variable sets another size."""

_EXCEPTION: Final = re.compile(r"(?:\w+(?:Error|Exception): |Value error, ).*?(?= \[type=|$)")
"""Also the reason in a message of pydantic, which stands behind its own exception."""

USUAL_URL: Final = "http://127.0.0.1:8000"


class VllmEngine:
    """Implements `protocol.Engine`.

    program: the program `vllm`, or a python in whose environment it is installed; None for `vllm` on PATH.
    """

    name = "vllm"
    concurrent = True

    def __init__(self, program: str | None = None) -> None:
        self._program = find_program(program)
        self.version = self._program.version if self._program else ""
        self._process: ServerProcess | None = None
        self._client: httpx.Client | None = None
        self._model = ""
        self._names: tuple[str, ...] = ()
        self._is_attached = False

    def speculative_options(self, settings: Settings) -> tuple[Option, ...]:
        """Each kind, with the reason where it cannot be had; of an attached server, that which it runs, by no name.

        Raises EngineError where vLLM is not installed, InputError where an attached server has another model.
        """
        if self._is_attached:
            assert self._client is not None, "attach comes first"
            check_served("vLLM", str(self._client.base_url), self._names, settings)
            run = [Option(some.kind, () if some.n_max is None else (some.n_max,)) for some in self._runs()]
            return (*run, *kinds_fixed())
        return kinds_here(self._installed(), settings)

    def start(self, settings: Settings, progress: Callable[[str], None] = lambda line: None) -> None:
        """Starts `vllm serve` on a free port. Attached, it only checks that the server is one for these settings."""
        if self._is_attached:
            self._check_attached(settings)
            return
        assert self._process is None, "stop comes first"
        program = self._installed()
        port = free_port()
        command = [*program.serve(settings.model), *_arguments(settings, program.is_cpu), "--no-enable-prefix-caching"]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        self._process = ServerProcess("vLLM", command, _environment(settings, program))
        url = f"http://127.0.0.1:{port}"
        try:
            self._process.wait_ready(f"{url}/health", READY_S, progress)
            self._client = open_client(url)
            self._model = self._served_model()
        except EngineError as error:
            cause = _cause(self._process.last_lines(1000))
            self.stop()
            raise EngineError(f"{error.message} {cause}".strip(), error.hint) from None
        except BaseException:
            self.stop()
            raise

    def attach(self, url: str) -> None:
        """Uses the server at `url`, with its prompt cache as it is, which no request can turn off.

        Raises InputError for what is no URL, EngineError where no vLLM answers.
        """
        client = client_at(url, USUAL_URL)
        self.stop()
        self._client, self._is_attached = client, True
        try:
            self.version = printable(self._json("/version").get("version") or "")
            self._model = self._served_model()
        except EngineError:
            self.stop()
            raise

    def complete(self, request: Request) -> Answer:
        """Answers one request. Its tokens are counted as vLLM counts them, piece by piece."""
        assert self._client is not None, "start comes first"
        usage = {"include_usage": True, "continuous_usage_stats": True}
        try:
            answer, _ = stream_chat(self._client, "vLLM", body(request, self._model, {"stream_options": usage}))
        except EngineError as error:
            raise (self._process.explained(error) if self._process else error) from None
        return checked(answer, request, "vLLM")

    def counters(self) -> Counters | None:
        """Totals since the server's start, whoever asked it; None where it runs without speculation."""
        assert self._client is not None, "start comes first"
        return speculation(ask(self._client, "vLLM", USUAL_URL, "/metrics").text, "vllm:")

    def render(self, settings: Settings) -> tuple[Rendering, ...]:
        """Command line, the JSON of its speculation, Python.

        Raises InputError for what vLLM has no setting for, and for what an attached server runs, which is not known.
        """
        if _is_unknown(settings):
            message = "vLLM does not tell what this server speculates with, so it cannot be written down."
            raise InputError(message, "The settings are those of the command line that started it.")
        config = speculative_config(settings)
        is_cpu = self._program is not None and self._program.is_cpu
        words = ["vllm", "serve", settings.model]
        if self._program is not None and self._program.is_named_cpu:
            words = ["python", "-m", SERVER_MODULE, "--model", settings.model]
        cache = f"{CPU_CACHE}={_cpu_cache_gib()} " if is_cpu else ""
        line = f"{cache}{shlex.join([*words, *_arguments(settings, is_cpu)])}"
        renderings = [Rendering("Command line", "sh", f"{line}\n", "vllm.sh")]
        if config:
            text = json.dumps(config, indent=2) + "\n"
            renderings.append(Rendering("Speculative configuration", "json", text, "vllm-speculative.json"))
        renderings.append(Rendering("Python", "python", _python(settings, config, is_cpu), "vllm_speculation.py"))
        return tuple(renderings)

    def stop(self) -> None:
        """Ends the server that was started, or lets go of the one attached to."""
        if self._client is not None:
            self._client.close()
        if self._process is not None:
            self._process.stop()
        self._client = self._process = None
        self._is_attached = False

    def _installed(self) -> Program:
        if self._program is None:
            hint = "Install it in an environment of its own (pip install vllm) and name its python or its vllm program."
            raise EngineError("vLLM is not installed here.", hint)
        return self._program

    def _check_attached(self, settings: Settings) -> None:
        runs = self._runs()
        if settings.speculation == runs:
            return
        if _is_unknown(settings):
            raise InputError(f"This server no longer runs {settings.arm}.", "Was it started anew? Begin again.")
        asked = settings.arm if settings.speculation else "plain decoding"
        found = "a speculation of its own" if runs else "no speculation"
        message = f"This server runs {found}, and vLLM cannot be asked for {asked} while it runs."
        raise InputError(message, one_more(settings, self.render(settings)[0].text.strip()))

    def _runs(self) -> tuple[Speculation, ...]:
        """Of an attached server: with what it speculates it does not tell, only how much it counts at each position."""
        counted = self.counters()
        return () if counted is None else (Speculation(AS_IT_RUNS, len(counted.accepted_at) or None),)

    def _served_model(self) -> str:
        models = self._json("/v1/models").get("data")
        if not isinstance(models, list) or not models or not isinstance(models[0], dict) or "id" not in models[0]:
            raise EngineError("vLLM names no model that it serves.")
        self._names = tuple(str(models[0][name]) for name in ("id", "root") if models[0].get(name))
        return self._names[0]

    def _json(self, path: str) -> dict[str, Any]:
        assert self._client is not None, "start comes first"
        data = ask_json(self._client, "vLLM", USUAL_URL, path)
        if not isinstance(data, dict):
            raise no_engine(self._client, "vLLM", str(data))
        return data


def _is_unknown(settings: Settings) -> bool:
    return any(speculation.kind == AS_IT_RUNS for speculation in settings.speculation)


def _cause(lines: list[str]) -> str:
    """The last exception that says what was wrong: vLLM's last lines only say that a process of its own has failed."""
    found = [match[0] for line in lines if " WARNING " not in line and (match := _EXCEPTION.search(line))]
    return next((cause for cause in reversed(found) if "root cause" not in cause), "")


def _arguments(settings: Settings, is_cpu: bool) -> list[str]:
    """Behind the model."""
    words = ["--max-model-len", str(settings.n_ctx), "--max-num-seqs", str(settings.parallel)]
    words += ["--enforce-eager"] if is_cpu else []  # compiling takes minutes a start there
    config = speculative_config(settings)
    return [*words, "--speculative-config", json.dumps(config)] if config else words


def _python(settings: Settings, config: Mapping[str, Any] | None, is_cpu: bool) -> str:
    arguments = [repr(settings.model), f"max_model_len={settings.n_ctx}", f"max_num_seqs={settings.parallel}"]
    arguments += ["enforce_eager=True"] if is_cpu else []
    arguments += [f"speculative_config={config!r}"] if config else []
    lines = "".join(f"        {argument},\n" for argument in arguments)
    # vLLM starts processes that import this file again, so it needs the guard.
    start = f"    llm = LLM(\n{lines}    )\n"
    cache = f'    os.environ["{CPU_CACHE}"] = "{_cpu_cache_gib()}"\n' if is_cpu else ""
    load = f"{'import os' + chr(10) * 2 if is_cpu else ''}from vllm import LLM\n\n"
    return f'{load}if __name__ == "__main__":\n{cache}{start}'


def _cpu_cache_gib() -> str:
    return os.environ.get(CPU_CACHE, CPU_CACHE_GIB)


def _environment(settings: Settings, program: Program) -> dict[str, str]:
    """No report of usage; nothing asked of the network for models that are folders; threads as the settings say."""
    changes = {"VLLM_NO_USAGE_STATS": "1"}
    if all(Path(model).is_dir() for model in (settings.model, settings.draft) if model is not None):
        changes["HF_HUB_OFFLINE"] = "1"
    if settings.n_threads is not None:
        changes["OMP_NUM_THREADS"] = str(settings.n_threads)
    if program.is_cpu:
        if settings.n_threads is not None:
            changes["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # else it sets a number of its own
        changes[CPU_CACHE] = _cpu_cache_gib()
    return changes
