"""LM Studio against a stand-in of its REST API: the draft of a request, its counts, and its three ways of settings."""

from __future__ import annotations

import ast
import json

import pytest
from stand_ins import StandIn, as_json, delta, events, standing_in

from slipstream.engines.lmstudio import PATH, LmStudioEngine
from slipstream.engines.protocol import Counters, Engine, Request, Settings, Speculation
from slipstream.errors import EngineError, InputError

ASKED = Request(({"role": "user", "content": "Hello"},), 16)
PLAIN = Settings("qwen-7b")
DRAFTED = Settings("qwen-7b", (Speculation("draft_model"),), "qwen-0.5b")
COUNTS = {
    "draft_model": "qwen-0.5b",
    "total_draft_tokens_count": 20,
    "accepted_draft_tokens_count": 12,
    "rejected_draft_tokens_count": 5,
    "ignored_draft_tokens_count": 3,
}
USAGE = {"completion_tokens": 15}


@pytest.fixture
def server():
    stand_in = StandIn({})
    stand_in.last = {"choices": [], "usage": USAGE, "runtime": {"name": "llama.cpp-linux", "version": "2.34.0"}}
    stand_in.routes = {
        ("GET", "/api/v0/models"): lambda _: as_json({"object": "list", "data": [{"id": "qwen-7b"}]}),
        ("POST", PATH): lambda _: events(delta("Hi "), delta("there"), stand_in.last),
    }
    with standing_in(stand_in):
        yield stand_in


@pytest.fixture
def attached(server):
    engine: Engine = LmStudioEngine()
    engine.attach(server.url)
    yield engine
    engine.stop()


def test_a_plain_answer(server, attached):
    attached.start(PLAIN)
    answer = attached.complete(ASKED)
    assert (answer.text, answer.n_tokens, answer.counters) == ("Hi there", 15, None)
    assert attached.version == "llama.cpp-linux 2.34.0"
    [body] = server.bodies(PATH)
    assert "draft_model" not in body


@pytest.mark.parametrize("last", [{"stats": COUNTS}, {"stats": {"tokens_per_second": 9.5}, "usage": USAGE | COUNTS}])
def test_the_counts_of_a_drafted_answer(server, attached, last):
    """The documents have them in `stats`; newer versions send them in `usage`."""
    server.last |= last
    attached.start(DRAFTED)
    answer = attached.complete(ASKED)
    assert answer.counters == Counters(drafted=17, accepted=12), "what was ignored was never verified"
    assert server.bodies(PATH)[0]["draft_model"] == "qwen-0.5b"


def test_a_model_that_drafts_by_itself_is_not_taken_for_plain_decoding(server, attached):
    server.last |= {"usage": USAGE | COUNTS}
    attached.start(PLAIN)
    with pytest.raises(EngineError, match=r"loaded with speculation.*lms load qwen-7b --no-speculative-draft-mtp"):
        attached.complete(ASKED)


def test_the_draft_is_asked_for_with_a_request_the_rest_is_loaded(attached):
    asked, *loaded = attached.speculative_options(DRAFTED)
    assert (asked.kind, asked.needs_draft, asked.why_not) == ("draft_model", True, "")
    assert [option.kind for option in loaded] == ["draft-mtp", "draft-simple"]
    assert "lms load with --speculative-draft-mtp" in loaded[0].why_not
    assert "--url http://127.0.0.1:1234" in LmStudioEngine().speculative_options(PLAIN)[0].why_not


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (Settings("m", (Speculation("draft-mtp", 2),)), r"set when a model is loaded.*--speculative-draft-mtp"),
        (Settings("m", (Speculation("draft_model"),)), "needs a draft"),
        (Settings("m", (Speculation("draft_model", 4),), "d"), "names the draft model and nothing else"),
        (Settings("m", (Speculation("ngram-mod"),)), "knows no speculation"),
    ],
)
def test_what_no_request_can_ask_for_is_refused(attached, settings, said):
    with pytest.raises(InputError, match=said):
        attached.start(settings)


def test_nothing_is_started_without_a_url():
    with pytest.raises(InputError, match=r"not started from here.*`lms server start && lms load qwen-7b"):
        LmStudioEngine().start(PLAIN)


def test_an_error_has_its_words(server, attached):
    words = {"error": "Draft model is not compatible"}
    server.routes["POST", PATH] = lambda _: as_json(words, 400)
    attached.start(DRAFTED)
    with pytest.raises(EngineError, match="status 400: Draft model is not compatible"):
        attached.complete(ASKED)


def test_another_server_at_the_url(server):
    server.routes["GET", "/api/v0/models"] = lambda _: as_json({"models": []})
    with pytest.raises(EngineError, match="not LM Studio"):
        LmStudioEngine().attach(server.url)


LOADED = {
    "plain": (PLAIN, "--no-speculative-draft-mtp", {"speculativeDraftMtp": False}),
    "mtp": (
        Settings("qwen-7b", (Speculation("draft-mtp", 2),)),
        "--speculative-draft-mtp --speculative-draft-max-tokens 2",
        {"speculativeDraftMtp": True, "speculativeDraftMaxTokens": 2},
    ),
    "simple": (
        Settings("qwen-7b", (Speculation("draft-simple", 4, 0.5),), "qwen-0.5b"),
        "--speculative-draft-simple --speculative-draft-model qwen-0.5b"
        " --speculative-draft-max-tokens 4 --speculative-draft-min-continue-probability 0.5",
        {
            "speculativeDraftMtp": False,
            "speculativeDraftModel": "qwen-0.5b",
            "speculativeDraftMaxTokens": 4,
            "speculativeDraftMinContinueProbability": 0.5,
        },
    ),
}


@pytest.mark.parametrize("case", LOADED)
def test_what_is_set_when_a_model_is_loaded(case):
    settings, flags, fields = LOADED[case]
    command, load = LmStudioEngine().render(settings)
    assert command.text == f"lms load qwen-7b --context-length 4096 --parallel 1 {flags} --yes\n"
    assert json.loads(load.text) == {"contextLength": 4096, "maxParallelPredictions": 1, **fields}


def test_what_is_asked_for_with_a_request():
    settings = Settings("qwen-7b", (Speculation("draft_model", 6, 0.75),), "qwen-0.5b")
    command, _, prediction, request, python = LmStudioEngine().render(settings)
    assert "--no-speculative-draft-mtp" in command.text
    assert json.loads(prediction.text) == {
        "draftModel": "qwen-0.5b",
        "speculativeDecodingNumDraftTokensExact": 6,
        "speculativeDecodingMinContinueDraftingProbability": 0.75,
    }
    assert json.loads(request.text) == {"model": "qwen-7b", "draft_model": "qwen-0.5b"}
    ast.parse(python.text)
    assert "'draftModel': 'qwen-0.5b'" in python.text
