"""OpenVINO GenAI for real: plain, prompt lookup and a draft model, from a GGUF file and from a folder."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import pytest
from asking import ask, printed, running

from slipstream.engines.openvino import OpenVinoEngine
from slipstream.engines.protocol import Answer, Settings, Speculation
from slipstream.errors import EngineError

EXPORT = """
import sys
from openvino_genai import LLMPipeline

LLMPipeline(sys.argv[1], "CPU", enable_save_ov_model=True)
"""


@pytest.fixture(scope="module")
def engine(openvino_python: str) -> OpenVinoEngine:
    return OpenVinoEngine(openvino_python)


@pytest.fixture(scope="module")
def exported(openvino_python: str, smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The demo model as OpenVINO writes it down beside the file that it loads."""
    folder = tmp_path_factory.mktemp("openvino")
    (folder / "model.gguf").symlink_to(smollm2_path)
    subprocess.run([openvino_python, "-c", EXPORT, str(folder / "model.gguf")], check=True, capture_output=True)
    return str(folder)


@pytest.fixture(scope="module")
def plain(engine: OpenVinoEngine, smollm2_path: Path) -> Answer:
    with running(engine, Settings(str(smollm2_path), n_threads=1)):
        answer, again = ask(engine), ask(engine)
        assert engine.counters() is None
    assert again.text == answer.text
    assert again.ttft_s > 2 * again.decode_s / again.n_tokens, "the prompt is read anew"
    return answer


def test_it_is_installed_with_a_version(engine: OpenVinoEngine, smollm2_path: Path, exported: str) -> None:
    assert engine.version.startswith("2026.")
    options = engine.speculative_options(Settings(str(smollm2_path), draft=exported))
    assert [option.why_not for option in options] == ["", ""]


def test_plain_decoding_brings_one_token_a_round(plain: Answer) -> None:
    assert [n for _, n in plain.arrivals] == list(range(1, plain.n_tokens + 1))


def test_prompt_lookup_writes_the_same_in_fewer_rounds(
    plain: Answer, engine: OpenVinoEngine, smollm2_path: Path
) -> None:
    with running(engine, Settings(str(smollm2_path), (Speculation("prompt_lookup", 5),), n_threads=1)):
        answer = ask(engine)
        assert answer.counters is None and engine.counters() is None
    assert _agrees(answer, plain)
    assert len(answer.arrivals) < 0.7 * answer.n_tokens


def test_a_draft_model_that_is_the_target_is_nearly_always_right(
    plain: Answer, engine: OpenVinoEngine, smollm2_path: Path, exported: str
) -> None:
    settings = Settings(str(smollm2_path), (Speculation("draft_model", 4),), draft=exported, n_threads=1)
    with running(engine, settings):
        answer = ask(engine)
        assert engine.counters() == answer.counters
    assert _agrees(answer, plain)
    counters = answer.counters
    assert counters is not None and counters.acceptance_rate is not None and counters.acceptance_rate > 0.7
    # Its figures leave out the last round, which may have accepted all four.
    accepted = answer.n_tokens - len(answer.arrivals)
    assert accepted - 4 <= counters.accepted <= accepted


def test_a_folder_is_run_like_the_file(plain: Answer, engine: OpenVinoEngine, exported: str) -> None:
    with running(engine, Settings(exported, n_threads=1)):
        assert _agrees(ask(engine), plain)


def test_the_programs_as_written_run(
    engine: OpenVinoEngine, smollm2_path: Path, exported: str, openvino_python: str
) -> None:
    settings = Settings(str(smollm2_path), n_threads=1)
    drafted = replace(settings, speculation=(Speculation("draft_model", 4),), draft=exported)
    by_confidence = replace(settings, speculation=(Speculation("draft_model", p_min=0.5),), draft=exported)
    lookup = replace(settings, speculation=(Speculation("prompt_lookup", 4),))
    for some in (drafted, by_confidence, lookup):
        assert printed(openvino_python, engine.render(some)[0])


def test_a_damaged_file_fails_with_the_librarys_words(engine: OpenVinoEngine, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes(64))
    with pytest.raises(EngineError, match=r"OpenVINO GenAI(: \w+Error| ended)"):
        engine.start(Settings(str(tmp_path / "m.gguf")))
    engine.stop()


def _agrees(answer: Answer, plain: Answer) -> bool:
    """The same text, or one that parts behind its first sentence.

    OpenVINO keeps keys and values in eight bits and computes wider passes by other kernels: texts part, where depends
    on the processor.
    """
    pairs = zip(answer.text, plain.text, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) >= len(plain.text.partition(".")[0])
