"""transformers for real: plain, prompt lookup and assisted by a draft model write the same, and are counted right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from asking import ask, printed, running

from slipstream.engines.protocol import Answer, Engine, Settings, Speculation
from slipstream.engines.transformers import TransformersEngine
from slipstream.errors import EngineError


@pytest.fixture(scope="module")
def engine(transformers_python: str) -> TransformersEngine:
    return TransformersEngine(transformers_python)


@pytest.fixture(scope="module")
def plain(engine: Engine, hf_model: str) -> Answer:
    with running(engine, Settings(hf_model, n_threads=1)):
        answer = ask(engine)
        assert engine.counters() is None
    return answer


def test_it_is_installed_with_a_version(engine: Engine, hf_model: str) -> None:
    assert int(engine.version.split(".")[0]) >= 5
    options = {option.kind: option for option in engine.speculative_options(Settings(hf_model, draft=hf_model))}
    assert not options["assistant_model"].why_not and not options["prompt_lookup"].why_not


def test_plain_decoding_brings_one_token_a_round(plain: Answer) -> None:
    assert [n for _, n in plain.arrivals] == list(range(1, plain.n_tokens + 1))
    assert plain.counters is None


def test_a_draft_model_that_is_the_target_is_always_right(plain: Answer, engine: Engine, hf_model: str) -> None:
    speculation = (Speculation("assistant_model", 4, 0.0),)
    with running(engine, Settings(hf_model, speculation, draft=hf_model, n_threads=1)):
        answer = ask(engine)
        assert engine.counters() == answer.counters
    assert answer.text == plain.text
    counters = answer.counters
    assert counters is not None and counters.drafts == len(answer.arrivals)
    # The end of the text is drafted too, and taken for what the target adds.
    assert counters.accepted > 0 and counters.drafted - counters.accepted == 1
    assert counters.conditional()[1:] == (1.0, 1.0, 1.0)
    assert counters.accepted + len(answer.arrivals) == answer.n_tokens


def test_prompt_lookup_writes_the_same_in_fewer_rounds(plain: Answer, engine: Engine, hf_model: str) -> None:
    with running(engine, Settings(hf_model, (Speculation("prompt_lookup", 8),), n_threads=1)):
        answer, again = ask(engine), ask(engine)
        totals = engine.counters()
    assert answer.text == again.text == plain.text
    counters = answer.counters
    assert counters is not None and again.counters == counters and totals == counters + counters
    assert len(answer.arrivals) < len(plain.arrivals) / 2
    assert counters.accepted + len(answer.arrivals) == answer.n_tokens
    assert 0 < counters.accepted <= counters.drafted <= 8 * len(answer.arrivals)
    assert sum(counters.accepted_at) == counters.accepted and sum(counters.drafted_at) == counters.drafted


def test_a_gguf_file_is_read_and_writes_what_its_weights_write(
    plain: Answer, engine: Engine, smollm2_path: Path
) -> None:
    with running(engine, Settings(str(smollm2_path), n_threads=1)):
        assert ask(engine).text == plain.text


def test_the_programs_as_written_run(engine: Engine, hf_model: str, transformers_python: str) -> None:
    settings = Settings(hf_model, n_threads=1)
    assisted = replace(settings, speculation=(Speculation("assistant_model", 4, 0.5),), draft=hf_model)
    lookup = replace(settings, speculation=(Speculation("prompt_lookup", 4),))
    said = {printed(transformers_python, engine.render(some)[0]) for some in (settings, assisted, lookup)}
    assert len(said) == 1 and said != {""}


def test_a_model_that_is_not_there_fails_with_the_librarys_words(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"transformers: \w+Error: .*config\.json"):
        engine.start(Settings(str(tmp_path)))
    engine.stop()
