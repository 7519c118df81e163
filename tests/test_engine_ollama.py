"""Ollama against a stand-in of its native API: the length of drafts as an option, its own clock, its Modelfile."""

from __future__ import annotations

import json

import pytest
from stand_ins import Reply, StandIn, as_json, lines, standing_in

from slipstream.engines.ollama import OllamaEngine
from slipstream.engines.protocol import Engine, Request, Settings, Speculation
from slipstream.errors import EngineError, InputError

ASKED = Request(({"role": "user", "content": "Hello"},), 8, seed=3)
PLAIN = Settings("gemma4:12b", n_ctx=2048)
DRAFTED = Settings("gemma4:12b", (Speculation("draft", 2),), n_ctx=2048)
DONE = {"done": True, "done_reason": "stop", "eval_count": 9, "eval_duration": 400_000_000}


def said(text: str, **more: object) -> dict:
    return {"message": {"role": "assistant", "content": text}, "done": False, **more}


@pytest.fixture
def server():
    stand_in = StandIn({})
    stand_in.stream = [said("Hi "), said("there"), {"message": {"content": ""}, **DONE}]

    def chat(body: dict) -> Reply:
        if not body["messages"]:
            return as_json({"message": {"content": ""}, "done": True, "done_reason": "load"})
        return lines(*stand_in.stream)

    stand_in.routes = {("GET", "/api/version"): lambda _: as_json({"version": "0.32.14"}), ("POST", "/api/chat"): chat}
    with standing_in(stand_in):
        yield stand_in


@pytest.fixture
def attached(server):
    engine: Engine = OllamaEngine()
    engine.attach(server.url)
    yield engine
    engine.stop()


def test_an_answer_by_ollamas_own_clock(attached):
    attached.start(PLAIN)
    answer = attached.complete(ASKED)
    assert (attached.version, answer.text, answer.n_tokens, answer.decode_s) == ("0.32.14", "Hi there", 9, 0.4)
    assert answer.tokens_per_s == pytest.approx(20), "eight tokens came in 0.4 s"
    assert answer.counters is None and attached.counters() is None, "Ollama tells nothing of drafts"


def test_an_answer_without_figures_is_timed_by_arrival(server, attached):
    server.stream = [said("Hi "), said("there"), {"done": True}]
    attached.start(PLAIN)
    answer = attached.complete(ASKED)
    assert answer.n_tokens == 2 and answer.decode_s == answer.arrivals[-1][0] - answer.arrivals[0][0]


def test_the_length_of_drafts_goes_with_every_request(server, attached):
    attached.start(DRAFTED)
    attached.complete(ASKED)
    attached.stop()
    attached.start(PLAIN)
    attached.complete(ASKED)
    load, drafted, reload, plain = server.bodies("/api/chat")
    assert [body["options"]["draft_num_predict"] for body in (load, drafted, reload, plain)] == [2, 2, 0, 0]
    assert load["messages"] == [] == reload["messages"], "the model is loaded before anything is timed"
    assert plain["options"] == {
        "num_ctx": 2048,
        "draft_num_predict": 0,
        "num_predict": 8,
        "temperature": 0.0,
        "seed": 3,
    }


def test_thinking_is_decoded_like_the_rest(server, attached):
    server.stream = [{"message": {"thinking": "Hm. ", "content": ""}}, said("Yes"), DONE]
    attached.start(PLAIN)
    assert attached.complete(ASKED).text == "Hm. Yes"


def test_options_once_attached(attached):
    assert [(option.kind, option.n_max, option.why_not) for option in attached.speculative_options(PLAIN)] == [
        ("draft", (1, 2, 4, 6), "")
    ]
    [absent] = OllamaEngine().speculative_options(PLAIN)
    assert "give --url http://127.0.0.1:11434" in absent.why_not


def test_nothing_is_started_without_a_url():
    with pytest.raises(InputError, match=r"not started from here.*`ollama serve`"):
        OllamaEngine().start(PLAIN)


def test_a_model_that_ollama_has_not(server, attached):
    server.routes["POST", "/api/chat"] = lambda _: as_json({"error": "model 'gemma4:12b' not found"}, 404)
    with pytest.raises(EngineError, match="Ollama answered status 404: model 'gemma4:12b' not found"):
        attached.start(PLAIN)


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        ([said("Hi"), {"error": "out of memory"}], "Ollama answered an error: out of memory"),
        ([said("Hi")], "without saying that it is done"),
        (["Hi"], "what is no event"),
    ],
)
def test_a_stream_that_breaks(server, attached, stream, words):
    attached.start(PLAIN)
    server.stream = stream
    with pytest.raises(EngineError, match=words):
        attached.complete(ASKED)


def test_another_server_at_the_url(server):
    server.routes["GET", "/api/version"] = lambda _: as_json({"hello": "world"})
    with pytest.raises(EngineError, match="not Ollama"):
        OllamaEngine().attach(server.url)


def test_the_modelfile():
    settings = Settings("./big.gguf", (Speculation("draft", 3),), "./head.gguf", n_ctx=8192, n_threads=6)
    modelfile, command, request = OllamaEngine().render(settings)
    assert modelfile.file_name == "Modelfile" and modelfile.text.splitlines() == [
        "FROM ./big.gguf",
        "DRAFT ./head.gguf",
        "PARAMETER num_ctx 8192",
        "PARAMETER num_thread 6",
        "PARAMETER draft_num_predict 3",
    ]
    assert command.text == "ollama create my-model -f Modelfile\n"
    assert json.loads(request.text)["options"]["draft_num_predict"] == 3


def test_the_modelfile_of_plain_decoding_turns_drafting_off():
    modelfile = OllamaEngine().render(Settings("big", draft="head"))[0].text
    assert "DRAFT" not in modelfile and "PARAMETER draft_num_predict 0" in modelfile


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (Speculation("ngram-mod"), "knows no speculation 'ngram-mod'. It has draft."),
        (Speculation("draft", 2, 0.5), "no threshold"),
    ],
)
def test_what_ollama_has_no_word_for_is_refused(wanted, words):
    with pytest.raises(InputError, match=words):
        OllamaEngine().render(Settings("big", (wanted,)))
