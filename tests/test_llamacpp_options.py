"""llama.cpp without running it: its kinds in each release, why one cannot be had, and settings written down."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gguf_files import TOKENS, write_gguf
from model_headers import qwen35
from test_pairing import model

from slipstream.engines.llamacpp_options import (
    KINDS,
    Release,
    check,
    options,
    release_of_program,
    release_of_wheel,
    why_not,
)
from slipstream.engines.llamacpp_settings import arguments, command_line, fields, parameters, python
from slipstream.engines.protocol import Option, Settings, Speculation
from slipstream.errors import EngineError, InputError, ModelError

TODAY = Release("b11549")

HELP_OF_B8467 = """
-md,   --model-draft FNAME              draft model
--draft-max, --draft, --draft-n N       number of tokens to draft (default: 16)
--draft-p-min P                         minimum probability (default: 0.75)
--spec-type [none|ngram-cache|ngram-simple|ngram-map-k|ngram-map-k4v|ngram-mod]
                                        type of speculative decoding without a draft model
--spec-ngram-size-m N                   length of the draft (default: 48)
"""

HELP_OF_B11549 = """
-md,   --model-draft, --spec-draft-model FNAME
--metrics                               enable prometheus compatible metrics endpoint
--spec-type none,draft-simple,draft-eagle3,draft-mtp,draft-dflash,draft-dspark,ngram-simple,ngram-map-k,
            ngram-map-k4v,ngram-mod,ngram-cache
                                        comma-separated list of types of speculative decoding to use (default: none)
--spec-draft-n-max N                    (default: 3)
--spec-draft-p-min, --draft-p-min P     (default: 0.00)
--spec-ngram-mod-n-max N                (default: 64)
--spec-ngram-simple-size-m N            (default: 48)
--spec-ngram-map-k-size-m N             (default: 48)
--spec-ngram-map-k4v-size-m N           (default: 48)
"""


def settings(*speculation: Speculation, draft: str | None = None, **more: Any) -> Settings:
    return Settings("my models/big.gguf", speculation, draft, **{"n_ctx": 2048, "n_threads": 2, **more})


def stand_in_program(folder: Path, help_text: str, version: str = "version: 8467 (1234abcd)") -> str:
    path = folder / "llama-server"
    path.write_text(
        f"#!{sys.executable}\nimport sys\nprint({version!r} if '--version' in sys.argv else '''{help_text}''')"
    )
    path.chmod(0o755)
    return str(path)


class TestReleases:
    def test_the_wheel_has_every_kind(self) -> None:
        assert release_of_wheel() == TODAY

    def test_a_program_of_today(self, tmp_path: Path) -> None:
        found = release_of_program(stand_in_program(tmp_path, HELP_OF_B11549, "version: 11549 (1234abcd)"))
        assert (found.version, found.kinds, found.named) == ("b11549", tuple(KINDS), tuple(KINDS))
        for kind in KINDS.values():
            assert not kind.flags or found.flag(kind.flags) == kind.flags[0]

    @pytest.mark.parametrize(
        ("said", "version"),
        [
            ("version: 0.6.0-dev (build 11434, commit 1234abcd)", "b11434"),
            ("version: 0.6.0-dev (build 0, commit unknown)", "0.6.0-dev"),
            ("version: 8467 (1234abcd)", "b8467"),
            ("version: 0 (unknown)", ""),
            ("a program without one", ""),
        ],
    )
    def test_a_program_s_version_is_its_build_where_it_has_one(self, tmp_path: Path, said: str, version: str) -> None:
        assert release_of_program(stand_in_program(tmp_path, HELP_OF_B11549, said)).version == version

    def test_an_old_program_is_spoken_to_by_its_own_names(self, tmp_path: Path) -> None:
        old = release_of_program(stand_in_program(tmp_path, HELP_OF_B8467))
        assert old.version == "b8467"
        assert old.kinds == ("draft-simple", *(name for name in KINDS if name.startswith("ngram")))
        small = settings(Speculation("draft-simple", 4, 0.5), draft="small.gguf")
        assert arguments(small, old)[-6:] == ["-md", "small.gguf", "--draft-max", "4", "--draft-p-min", "0.5"]
        assert "--spec-type" not in arguments(small, old)
        assert arguments(settings(Speculation("ngram-map-k", 8)), old)[-4:] == [
            *("--spec-type", "ngram-map-k"),
            *("--spec-ngram-size-m", "8"),
        ]

    def test_what_an_old_program_lacks_is_not_asked_of_it(self, tmp_path: Path) -> None:
        old = release_of_program(stand_in_program(tmp_path, HELP_OF_B8467))
        with pytest.raises(
            InputError, match=r"llama\.cpp b8467 knows no speculation 'draft-mtp'\. It has draft-simple"
        ):
            check(settings(Speculation("draft-mtp")), old)
        with pytest.raises(InputError, match="cannot run ngram-mod with drafts of 16 tokens"):
            check(settings(Speculation("ngram-mod", 16)), old)
        path = write_gguf(tmp_path / "m.gguf")
        by_kind = {option.kind: option for option in options(Settings(str(path)), old)}
        assert by_kind["ngram-mod"].n_max == () and by_kind["ngram-simple"].n_max
        assert not by_kind["draft-simple"].combines and by_kind["ngram-simple"].combines

    def test_another_program_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(EngineError, match="is no llama-server"):
            release_of_program(stand_in_program(tmp_path, "usage: something else"))
        with pytest.raises(EngineError, match="/nowhere/llama-server cannot be run"):
            release_of_program("/nowhere/llama-server")


class TestWhyNot:
    """Heads are judged by their headers; see also test_judges.py."""

    def eagle(self, *layers: int) -> Any:
        more = {"eagle3__target_hidden_size": 64, "eagle3__target_layers": layers}
        return model(general__architecture="eagle3", name="head.gguf", **more)

    def test_n_grams_need_nothing(self) -> None:
        assert {why_not(name, model(), None) for name in KINDS if name.startswith("ngram")} == {""}

    def test_a_kind_without_its_draft(self) -> None:
        assert why_not("draft-simple", model(), None) == "no draft model is given"
        assert why_not("draft-eagle3", model(), None) == "no EAGLE-3 head is given"
        assert why_not("draft-mtp", model(name="big"), None) == (
            "big has no layers for multi-token prediction, and no MTP head is given"
        )

    def test_layers_of_the_model_s_own_need_no_draft(self, tmp_path: Path) -> None:
        found = {option.kind: option for option in options(Settings(str(qwen35(tmp_path))), TODAY)}
        assert found["draft-mtp"] == Option("draft-mtp", (1, 2, 3, 4, 6), combines=True)
        assert found["draft-simple"] == Option(
            "draft-simple", (2, 4, 8, 16), (0.3, 0.5, 0.75), True, "no draft model is given", True
        )

    def test_each_head_has_its_kind(self) -> None:
        head = self.eagle(1, 2, 3)
        assert why_not("draft-eagle3", model(), head) == ""
        assert why_not("draft-simple", model(), head) == "head.gguf is an EAGLE-3 head, no draft model"
        assert why_not("draft-dflash", model(), head) == "head.gguf is an EAGLE-3 head, no DFlash head"
        assert why_not("draft-eagle3", model(), model(name="small")) == (
            "small is a model that writes text, no EAGLE-3 head"
        )

    def test_a_head_that_llama_cpp_refuses(self) -> None:
        assert why_not("draft-eagle3", model(), self.eagle(1, 2)).startswith("it requires exactly 3 target layers")

    def test_a_draft_of_another_vocabulary_is_refused_for_the_true_reason(self) -> None:
        assert why_not("draft-simple", model(), model((*TOKENS[:5], "other"))) == "token 5 is 'é' and 'other'"
        assert why_not("draft-simple", model(), model()) == ""

    def test_a_file_that_is_not_there(self) -> None:
        with pytest.raises(ModelError, match=r"nowhere\.gguf"):
            options(Settings("nowhere.gguf"), TODAY)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (settings(Speculation("suffix")), "llama.cpp b11549 knows no speculation 'suffix'"),
        (settings(Speculation("draft-simple", 4)), "llama.cpp's draft-simple needs a draft"),
        (settings(Speculation("ngram-cache", 4)), "cannot run ngram-cache with drafts of 4 tokens"),
        (settings(Speculation("ngram-simple", 0)), "cannot run ngram-simple with drafts of 0 tokens"),
        (settings(Speculation("ngram-simple", 8, 0.5)), "cannot run ngram-simple with a threshold of 0.5"),
        (settings(Speculation("draft-mtp", 2, 1.5)), "cannot run draft-mtp with a threshold of 1.5"),
        (settings(Speculation("ngram-mod", 16), Speculation("ngram-mod", 32)), "cannot run ngram-mod n 16 + ngram-mod"),
        (settings(Speculation("draft-mtp"), Speculation("draft-simple"), draft="s"), "cannot run draft-mtp + draft"),
    ],
)
def test_settings_that_llama_cpp_cannot_take(wanted: Settings, said: str) -> None:
    with pytest.raises(InputError, match=said.replace("+", r"\+")):
        check(wanted, TODAY)


@pytest.mark.parametrize(
    ("wanted", "line"),
    [
        (settings(n_threads=None), "-c 2048 -np 1"),
        (settings(parallel=4), "-c 8192 -np 4 -t 2"),
        (
            settings(Speculation("draft-simple", 4, 0.5), draft="it's small.gguf"),
            "-c 2048 -np 1 -t 2 --spec-type draft-simple -md 'it'\"'\"'s small.gguf' "
            "--spec-draft-n-max 4 --spec-draft-p-min 0.5",
        ),
        (
            settings(Speculation("draft-simple", 4), Speculation("ngram-simple", 8), draft="small.gguf"),
            "-c 2048 -np 1 -t 2 --spec-type draft-simple,ngram-simple -md small.gguf "
            "--spec-draft-n-max 4 --spec-ngram-simple-size-m 8",
        ),
        (settings(Speculation("draft-mtp", 2)), "-c 2048 -np 1 -t 2 --spec-type draft-mtp --spec-draft-n-max 2"),
        (settings(Speculation("ngram-map-k4v", 8)), "-c 2048 -np 1 -t 2 --spec-type ngram-map-k4v "
         "--spec-ngram-map-k4v-size-m 8"),
        (
            settings(Speculation("ngram-mod", 16)),
            "-c 2048 -np 1 -t 2 --spec-type ngram-mod --spec-ngram-mod-n-max 16 --spec-ngram-mod-n-min 12",
        ),
        (settings(Speculation("ngram-cache")), "-c 2048 -np 1 -t 2 --spec-type ngram-cache"),
    ],
)  # fmt: skip
def test_the_command_line(wanted: Settings, line: str) -> None:
    rendered = command_line("llama-server", wanted, TODAY)
    assert rendered.text == f"llama-server -m 'my models/big.gguf' {line}\n"
    assert (rendered.language, rendered.file_name) == ("sh", "llama-server.sh")


def test_python_for_the_wheel() -> None:
    wanted = settings(Speculation("draft-simple", 4, 0.5), Speculation("ngram-mod", 16), draft="small.gguf")
    assert (
        python(wanted).text
        == """\
import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = "my models/big.gguf"
params.n_ctx = 2048
params.n_parallel = 1
params.cpuparams.n_threads = 2
params.cpuparams_batch.n_threads = 2
params.speculative.draft.cpuparams.n_threads = 2
params.speculative.draft.cpuparams_batch.n_threads = 2
params.speculative.types = [\
xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE, \
xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_MOD]
params.speculative.draft.mparams.path = "small.gguf"
params.speculative.draft.n_max = 4
params.speculative.draft.p_min = 0.5
params.speculative.ngram_mod.n_max = 16
params.speculative.ngram_mod.n_min = 12
server = xllamacpp.Server(params)
print(server.listening_address)
input("Enter ends it. ")
"""
    )


def test_the_wheel_takes_what_is_rendered_for_it() -> None:
    import xllamacpp

    wanted = settings(Speculation("draft-simple", 4, 0.5), Speculation("ngram-map-k", 8), draft="small.gguf")
    served: list[Any] = []
    library = SimpleNamespace(
        CommonParams=xllamacpp.CommonParams,
        common_speculative_type=xllamacpp.common_speculative_type,
        Server=lambda params: served.append(params) or SimpleNamespace(listening_address=""),
    )
    program = python(wanted).text.replace("import xllamacpp\n", "")
    exec(program, {"xllamacpp": library, "input": lambda _: ""})
    for params in served[0], parameters(xllamacpp, fields(wanted)):
        assert (params.model.path, params.n_ctx, params.n_parallel) == ("my models/big.gguf", 2048, 1)
        drafting = params.speculative
        assert [kind.name for kind in drafting.types] == [
            "COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE",
            "COMMON_SPECULATIVE_TYPE_NGRAM_MAP_K",
        ]
        assert (drafting.draft.mparams.path, drafting.draft.n_max, drafting.draft.p_min) == ("small.gguf", 4, 0.5)
        assert drafting.ngram_map_k.size_m == 8
        assert params.cpuparams.n_threads == drafting.draft.cpuparams_batch.n_threads == 2


def test_a_model_that_writes_text_is_not_loaded_as_a_head(tmp_path: Path) -> None:
    small = str(write_gguf(tmp_path / "small.gguf"))
    assert "-md" not in arguments(settings(Speculation("draft-mtp", 2), draft=small), TODAY)
    assert "-md" not in arguments(settings(Speculation("ngram-simple"), draft=small), TODAY)
    assert "-md" in arguments(settings(Speculation("draft-eagle3"), draft=small), TODAY)
