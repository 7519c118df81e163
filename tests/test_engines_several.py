"""Several running servers of one engine: which runs what, which is used for a setting, and what cannot be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulated_engines import prompts
from stand_ins import Reply, StandIn, as_json, delta, events, lines, standing_in

from slipstream.engines.llamacpp import LlamaCppEngine
from slipstream.engines.ollama import OllamaEngine
from slipstream.engines.protocol import Counters, Engine, Option, Request, Settings, Speculation
from slipstream.engines.several import SeveralServers
from slipstream.engines.sglang import SglangEngine
from slipstream.engines.vllm import VllmEngine
from slipstream.errors import EngineError, InputError
from slipstream.lab.tune import Asked, tune

CHAT = "/v1/chat/completions"
REQUEST = Request(({"role": "user", "content": "Hello"},), 17)
PLAIN = Settings("org/model", n_ctx=512)

Serve = Callable[[StandIn], StandIn]
"""Starts a stand-in that is stopped behind the test."""


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda stand_in: stack.enter_context(standing_in(stand_in))


def with_speculation(kind: str, n_max: int | None = None, **more: Any) -> Settings:
    return Settings("org/model", (Speculation(kind, n_max),), n_ctx=512, **more)


def options(engine: Engine) -> dict[str, Option]:
    return {option.kind: option for option in engine.speculative_options(PLAIN)}


def used(servers: list[StandIn]) -> list[int]:
    """How many answers each was asked for."""
    return [len(server.bodies(CHAT)) for server in servers]


def over(build: Callable[[], Engine], servers: list[StandIn]) -> SeveralServers:
    return SeveralServers(build, [server.url for server in servers])


# SGLang, whose servers tell kind and length --------------------------------------------------------------------------


def sglang(n_max: int | None = None, version: str = "0.5.23", model: str = "org/model") -> StandIn:
    info: dict[str, Any] = {"version": version}
    if n_max is not None:
        info |= {"speculative_algorithm": "EAGLE3", "speculative_num_draft_tokens": n_max + 1}
        info |= {"speculative_eagle_topk": 1, "speculative_draft_model_path": f"org/head-{n_max}"}
    return StandIn(
        {
            ("GET", "/server_info"): lambda _: as_json(info),
            ("GET", "/v1/models"): lambda _: as_json({"data": [{"id": model, "root": model}]}),
            ("POST", "/flush_cache"): lambda _: Reply(("done",), kind="text/plain"),
            ("POST", CHAT): lambda _: events(delta("Hi "), delta("there")),
        }
    )


@pytest.fixture
def three(serve: Serve) -> list[StandIn]:
    """Drafts of five, plain decoding, drafts of two."""
    return [serve(sglang(5)), serve(sglang()), serve(sglang(2))]


def test_what_any_server_runs_can_be_had_at_all_its_lengths(three: list[StandIn]) -> None:
    engine = over(SglangEngine, three)
    assert (engine.name, engine.version, engine.concurrent) == ("sglang", "", True)
    found = options(engine)
    assert engine.version == "0.5.23"
    assert found["EAGLE3"] == Option("EAGLE3", (2, 5), is_fixed=True)
    assert set(found) == {"EAGLE3", "EAGLE", "NEXTN", "STANDALONE", "NGRAM"}
    assert "start one more server with --speculative-algorithm NGRAM" in found["NGRAM"].why_not


def test_each_setting_is_answered_by_the_server_that_runs_it(three: list[StandIn]) -> None:
    engine = over(SglangEngine, three)
    engine.speculative_options(PLAIN)
    for settings, expected in (
        (PLAIN, [0, 1, 0]),
        (with_speculation("EAGLE3", 2), [0, 1, 1]),
        (with_speculation("EAGLE3", 5), [1, 1, 1]),
        (PLAIN, [1, 2, 1]),
    ):
        engine.start(settings)
        assert engine.complete(REQUEST).text == "Hi there" and engine.counters() is None
        engine.stop()
        engine.stop()
        assert used(three) == expected


def test_it_can_be_started_without_asking_for_options_first(three: list[StandIn]) -> None:
    engine = over(SglangEngine, three)
    engine.start(with_speculation("EAGLE3", 2))
    engine.complete(REQUEST)
    engine.stop()
    assert used(three) == [0, 0, 1]


def test_what_none_runs_is_refused_with_what_they_run(three: list[StandIn]) -> None:
    engine = over(SglangEngine, three)
    said = r"None of the sglang servers runs EAGLE3 n 3\. They run EAGLE3 n 5, plain decoding, EAGLE3 n 2\."
    with pytest.raises(InputError, match=said):
        engine.start(with_speculation("EAGLE3", 3))
    with pytest.raises(InputError, match="None of the sglang servers runs EAGLE3"):
        engine.start(with_speculation("EAGLE3"))
    engine.start(PLAIN)  # a refusal leaves nothing started
    engine.stop()


def test_a_server_that_was_started_anew_with_something_else_is_not_used(three: list[StandIn]) -> None:
    engine = over(SglangEngine, three)
    engine.speculative_options(PLAIN)
    three[1].routes["GET", "/server_info"] = three[0].routes["GET", "/server_info"]
    with pytest.raises(InputError, match="This server runs EAGLE3 with drafts of 5"):
        engine.start(PLAIN)
    engine.start(with_speculation("EAGLE3", 2))
    engine.stop()


def test_settings_are_written_with_the_draft_of_the_server_that_runs_them(three: list[StandIn]) -> None:
    engine = over(SglangEngine, three)
    engine.speculative_options(PLAIN)
    assert "--speculative-draft-model-path org/head-2 " in engine.render(with_speculation("EAGLE3", 2))[0].text
    assert "--speculative-draft-model-path org/head-5 " in engine.render(with_speculation("EAGLE3", 5))[0].text
    assert "speculative" not in engine.render(PLAIN)[0].text
    assert "--speculative-algorithm NGRAM " in engine.render(with_speculation("NGRAM", 4))[0].text


def test_without_a_plain_server_there_is_nothing_to_compare_with(serve: Serve) -> None:
    servers = [serve(sglang(2)), serve(sglang(5))]
    with pytest.raises(InputError, match=r"None of .* runs without speculation: EAGLE3 n 2 at http.*Start one more"):
        over(SglangEngine, servers).speculative_options(PLAIN)


@pytest.mark.parametrize(("n_max", "what"), [(3, "both run EAGLE3 n 3"), (None, "both run without speculation")])
def test_two_servers_that_run_the_same_are_one_too_many(serve: Serve, n_max: int | None, what: str) -> None:
    servers = [serve(sglang()), serve(sglang(n_max)), serve(sglang(n_max))]
    with pytest.raises(InputError, match=f"{what}.*Leave one of them away"):
        over(SglangEngine, servers).speculative_options(PLAIN)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"version": "0.5.9"}, r"different versions: 0\.5\.23 at http\S+, 0\.5\.9 at http"),
        ({"model": "org/other"}, "different models: org/model at http.*, org/other at http"),
    ],
)
def test_servers_that_differ_in_more_than_speculation_are_not_compared(
    serve: Serve, other: dict[str, str], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        over(SglangEngine, [serve(sglang()), serve(sglang(2, **other))]).speculative_options(PLAIN)


def test_what_a_server_does_not_tell_is_no_difference(serve: Serve) -> None:
    servers = [serve(sglang()), serve(sglang(2, version=""))]
    del servers[1].routes["GET", "/v1/models"]
    assert options(over(SglangEngine, servers))["EAGLE3"].n_max == (2,)


def test_a_server_that_does_not_answer_or_is_another_is_named(three: list[StandIn]) -> None:
    urls = [three[1].url, "http://127.0.0.1:9/v1"]
    with pytest.raises(EngineError, match=r"SGLang does not answer at http://127\.0\.0\.1:9"):
        SeveralServers(SglangEngine, urls).speculative_options(PLAIN)
    three[0].routes["GET", "/server_info"] = lambda _: as_json({"error": "what?"}, 404)
    with pytest.raises(EngineError, match=f"At {three[0].url}: SGLang answered status 404"):
        over(SglangEngine, three).speculative_options(PLAIN)


def test_a_kind_that_has_no_name_here_is_told_in_the_words_of_its_server(serve: Serve) -> None:
    servers = [serve(sglang()), serve(sglang())]
    servers[1].routes["GET", "/server_info"] = lambda _: as_json({"speculative_algorithm": "NEWEST"})
    with pytest.raises(InputError, match=f"At {servers[1].url}: This server runs NEWEST.*Leave it away"):
        over(SglangEngine, servers).speculative_options(PLAIN)


def test_it_is_attached_to_its_own_servers_only(three: list[StandIn]) -> None:
    with pytest.raises(InputError, match="is used by several URLs"):
        over(SglangEngine, three).attach("http://127.0.0.1:9")


def test_an_engine_that_is_told_with_each_request_needs_one_server_only(serve: Serve) -> None:
    def ollama() -> StandIn:
        routes = {("GET", "/api/version"): as_json({"version": "1"}), ("POST", "/api/chat"): lines({"done": True})}
        return StandIn({asked: lambda _, reply=reply: reply for asked, reply in routes.items()})

    servers = [serve(ollama()), serve(ollama())]
    with pytest.raises(InputError, match=r"told with each request whether to speculate\. Give its URL alone"):
        over(OllamaEngine, servers).speculative_options(PLAIN)
    assert not servers[0].bodies("/api/chat"), "no model is loaded to find that out"


# vLLM, whose servers do not tell what they run -----------------------------------------------------------------------


def vllm(n_positions: int | None = None, speculates: bool = True) -> StandIn:
    """n_positions: at how many positions accepted tokens are counted."""
    counters = [("num_drafts", ""), ("num_draft_tokens", ""), ("num_accepted_tokens", "")]
    counters += [("num_accepted_tokens_per_pos", f',position="{i}"') for i in range(n_positions or 0)]
    text = "".join(f'vllm:spec_decode_{name}_total{{engine="0"{label}}} 0.0\n' for name, label in counters)
    served = {"data": [{"id": f"name-{n_positions}", "root": "org/model"}]}
    return StandIn(
        {
            ("GET", "/version"): lambda _: as_json({"version": "0.33.1"}),
            ("GET", "/v1/models"): lambda _: as_json(served),
            ("GET", "/metrics"): lambda _: Reply((text if speculates else "",), kind="text/plain"),
            ("POST", CHAT): lambda _: events(delta("Hi "), delta("there")),
        }
    )


def test_a_speculation_that_vllm_does_not_name_is_measured_as_it_runs(serve: Serve) -> None:
    servers = [serve(vllm(5)), serve(vllm(speculates=False))]
    engine = over(VllmEngine, servers)
    found = options(engine)
    assert found["as it runs"] == Option("as it runs", (5,), is_fixed=True)
    assert "start one more server with --speculative-config for ngram" in found["ngram"].why_not
    engine.start(with_speculation("as it runs", 5))
    engine.complete(REQUEST)
    assert engine.counters() == Counters(drafts=0, accepted_at=(0,) * 5)
    engine.stop()
    assert servers[0].bodies(CHAT)[0]["model"] == "name-5"
    engine.start(PLAIN)
    assert engine.counters() is None
    engine.stop()


def test_what_is_not_known_is_not_written_down(serve: Serve) -> None:
    engine = over(VllmEngine, [serve(vllm(5)), serve(vllm(speculates=False))])
    engine.speculative_options(PLAIN)
    with pytest.raises(InputError, match=r"cannot be written down\. The settings are those of the command line"):
        engine.render(with_speculation("as it runs", 5))
    assert engine.render(PLAIN)[0].text.startswith("vllm serve org/model ")


def test_two_unknown_speculations_are_told_apart_by_their_ports(serve: Serve) -> None:
    servers = [serve(vllm(speculates=False)), serve(vllm(3)), serve(vllm(3)), serve(vllm())]
    engine = over(VllmEngine, servers)
    found = [option for option in engine.speculative_options(PLAIN) if not option.why_not]
    names = [f"as it runs at :{server.url.rpartition(':')[2]}" for server in servers[1:]]
    assert found == [Option(name, n_max, is_fixed=True) for name, n_max in zip(names, ((3,), (3,), ()), strict=True)]
    engine.start(with_speculation(names[1], 3))
    engine.complete(REQUEST)
    engine.stop()
    assert used(servers) == [0, 0, 1, 0]
    with pytest.raises(InputError, match="cannot be written down"):
        engine.render(with_speculation(names[1], 3))


# llama.cpp, whose servers tell their kinds and no lengths ------------------------------------------------------------


def llamacpp(kinds: str = "", milliseconds: float = 800.0) -> StandIn:
    slots = [{"speculative": bool(kinds), "params": {"speculative.types": kinds or "none"}}]
    drafted = {"draft_n": 16, "draft_n_accepted": 8} if kinds else {}
    timings = {"predicted_n": 17, "predicted_ms": milliseconds, **drafted}
    chat = events(delta("One, "), delta("two"), {"choices": [], "timings": timings})
    replies = {"/props": as_json({"build_info": "b11549-abc"}), "/slots": as_json(slots)}
    routes: dict[tuple[str, str], Any] = {("GET", path): lambda _, r=reply: r for path, reply in replies.items()}
    return StandIn({**routes, ("POST", CHAT): lambda _: chat})


def test_the_same_kind_at_lengths_that_are_not_told_is_told_apart_by_ports(serve: Serve) -> None:
    servers = [serve(llamacpp(kinds)) for kinds in ("", "ngram-mod", "ngram-mod", "draft-mtp,ngram-cache")]
    engine = over(LlamaCppEngine, servers)
    found = options(engine)
    names = [f"ngram-mod at :{server.url.rpartition(':')[2]}" for server in servers[1:3]]
    assert [kind for kind, option in found.items() if not option.why_not] == [*names, "draft-mtp + ngram-cache"]
    assert "ngram-mod" not in found and "--spec-type draft-mtp " in found["draft-mtp"].why_not
    before = used(servers)
    for name in (names[1], "draft-mtp + ngram-cache"):
        engine.start(with_speculation(name))
        assert engine.complete(REQUEST).counters == Counters(16, 8)
        engine.stop()
    assert used(servers)[:2] == before[:2] and used(servers)[2] > before[2]
    with pytest.raises(InputError, match="does not tell with which lengths a server runs ngram-mod"):
        engine.render(with_speculation(names[1]))


def test_tuning_compares_the_servers(serve: Serve, tmp_path: Path) -> None:
    servers = [serve(llamacpp()), serve(llamacpp("ngram-mod", 500.0)), serve(llamacpp("ngram-cache", 900.0))]
    urls = tuple(server.url for server in servers)
    engine = SeveralServers(LlamaCppEngine, urls)
    asked = Asked("org/model", n_tokens=32, budget_s=30.0, urls={"llama.cpp": urls})
    (result,) = tune(asked, [engine], prompts(n=6), tmp_path).engines
    measured = {arm.arm: arm.overall.value for arm in result.arms if arm.overall}
    assert measured == {"ngram-mod": pytest.approx(1.6), "ngram-cache": pytest.approx(8 / 9)}
    assert (result.verdict.arm, result.version) == ("ngram-mod", "b11549")
    assert result.settings == (), "the user has the command line"


def test_a_server_that_speculates_is_not_tuned_alone(serve: Serve, tmp_path: Path) -> None:
    server = serve(llamacpp("ngram-mod"))
    asked = Asked("org/model", n_tokens=32, budget_s=30.0, urls={"llama.cpp": (server.url,)})
    said = r"runs ngram-mod, .* Start a second one without speculation.*`llama-server -m org/model .*give both URLs"
    with pytest.raises(EngineError, match=said):
        tune(asked, [LlamaCppEngine()], prompts(n=6), tmp_path)


@pytest.mark.model
def test_two_servers_of_the_wheel(smollm2_path: Path) -> None:
    plain = Settings(str(smollm2_path), n_ctx=512, n_threads=1)
    drafting = replace(plain, speculation=(Speculation("ngram-map-k"),))
    request = Request(({"role": "user", "content": "Write the word hello one hundred times."},), 48)
    with ExitStack() as stack:
        started = [LlamaCppEngine(), LlamaCppEngine()]
        of_eight = replace(drafting, speculation=(Speculation("ngram-map-k", 8),))
        for one, settings in zip(started, (plain, of_eight), strict=True):
            stack.callback(one.stop)
            one.start(settings)
        engine = SeveralServers(LlamaCppEngine, [str(one._client.base_url) for one in started if one._client])
        stack.callback(engine.stop)
        runs = [option.kind for option in engine.speculative_options(plain) if not option.why_not]
        assert runs == ["ngram-map-k"] and engine.version == "", "the wheel's server tells no build"
        engine.start(plain)
        expected = engine.complete(request)
        engine.stop()
        engine.start(drafting)
        found, totals = engine.complete(request), engine.counters()
        assert found.text == expected.text and expected.counters == Counters()
        assert found.counters and totals and found.counters.accepted == totals.accepted > 0
