"""llama.cpp's server run for real, with the demo model and one thread; attached to, and as a program of its own.

See test_llamacpp_attached.py for servers that tell less than this one.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest
from test_llamacpp_options import HELP_OF_B11549
from tiny_models import write_tiny

from slipstream.engines.llamacpp import LlamaCppEngine
from slipstream.engines.protocol import Answer, Counters, Option, Request, Settings, Speculation
from slipstream.errors import EngineError, InputError

N_TOKENS = 48
LOOPS = Request(({"role": "user", "content": "Write the word hello one hundred times."},), N_TOKENS)
FOX = "The quick brown fox jumps over the lazy dog near the old river bank in the town."
REPEATS = Request(({"role": "user", "content": f"Repeat this text twice, word for word: {FOX}"},), 24)
SHORT = Request(({"role": "user", "content": "What is the capital of France?"},), 12)

ORPHANING = """
import os
from slipstream.engines.llamacpp import LlamaCppEngine
from slipstream.engines.protocol import Settings
engine = LlamaCppEngine()
engine.start({settings!r})
print(engine._server._process.pid, flush=True)
os._exit(0)
"""
"""Ends without stopping what it started, as one that is killed does."""

PROGRAM = """#!{python}
import json, os, sys
given = sys.argv[1:]
if "--version" in given:
    print("version: 11549 (stand-in)")
elif "--help" in given:
    print('''{help}''')
else:
    print("asked with", *given, flush=True)
    of = lambda flag: given[given.index(flag) + 1]
    fields = {{"model.path": of("-m"), "n_ctx": int(of("-c")), "port": int(of("--port"))}}
    fields |= {{"endpoint_metrics": "--metrics" in given}}
    fields |= {{f"{{place}}.n_threads": int(of("-t")) for place in ("cpuparams", "cpuparams_batch")}}
    if "--spec-type" in given:
        fields["speculative.types"] = of("--spec-type").split(",")
        fields["speculative.ngram_map_k.size_m"] = int(of("--spec-ngram-map-k-size-m"))
    os.execv("{python}", ["{python}", "-m", "slipstream.engines.llamacpp_child", json.dumps(fields), str(os.getppid())])
"""


@pytest.fixture
def engine() -> Iterator[LlamaCppEngine]:
    engine = LlamaCppEngine()
    yield engine
    engine.stop()


@pytest.fixture
def guest() -> Iterator[LlamaCppEngine]:
    """One that does not start anything."""
    guest = LlamaCppEngine()
    yield guest
    guest.stop()


@pytest.fixture
def plain(smollm2_path: Path) -> Settings:
    return Settings(str(smollm2_path), n_ctx=512, n_threads=1)


def drafting(plain: Settings, *speculation: Speculation, draft: Path | None = None) -> Settings:
    return Settings(plain.model, speculation, str(draft) if draft else None, plain.n_ctx, plain.n_threads)


def answer(engine: LlamaCppEngine, settings: Settings, request: Request = LOOPS) -> Answer:
    engine.start(settings)
    try:
        return engine.complete(request)
    finally:
        engine.stop()


def process_of(engine: LlamaCppEngine) -> psutil.Process:
    assert engine._server is not None
    return psutil.Process(engine._server._process.pid)


def still_there(pid: int) -> list[psutil.Process]:
    return [psutil.Process(pid)] if psutil.pid_exists(pid) else []


def url_of(engine: LlamaCppEngine) -> str:
    assert engine._client is not None
    return str(engine._client.base_url)


@pytest.mark.model
class TestWheel:
    def test_drafts_change_no_text_and_are_counted(
        self, engine: LlamaCppEngine, plain: Settings, small_draft_path: Path
    ) -> None:
        lines: list[str] = []
        engine.start(plain, lines.append)
        expected = engine.complete(LOOPS)
        assert expected.n_tokens == N_TOKENS and expected.counters == Counters()
        assert engine.counters() == Counters(drafts=0)
        assert expected.ttft_s > 0 and expected.arrivals[-1][1] == N_TOKENS
        last_s = expected.arrivals[-1][0] - expected.ttft_s
        assert expected.decode_s == pytest.approx(last_s, rel=0.3)  # the server's clock and ours
        engine.stop()

        engine.start(drafting(plain, Speculation("ngram-map-k", 8)))
        found, totals = engine.complete(LOOPS), engine.counters()
        assert found.text == expected.text
        assert found.counters and totals
        assert found.counters == Counters(totals.drafted, totals.accepted)
        assert totals.accepted > 8 and sum(totals.accepted_at) == totals.accepted
        assert totals.drafts and totals.accepted_at[0] <= totals.drafts
        assert engine.complete(SHORT).counters == Counters()
        engine.stop()

        both = Speculation("draft-simple", 2), Speculation("ngram-map-k", 8)
        for speculation in both[:1], both:
            found = answer(engine, drafting(plain, *speculation, draft=small_draft_path))
            assert found.text == expected.text and found.counters and found.counters.drafted > 0

    def test_no_prompt_is_kept_from_request_to_request(self, engine: LlamaCppEngine, plain: Settings) -> None:
        engine.start(plain)
        assert engine.complete(SHORT).text == engine.complete(SHORT).text
        counted = httpx.get(f"{url_of(engine)}/metrics").text
        assert "llamacpp:prompt_tokens_cached_total 0" in counted

    def test_stopping_ends_the_server_and_it_can_be_started_again(
        self, engine: LlamaCppEngine, plain: Settings
    ) -> None:
        for _ in range(2):
            engine.start(plain)
            server = process_of(engine)
            assert server.is_running()
            engine.stop()
            engine.stop()
            assert not server.is_running()

    def test_a_server_does_not_outlive_who_started_it(self, plain: Settings) -> None:
        ended_at_once = subprocess.run(
            [sys.executable, "-c", ORPHANING.format(settings=plain)], capture_output=True, text=True, check=True
        )
        server = int(ended_at_once.stdout)
        psutil.wait_procs(still_there(server), timeout=5)
        assert not still_there(server)

    def test_two_requests_at_once_have_a_context_each(self, engine: LlamaCppEngine, plain: Settings) -> None:
        engine.start(replace(plain, parallel=2))
        slots = httpx.get(f"{url_of(engine)}/slots").json()
        assert [slot["n_ctx"] for slot in slots] == [plain.n_ctx] * 2
        with ThreadPoolExecutor(2) as pool:
            one, two = pool.map(engine.complete, (SHORT, SHORT))
        assert one.text == two.text and one.n_tokens == SHORT.n_tokens

    def test_ctrl_c_while_it_loads_leaves_nothing_behind(self, engine: LlamaCppEngine, plain: Settings) -> None:
        seen: list[psutil.Process] = []

        def interrupt(line: str) -> None:
            seen.append(process_of(engine))
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            engine.start(plain, interrupt)
        assert not seen[0].is_running()

    def test_a_server_that_dies_is_told_with_its_last_lines(self, engine: LlamaCppEngine, plain: Settings) -> None:
        engine.start(plain)
        process_of(engine).kill()
        said = r"(?s)llama\.cpp ended while it answered \(exit status -9\).*Its last lines:.*listening"
        with pytest.raises(EngineError, match=said):
            engine.complete(SHORT)

    def test_a_model_that_is_not_there(self, engine: LlamaCppEngine) -> None:
        with pytest.raises(EngineError, match=r"(?s)ended before it was ready.*failed to load model.*/nowhere/m\.gguf"):
            engine.start(Settings("/nowhere/m.gguf", n_ctx=512, n_threads=1))

    def test_a_pair_that_llama_cpp_silently_does_without_is_an_error(
        self, engine: LlamaCppEngine, plain: Settings, tmp_path: Path
    ) -> None:
        other = write_tiny(tmp_path / "other.gguf", "llama")
        wanted = drafting(plain, Speculation("draft-simple", 4), Speculation("ngram-simple"), draft=other)
        refused = next(o for o in engine.speculative_options(wanted) if o.kind == "draft-simple").why_not
        assert refused
        with pytest.raises(EngineError) as caught:
            engine.start(wanted)
        said = f"llama.cpp decodes plainly instead of draft-simple n 4 + ngram-simple: {refused}."
        assert caught.value.message == said
        assert engine._server is None

    def test_layers_that_the_model_lacks_end_the_server(self, engine: LlamaCppEngine, plain: Settings) -> None:
        with pytest.raises(EngineError, match="failed to create MTP context"):
            engine.start(drafting(plain, Speculation("draft-mtp", 2)))


@pytest.mark.model
class TestAttached:
    def test_a_running_server_answers_as_what_it_is(
        self, engine: LlamaCppEngine, guest: LlamaCppEngine, plain: Settings
    ) -> None:
        engine.start(drafting(plain, Speculation("ngram-cache")))
        guest.attach(f"{url_of(engine)}/v1")
        found = {option.kind: option for option in guest.speculative_options(plain)}
        assert found["ngram-cache"] == Option("ngram-cache")
        assert "start one more server with --spec-type ngram-mod" in found["ngram-mod"].why_not
        guest.start(drafting(plain, Speculation("ngram-cache")))
        answered, totals = guest.complete(REPEATS).counters, guest.counters()
        assert answered and totals and totals == engine.counters()
        assert answered.accepted == totals.accepted > 0 and totals.drafts
        guest.stop()
        assert process_of(engine).is_running() and engine.complete(SHORT).text

    def test_what_it_cannot_be_asked_for_is_refused(
        self, engine: LlamaCppEngine, guest: LlamaCppEngine, plain: Settings
    ) -> None:
        engine.start(drafting(plain, Speculation("ngram-map-k")))
        guest.attach(url_of(engine))
        said = r"runs ngram-map-k, and llama\.cpp cannot be asked for plain decoding.*Start a second one without"
        with pytest.raises(InputError, match=said):
            guest.start(plain)
        with pytest.raises(InputError, match=r"cannot be asked for ngram-map-k n 4 while.*--spec-ngram-map-k-size-m 4"):
            guest.start(drafting(plain, Speculation("ngram-map-k", 4)))


@pytest.mark.model
class TestProgram:
    def test_any_llama_server_is_run_by_its_own_flags(self, plain: Settings, tmp_path: Path) -> None:
        path = tmp_path / "llama-server"
        path.write_text(PROGRAM.format(python=sys.executable, help=HELP_OF_B11549))
        path.chmod(0o755)
        engine = LlamaCppEngine(str(path))
        assert engine.version == "b11549"
        wanted = drafting(plain, Speculation("ngram-map-k", 8))
        (rendered,) = engine.render(wanted)
        try:
            engine.start(wanted)
            assert engine._server is not None
            asked = next(line for line in engine._server.last_lines(100) if line.startswith("asked with"))
            found = engine.complete(LOOPS)
        finally:
            engine.stop()
        assert found.counters and found.counters.accepted > 0
        shared = rendered.text.strip().removeprefix(str(path))
        assert asked.startswith(f"asked with{shared} --host 127.0.0.1 --port ") and asked.endswith(" --metrics")
