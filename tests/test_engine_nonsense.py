"""Servers that answer nonsense, that lie, or that do not end: each is told as an EngineError."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from stand_ins import Reply, StandIn, as_json, delta, events, lines, standing_in

from slipstream.engines import streaming
from slipstream.engines.chat_client import ask, ask_json, body, client_at, open_client, stream_chat
from slipstream.engines.checked import check_clock, checked
from slipstream.engines.llamacpp import LlamaCppEngine
from slipstream.engines.lmstudio import PATH, LmStudioEngine
from slipstream.engines.metrics import speculation
from slipstream.engines.ollama import OllamaEngine
from slipstream.engines.protocol import Answer, Engine, Request, Settings, Speculation
from slipstream.engines.sglang import SglangEngine, counted, running
from slipstream.engines.vllm import VllmEngine
from slipstream.errors import EngineError, InputError

CHAT = "/v1/chat/completions"
ASKED = Request(({"role": "user", "content": "Hello"},), 24)
SETTINGS = Settings("m")
DEEP = "[" * 100_000


def chat(*sent: dict[str, Any], raw: str = "") -> Answer:
    """The answer of a server that sends these events, or this text."""
    reply = Reply((raw,), kind="text/event-stream") if raw else events(*sent)
    with standing_in(StandIn({("POST", CHAT): lambda _: reply})) as server, open_client(server.url) as client:
        return stream_chat(client, "Toy", body(ASKED, "m"))[0]


def complete(engine: Engine, routes: dict[tuple[str, str], Reply]) -> Answer:
    """The answer of an engine that is attached to a server with these replies."""
    stand_in = StandIn({route: lambda _, reply=reply: reply for route, reply in routes.items()})  # type: ignore[misc]
    with standing_in(stand_in) as server:
        engine.attach(server.url)
        try:
            engine.start(SETTINGS)
            answer = engine.complete(ASKED)
            engine.counters()
            return answer
        finally:
            engine.stop()


def llamacpp(last: dict[str, Any], n_pieces: int = 2, **more: Reply) -> Answer:
    routes = {("GET", "/props"): as_json({"build_info": "b9999"})}
    routes |= {("GET", f"/{name}"): reply for name, reply in more.items()}
    routes |= {("POST", CHAT): events(*[delta("a ")] * n_pieces, {"choices": [], **last})}
    return complete(LlamaCppEngine(), routes)


def ollama(*sent: dict[str, Any], raw: str = "", parallel: int = 1) -> Answer:
    reply = Reply((raw,)) if raw else lines(*sent)
    stand_in = StandIn({("GET", "/api/version"): lambda _: as_json({"version": "0.32"})})
    stand_in.routes["POST", "/api/chat"] = lambda asked: reply if asked["messages"] else as_json({"done": True})
    with standing_in(stand_in) as server:
        engine = OllamaEngine()
        engine.attach(server.url)
        engine.start(Settings("m", parallel=parallel))
        try:
            return engine.complete(ASKED)
        finally:
            engine.stop()


def sglang(last: dict[str, Any]) -> Answer:
    routes = {("GET", "/server_info"): as_json({"version": "0.5"})}
    return complete(SglangEngine(), {**routes, ("POST", CHAT): events(delta("a"), {"choices": [], **last})})


def lmstudio(last: dict[str, Any]) -> Answer:
    routes = {("GET", "/api/v0/models"): as_json({"data": []})}
    return complete(LmStudioEngine(), {**routes, ("POST", PATH): events(delta("a"), {"choices": [], **last})})


def vllm(last: dict[str, Any], metrics: str = "") -> Answer:
    routes = {("GET", "/version"): as_json({"version": "0.32.0"}), ("GET", "/metrics"): Reply((metrics,))}
    routes |= {("GET", "/v1/models"): as_json({"data": [{"id": "m"}]})}
    return complete(VllmEngine(), {**routes, ("POST", CHAT): events(delta("a"), {"choices": [], **last})})


class TestWhatCannotBeRead:
    @pytest.mark.parametrize(
        "sent",
        [
            {"choices": "abc"},
            {"choices": 5},
            {"choices": {"a": 1}},
            {"choices": [{"delta": [1]}]},
            {"choices": [{"delta": "abc"}]},
            {"choices": [{"delta": {"content": ["a"]}}]},
            *({"choices": [], "usage": usage} for usage in ([1], "x", 7)),
            *({"choices": [], "usage": {"completion_tokens": n}} for n in ("64", -64, 6.5, 10**30, True, [3])),
        ],
    )
    def test_of_chat_completions(self, sent: dict[str, Any]) -> None:
        with pytest.raises(EngineError, match="Toy sent what cannot be read: "):
            chat(delta("a"), sent)

    def test_it_is_shown_shortened_and_without_what_steers_a_terminal(self) -> None:
        with pytest.raises(EngineError) as caught:
            chat({"choices": [{"delta": "\x1b[31m" + "x" * 1000}]})
        assert len(caught.value.message) < 250 and caught.value.message.isprintable()

    def test_nesting_without_end(self) -> None:
        with pytest.raises(EngineError, match=r"Toy sent what is no event: \[\[\["):
            chat(raw=f"data: {DEEP}\n\n")
        with pytest.raises(EngineError, match=r"Ollama sent what is no event: \[\[\["):
            ollama(raw=DEEP)
        client = httpx.Client(
            transport=httpx.MockTransport(lambda _: httpx.Response(200, text=DEEP)), base_url="http://a"
        )
        with pytest.raises(EngineError, match="is not Toy"):
            ask_json(client, "Toy", "usual", "/")

    def test_half_of_a_character_is_replaced(self) -> None:
        both = {"choices": [{"delta": {"content": "\ud83d"}}]}, {"choices": [{"delta": {"content": "\ude00 \ud800x"}}]}
        assert chat(*both).text == "\N{GRINNING FACE} \ufffdx"

    def test_what_ends_a_line_elsewhere_may_stand_in_a_text(self) -> None:
        event = json.dumps(delta("a\u2028b\x85c"), ensure_ascii=False)
        assert chat(raw=f"data: {event}\r\n\r\ndata: [DONE]\r\n\r\n").text == "a\u2028b\x85c"

    @pytest.mark.parametrize(
        "timings",
        [
            [1],
            "predicted_ms",
            {"predicted_ms": 50.0},
            *({"predicted_ms": ms, "predicted_n": 4} for ms in ("5", float("inf"), float("nan"), -1, [])),
            *({"predicted_ms": 50.0, "predicted_n": n} for n in (None, float("inf"), "4", -4)),
            {"predicted_ms": 50.0, "predicted_n": 4, "draft_n": "x"},
        ],
    )
    def test_timings_of_llamacpp(self, timings: Any) -> None:
        with pytest.raises(EngineError, match=r"llama\.cpp sent what cannot be read"):
            llamacpp({"timings": timings})

    def test_slots_of_llamacpp(self) -> None:
        with pytest.raises(EngineError, match=r"llama\.cpp sent what cannot be read"):
            llamacpp({}, slots=as_json([{"speculative": True, "params": 5}, 5]))

    @pytest.mark.parametrize(
        "sample",
        [
            "num_draft_tokens_total NaN",
            "num_draft_tokens_total +Inf",
            "num_draft_tokens_total -4",
            "num_accepted_tokens_per_pos_total 1",
            'num_accepted_tokens_per_pos_total{position="99999999999"} 1',
            'num_accepted_tokens_per_pos_total{position="-1"} 1',
            'num_accepted_tokens_per_pos_total{position="x"} 1',
        ],
    )
    def test_metrics(self, sample: str) -> None:
        with pytest.raises(EngineError, match="/metrics sent what cannot be read: toy:spec_decode_num_"):
            speculation(f"toy:spec_decode_num_draft_tokens_total 5\ntoy:spec_decode_{sample}\n", "toy:")

    def test_metrics_of_vllm(self) -> None:
        with pytest.raises(EngineError, match="/metrics sent what cannot be read"):
            vllm({}, "vllm:spec_decode_num_draft_tokens_total NaN\n")

    @pytest.mark.parametrize(
        "event",
        [
            {"message": "hi"},
            {"message": {"content": 5}},
            {"message": {"content": "a"}, "done": True, "eval_count": "64"},
            {"message": {"content": "a"}, "done": True, "eval_count": -5},
            {"message": {"content": "a"}, "done": True, "eval_count": 64.5},
            {"message": {"content": "a"}, "done": True, "eval_count": 10**30},
            {"message": {"content": "a"}, "done": True, "eval_count": 4, "eval_duration": 10**400},
            {"message": {"content": "a"}, "done": True, "eval_count": 4, "eval_duration": "1"},
        ],
    )
    def test_of_ollama(self, event: dict[str, Any]) -> None:
        with pytest.raises(EngineError, match="Ollama sent what cannot be read"):
            ollama(event)

    @pytest.mark.parametrize(
        "own",
        [
            [1],
            {"spec_tokens_details": 5},
            {
                "spec_tokens_details": {
                    "spec_verify_ct": "1",
                    "spec_num_proposed_drafts": 1,
                    "spec_num_correct_drafts": 1,
                }
            },
            {
                "spec_tokens_details": {
                    "spec_verify_ct": 1,
                    "spec_num_proposed_drafts": 1,
                    "spec_num_correct_drafts": 1,
                    "spec_correct_drafts_histogram": ["x", None],
                }
            },
        ],
    )
    def test_of_sglang(self, own: Any) -> None:
        with pytest.raises(EngineError, match="SGLang sent what cannot be read"):
            sglang({"sglext": own})

    def test_drafts_of_sglang_that_are_too_long_to_be_some(self) -> None:
        details = {"spec_verify_ct": 1, "spec_num_proposed_drafts": 10**12, "spec_num_correct_drafts": 1}
        found = counted(details, is_chain=True)
        assert found is not None and found.drafted_at == ()
        for width in (-5, 10**12):
            assert running({"speculative_algorithm": "EAGLE3", "speculative_num_draft_tokens": width}).n_max is None
        assert running({"speculative_algorithm": 7, "speculative_draft_model_path": 5}).draft is None

    @pytest.mark.parametrize(
        "last",
        [
            {"stats": 5},
            {"runtime": "x"},
            {"stats": {"total_draft_tokens_count": "9", "accepted_draft_tokens_count": 0}},
            {
                "stats": {
                    "total_draft_tokens_count": 1,
                    "accepted_draft_tokens_count": 0,
                    "ignored_draft_tokens_count": 9,
                }
            },
            {
                "usage": {
                    "total_draft_tokens_count": 0,
                    "accepted_draft_tokens_count": 0,
                    "ignored_draft_tokens_count": "x",
                }
            },
        ],
    )
    def test_of_lm_studio(self, last: dict[str, Any]) -> None:
        with pytest.raises(EngineError, match="LM Studio sent what cannot be read"):
            lmstudio(last)


TOO_MANY = {"usage": {"completion_tokens": 48}}


class TestWhatCannotBeTrue:
    @pytest.mark.parametrize(
        ("name", "answered"),
        [
            ("vLLM", lambda: vllm(TOO_MANY)),
            ("SGLang", lambda: sglang(TOO_MANY)),
            ("LM Studio", lambda: lmstudio(TOO_MANY)),
            ("llama.cpp", lambda: llamacpp({"timings": {"predicted_ms": 900, "predicted_n": 48}})),
            ("Ollama", lambda: ollama({"message": {"content": "a"}}, {"done": True, "eval_count": 48})),
        ],
    )
    def test_more_tokens_than_were_asked_for(self, name: str, answered: Callable[[], Answer]) -> None:
        with pytest.raises(EngineError) as caught:
            answered()
        said = f"{name} says that it wrote 48 tokens of at most 24: its counts cannot be used."
        assert caught.value.message == said

    def test_the_end_of_the_text_may_be_counted(self) -> None:
        answer = Answer("a", 25, 0.1, 1.0)
        assert checked(answer, ASKED, "Toy") is answer
        nothing = Answer("", 1, 0.1, 0.0)
        assert checked(nothing, ASKED, "Toy") is nothing

    @pytest.mark.parametrize(
        "answered",
        [
            lambda: llamacpp({"timings": {"predicted_ms": 900, "predicted_n": 20}}, n_pieces=0),
            lambda: ollama({"message": {"content": ""}}, {"done": True, "eval_count": 20}),
        ],
    )
    def test_tokens_without_text(self, answered: Callable[[], Answer]) -> None:
        with pytest.raises(EngineError, match="says that it wrote 20 tokens, and sent no text"):
            answered()

    def test_reasoning_is_text(self) -> None:
        assert ollama({"message": {"thinking": "Hm"}}, {"done": True, "eval_count": 20}).n_tokens == 20

    @pytest.mark.parametrize("duration_ns", [1, 10])
    def test_a_clock_that_stands_still(self, duration_ns: int) -> None:
        with pytest.raises(EngineError, match="its clock cannot be used"):
            ollama({"message": {"content": "a"}}, {"done": True, "eval_count": 20, "eval_duration": duration_ns})
        with pytest.raises(EngineError, match="its clock cannot be used"):
            llamacpp({"timings": {"predicted_ms": 1e-300, "predicted_n": 20}})


def answer_in(decode_s: float, *arrived_s: float) -> Answer:
    return Answer("text", len(arrived_s), arrived_s[0], decode_s, tuple((s, n) for n, s in enumerate(arrived_s, 1)))


class TestAnEnginesOwnClock:
    STEADY = tuple(1.0 + i / 10 for i in range(11))

    def test_one_that_says_a_tenth_of_what_was_seen(self) -> None:
        with pytest.raises(EngineError, match=r"wrote 11 tokens in 0\.1 s, and they came in 1 s: its clock cannot"):
            check_clock(answer_in(0.1, *self.STEADY), "Toy")

    def test_one_that_agrees(self) -> None:
        check_clock(answer_in(0.95, *self.STEADY), "Toy")

    def test_pieces_that_were_held_back_tell_nothing(self) -> None:
        check_clock(answer_in(5.0, *self.STEADY), "Toy")

    def test_a_network_that_stopped_once_tells_nothing(self) -> None:
        check_clock(answer_in(0.1, *(1.0 + i / 100 for i in range(6)), *(4.0 + i / 100 for i in range(6))), "Toy")

    def test_a_few_pieces_or_a_short_time_tell_nothing(self) -> None:
        check_clock(answer_in(0.1, *self.STEADY[:7]), "Toy")
        check_clock(answer_in(0.001, *(i / 100 for i in range(11))), "Toy")

    def test_a_client_that_reads_many_at_once_may_itself_be_late(self) -> None:
        """Only an answer that is read alone is held against the engine's clock."""
        last = {"done": True, "eval_count": 20, "eval_duration": 1}
        assert ollama({"message": {"content": "a"}}, last, parallel=2).decode_s == 1e-9


class TestAnswersWithoutEnd:
    def test_too_many_events(self) -> None:
        with pytest.raises(EngineError, match="Toy does not end its answer: it sent more than 640 lines"):
            chat(*[delta("a")] * 1000)
        with pytest.raises(EngineError, match="Ollama does not end its answer"):
            ollama(*[{"message": {"content": "a"}}] * 1000)

    def test_a_letter_a_piece_is_no_such_answer(self) -> None:
        assert len(chat(*[delta("a")] * 24 * 5).text) == 120

    def test_too_long_a_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(streaming, "ANSWER_S", -1.0)
        with pytest.raises(EngineError, match="Toy was not done with its answer after"):
            chat(raw=": still here\n")

    def test_a_line_without_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(streaming, "LONGEST_LINE_BYTES", 100)
        with pytest.raises(EngineError, match="a line of more than 100 bytes"):
            chat(raw="data: " + "x" * 1000)


def refusing(status: int, text: str = "", **headers: str) -> httpx.Client:
    transport = httpx.MockTransport(lambda _: httpx.Response(status, text=text, headers=headers))
    return httpx.Client(transport=transport, base_url="http://here:1")


class TestRefusals:
    def test_a_status_without_words_names_the_url(self) -> None:
        with pytest.raises(EngineError, match=r"^Toy answered status 404 at http://here:1/metrics\.$"):
            ask(refusing(404), "Toy", "usual", "/metrics")

    def test_a_redirection_names_where_to(self) -> None:
        sends = r"^Toy answered status 307 at http://here:1/v1/chat/completions, which sends to http://there/x\."
        with pytest.raises(EngineError, match=sends):
            stream_chat(refusing(307, location="http://there/x"), "Toy", body(ASKED, "m"))

    def test_words_do_not_steer_a_terminal(self) -> None:
        with pytest.raises(EngineError, match=r"^Toy answered status 500: boom \ufffd\[31m$"):
            ask(refusing(500, json.dumps({"error": {"message": "boom \x1b[31m"}})), "Toy", "usual", "/")


class TestAddresses:
    @pytest.mark.parametrize(
        "url",
        [
            "",
            "http://",
            "http://xn--.local/",
            "http://a..b/",
            f"http://{'a' * 400}/",
            "http://host:99999/",
            "http://host:0/",
            "http://a\udcff/",
            "http://a/\udcff",
        ],
    )
    def test_what_could_never_be_asked_is_no_url(self, url: str) -> None:
        with pytest.raises(InputError, match=r"is no URL.*Give it as http://usual") as caught:
            client_at(url, "http://usual")
        assert len(str(caught.value)) < 300

    @pytest.mark.parametrize(
        "url", ["http://127.0.0.1:80/v1", "http://[::1]:8080", "https://bücher.example/", "http://a.b."]
    )
    def test_what_can_be_asked(self, url: str) -> None:
        with client_at(url, "http://usual") as client:
            assert client.base_url.host in url and client.base_url.path == "/"


def test_as_many_requests_at_once_as_are_asked() -> None:
    """A server that answers none of 120 requests before all have come."""
    n = 120
    all_here = threading.Barrier(n)

    class Handling(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            all_here.wait(20)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'data: {"choices": [{"delta": {"content": "a"}}]}\n\ndata: [DONE]\n\n')

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 2 * n

    server = Server(("127.0.0.1", 0), Handling)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    serving.start()
    try:
        with open_client(f"http://127.0.0.1:{server.server_port}") as client, ThreadPoolExecutor(n) as pool:
            answers = list(pool.map(lambda _: stream_chat(client, "Toy", body(ASKED, "m"))[0].text, range(n)))
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
    assert answers == ["a"] * n


@pytest.mark.parametrize("name", ["m\nPARAMETER num_ctx 1", "m\r", "m\x1b[31m", "m\u2028", "m\x00"])
def test_names_that_would_add_lines_to_what_is_written_down_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="is no model: its name has a control character"):
        Settings(name)
    with pytest.raises(InputError, match="is no model: its name has a control character"):
        Settings("m", (Speculation("draft"),), draft=name)


def test_a_server_whose_starter_is_gone_already_does_not_load_anything() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    command = [sys.executable, "-m", "slipstream.engines.llamacpp_child", "no fields", str(gone.pid)]
    ran = subprocess.run(command, capture_output=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, b"")
