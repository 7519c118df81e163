"""SGLang against a stand-in of its protocol: what it runs, what an answer counts, and its command line."""

from __future__ import annotations

import shlex

import pytest
from stand_ins import Reply, StandIn, as_json, delta, events, standing_in

from slipstream.engines.protocol import Counters, Engine, Request, Settings, Speculation
from slipstream.engines.sglang import SglangEngine
from slipstream.errors import EngineError, InputError

ASKED = Request(({"role": "user", "content": "Hello"},), 8)
PLAIN = Settings("org/model")
EAGLE = {
    "speculative_algorithm": "EAGLE3",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
    "speculative_draft_model_path": "org/head",
}
DETAILS = {
    "spec_verify_ct": 4,
    "spec_num_proposed_drafts": 12,
    "spec_num_correct_drafts": 6,
    "spec_correct_drafts_histogram": [1, 1, 1, 1],
}


@pytest.fixture
def server():
    """A stand-in that runs without speculation until a test changes `info`, and answers two pieces."""
    stand_in = StandIn({})
    stand_in.info = {"version": "0.5.23", "internal_states": [{"avg_spec_accept_length": 2.5}]}
    stand_in.last = {"choices": [], "usage": {"completion_tokens": 7}}
    stand_in.routes = {
        ("GET", "/server_info"): lambda _: as_json(stand_in.info),
        ("POST", "/flush_cache"): lambda _: Reply(("Cache flushed.",), kind="text/plain"),
        ("POST", "/v1/chat/completions"): lambda _: events(delta("Hi "), delta("there"), stand_in.last),
    }
    with standing_in(stand_in):
        yield stand_in


@pytest.fixture
def attached(server):
    engine: Engine = SglangEngine()
    engine.attach(server.url)
    yield engine
    engine.stop()


def test_an_answer_of_a_plain_server(server, attached):
    attached.start(PLAIN)
    answer = attached.complete(ASKED)
    assert (attached.version, answer.text, answer.n_tokens) == ("0.5.23", "Hi there", 7)
    assert answer.ttft_s > 0 and len(answer.arrivals) == 2
    assert answer.counters is None and attached.counters() is None
    [body] = server.bodies("/v1/chat/completions")
    assert body["model"] == "org/model" and body["temperature"] == 0.0 and body["max_tokens"] == 8


def test_the_prompt_cache_is_emptied_before_every_answer(server, attached):
    attached.start(PLAIN)
    attached.complete(ASKED)
    attached.complete(ASKED)
    paths = [path for _, path, _ in server.asked if path != "/server_info"]
    assert paths == ["/flush_cache", "/v1/chat/completions"] * 2


def test_a_cache_that_is_in_use_is_left_as_it_is(server, attached):
    server.routes["POST", "/flush_cache"] = lambda _: Reply(("requests are running",), 400)
    attached.start(PLAIN)
    assert attached.complete(ASKED).text == "Hi there"


def test_the_counts_of_an_answer(server, attached):
    server.info |= EAGLE
    server.last |= {"sglext": {"spec_tokens_details": DETAILS}}
    attached.start(Settings("org/model", (Speculation("EAGLE3", 3),)))
    counters = attached.complete(ASKED).counters
    assert counters == Counters(12, 6, 4, accepted_at=(3, 2, 1), drafted_at=(4, 4, 4))
    assert counters.conditional() == (3 / 4, 2 / 3, 1 / 2)


def test_positions_of_trees_are_not_those_of_a_chain(server, attached):
    server.info |= EAGLE | {"speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8}
    server.last |= {"sglext": {"spec_tokens_details": DETAILS}}
    attached.start(Settings("org/model", (Speculation("EAGLE3"),)))
    counters = attached.complete(ASKED).counters
    assert counters is not None and counters.drafted_at == ()


def test_a_server_that_counts_nothing(server, attached):
    server.info |= EAGLE
    attached.start(Settings("org/model", (Speculation("EAGLE3"),)))
    assert attached.complete(ASKED).counters is None


def test_only_what_the_server_runs_can_be_had(server, attached):
    assert all(option.why_not for option in attached.speculative_options(PLAIN))
    server.info |= EAGLE
    attached.attach(server.url)
    options = {option.kind: option for option in attached.speculative_options(PLAIN)}
    assert set(options) == {"EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM"}
    assert (options["EAGLE3"].n_max, options["EAGLE3"].why_not) == ((3,), "")
    advice = "start one more server with --speculative-algorithm NGRAM and give each its --url"
    assert options["NGRAM"].why_not == f"it is fixed when SGLang starts: {advice}"


def test_plain_decoding_is_not_claimed_of_a_server_that_drafts(server, attached):
    server.info |= EAGLE
    with pytest.raises(
        InputError, match="runs EAGLE3 with drafts of 3, and SGLang cannot be asked for plain"
    ) as refused:
        attached.start(PLAIN)
    assert refused.value.hint == (
        "Start a second one without speculation, on a port of its own, with `python -m sglang.launch_server"
        " --model-path org/model --context-length 4096 --max-running-requests 1`, and give both URLs, each by --url."
    )


def test_another_length_than_the_server_runs_is_refused_with_the_command(server, attached):
    server.info |= EAGLE
    with pytest.raises(InputError, match=r"cannot be asked for EAGLE3 n 5.*--speculative-num-steps 5") as refused:
        attached.start(Settings("org/model", (Speculation("EAGLE3", 5),)))
    assert "--speculative-draft-model-path org/head" in str(refused.value), "the draft that the server has"


def test_nextn_is_a_name_of_eagle(server, attached):
    server.info |= EAGLE | {"speculative_algorithm": "EAGLE", "speculative_draft_model_path": None}
    attached.start(Settings("org/model", (Speculation("NEXTN", 3),)))
    assert attached.complete(ASKED).text == "Hi there"


def test_stop_leaves_the_server_and_start_finds_it_again(server, attached):
    attached.start(PLAIN)
    attached.stop()
    attached.stop()
    attached.start(PLAIN)
    assert attached.complete(ASKED).text == "Hi there"


def test_nothing_is_started_without_a_url():
    with pytest.raises(InputError, match=r"not started from here.*`python -m sglang.launch_server .*--url http"):
        SglangEngine().start(PLAIN)


def test_a_url_as_its_clients_have_it(server):
    engine = SglangEngine()
    engine.attach(f"{server.url}/v1/")
    assert engine.version == "0.5.23"
    engine.stop()


@pytest.mark.parametrize("url", ["localhost:30000", "http://host:port", "ftp://x", ""])
def test_what_is_no_url_is_refused(url):
    with pytest.raises(InputError, match="is no URL"):
        SglangEngine().attach(url)


def test_nobody_at_the_url(server):
    with pytest.raises(EngineError, match=r"SGLang does not answer at .*Is it running\?"):
        SglangEngine().attach("http://127.0.0.1:9")


def test_another_server_at_the_url(server):
    server.routes["GET", "/server_info"] = lambda _: Reply(("<html>",))
    with pytest.raises(EngineError, match="is not SGLang"):
        SglangEngine().attach(server.url)


def test_an_error_has_the_servers_words(server, attached):
    server.routes["POST", "/v1/chat/completions"] = lambda _: as_json({"message": "prompt too long"}, 400)
    attached.start(PLAIN)
    with pytest.raises(EngineError, match="SGLang answered status 400: prompt too long"):
        attached.complete(ASKED)


RENDERED = {
    "plain": (Settings("m"), ""),
    "eagle": (
        Settings("m", (Speculation("EAGLE", 5),), "d"),
        "--speculative-algorithm EAGLE --speculative-draft-model-path d"
        " --speculative-num-steps 5 --speculative-eagle-topk 1 --speculative-num-draft-tokens 6",
    ),
    "nextn": (
        Settings("m", (Speculation("NEXTN"),)),
        "--speculative-algorithm NEXTN"
        " --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
    ),
    "n-grams": (
        Settings("m", (Speculation("NGRAM", 7),), "d"),
        "--speculative-algorithm NGRAM --speculative-num-draft-tokens 8",
    ),
}


@pytest.mark.parametrize("case", RENDERED)
def test_the_command_line(case):
    settings, flags = RENDERED[case]
    [rendering] = SglangEngine().render(settings)
    common = "python -m sglang.launch_server --model-path m --context-length 4096 --max-running-requests 1"
    assert rendering.text == f"{common} {flags}".strip() + "\n"


def test_a_path_with_spaces_stays_one_word():
    [rendering] = SglangEngine().render(Settings("my models/big"))
    assert "my models/big" in shlex.split(rendering.text)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (Settings("m", (Speculation("EAGLE"),)), "needs a draft"),
        (Settings("m", (Speculation("ngram-mod"),)), "knows no speculation 'ngram-mod'"),
        (Settings("m", (Speculation("NGRAM", p_min=0.5),)), "no threshold of confidence"),
        (Settings("m", (Speculation("NGRAM"), Speculation("NEXTN"))), "one speculation at a time"),
    ],
)
def test_what_sglang_has_no_flag_for_is_refused(settings, said):
    with pytest.raises(InputError, match=said):
        SglangEngine().render(settings)
