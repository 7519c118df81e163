"""Servers of llama.cpp that run already and tell less than the wheel's: stood in for, by what they answer."""

from __future__ import annotations

from typing import Any

import pytest
from stand_ins import Reply, StandIn, as_json, delta, events, standing_in

from slipstream.engines.llamacpp import LlamaCppEngine, timed
from slipstream.engines.protocol import Answer, Counters, Request, Settings, Speculation
from slipstream.errors import EngineError, InputError

SHORT = Request(({"role": "user", "content": "What is the capital of France?"},), 12)


def server_that_tells(**more: Reply) -> StandIn:
    routes = {
        "/props": as_json({"build_info": "b9999-abcdef"}),
        "/slots": as_json({"error": {"message": "This server does not support slots endpoint."}}, 501),
        **{f"/{name}": reply for name, reply in more.items()},
    }
    timings = {"predicted_n": 3, "predicted_ms": 500.0, "draft_n": 4, "draft_n_accepted": 1}
    chat = events(delta("One, "), delta("two"), {"choices": [], "timings": timings})
    found: dict[tuple[str, str], Any] = {("GET", path): lambda _, r=reply: r for path, reply in routes.items()}
    return StandIn({**found, ("POST", "/v1/chat/completions"): lambda _: chat})


def test_one_that_tells_little_is_measured_by_its_answers() -> None:
    with standing_in(server_that_tells()) as server:
        engine = LlamaCppEngine()
        engine.attach(server.url)
        assert engine.version == "b9999"
        engine.start(Settings("m.gguf"))
        found = engine.complete(SHORT)
        assert (found.n_tokens, found.decode_s, found.counters) == (3, 0.5, Counters(4, 1))
        assert found.tokens_per_s == 4.0
        engine.complete(SHORT)
        assert engine.counters() == Counters(8, 2)
        assert {asked["cache_prompt"] for asked in server.bodies("/v1/chat/completions")} == {False}
        engine.stop()


def test_two_kinds_at_once_are_named() -> None:
    slots = as_json([{"speculative": True, "params": {"speculative.types": "draft-simple,ngram-mod"}}])
    with standing_in(server_that_tells(slots=slots)) as server:
        engine = LlamaCppEngine()
        engine.attach(server.url)
        kinds = [o.kind for o in engine.speculative_options(Settings("m")) if not o.why_not]
        assert kinds == ["draft-simple + ngram-mod"]
        for both in ((Speculation("ngram-mod"), Speculation("draft-simple")), (Speculation(kinds[0]),)):
            engine.start(Settings("m", both))
            engine.stop()
        with pytest.raises(
            InputError, match=r"runs draft-simple \+ ngram-mod, and llama\.cpp cannot be asked for plain"
        ):
            engine.start(Settings("m"))


def test_one_that_drafts_and_does_not_name_its_kind_is_taken_as_it_runs() -> None:
    with standing_in(server_that_tells(slots=as_json([{"speculative": True}]))) as server:
        engine = LlamaCppEngine()
        engine.attach(server.url)
        assert [o.kind for o in engine.speculative_options(Settings("m")) if not o.why_not] == ["as it runs"]
        engine.start(Settings("m", (Speculation("as it runs"),)))
        engine.stop()
        with pytest.raises(
            InputError, match=r"This server runs a speculation, and llama\.cpp cannot be asked for plain"
        ):
            engine.start(Settings("m"))


def test_a_server_that_was_started_anew_is_not_what_it_was() -> None:
    slots = as_json([{"speculative": True, "params": {"speculative.types": "none,draft-mtp"}}])
    with standing_in(server_that_tells(slots=slots)) as server:
        engine = LlamaCppEngine()
        engine.attach(server.url)
        assert [o.kind for o in engine.speculative_options(Settings("m")) if not o.why_not] == ["draft-mtp"]
        with pytest.raises(InputError, match=r"no longer runs draft-mtp \+ ngram-mod\. Was it started anew"):
            engine.start(Settings("m", (Speculation("draft-mtp + ngram-mod"),)))


def test_the_speculation_of_a_running_server_is_written_down_by_nobody_but_its_user() -> None:
    slots = as_json([{"speculative": True, "params": {"speculative.types": "ngram-mod"}}])
    with standing_in(server_that_tells(slots=slots)) as server:
        engine = LlamaCppEngine()
        engine.attach(server.url)
        with pytest.raises(InputError, match="does not tell with which lengths a server runs ngram-mod"):
            engine.render(Settings("m", (Speculation("ngram-mod"),)))
        (line,) = engine.render(Settings("m", (Speculation("ngram-mod", 16),)))
        assert "--spec-ngram-mod-n-max 16" in line.text


@pytest.mark.parametrize(
    "named", ["/models/qwen-0.5b.gguf", "qwen-0.5b", "qwen", "C:\\models\\qwen-0.5b.gguf", "house-name"]
)
def test_the_model_may_be_named_as_its_users_do(named: str) -> None:
    props = as_json({"build_info": "b9999", "model_path": "/srv/qwen-0.5b.gguf", "model_alias": "house-name"})
    with standing_in(server_that_tells(props=props)) as server:
        engine = LlamaCppEngine()
        engine.attach(server.url)
        assert engine.speculative_options(Settings(named))


def test_a_server_of_another_model_is_refused() -> None:
    props = as_json({"build_info": "b9999", "model_path": "/srv/smollm2.gguf"})
    with standing_in(server_that_tells(props=props)) as server:
        engine = LlamaCppEngine()
        engine.attach(server.url)
        with pytest.raises(InputError, match=r"serves /srv/smollm2\.gguf, not qwen\.gguf\."):
            engine.speculative_options(Settings("qwen.gguf"))


def test_more_requests_at_once_than_a_server_answers_are_refused() -> None:
    with standing_in(server_that_tells(props=as_json({"build_info": "b9999", "total_slots": 2}))) as server:
        engine = LlamaCppEngine()
        engine.attach(server.url)
        engine.speculative_options(Settings("m", parallel=2))
        with pytest.raises(InputError, match=r"answers 2 at once, not 4\.") as refused:
            engine.speculative_options(Settings("m", parallel=4))
        assert "-np 4" in refused.value.hint


def test_a_server_of_something_else() -> None:
    engine = LlamaCppEngine()
    with (
        standing_in(server_that_tells(props=as_json({"hello": 1}))) as server,
        pytest.raises(EngineError, match=r"is not llama\.cpp's server"),
    ):
        engine.attach(server.url)
    with pytest.raises(EngineError, match=r"llama\.cpp does not answer at"):
        engine.attach(server.url)
    with pytest.raises(InputError, match=r"'localhost:8080' is no URL"):
        engine.attach("localhost:8080")


def test_an_answer_without_timings_is_timed_by_its_arrival() -> None:
    by_arrival = Answer("text", 5, 0.1, 0.4)
    assert timed(by_arrival, None) == timed(by_arrival, {"prompt_n": 3}) == by_arrival
