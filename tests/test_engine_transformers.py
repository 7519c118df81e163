"""transformers without transformers: its settings as written down, and how its rounds are counted."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gguf_files import TOKENS, write_gguf

from slipstream.engines.child import FOLDER, answer_of
from slipstream.engines.protocol import Counters, Settings, Speculation
from slipstream.engines.transformers import TransformersEngine
from slipstream.errors import EngineError, InputError

ASSISTED = Settings("org/big", (Speculation("assistant_model", 8, 0.7),), draft="org/small")
LOOKUP = Settings("folder/m.gguf", (Speculation("prompt_lookup"),), n_threads=2)


class Target:
    """A model of which only the widths of its passes are real."""

    def __init__(self) -> None:
        self.hook: Callable[..., None] | None = None

    def register_forward_pre_hook(self, hook: Callable[..., None], with_kwargs: bool) -> None:
        assert with_kwargs
        self.hook = hook

    def passed(self, n: int) -> None:
        assert self.hook is not None
        self.hook(self, (), {"input_ids": rows(n)})


def rows(n: int) -> Any:
    return SimpleNamespace(shape=(1, n), device="cpu")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program of the other environment, with torch as far as its counting asks for it."""
    torch = SimpleNamespace(zeros=lambda n, dtype, device: [False] * n, bool=bool)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.syspath_prepend(FOLDER)
    found = importlib.util.spec_from_file_location("run_transformers", FOLDER / "run_transformers.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    yield module
    sys.modules.pop("pipe", None)


def test_rounds_are_counted_by_the_widths_of_passes(script: Any) -> None:
    told: list[dict[str, Any]] = []
    target = Target()
    watch = script.Watch(target)
    for _ in range(2):  # the second request counts anew
        told.clear()
        watch.begin(10, script.Rounds(told.append))
        # (tokens in the pass, length of the text after it): the prompt with two drafted, one accepted; no draft;
        # four drafted, all accepted; three drafted, none accepted
        for n_in, n_text in ((12, 12), (1, 13), (5, 18), (4, 19)):
            target.passed(n_in)
            assert watch(rows(n_text), None) == [False]
        answer = answer_of({"text": "", "n_tokens": 9, "counters": watch.counters()}, [])
        assert answer.counters == Counters(9, 5, 3, accepted_at=(2, 1, 1, 1), drafted_at=(3, 3, 2, 1))
        assert [said["n"] for said in told] == [2, 3, 8, 9]


def test_a_prompt_that_is_read_in_parts_counts_as_one_pass(script: Any) -> None:
    target = Target()
    watch = script.Watch(target)
    watch.begin(10, script.Rounds(lambda said: None))
    target.passed(10)
    watch(rows(11), None)
    assert watch.counters() == {"drafted": 0, "accepted": 0, "drafts": 0, "drafted_at": [], "accepted_at": []}


def test_what_is_loaded() -> None:
    engine = TransformersEngine()
    assert engine._options(ASSISTED) == {
        "model": "org/big",
        "draft": "org/small",
        "generate": {},
        "assistant": {
            "num_assistant_tokens": 8,
            "num_assistant_tokens_schedule": "constant",
            "assistant_confidence_threshold": 0.7,
        },
        "n_threads": None,
    }
    assert engine._options(LOOKUP)["generate"] == {"prompt_lookup_num_tokens": 10}
    assert engine._options(Settings("org/big", draft="org/small"))["draft"] is None


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        (Settings("m", (Speculation("assistant_model"),)), "needs a draft"),
        (Settings("m", (Speculation("prompt_lookup", p_min=0.5),)), "no confidence, and p 0.5"),
        (Settings("m", (Speculation("mtp"),)), "knows no speculation 'mtp'"),
    ],
)
def test_what_it_cannot_take(settings: Settings, error: str) -> None:
    with pytest.raises(InputError, match=error):
        TransformersEngine().render(settings)


def test_not_installed() -> None:
    engine = TransformersEngine()
    for asks in (engine.start, engine.speculative_options):
        with pytest.raises(EngineError, match=r"transformers is not installed here.*pip install torch transformers"):
            asks(Settings("m"))
    with pytest.raises(EngineError, match="not installed in the environment of"):
        TransformersEngine(sys.executable)


class TestOptions:
    @pytest.fixture
    def engine(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> TransformersEngine:
        import fake_packages

        fake_packages.install(monkeypatch, tmp_path, "transformers", "5.24.0", {})
        return TransformersEngine()

    def test_both_kinds_of_a_fitting_pair(self, engine: TransformersEngine, tmp_path: Path) -> None:
        model = str(write_gguf(tmp_path / "m.gguf"))
        assistant, lookup = engine.speculative_options(Settings(model, draft=model))
        assert (assistant.kind, assistant.needs_draft, assistant.why_not) == ("assistant_model", True, "")
        assert (lookup.kind, lookup.needs_draft, lookup.why_not) == ("prompt_lookup", False, "")
        assert engine.version == "5.24.0"

    def test_without_a_draft(self, engine: TransformersEngine) -> None:
        assistant, lookup = engine.speculative_options(Settings("org/big"))
        assert assistant.why_not == "no draft model was given" and not lookup.why_not

    def test_models_that_are_not_here_are_not_judged(self, engine: TransformersEngine) -> None:
        assert not engine.speculative_options(Settings("org/big", draft="org/small"))[0].why_not

    def test_equal_size_that_hides_other_tokens(self, engine: TransformersEngine, tmp_path: Path) -> None:
        target = write_gguf(tmp_path / "m.gguf")
        draft = write_gguf(tmp_path / "d.gguf", tokens=["other", *TOKENS[1:]])
        assistant, _ = engine.speculative_options(Settings(str(target), draft=str(draft)))
        assert "Equal size hides different tokens" in assistant.why_not


PLAIN_TEXT = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained('org/big')
model = AutoModelForCausalLM.from_pretrained('org/big', dtype="auto", device_map="auto")

messages = [{"role": "user", "content": "Name three rivers of Europe."}]
prompt = tokenizer.apply_chat_template(
    messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
).to(model.device)
text = model.generate(**prompt, max_new_tokens=512)
print(tokenizer.decode(text[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))
"""

ASSISTED_TEXT = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained('org/big')
model = AutoModelForCausalLM.from_pretrained('org/big', dtype="auto", device_map="auto")
assistant = AutoModelForCausalLM.from_pretrained('org/small', dtype="auto", device_map="auto")
assistant.generation_config.num_assistant_tokens = 8
assistant.generation_config.num_assistant_tokens_schedule = 'constant'
assistant.generation_config.assistant_confidence_threshold = 0.7

messages = [{"role": "user", "content": "Name three rivers of Europe."}]
prompt = tokenizer.apply_chat_template(
    messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
).to(model.device)
text = model.generate(**prompt, max_new_tokens=512, assistant_model=assistant)
print(tokenizer.decode(text[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))
"""

LOOKUP_TEXT = """\
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

torch.set_num_threads(2)
tokenizer = AutoTokenizer.from_pretrained('folder', gguf_file='m.gguf')
model = AutoModelForCausalLM.from_pretrained('folder', gguf_file='m.gguf', dtype="auto", device_map="auto")

messages = [{"role": "user", "content": "Name three rivers of Europe."}]
prompt = tokenizer.apply_chat_template(
    messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
).to(model.device)
text = model.generate(**prompt, max_new_tokens=512, prompt_lookup_num_tokens=10)
print(tokenizer.decode(text[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))
"""


@pytest.mark.parametrize(
    ("settings", "expected"),
    [(Settings("org/big"), PLAIN_TEXT), (ASSISTED, ASSISTED_TEXT), (LOOKUP, LOOKUP_TEXT)],
)
def test_settings_as_written_down(settings: Settings, expected: str) -> None:
    [rendering] = TransformersEngine().render(settings)
    assert rendering.text == expected
    assert (rendering.title, rendering.language) == ("Python", "python")
    compile(rendering.text, rendering.file_name, "exec")
