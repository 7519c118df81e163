"""MLX-LM without MLX-LM: its settings as written down, and a stand-in that speaks as `mlx_lm.server` does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fake_packages
import pytest
from gguf_files import TOKENS
from stand_ins import Reply, StandIn, as_json, delta, events, standing_in

from slipstream.engines.mlx_lm import MlxLmEngine
from slipstream.engines.protocol import Answer, Request, Settings, Speculation
from slipstream.errors import EngineError, InputError

HELLO = Request(({"role": "user", "content": "Hello"},), 8)
PLAIN = Settings("org/big")
DRAFTED = Settings("org/big", (Speculation("draft_model", 4),), draft="org/small")
CHAT = "/v1/chat/completions"

SERVER = """
import sys, time
from stand_ins import StandIn, as_json, delta, events, standing_in

if "--decode-concurrency" in sys.argv:
    sys.exit("error: unrecognized arguments")
print("Starting httpd", file=sys.stderr)
usage = {"choices": [], "usage": {"completion_tokens": 1}}

def answer(body):
    if body["model"] == "broken":
        return as_json({"error": "no such model"}, 404)
    return events(delta(" ".join(sys.argv[1:])), usage)

answers = {("GET", "/health"): lambda _: as_json({"status": "ok"}), ("POST", "/v1/chat/completions"): answer}
with standing_in(StandIn(answers), int(sys.argv[sys.argv.index("--port") + 1])):
    time.sleep(60)
"""


@pytest.fixture
def server():
    routes = {
        ("GET", "/health"): lambda _: as_json({"status": "ok"}),
        ("POST", CHAT): lambda asked: events(delta("Hi "), delta("there"), usage(min(3, asked["max_tokens"]))),
    }
    with standing_in(StandIn(routes)) as stand_in:
        yield stand_in


@pytest.fixture
def attached(server: StandIn):
    engine = MlxLmEngine()
    engine.attach(server.url)
    yield engine
    engine.stop()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    files = {"mlx_lm/__init__.py": "", "mlx_lm/__main__.py": SERVER}
    fake_packages.install(monkeypatch, tmp_path, "mlx-lm", "0.32.2", files)
    engine = MlxLmEngine()
    yield engine
    engine.stop()


def usage(n_tokens: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": n_tokens, "total_tokens": 5 + n_tokens}}


def fields(server: StandIn) -> list[dict[str, Any]]:
    """What was asked for beside what every request has, and how many tokens."""
    names = ("model", "max_tokens", "draft_model", "num_draft_tokens")
    return [{name: body[name] for name in names if name in body} for body in server.bodies(CHAT)]


def test_an_attached_server_is_asked_for_the_draft_with_each_request(server: StandIn, attached: MlxLmEngine) -> None:
    attached.start(DRAFTED)
    answer = attached.complete(HELLO)
    assert (answer.text, answer.n_tokens, answer.counters) == ("Hi there", 3, None)
    asked = {"model": "org/big", "draft_model": "org/small", "num_draft_tokens": 4}
    assert fields(server) == [{**asked, "max_tokens": 1}, {**asked, "max_tokens": 8}]
    assert attached.counters() is None


def test_plain_decoding_turns_a_draft_of_the_server_off(server: StandIn, attached: MlxLmEngine) -> None:
    attached.start(PLAIN)
    assert fields(server) == [{"model": "org/big", "max_tokens": 1, "draft_model": None}]


def test_a_drafted_answer_is_timed_behind_its_first_round(
    server: StandIn, attached: MlxLmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLX-LM drafts before the first token, too, so a whole round comes at once."""
    times = ((1.0, 1), (1.001, 2), (1.002, 3), (2.0, 4), (2.001, 5), (2.002, 6))
    answer = Answer("text", 6, 1.0, 1.002, times)
    for settings, speed in ((DRAFTED, 3.0), (PLAIN, 5.0)):
        attached.start(settings)
        with monkeypatch.context() as patched:
            patched.setattr("slipstream.engines.mlx_lm.stream_chat", lambda *_: (answer, {}))
            assert attached.complete(HELLO).tokens_per_s == pytest.approx(speed, rel=0.01)


def test_greedy_requests_name_no_seed_since_that_keeps_it_from_batching(server: StandIn, attached: MlxLmEngine) -> None:
    attached.start(PLAIN)
    attached.complete(Request(HELLO.messages, 8, temperature=0.5, seed=7))
    assert [body["seed"] for body in server.bodies(CHAT)] == [None, 7]


def test_an_answer_that_breaks_off_is_no_answer(server: StandIn, attached: MlxLmEngine) -> None:
    attached.start(PLAIN)
    server.routes["POST", CHAT] = lambda _: Reply(events(delta("Hi")).pieces[:1], kind="text/event-stream")
    with pytest.raises(EngineError, match="MLX-LM broke off"):
        attached.complete(HELLO)


def test_its_errors_are_told(server: StandIn, attached: MlxLmEngine) -> None:
    server.routes["POST", CHAT] = lambda _: as_json({"error": "generation thread died"}, 404)
    with pytest.raises(EngineError, match="status 404: generation thread died"):
        attached.start(PLAIN)


@pytest.mark.parametrize("reply", [as_json({"status": "unavailable"}, 503), Reply(("hello",)), as_json([])])
def test_attaching_to_something_else(server: StandIn, reply: Reply) -> None:
    server.routes["GET", "/health"] = lambda _: reply
    with pytest.raises(EngineError, match="is not MLX-LM"):
        MlxLmEngine().attach(server.url)


def test_attaching_to_nobody() -> None:
    with pytest.raises(EngineError, match="It usually is at http://127"):
        MlxLmEngine().attach("http://127.0.0.1:9")
    with pytest.raises(InputError, match="is no URL"):
        MlxLmEngine().attach("localhost:8080")


def test_it_is_started_without_a_prompt_cache_and_stopped(installed: MlxLmEngine) -> None:
    installed.start(DRAFTED)
    words = installed.complete(HELLO).text.split()
    assert words[:2] == ["server", "--host"] and words[-2:] == ["--prompt-cache-size", "0"]
    process = installed._process
    assert process is not None and process.is_running and installed.version == "0.32.2"
    installed.stop()
    assert not process.is_running


def test_a_model_that_cannot_be_loaded(installed: MlxLmEngine) -> None:
    with pytest.raises(EngineError, match=r"404: no such model\. Its last lines:\nStarting httpd"):
        installed.start(Settings("broken"))


def test_a_server_that_ends_says_its_last_lines(installed: MlxLmEngine) -> None:
    with pytest.raises(EngineError, match=r"ended before it was ready \(exit status 1\)\. Its last lines:\nerror: "):
        installed.start(Settings("org/big", parallel=64))


def test_its_options(installed: MlxLmEngine) -> None:
    [option] = installed.speculative_options(DRAFTED)
    assert (option.kind, option.needs_draft, option.why_not, option.p_min) == ("draft_model", True, "", ())
    assert installed.speculative_options(PLAIN)[0].why_not == "no draft model was given"
    [option] = installed.speculative_options(Settings("big.gguf", draft="small.gguf"))
    assert "does not run GGUF files" in option.why_not


@pytest.mark.parametrize(
    ("tokens", "why_not"),
    [
        (TOKENS, ""),
        ((*TOKENS[:-1], "other"), "Equal size hides different tokens"),
        ((*TOKENS, "other"), "mlx_lm.generate refuses"),
    ],
)
def test_pairs_of_one_size(installed: MlxLmEngine, tmp_path: Path, tokens: tuple[str, ...], why_not: str) -> None:
    for name, words in (("big", TOKENS), ("small", tokens)):
        folder = tmp_path / name
        folder.mkdir()
        vocabulary = {token: i for i, token in enumerate(words)}
        (folder / "config.json").write_text(json.dumps({"vocab_size": len(words), "eos_token_id": 1}))
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": vocabulary}}))
    [option] = installed.speculative_options(Settings(str(tmp_path / "big"), draft=str(tmp_path / "small")))
    assert why_not in option.why_not and bool(option.why_not) == bool(why_not)


def test_not_installed() -> None:
    engine = MlxLmEngine()
    for asks in (engine.start, engine.speculative_options):
        with pytest.raises(EngineError, match=r"MLX-LM is not installed here.*pip install mlx-lm, on Linux with"):
            asks(PLAIN)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        (Settings("m.gguf"), "does not run GGUF files"),
        (Settings("m", (Speculation("draft_model"),)), "needs a draft"),
        (Settings("m", (Speculation("draft_model", p_min=0.5),), draft="d"), "no threshold of confidence, and p 0.5"),
        (Settings("m", (Speculation("mtp"),)), "knows no speculation 'mtp'"),
    ],
)
def test_what_it_cannot_take(settings: Settings, error: str) -> None:
    for refuses in (MlxLmEngine().start, MlxLmEngine().render):
        with pytest.raises(InputError, match=error):
            refuses(settings)


PYTHON = """\
from mlx_lm import load, stream_generate

model, tokenizer = load('org/big')
draft_model, _ = load('org/small')
messages = [{"role": "user", "content": "Name three rivers of Europe."}]
prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
for piece in stream_generate(model, tokenizer, prompt, max_tokens=512, draft_model=draft_model, num_draft_tokens=4):
    print(piece.text, end="", flush=True)
"""


def test_settings_as_written_down() -> None:
    line, request, python = MlxLmEngine().render(DRAFTED)
    assert line.text == "mlx_lm.server --model org/big --draft-model org/small --num-draft-tokens 4\n"
    assert json.loads(request.text) == {"model": "org/big", "draft_model": "org/small", "num_draft_tokens": 4}
    assert python.text == PYTHON
    compile(python.text, python.file_name, "exec")
    assert [(r.title, r.language) for r in (line, request, python)] == [
        ("Command line", "sh"),
        ("Fields of a request", "json"),
        ("Python", "python"),
    ]


def test_plain_settings_as_written_down() -> None:
    line, request, python = MlxLmEngine().render(Settings("my model", parallel=64))
    assert line.text == "mlx_lm.server --model 'my model' --decode-concurrency 64\n"
    assert json.loads(request.text) == {"model": "my model", "draft_model": None}
    assert "draft" not in python.text and "load('my model')" in python.text
