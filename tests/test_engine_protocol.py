"""What all engines share: counters, arrivals, programs that are started, chat over HTTP, and the list of engines."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psutil
import pytest
from stand_ins import Reply, StandIn, as_json, delta, events, standing_in

from slipstream.engines.chat_client import behind_first_round, body, open_client, stream_chat
from slipstream.engines.process import ServerProcess, check_port, free_port
from slipstream.engines.protocol import Answer, Arrivals, Counters, Request, Settings, Speculation
from slipstream.engines.registry import ENGINES, engine_class, make_engine
from slipstream.errors import EngineError, InputError

CHAT = ("POST", "/v1/chat/completions")
REQUEST = Request(({"role": "user", "content": "Hello"},), 5, seed=7)


def test_an_arm_is_named_after_its_speculation() -> None:
    two = (Speculation("draft-simple", 4, 0.5), Speculation("ngram-simple"))
    assert Settings("m.gguf").arm == "plain"
    assert Settings("m.gguf", two).arm == "draft-simple n 4 p 0.5 + ngram-simple"


class TestCounters:
    def test_what_came_between_is_the_difference(self) -> None:
        earlier = Counters(10, 6, 4, (4, 2), (4, 3))
        later = Counters(25, 14, 9, (8, 4, 2), (9, 7, 4))
        assert later - earlier == Counters(15, 8, 5, (4, 2, 2), (5, 4, 4))
        assert earlier + (later - earlier) == later

    def test_drafts_are_unknown_where_one_side_does_not_know_them(self) -> None:
        assert (Counters(5, 3, 2) + Counters(5, 3)).drafts is None

    def test_acceptance_is_accepted_by_drafted(self) -> None:
        assert Counters(20, 15).acceptance_rate == 0.75
        assert Counters().acceptance_rate is None

    def test_each_pass_adds_one_token_of_the_target(self) -> None:
        # 12 tokens behind the first, 8 of them accepted: 4 passes.
        assert Counters(10, 8).mean_tokens_a_pass(12) == 3.0
        assert Counters().mean_tokens_a_pass(12) == 1.0
        assert Counters().mean_tokens_a_pass(0) is None

    def test_conditional_rates_are_of_the_drafts_that_reached_a_position(self) -> None:
        # Ten drafts of three tokens: 8, then 6 of those, then 3 of those were accepted.
        fixed = Counters(30, 17, 10, (8, 6, 3), (10, 10, 10))
        assert fixed.conditional() == (0.8, 0.75, 0.5)

    def test_drafts_that_ended_before_a_position_did_not_reach_it(self) -> None:
        assert Counters(16, 12, 10, (8, 3), (10, 4)).conditional() == (0.8, 0.75)

    def test_without_lengths_only_the_first_position_is_known(self) -> None:
        assert Counters(30, 17, 10, (8, 6, 3)).conditional() == (0.8, None, None)
        assert Counters(30, 17, None, (8, 6, 3)).conditional() == (None, None, None)
        assert Counters(0, 0, 0, (0,), (0,)).conditional() == (None,)


class TestArrivals:
    def clock(self, *seconds: float) -> Callable[[], float]:
        return iter(seconds).__next__

    def test_decoding_runs_from_the_first_piece_to_the_last(self) -> None:
        arrivals = Arrivals(self.clock(100.0, 100.5, 101.0, 102.5))
        arrivals.add()
        arrivals.add(3)
        arrivals.add(2)
        answer = arrivals.answer("text")
        assert (answer.ttft_s, answer.decode_s, answer.n_tokens) == (0.5, 2.0, 6)
        assert answer.arrivals == ((0.5, 1), (1.0, 4), (2.5, 6))
        assert answer.tokens_per_s == 2.5

    def test_the_engine_s_own_count_goes_before_that_of_pieces(self) -> None:
        arrivals = Arrivals(self.clock(0.0, 1.0, 2.0))
        arrivals.add()
        arrivals.add()
        assert arrivals.answer("text", 9).n_tokens == 9

    def test_a_first_draft_that_comes_with_the_first_token_makes_no_speed(self) -> None:
        """Rounds of three tokens, one a second, pieces of a round a millisecond apart; one token came without text."""
        times = tuple(
            (second + piece / 1000, 3 * (second - 1) + piece + 1) for second in (1, 2, 3) for piece in range(3)
        )
        answer = behind_first_round(Answer("text", 10, 1.0, times[-1][0] - 1.0, times))
        assert answer.tokens_per_s == pytest.approx(3 * 9 / 8, rel=0.01)
        assert (answer.ttft_s, answer.arrivals) == (1.0, times)

    def test_one_token_after_another_is_timed_as_before(self) -> None:
        times = ((0.5, 1), (1.0, 2), (1.4, 3), (2.1, 4))
        answer = Answer("text", 4, 0.5, 1.6, times)
        assert behind_first_round(answer).decode_s == pytest.approx(1.6)
        assert behind_first_round(replace(answer, arrivals=((0.5, 1),))).decode_s == 1.6

    def test_an_answer_of_one_token_has_no_speed(self) -> None:
        arrivals = Arrivals(self.clock(0.0, 1.0))
        arrivals.add()
        assert arrivals.answer("x").tokens_per_s is None

    def test_an_empty_answer_took_all_its_time_to_the_first_token(self) -> None:
        answer = Arrivals(self.clock(0.0, 3.0)).answer("")
        assert (answer.n_tokens, answer.ttft_s, answer.decode_s, answer.arrivals) == (0, 3.0, 0.0, ())


@pytest.fixture
def started() -> Iterator[Callable[..., ServerProcess]]:
    """Starts Python programs, and stops them at the end."""
    running: list[ServerProcess] = []

    def start(program: str) -> ServerProcess:
        running.append(ServerProcess("stand-in", [sys.executable, "-c", program]))
        return running[-1]

    yield start
    for server in running:
        server.stop()


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class TestServerProcess:
    def test_a_program_that_answers_is_ready(self, started: Any) -> None:
        port = free_port()
        server = started(
            "from http.server import HTTPServer, BaseHTTPRequestHandler as Handler\n"
            "Handler.do_GET = lambda self: (self.send_response(200), self.end_headers())\n"
            f"HTTPServer(('127.0.0.1', {port}), Handler).serve_forever()"
        )
        server.wait_ready(f"http://127.0.0.1:{port}/health", 20)
        assert server.is_running
        server.stop()
        server.stop()
        assert not server.is_running

    def test_one_that_never_gets_ready_is_told_with_its_last_lines(self, started: Any) -> None:
        server = started("import time; print('loading', flush=True); time.sleep(60)")
        seen: list[str] = []
        with pytest.raises(EngineError, match=r"stand-in was not ready after 1 s\. Its last lines:\nloading"):
            server.wait_ready(f"http://127.0.0.1:{free_port()}/", 1.0, seen.append)
        assert seen[-1] == "loading"

    def test_one_that_ends_early_is_told_with_its_last_lines(self, started: Any) -> None:
        server = started("print('one'); print('no such model'); raise SystemExit(3)")
        with pytest.raises(EngineError, match=r"ended before it was ready \(exit status 3\).*\none\nno such model"):
            server.wait_ready(f"http://127.0.0.1:{free_port()}/", 20)

    def test_only_the_last_of_many_lines_are_kept(self, started: Any) -> None:
        server = started("for i in range(50_000): print('line', i)")
        with pytest.raises(EngineError) as caught:
            server.wait_ready(f"http://127.0.0.1:{free_port()}/", 20)
        assert caught.value.hint.splitlines()[1:] == [f"line {i}" for i in range(49_985, 50_000)]

    def test_a_silent_one_said_nothing(self, started: Any) -> None:
        with pytest.raises(EngineError, match="It said nothing"):
            started("pass").wait_ready(f"http://127.0.0.1:{free_port()}/", 20)

    def test_stopping_ends_its_children_too(self, started: Any) -> None:
        server = started(
            "import subprocess, sys, time\n"
            "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
            "print(child.pid, flush=True); time.sleep(60)"
        )
        while not server.last_lines():
            time.sleep(0.02)
        child = int(server.last_lines()[0])
        assert is_alive(child)
        server.stop()
        until = time.monotonic() + 5
        while is_alive(child) and time.monotonic() < until:
            time.sleep(0.02)
        assert not is_alive(child)

    def test_it_is_in_a_session_of_its_own_so_that_ctrl_c_does_not_reach_it(self, started: Any) -> None:
        server = started("import os; print(os.getsid(0), os.getpid())")
        with pytest.raises(EngineError):
            server.wait_ready(f"http://127.0.0.1:{free_port()}/", 20)
        session, pid = map(int, server.last_lines(1)[0].split())
        assert session == pid != os.getsid(0)

    def test_a_program_that_is_not_there_is_named(self) -> None:
        with pytest.raises(EngineError, match=r"stand-in cannot be run.*Is no-such-program installed"):
            ServerProcess("stand-in", ["/nowhere/no-such-program"])


def test_a_port_in_use_is_refused() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(InputError, match=r"Port \d+ is in use"):
            check_port(other.getsockname()[1])
    check_port(free_port())


def ask(*replies: Reply) -> Any:
    """The answer, what else the server sent, and what it was asked; of a server with this reply."""
    with standing_in(StandIn({CHAT: lambda _: replies[0]})) as server, open_client(server.url) as client:
        answer, extra = stream_chat(client, "stand-in", body(REQUEST, "small", {"cache_prompt": False}))
    return answer, extra, server.bodies(CHAT[1])[0]


class TestChatClient:
    def test_the_answer_comes_with_the_server_s_own_last_fields(self) -> None:
        usage = {"choices": [], "usage": {"completion_tokens": 4}, "timings": {"predicted_n": 4}}
        answer, extra, asked = ask(events(delta("One, "), delta("two"), usage))
        assert (answer.text, answer.n_tokens, len(answer.arrivals)) == ("One, two", 4, 2)
        assert extra["timings"] == {"predicted_n": 4}
        assert asked["messages"] == [{"role": "user", "content": "Hello"}]
        assert (asked["max_tokens"], asked["temperature"], asked["seed"]) == (5, 0.0, 7)
        assert asked["stream"] is True and asked["cache_prompt"] is False

    def test_reasoning_is_part_of_the_answer(self) -> None:
        thought = {"choices": [{"delta": {"reasoning_content": "Hm. "}}]}
        assert ask(events(thought, delta("Yes")))[0].text == "Hm. Yes"

    @pytest.mark.parametrize(
        "reply", [{"error": {"message": "too long"}}, {"message": "too long"}, {"detail": "too long"}]
    )
    def test_an_error_status_is_told_in_the_server_s_words(self, reply: dict[str, Any]) -> None:
        with pytest.raises(EngineError, match="stand-in answered status 400: too long"):
            ask(as_json(reply, 400))

    def test_an_error_within_the_stream(self) -> None:
        with pytest.raises(EngineError, match="stand-in answered an error: context is full"):
            ask(events(delta("One"), {"error": {"message": "context is full"}}))

    def test_a_stream_that_breaks_off_is_no_short_answer(self) -> None:
        half = events(delta("One, "), delta("two"))
        with pytest.raises(EngineError, match="broke off"):
            ask(Reply(half.pieces[:-1], kind=half.kind))

    def test_an_answer_that_says_that_it_is_finished_needs_no_other_end(self) -> None:
        last = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
        whole = events(delta("One"), last)
        assert ask(Reply(whole.pieces[:-1], kind=whole.kind))[0].text == "One"

    def test_what_is_no_stream_at_all(self) -> None:
        with pytest.raises(EngineError, match="no stream of events"):
            ask(Reply(("<html>Welcome</html>",), kind="text/html"))

    @pytest.mark.parametrize("data", ["{half", "[1]"])
    def test_what_is_no_event(self, data: str) -> None:
        with pytest.raises(EngineError, match="sent what is no event"):
            ask(Reply((f"data: {data}\n\n",), kind="text/event-stream"))

    def test_nobody_there(self) -> None:
        with (
            open_client(f"http://127.0.0.1:{free_port()}") as client,
            pytest.raises(EngineError, match="stand-in does not answer: ConnectError"),
        ):
            stream_chat(client, "stand-in", body(REQUEST, "small"))


class TestRegistry:
    def test_a_name_that_is_none_is_told_the_others(self) -> None:
        with pytest.raises(InputError, match=r"There is no engine 'tgi'\. Choose one of slipstream, llama\.cpp, vllm"):
            make_engine("tgi")

    @pytest.mark.parametrize("name", ["slipstream", "llama.cpp"])
    def test_an_engine_is_made_by_name(self, name: str) -> None:
        engine = make_engine(name)
        assert engine.name == name and engine.version

    @pytest.mark.parametrize("name", ENGINES)
    def test_every_engine_calls_itself_by_its_name_here(self, name: str) -> None:
        assert engine_class(name).name == name  # type: ignore[attr-defined]
