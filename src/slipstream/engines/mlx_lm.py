"""MLX-LM: `mlx_lm.server` started or attached to, its chat completions, its settings written down.

Speculation is by a draft model alone, and can be asked for with each request. Read from mlx-lm 0.32 (`server.py`,
`generate.py`) and run with `mlx[cpu]` on Linux. It has no settings for threads and context, counts no drafts, and with
a draft answers one request after another.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx

from slipstream.errors import EngineError, InputError

from .attached import needs_draft, one_speculation
from .chat_client import behind_first_round, body, client_at, open_client, silent, stream_chat
from .checked import checked
from .installed import find_installed
from .pairs import why_no_pair
from .process import ServerProcess, free_port
from .protocol import Answer, Counters, Option, Rendering, Request, Settings

TITLE: Final = "MLX-LM"
KIND: Final = "draft_model"
N_MAX: Final = (2, 3, 4, 6)
DEFAULT_N: Final = 3
DEFAULT_PARALLEL: Final = 32
READY_S: Final = 60.0
USUAL_URL: Final = "http://127.0.0.1:8080"
HOW_TO_INSTALL: Final = "pip install mlx-lm, on Linux with 'mlx[cpu]' or 'mlx[cuda]'"
_NO_GGUF: Final = "MLX-LM does not run GGUF files: give a model in Hugging Face form, its folder or its name"
_HELLO: Final = Request(({"role": "user", "content": "Hello"},), 1)


class MlxLmEngine:
    """Implements `protocol.Engine`. program: a python that has it installed; None for the one that runs this."""

    name = "mlx-lm"
    concurrent = True

    def __init__(self, program: str | None = None) -> None:
        self._installed = find_installed(TITLE, "mlx-lm", HOW_TO_INSTALL, program)
        self.version = self._installed.version
        self._process: ServerProcess | None = None
        self._client: httpx.Client | None = None
        self._is_attached = False
        self._asked: dict[str, Any] = {}

    def speculative_options(self, settings: Settings) -> tuple[Option, ...]:
        """The draft model. Raises EngineError where MLX-LM is neither installed nor attached to."""
        if not self._is_attached:
            self._installed.python()
        why_not = _NO_GGUF if _has_gguf(settings) else why_no_pair(TITLE, settings)
        return (Option(KIND, N_MAX, needs_draft=True, why_not=why_not),)

    def start(self, settings: Settings, progress: Callable[[str], None] = lambda line: None) -> None:
        """Starts the server on a free port, or asks the attached one to load what the settings name."""
        fields = _fields(settings)
        if not self._is_attached:
            self._start_process(settings, progress)
        self._asked = fields
        try:
            self.complete(_HELLO)  # which loads the models
        except BaseException:
            self.stop()
            raise

    def attach(self, url: str) -> None:
        """Uses the server at `url`. Raises InputError for what is no URL, EngineError where no MLX-LM answers.

        Its prompt cache cannot be turned off with a request.
        """
        client = client_at(url, USUAL_URL)
        self.stop()
        self._client, self._is_attached, self.version = client, True, ""
        try:
            answer = client.get("/health")
            greeted = answer.status_code == 200 and answer.json() == {"status": "ok"}
        except httpx.HTTPError as error:
            self.stop()
            raise silent(client, TITLE, USUAL_URL, error) from None
        except (ValueError, RecursionError):
            greeted = False
        if not greeted:
            self.stop()
            raise EngineError(f"What answers at {client.base_url} is not {TITLE}, or it could not load its model.")

    def complete(self, request: Request) -> Answer:
        """Answers one request. A seed would keep MLX-LM from batching, so greedy requests name none."""
        assert self._client is not None, "start comes first"
        seed = {} if request.temperature else {"seed": None}
        try:
            answer = stream_chat(self._client, TITLE, body(request, "", {**self._asked, **seed}))[0]
        except EngineError as error:
            if self._process is None:
                raise
            # Its answers to what went wrong are short; its log says more.
            raise self._process.error(f"{error.message.rstrip('.')}.") from None
        answer = checked(answer, request, TITLE)
        return behind_first_round(answer) if self._asked.get("draft_model") else answer

    def counters(self) -> Counters | None:
        """None: which tokens were drafted, the server knows and does not tell."""
        return None

    def render(self, settings: Settings) -> tuple[Rendering, ...]:
        """Command line, fields of a request, Python. Raises InputError for what MLX-LM has no setting for."""
        line = shlex.join(["mlx_lm.server", *_arguments(settings)])
        fields = json.dumps(_fields(settings), indent=2)
        return (
            Rendering("Command line", "sh", f"{line}\n", "mlx-lm.sh"),
            Rendering("Fields of a request", "json", f"{fields}\n", "mlx-lm-request.json"),
            Rendering("Python", "python", _python(settings), "mlx_lm_speculation.py"),
        )

    def stop(self) -> None:
        """Ends the server that was started, or lets go of the one attached to."""
        if self._client is not None:
            self._client.close()
        if self._process is not None:
            self._process.stop()
        self._client = self._process = None
        self._is_attached = False

    def _start_process(self, settings: Settings, progress: Callable[[str], None]) -> None:
        """Without models: what is wrong with one that a request names, it answers; with one of its own, it does not."""
        assert self._process is None, "stop comes first"
        port = free_port()
        program = [self._installed.python(), "-m", "mlx_lm", "server", "--host", "127.0.0.1", "--port", str(port)]
        command = [*program, "--prompt-cache-size", "0", *_concurrency(settings)]
        self._process = ServerProcess(TITLE, command, _environment(settings))
        url = f"http://127.0.0.1:{port}"
        try:
            self._process.wait_ready(f"{url}/health", READY_S, progress)
            self._client = open_client(url)
        except BaseException:
            self.stop()
            raise


def _has_gguf(settings: Settings) -> bool:
    return any(name.lower().endswith(".gguf") for name in (settings.model, settings.draft or ""))


def _length(settings: Settings) -> int | None:
    """Tokens a draft; None for plain decoding. Raises InputError for what MLX-LM cannot do."""
    if _has_gguf(settings):
        raise InputError(f"{_NO_GGUF}.")
    wanted = one_speculation(settings, TITLE, (KIND,))
    if wanted is None:
        return None
    needs_draft(settings, TITLE, KIND)
    if wanted.p_min is not None:
        raise InputError(f"{TITLE} has no threshold of confidence, and p {wanted.p_min:g} is asked for.")
    return wanted.n_max or DEFAULT_N


def _arguments(settings: Settings) -> list[str]:
    """Of `mlx_lm.server`."""
    words = ["--model", settings.model]
    n = _length(settings)
    if n is not None:
        words += ["--draft-model", str(settings.draft), "--num-draft-tokens", str(n)]
    return words + _concurrency(settings)


def _concurrency(settings: Settings) -> list[str]:
    many = settings.parallel > DEFAULT_PARALLEL
    return ["--decode-concurrency", str(settings.parallel)] if many else []


def _fields(settings: Settings) -> dict[str, Any]:
    """Of a request: null turns off a draft that the server was started with."""
    n = _length(settings)
    draft = {"draft_model": None} if n is None else {"draft_model": settings.draft, "num_draft_tokens": n}
    return {"model": settings.model, **draft}


def _python(settings: Settings) -> str:
    n = _length(settings)
    load, more = "", ""
    if n is not None:
        load = f"draft_model, _ = load({settings.draft!r})\n"
        more = f", draft_model=draft_model, num_draft_tokens={n}"
    return (
        "from mlx_lm import load, stream_generate\n\n"
        f"model, tokenizer = load({settings.model!r})\n"
        f"{load}"
        'messages = [{"role": "user", "content": "Name three rivers of Europe."}]\n'
        "prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)\n"
        f"for piece in stream_generate(model, tokenizer, prompt, max_tokens=512{more}):\n"
        '    print(piece.text, end="", flush=True)\n'
    )


def _environment(settings: Settings) -> dict[str, str]:
    """Nothing is asked of the network for models that are folders; threads as the settings say, on a CPU."""
    changes = {} if settings.n_threads is None else {"OMP_NUM_THREADS": str(settings.n_threads)}
    models = [name for name in (settings.model, settings.draft) if name is not None]
    return changes | ({"HF_HUB_OFFLINE": "1"} if all(Path(name).is_dir() for name in models) else {})
