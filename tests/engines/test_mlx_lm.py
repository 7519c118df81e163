"""MLX-LM for real: `mlx_lm.server` plain and with a draft model, which is the target itself: all it drafts is right."""

from __future__ import annotations

import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from asking import ask, printed, running

from slipstream.engines.mlx_lm import MlxLmEngine
from slipstream.engines.process import ServerProcess, free_port
from slipstream.engines.protocol import Answer, Settings, Speculation
from slipstream.errors import EngineError

N_TOKENS = 20
"""Its kernels for a CPU are slow."""


@pytest.fixture(scope="module")
def engine(mlx_python: str) -> MlxLmEngine:
    return MlxLmEngine(mlx_python)


@pytest.fixture(scope="module")
def plain(engine: MlxLmEngine, hf_model: str) -> Answer:
    with running(engine, Settings(hf_model)):
        answer = ask(engine, N_TOKENS)
        assert engine.counters() is None
    return answer


def test_it_is_installed_with_a_version(engine: MlxLmEngine, hf_model: str) -> None:
    assert engine.version.startswith("0.")
    [option] = engine.speculative_options(Settings(hf_model, draft=hf_model))
    assert not option.why_not


def test_plain_tokens_come_one_by_one(plain: Answer) -> None:
    assert plain.n_tokens == N_TOKENS and plain.tokens_per_s is not None
    assert len(plain.arrivals) > N_TOKENS / 2


def test_a_draft_model_writes_the_same_and_its_tokens_come_together(
    plain: Answer, engine: MlxLmEngine, hf_model: str
) -> None:
    with running(engine, Settings(hf_model, (Speculation("draft_model", 4),), draft=hf_model)):
        answer = ask(engine, N_TOKENS)
    assert answer.text == plain.text and answer.n_tokens == plain.n_tokens
    times = [seconds for seconds, _ in answer.arrivals]
    between = [later - earlier for earlier, later in pairwise(times)]
    at_once = sum(gap < max(between) / 10 for gap in between)
    assert at_once > len(between) / 2


def test_the_command_as_written_runs_and_is_attached_to(
    plain: Answer, engine: MlxLmEngine, hf_model: str, mlx_python: str
) -> None:
    """Started with a draft; asked for plain decoding, it takes the draft away."""
    settings = Settings(hf_model, (Speculation("draft_model", 2),), draft=hf_model)
    program, *words = shlex.split(engine.render(settings)[0].text)
    port = free_port()
    server = ServerProcess("MLX-LM", [str(Path(mlx_python).parent / program), *words, "--port", str(port)])
    other = MlxLmEngine()
    try:
        server.wait_ready(f"http://127.0.0.1:{port}/health", 60)
        other.attach(f"http://127.0.0.1:{port}/v1")
        other.start(Settings(hf_model))
        assert ask(other, N_TOKENS).text == plain.text
        other.stop()
        assert server.is_running
    finally:
        other.stop()
        server.stop()


def test_the_program_as_written_runs(engine: MlxLmEngine, hf_model: str, mlx_python: str) -> None:
    settings = Settings(hf_model, (Speculation("draft_model", 2),), draft=hf_model)
    assert printed(mlx_python, engine.render(settings)[-1])


def test_a_model_that_is_not_there_fails_with_the_last_lines(engine: MlxLmEngine, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"config\.json"):
        engine.start(Settings(str(tmp_path)))
    engine.stop()
