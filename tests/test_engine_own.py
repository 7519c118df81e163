"""slipstream as an engine among others, with the demo model and one thread."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gguf_files import write_gguf

from slipstream.decoding.statistics import Round, Statistics
from slipstream.engines.own import SlipstreamEngine, counted
from slipstream.engines.protocol import Counters, Option, Request, Settings, Speculation
from slipstream.errors import EngineError, InputError

LOOPS = Request(({"role": "user", "content": "Write the word hello one hundred times."},), 40)


@pytest.fixture
def engine(own_cache: Path) -> Iterator[SlipstreamEngine]:
    engine = SlipstreamEngine()
    yield engine
    engine.stop()


def settings(model: str | Path, *kinds: str, draft: Path | None = None) -> Settings:
    speculation = tuple(Speculation(kind) for kind in kinds)
    return Settings(str(model), speculation, str(draft) if draft else None, n_ctx=512, n_threads=1)


@pytest.mark.model
class TestRunning:
    def test_every_kind_writes_the_plain_text_and_counts_its_drafts(
        self, engine: SlipstreamEngine, smollm2_path: Path, small_draft_path: Path
    ) -> None:
        doing: list[str] = []
        engine.start(settings(smollm2_path), doing.append)
        expected = engine.complete(LOOPS)
        assert expected.n_tokens == 40 and expected.counters == Counters(drafts=0)
        assert any(line.startswith("loading") for line in doing)
        assert expected.arrivals[-1][1] == 40
        assert expected.ttft_s + expected.decode_s >= expected.arrivals[-1][0] > expected.ttft_s > 0
        engine.stop()
        for kind in "suffix", "auto", "model":
            engine.start(settings(smollm2_path, kind, draft=small_draft_path))
            found, totals = engine.complete(LOOPS), engine.counters()
            assert found.text == expected.text
            assert totals is not None and found.counters == totals
            assert sum(totals.accepted_at) == totals.accepted <= totals.drafted
            # Whether a model of six layers is worth asking within 40 tokens, the machine decides.
            assert totals.accepted > 0 or kind == "model"
            assert None not in totals.conditional()
            engine.stop()

    def test_nothing_is_cached_from_request_to_request(
        self, engine: SlipstreamEngine, smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine.start(settings(smollm2_path))
        llm, streamed = engine._llm, []
        assert llm is not None
        stream = llm.stream
        monkeypatch.setattr(llm, "stream", lambda *given: streamed.append(stream(*given)) or streamed[-1])
        assert engine.complete(LOOPS).text == engine.complete(LOOPS).text
        assert [generation.statistics.n_cached for generation in streamed] == [0, 0]
        assert engine.counters() == Counters(drafts=0)

    def test_only_what_is_asked_for_drafts(
        self, engine: SlipstreamEngine, smollm2_path: Path, small_draft_path: Path
    ) -> None:
        by_kind = {"suffix": ["suffix"], "model": ["model"], "auto": ["suffix", "model"]}
        for kind, expected in by_kind.items():
            engine.start(settings(smollm2_path, kind, draft=small_draft_path))
            assert engine._llm is not None
            assert [drafter.name for drafter in engine._llm.drafters] == expected
            engine.stop()

    def test_a_prompt_that_is_too_long_is_an_error_of_the_engine(
        self, engine: SlipstreamEngine, smollm2_path: Path
    ) -> None:
        engine.start(settings(smollm2_path))
        with pytest.raises(EngineError, match="the context holds 512"):
            engine.complete(Request(({"role": "user", "content": "word " * 600},), 8))
        assert engine.complete(Request(({"role": "user", "content": "Hello"},), 2)).n_tokens == 2


def test_a_model_that_is_not_there(engine: SlipstreamEngine) -> None:
    with pytest.raises(EngineError, match=r"There is no file /nowhere/m\.gguf"):
        engine.start(settings("/nowhere/m.gguf"))
    engine.stop()


def test_counters_are_those_of_the_statistics() -> None:
    statistics = Statistics()
    statistics.first(0.1)
    for tokens, drafted, accepted in ((1, 2, 3), 3, 2), ((4,), 2, 0), ((5,), 0, 0), ((6, 7), 1, 1):
        drafter = "suffix" if drafted else ""
        statistics.add(Round(0, tokens, drafted, accepted, drafter, drafted + 1, drafted + 1, 10, 0, 0.1, 0.1), 0.1)
    found = counted(statistics)
    assert (found.drafted, found.accepted, found.drafts) == (6, 3, 3)
    assert found.conditional() == (2 / 3, 1.0, 0.0) == tuple(statistics.acceptance_by_position)
    assert found.mean_tokens_a_pass(statistics.n_decoded) == statistics.mean_tokens_per_pass == 7 / 4


class TestOptions:
    def test_without_a_draft_auto_is_the_suffix_drafter(self, engine: SlipstreamEngine, tmp_path: Path) -> None:
        auto, suffix, model = engine.speculative_options(settings(write_gguf(tmp_path / "m.gguf")))
        assert auto == Option("auto")
        assert "same as auto" in suffix.why_not and model.why_not == "no draft model is given"

    def test_with_a_draft_there_are_three(self, engine: SlipstreamEngine, tmp_path: Path) -> None:
        path, draft = write_gguf(tmp_path / "m.gguf"), write_gguf(tmp_path / "d.gguf")
        assert engine.speculative_options(settings(path, draft=draft)) == (
            Option("auto", needs_draft=True),
            Option("suffix"),
            Option("model", needs_draft=True),
        )

    def test_a_draft_that_cannot_go_back(self, engine: SlipstreamEngine, tmp_path: Path) -> None:
        draft = write_gguf(tmp_path / "d.gguf", extra={"llama.ssm.conv_kernel": 4})
        auto, suffix, _ = engine.speculative_options(settings(write_gguf(tmp_path / "m.gguf"), draft=draft))
        assert "cannot take tokens back" in auto.why_not and not suffix.why_not


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (settings("m.gguf", "auto", "suffix"), r"does not run auto \+ suffix"),
        (settings("m.gguf", "ngram-mod"), "knows no speculation 'ngram-mod'"),
        (settings("m.gguf", "model"), "slipstream's model needs a draft"),
        (Settings("m.gguf", (Speculation("auto", 4),)), "chooses the length of drafts itself, and auto n 4"),
        (Settings("m.gguf", parallel=2), "answers one request at a time, not 2"),
    ],
)
def test_settings_that_slipstream_cannot_take(engine: SlipstreamEngine, wanted: Settings, said: str) -> None:
    with pytest.raises(InputError, match=said):
        engine.start(wanted)
    with pytest.raises(InputError, match=said):
        engine.render(wanted)


def test_it_has_no_url(engine: SlipstreamEngine) -> None:
    with pytest.raises(InputError, match="runs in this process"):
        engine.attach("http://127.0.0.1:1")


class TestRendered:
    def test_the_command_line(self, engine: SlipstreamEngine) -> None:
        small = Path("small one.gguf")
        for wanted, line in (
            (settings("m.gguf"), "--draft off "),
            (settings("m.gguf", "auto"), ""),
            (settings("m.gguf", "suffix", draft=small), "--draft suffix "),
            (settings("m.gguf", "auto", draft=small), "--draft 'small one.gguf' "),
        ):
            rendered = engine.render(wanted)[0]
            assert rendered.text == f"slipstream run m.gguf --ctx 512 --threads 1 {line}'Why is the sky blue?'\n"
            assert (rendered.language, rendered.file_name) == ("sh", "slipstream.sh")

    def test_python(self, engine: SlipstreamEngine) -> None:
        rendered = engine.render(settings("m.gguf", "auto", draft=Path("small.gguf")))[1]
        assert (
            rendered.text
            == """\
from slipstream import load
from slipstream.runtimes.llamacpp import ContextOptions

context = ContextOptions(n_ctx=512, n_threads=1)
with load("m.gguf", draft="small.gguf", context_options=context) as llm:
    print(llm.generate([{"role": "user", "content": "Why is the sky blue?"}]).text)
"""
        )

    def test_the_draft_model_alone_is_for_python_only(self, engine: SlipstreamEngine) -> None:
        (rendered,) = engine.render(settings("m.gguf", "model", draft=Path("small.gguf")))
        alone = 'llm.drafters = tuple(drafter for drafter in llm.drafters if drafter.name != "suffix")'
        assert f"    {alone}\n" in rendered.text
        compile(rendered.text, rendered.file_name, "exec")

    @pytest.mark.model
    def test_both_run(self, engine: SlipstreamEngine, smollm2_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        line, python = engine.render(settings(smollm2_path, "auto"))
        program, *words = shlex.split(line.text)
        command = [Path(sys.executable).with_name(program), *words, "-n", "8"]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        exec(python.text.replace("}])", "}], max_tokens=8)"), {})
        assert capfd.readouterr().out.strip()
