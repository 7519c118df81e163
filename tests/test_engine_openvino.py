"""OpenVINO GenAI without OpenVINO: its settings as written down, and its end of the pipe with a stand-in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fake_packages
import pytest
from gguf_files import TOKENS, write_gguf

from slipstream.engines.openvino import OpenVinoEngine
from slipstream.engines.protocol import Counters, Request, Settings, Speculation
from slipstream.errors import EngineError, InputError

LIBRARY = """
import json

class StreamingStatus:
    RUNNING = 0

class StreamerBase:
    pass

class SchedulerConfig:
    enable_prefix_caching = True

class GenerationConfig:
    pass

class ChatHistory(list):
    pass

def draft_model(*where, **threads):
    return [*where, threads]

class Metrics:
    def get_num_draft_tokens(self):
        return 10

    def get_num_accepted_tokens(self):
        return 7

class Done:
    pass

class LLMPipeline:
    def __init__(self, *where, scheduler_config, **how):
        self.how = [where, scheduler_config.enable_prefix_caching, how]
        self.metrics = Metrics() if "draft_model" in how else None

    def generate(self, messages, config, streamer):
        streamer.write(1)
        streamer.write([2, 3, 4])
        streamer.end()
        done = Done()
        done.texts = [json.dumps([self.how, messages, vars(config)])]
        done.extended_perf_metrics = self.metrics
        return done
"""

MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "packages"
    folder.mkdir()
    fake_packages.install(monkeypatch, folder, "openvino-genai", "2026.4", {"openvino_genai.py": LIBRARY})
    engine = OpenVinoEngine()
    yield engine
    engine.stop()


@pytest.fixture
def exported(tmp_path: Path) -> str:
    folder = tmp_path / "exported"
    folder.mkdir()
    (folder / "openvino_model.xml").touch()
    return str(folder)


def answered(engine: OpenVinoEngine, settings: Settings, temperature: float = 0.0) -> tuple[Any, Counters | None]:
    engine.start(settings)
    answer = engine.complete(Request(MESSAGES, 16, temperature, 5))
    assert [n for _, n in answer.arrivals] == [1, 4] and answer.n_tokens == 4
    return json.loads(answer.text), answer.counters


def test_plain_decoding_without_a_prompt_cache(engine: OpenVinoEngine) -> None:
    (how, messages, config), counters = answered(engine, Settings("m.gguf", n_threads=1))
    assert how == [["m.gguf", "CPU"], False, {"INFERENCE_NUM_THREADS": 1}]
    assert messages == MESSAGES and config == {"max_new_tokens": 16, "do_sample": False}
    assert counters is None and engine.counters() is None and engine.version == "2026.4"


def test_sampling_by_its_seed(engine: OpenVinoEngine) -> None:
    (_, _, config), _ = answered(engine, Settings("m.gguf"), 0.5)
    assert config == {"max_new_tokens": 16, "do_sample": True, "temperature": 0.5, "rng_seed": 5}


def test_prompt_lookup(engine: OpenVinoEngine) -> None:
    (how, _, config), counters = answered(engine, Settings("m.gguf", (Speculation("prompt_lookup", 3),)))
    assert how[2] == {"prompt_lookup": True}
    assert (config["num_assistant_tokens"], config["max_ngram_size"]) == (3, 3)
    assert counters is None


def test_a_draft_model_and_what_it_counts(engine: OpenVinoEngine, exported: str) -> None:
    settings = Settings("m.gguf", (Speculation("draft_model", 4),), draft=exported, n_threads=2)
    (how, _, config), counters = answered(engine, settings)
    threads = {"INFERENCE_NUM_THREADS": 2}
    assert how[2] == {"draft_model": [exported, "CPU", threads], **threads}
    assert config["num_assistant_tokens"] == 4
    assert counters == Counters(10, 7) == engine.counters()


def test_its_options(engine: OpenVinoEngine, exported: str) -> None:
    draft, lookup = engine.speculative_options(Settings("m.gguf", draft=exported))
    assert (draft.kind, draft.needs_draft, draft.why_not) == ("draft_model", True, "")
    assert (lookup.kind, lookup.needs_draft, lookup.why_not) == ("prompt_lookup", False, "")
    draft, lookup = engine.speculative_options(Settings("m.gguf"))
    assert draft.why_not == "no draft model was given" and not lookup.why_not
    draft, lookup = engine.speculative_options(Settings("m.gguf", draft="d.gguf"))
    assert "from a folder with openvino_model.xml alone, and d.gguf is none" in draft.why_not
    draft, lookup = engine.speculative_options(Settings("org/model", draft=exported))
    assert "org/model is neither" in draft.why_not and "org/model is neither" in lookup.why_not


@pytest.mark.parametrize(("eos", "why_not"), [(1, "it would draft nonsense"), (2, "the EOS token is 1 and 2")])
def test_a_draft_of_other_tokens(engine: OpenVinoEngine, tmp_path: Path, exported: str, eos: int, why_not: str) -> None:
    model = write_gguf(tmp_path / "m.gguf")
    others = {token: i for i, token in enumerate([*TOKENS[:-1], "other"])}
    config = {"vocab_size": len(others), "bos_token_id": 0, "eos_token_id": eos}
    (Path(exported) / "config.json").write_text(json.dumps(config))
    (Path(exported) / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": others}}))
    draft, lookup = engine.speculative_options(Settings(str(model), draft=exported))
    assert why_not in draft.why_not and not lookup.why_not


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        (Settings("org/model"), "org/model is neither. Export it: optimum-cli"),
        (Settings("m.gguf", (Speculation("draft_model"),)), "needs a draft"),
        (Settings("m.gguf", (Speculation("draft_model"),), draft="d.gguf"), "enable_save_ov_model=True"),
        (Settings("m.gguf", (Speculation("draft_model"),), draft="org/draft"), "org/draft is none. Export it"),
        (Settings("m.gguf", (Speculation("prompt_lookup", p_min=0.5),)), "no confidence, and p 0.5"),
        (Settings("m.gguf", (Speculation("mtp"),)), "knows no speculation 'mtp'"),
        (Settings("m.gguf", (Speculation("mtp"), Speculation("prompt_lookup"))), "one speculation at a time"),
    ],
)
def test_what_it_cannot_take(engine: OpenVinoEngine, settings: Settings, error: str) -> None:
    for refuses in (engine.start, engine.render):
        with pytest.raises(InputError, match=error):
            refuses(settings)


def test_a_length_and_a_threshold_exclude_each_other(engine: OpenVinoEngine, exported: str) -> None:
    def rendered(n_max: int | None, p_min: float | None) -> str:
        settings = Settings("m.gguf", (Speculation("draft_model", n_max, p_min),), draft=exported)
        return engine.render(settings)[0].text

    assert "config.assistant_confidence_threshold = 0.4\n" in rendered(None, 0.4)
    with pytest.raises(InputError, match=r"not both \(draft_model n 5 p 0\.4\)"):
        rendered(5, 0.4)


def test_not_installed() -> None:
    engine = OpenVinoEngine()
    for asks in (engine.start, engine.speculative_options):
        with pytest.raises(EngineError, match=r"OpenVINO GenAI is not installed here.*pip install openvino-genai"):
            asks(Settings("m.gguf"))
    assert engine.render(Settings("m.gguf"))


PLAIN = """\
import openvino_genai

pipeline = openvino_genai.LLMPipeline(
    'm.gguf',
    'CPU',
)
config = openvino_genai.GenerationConfig()
config.max_new_tokens = 512
messages = [{"role": "user", "content": "Name three rivers of Europe."}]
print(pipeline.generate(openvino_genai.ChatHistory(messages), config).texts[0])
"""

LOOKUP = """\
import openvino_genai

pipeline = openvino_genai.LLMPipeline(
    'm.gguf',
    'CPU',
    prompt_lookup=True,
    INFERENCE_NUM_THREADS=2,
)
config = openvino_genai.GenerationConfig()
config.max_new_tokens = 512
config.num_assistant_tokens = 5
config.max_ngram_size = 3
messages = [{"role": "user", "content": "Name three rivers of Europe."}]
print(pipeline.generate(openvino_genai.ChatHistory(messages), config).texts[0])
"""

DRAFT = """\
import openvino_genai

pipeline = openvino_genai.LLMPipeline(
    'm.gguf',
    'CPU',
    draft_model=openvino_genai.draft_model('FOLDER', 'CPU', INFERENCE_NUM_THREADS=2),
    INFERENCE_NUM_THREADS=2,
)
config = openvino_genai.GenerationConfig()
config.max_new_tokens = 512
config.num_assistant_tokens = 8
messages = [{"role": "user", "content": "Name three rivers of Europe."}]
print(pipeline.generate(openvino_genai.ChatHistory(messages), config).texts[0])
"""


@pytest.mark.parametrize(
    ("speculation", "n_threads", "expected"),
    [
        ((), None, PLAIN),
        ((Speculation("prompt_lookup", 5),), 2, LOOKUP),
        ((Speculation("draft_model", 8),), 2, DRAFT),
    ],
)
def test_settings_as_written_down(
    speculation: tuple[Speculation, ...], n_threads: int | None, expected: str, exported: str
) -> None:
    settings = Settings("m.gguf", speculation, draft=exported, n_threads=n_threads)
    [rendering] = OpenVinoEngine().render(settings)
    assert rendering.text == expected.replace("FOLDER", exported)
    assert (rendering.title, rendering.language, rendering.file_name) == ("Python", "python", "openvino_speculation.py")
    compile(rendering.text, rendering.file_name, "exec")
