"""llama.cpp as a runtime: the contract on each kind of cache, interruption, errors, tokens, what is refused at load."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import tiny_models
from runtime_contract import TEXT, RuntimeContract, read
from tiny_models import N_VOCAB, write_tiny

from slipstream.decoding.protocols import Rows
from slipstream.errors import InputError, ModelError, RuntimeLibraryError
from slipstream.runtimes.llamacpp import ContextOptions, LlamaModel, LlamaRuntime, ModelOptions, library
from slipstream.runtimes.llamacpp.options import default_threads
from slipstream.runtimes.llamacpp.splits import splits

ARCHITECTURES = ["llama", "gemma3", "lfm2", "mamba"]
SMALL = ContextOptions(n_ctx=128, n_batch=64, n_threads=1, n_rollback=4)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LlamaModel]]:
    folder = tmp_path_factory.mktemp("tiny")
    models = {a: LlamaModel(write_tiny(folder / f"{a}.gguf", a)) for a in ARCHITECTURES}
    yield models
    for model in models.values():
        model.close()


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Iterator[LlamaModel]:
    with LlamaModel(smollm2_path) as model:
        yield model


def options(**changes: object) -> ContextOptions:
    return ContextOptions(**{**vars(SMALL), **changes})


def altered(folder: Path, edit: Callable[[Any], object]) -> Path:
    """A tiny llama whose header was edited before it was written."""
    usual = tiny_models._hyperparameters
    with patch.object(tiny_models, "_hyperparameters", lambda writer: (usual(writer), edit(writer))):
        return write_tiny(folder / "altered.gguf", "llama")


class TestTinyModels(RuntimeContract):
    """Logits have a standard deviation of 8. Widths and cells change them by rounding; a wrong cache by 20 or more."""

    atol = 0.15

    @pytest.fixture(params=ARCHITECTURES)
    def make(self, request: pytest.FixtureRequest, tiny: dict[str, LlamaModel]) -> Iterator[Callable]:
        opened: list[LlamaRuntime] = []

        def make(n_seq_max: int) -> LlamaRuntime:
            opened.append(LlamaRuntime(tiny[request.param], options(n_seq_max=n_seq_max)))
            return opened[-1]

        yield make
        for runtime in opened:
            runtime.close()


@pytest.mark.model
class TestSmolLM2(RuntimeContract):
    """Real text, since rounding, which quantised weights amplify, moves nonsense far; a wrong cache moves it by 5."""

    atol = 2.0

    @pytest.fixture(autouse=True)
    def _texts(self, smollm2: LlamaModel) -> None:
        def tokens(sentence: str) -> list[int]:
            return smollm2.tokenizer.tokenize(sentence * 20, add_special=False, parse_special=False)[:200]

        self.text = tokens("The river rose by three metres and flooded the old town, but nobody was hurt. ")
        self.other = tokens("def area(width, height): return width * height  # in square metres, not feet\n")

    @pytest.fixture
    def make(self, smollm2: LlamaModel) -> Iterator[Callable]:
        opened: list[LlamaRuntime] = []

        def make(n_seq_max: int) -> LlamaRuntime:
            opened.append(LlamaRuntime(smollm2, options(n_seq_max=n_seq_max)))
            return opened[-1]

        yield make
        for runtime in opened:
            runtime.close()


def test_without_flash_attention_the_cells_of_a_row_change_nothing_but_the_last_digits(tiny: dict[str, LlamaModel]):
    """Sequence 1 takes cells that sequence 0 gave back; with flash attention its logits differ by 0.02."""
    exact = options(n_seq_max=2, flash_attn="off", cache_type_k="f32", cache_type_v="f32")
    with LlamaRuntime(tiny["llama"], exact) as runtime, LlamaRuntime(tiny["llama"], exact) as alone:
        runtime.forward([Rows(0, TEXT[:25], 0, 1), Rows(1, TEXT[30:50], 0, 1)])
        runtime.keep(0, 20)
        got = runtime.forward([Rows(1, TEXT[50:54], 20, 4)]).logits[0]
        assert np.abs(got - read(alone, TEXT[30:54], 20, 4)).max() < 1e-4


@pytest.mark.parametrize(("architecture", "rollback"), [("llama", None), ("gemma3", None), ("lfm2", 4), ("mamba", 0)])
def test_how_far_an_architecture_goes_back(tiny: dict[str, LlamaModel], architecture: str, rollback: int | None):
    with LlamaRuntime(tiny[architecture], SMALL) as runtime:
        assert runtime.max_rollback == rollback
    assert tiny[architecture].architecture == architecture


# Seen with a cb_eval callback that counted the rows of each graph; 900 random passes agreed with `splits`.
@pytest.mark.parametrize(
    ("rows", "tail", "in_order", "widths"),
    [
        ([(0, 5), (1, 3)], 1, False, (6, 2)),
        ([(2, 3), (1, 5), (0, 3)], 1, False, (9, 2)),
        ([(2, 3), (1, 5), (0, 3)], 1, True, (3, 5, 3)),
        ([(1, 7), (2, 7), (0, 30), (3, 20)], 1, True, (21, 30, 13)),
        ([(0, 4), (1, 4)], 9, False, (8,)),
        ([(3, 4), (0, 4), (1, 2)], 9, False, (4, 4, 2)),
        ([(0, 9), (1, 9), (2, 12)], 9, False, (18, 12)),
        ([(1, 7), (2, 7), (0, 30), (3, 20)], 9, False, (28, 26, 10)),
        ([(0, 7), (1, 3), (2, 2)], 4, False, (2, 5, 3, 2)),
    ],
)
def test_passes_over_recurrent_states_are_divided(rows, tail, in_order, widths):
    assert splits(rows, tail=tail, in_order=in_order) == widths


def test_widths_of_several_sequences(tiny: dict[str, LlamaModel]):
    rows = [Rows(0, TEXT[:5], 0, 1), Rows(1, TEXT[:3], 0, 1)]
    for architecture, widths in (("llama", (8,)), ("mamba", (6, 2)), ("lfm2", (5, 3))):
        with LlamaRuntime(tiny[architecture], options(n_seq_max=2)) as runtime:
            assert runtime.forward(rows).widths == widths


class InterruptingLibrary:
    """Lets Ctrl-C strike right after a pass, before anything of it was noted."""

    def __init__(self, lib) -> None:
        self.lib = lib
        self.armed = True

    def __getattr__(self, name: str):
        return getattr(self.lib, name)

    def llama_decode(self, handle, batch) -> int:
        status = self.lib.llama_decode(handle, batch)
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt
        return status


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_after_ctrl_c_behind_a_short_pass_the_cache_is_as_before_or_empty(
    tiny: dict[str, LlamaModel], architecture: str
):
    with LlamaRuntime(tiny[architecture], SMALL) as runtime, LlamaRuntime(tiny[architecture], SMALL) as fresh:
        read(runtime, TEXT[:20], 20)
        runtime._lib = InterruptingLibrary(runtime._lib)
        with pytest.raises(KeyboardInterrupt):
            runtime.forward([Rows(0, TEXT[20:24], 20, 4)])
        runtime.keep(0, 20)
        assert runtime.held(0) == (20 if runtime.max_rollback is None else 0)
        if runtime.held(0) == 0:
            read(runtime, TEXT[:20], 20)
        got = runtime.forward([Rows(0, TEXT[20:24], 20, 4)]).logits[0]
        assert np.array_equal(got, read(fresh, TEXT[:24], 20, 4))


@pytest.mark.model
def test_ctrl_c_ends_a_long_pass_and_leaves_the_cache_as_it_was(smollm2: LlamaModel):
    tokens = smollm2.tokenizer.tokenize(
        "The river rose and flooded the old town. " * 80, add_special=True, parse_special=False
    )
    with LlamaRuntime(smollm2, ContextOptions(n_ctx=1024, n_batch=800, n_threads=1)) as runtime:
        runtime.forward([Rows(0, tokens[:20], 0, 1)])
        before = runtime.forward([Rows(0, tokens[20:24], 20, 4)]).logits[0].copy()
        runtime.keep(0, 20)
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        began = time.perf_counter()
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            runtime.forward([Rows(0, tokens[20:720], 20, 1)])
        assert time.perf_counter() - began < 1.5, "700 tokens take several seconds"
        assert runtime.held(0) == 20
        assert np.array_equal(runtime.forward([Rows(0, tokens[20:24], 20, 4)]).logits[0], before)


def test_a_context_is_no_longer_than_8192_unless_asked(tiny: dict[str, LlamaModel]):
    with LlamaRuntime(tiny["llama"], ContextOptions(n_threads=1)) as runtime:
        assert (tiny["llama"].n_ctx_train, runtime.n_ctx) == (2048, 2048)


def test_each_sequence_has_the_whole_context(tiny: dict[str, LlamaModel]):
    """100 is no multiple of the 256 that llama.cpp pads to."""
    with LlamaRuntime(tiny["llama"], options(n_ctx=100, n_seq_max=4)) as runtime:
        for start in (0, 50):
            for seq in range(4):
                runtime.forward([Rows(seq, TEXT[start : start + 50], start, 1)])
        assert [runtime.held(seq) for seq in range(4)] == [100] * 4


def test_a_token_outside_the_vocabulary_is_an_error_and_harms_nothing(tiny: dict[str, LlamaModel]):
    with LlamaRuntime(tiny["llama"], SMALL) as runtime:
        with pytest.raises(RuntimeLibraryError, match="status -1"):
            runtime.forward([Rows(0, [2, N_VOCAB], 0, 1)])
        assert runtime.held(0) == 0
        read(runtime, TEXT[:4], 4)


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"])
def test_every_cache_type_computes(tiny: dict[str, LlamaModel], kind: str):
    with LlamaRuntime(tiny["llama"], options(cache_type_k=kind, cache_type_v=kind)) as runtime:
        assert np.isfinite(read(runtime, TEXT[:20], 16, 4)).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_threads": 0}, "--threads is 0. It must be from 1 to 512."),
        ({"n_ctx": 3}, "--ctx is 3. It must be from 16 to 16777216."),
        ({"n_batch": 0}, "--batch is 0. It must be from 1 to 65536."),
        ({"n_seq_max": 257}, "--n_seq_max is 257. It must be from 1 to 256."),
        ({"n_rollback": -1}, "--n_rollback is -1. It must be from 0 to 1024."),
        ({"cache_type_k": "q3"}, "--cache-type-k is 'q3'. It must be one of f32, f16, "),
        ({"flash_attn": "yes"}, "--flash-attn is 'yes'. It must be one of auto, off, on."),
        ({"cache_type_v": "q8_0", "flash_attn": "off"}, "--cache-type-v q8_0 needs flash attention, which is off."),
    ],
)
def test_options_out_of_range(changes: dict[str, object], message: str):
    with pytest.raises(InputError) as error:
        options(**changes)
    assert str(error.value).startswith(message)


def test_threads_are_the_cores_that_are_ours():
    assert 1 <= default_threads() <= len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else True


def test_contexts_too_long_together(tiny: dict[str, LlamaModel]):
    with pytest.raises(InputError, match="16777216 for 256 sequences is 4294967296 tokens"):
        LlamaRuntime(tiny["llama"], options(n_ctx=1 << 24, n_seq_max=256))


def test_an_unknown_device(tiny: dict[str, LlamaModel]):
    with pytest.raises(InputError, match=r"--device XPU7 is not on this machine. llama.cpp sees: .*CPU"):
        LlamaModel(tiny["llama"].path, ModelOptions(devices=("XPU7",)))


def test_a_named_device(tiny: dict[str, LlamaModel]):
    with LlamaModel(tiny["llama"].path, ModelOptions(devices=("CPU",))) as model, LlamaRuntime(model, SMALL) as runtime:
        assert runtime.cost_key["devices"] == ["CPU"]
        read(runtime, TEXT[:4], 4)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), (b"", "is empty"), (b"<html>", "is not a GGUF file"), (b"GGUF", "ends inside its header")],
)
def test_files_that_are_no_models(tmp_path: Path, content: bytes | None, message: str):
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError, match=message) as error:
        LlamaModel(path)
    assert path.name in str(error.value) and "\n" not in str(error.value)


def test_a_truncated_model(tiny: dict[str, LlamaModel], tmp_path: Path):
    path = tmp_path / "half.gguf"
    path.write_bytes(tiny["llama"].path.read_bytes()[:200_000])
    with pytest.raises(ModelError, match=r"half\.gguf is truncated: 200,000 bytes"):
        LlamaModel(path)


def test_a_model_that_llama_cpp_refuses(tmp_path: Path):
    path = altered(tmp_path, lambda writer: writer.add_block_count(5))
    with pytest.raises(ModelError, match=r"altered\.gguf cannot be loaded: .*'blk\.4\.attn_norm\.weight' not found"):
        LlamaModel(path)


def test_an_encoder_is_refused(tmp_path: Path):
    path = altered(tmp_path, lambda writer: writer.add_causal_attention(False))
    with LlamaModel(path) as model, pytest.raises(ModelError, match=r"altered\.gguf \(llama\) does not write text"):
        LlamaRuntime(model, SMALL)


def test_a_context_shorter_than_any_is_refused_unless_given(tmp_path: Path):
    with LlamaModel(altered(tmp_path, lambda writer: writer.add_context_length(1))) as model:
        with pytest.raises(ModelError, match=r"trained for a context of 1 tokens\. Give one of 16 or more with --ctx"):
            LlamaRuntime(model, ContextOptions(n_threads=1))
        with LlamaRuntime(model, options(n_ctx=32)) as runtime:
            read(runtime, TEXT[:4], 4)


def test_a_file_name_that_is_no_utf_8(tiny: dict[str, LlamaModel], tmp_path: Path):
    path = tmp_path / os.fsdecode(b"caf\xe9.gguf")
    path.write_bytes(tiny["llama"].path.read_bytes())
    with LlamaModel(path) as model:
        assert model.path == path and model.tokenizer.n_vocab == tiny["llama"].tokenizer.n_vocab


def test_where_llama_cpp_gives_up_it_is_one_line(tmp_path: Path):
    path = altered(tmp_path, lambda writer: writer.add_expert_count(100_000))
    program = f"from slipstream.runtimes.llamacpp import *\nfrom pathlib import Path\nLlamaModel(Path({str(path)!r}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stdout == ""
    assert re.fullmatch(r"slipstream: llama\.cpp gave up: .*LLAMA_MAX_EXPERTS.*\n", done.stderr)


def test_a_folder_is_no_model(tmp_path: Path):
    with pytest.raises(ModelError, match="cannot be read"):
        LlamaModel(tmp_path)


def test_when_memory_is_out_it_says_what_to_lower(tiny: dict[str, LlamaModel], monkeypatch: pytest.MonkeyPatch):
    lib = SimpleNamespace(
        llama_context_default_params=tiny["llama"].lib.llama_context_default_params,
        llama_init_from_model=lambda model, params: library.ffi.NULL,
    )
    monkeypatch.setattr(tiny["llama"], "lib", lib)
    with pytest.raises(
        RuntimeLibraryError, match=r"128 tokens cannot be made: not enough memory\. Try a smaller --ctx"
    ):
        LlamaRuntime(tiny["llama"], SMALL)


def test_another_release_is_refused():
    with pytest.raises(RuntimeLibraryError, match=r"xllamacpp 2026.11.12000 .* 2026.10.11549 only"):
        library.check_release("2026.11.12000")
    library.check_release(f"{library.RELEASE}+cu128")


def test_a_build_that_exports_nothing_is_refused():
    with pytest.raises(RuntimeLibraryError, match="WSL"):
        library.check_exports(object())


@pytest.mark.parametrize("struct", ["model", "context"])
def test_structs_of_another_build_are_refused(struct: str):
    lib = library.open_library()
    known = library.MODEL_DEFAULTS if struct == "model" else library.CONTEXT_DEFAULTS
    values = getattr(lib, f"llama_{struct}_default_params")()
    library.check_defaults("it", values, known)
    for field, default in known.items():
        if default != library.ffi.NULL:
            changed = {**known, field: default + 1}
            with pytest.raises(RuntimeLibraryError, match=rf"it.{field} reads .*{library.RELEASE}"):
                library.check_defaults("it", values, changed)


def test_closing_a_model_closes_its_contexts_and_twice_is_harmless(tiny: dict[str, LlamaModel]):
    model = LlamaModel(tiny["llama"].path)
    runtime, other = LlamaRuntime(model, SMALL), LlamaRuntime(model, SMALL)
    other.close()
    model.close()
    model.close()
    runtime.close()
    assert all(closed == library.ffi.NULL for closed in (model.handle, runtime._handle, other._handle))


class CountingLibrary:
    """Lets Ctrl-C strike right after each call that frees something, and counts these calls."""

    def __init__(self, lib) -> None:
        self.lib = lib
        self.freed: list[str] = []

    def __getattr__(self, name: str):
        def free(*arguments) -> None:
            self.freed.append(name)
            getattr(self.lib, name)(*arguments)
            raise KeyboardInterrupt

        return free if name in ("llama_free", "llama_model_free") else getattr(self.lib, name)


def test_what_was_freed_is_not_freed_again_after_ctrl_c(tiny: dict[str, LlamaModel]):
    model = LlamaModel(tiny["llama"].path)
    runtime = LlamaRuntime(model, SMALL)
    model.lib = runtime._lib = lib = CountingLibrary(model.lib)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            model.close()
    runtime.close()
    model.close()
    assert lib.freed == ["llama_free", "llama_model_free"]


@pytest.mark.model
def test_ctrl_c_ends_the_load_of_a_model(smollm2_path: Path):
    timer = threading.Timer(0.03, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        LlamaModel(smollm2_path)
        time.sleep(3)
    LlamaModel(smollm2_path).close()


def test_ctrl_c_while_llama_cpp_logs_is_not_lost(tiny: dict[str, LlamaModel], monkeypatch: pytest.MonkeyPatch):
    """What is raised in a callback cannot pass through llama.cpp."""

    class Log(list):
        def append(self, text: str) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(library, "_errors", Log())
    with LlamaRuntime(tiny["llama"], SMALL) as runtime:
        with pytest.raises(KeyboardInterrupt):
            runtime.forward([Rows(0, [2, N_VOCAB], 0, 1)])
        assert runtime.held(0) == 0
        read(runtime, TEXT[:4], 4)


def test_what_is_left_open_does_not_crash_at_exit(tiny: dict[str, LlamaModel]):
    program = (
        "from pathlib import Path; from slipstream.runtimes.llamacpp import *\n"
        "from slipstream.decoding.protocols import Rows\n"
        f"model = LlamaModel(Path({str(tiny['llama'].path)!r}))\n"
        "runtime = LlamaRuntime(model, ContextOptions(n_ctx=64, n_threads=1))\n"
        "runtime.forward([Rows(0, [2, 3] * 20, 0, 1)])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.model
def test_text_to_tokens_and_back(smollm2: LlamaModel):
    tokenizer = smollm2.tokenizer
    text = "def f(x):\n    return x  # 東京 🚴\n"
    tokens = tokenizer.tokenize(text, add_special=False, parse_special=False)
    assert b"".join(map(tokenizer.piece, tokens)).decode() == text
    (end,) = tokenizer.tokenize("<|im_end|>", add_special=False, parse_special=True)
    assert len(tokenizer.tokenize("<|im_end|>", add_special=False, parse_special=False)) > 1
    assert tokenizer.is_eog(end) and not tokenizer.is_eog(tokens[0])
    assert (tokenizer.piece(end), tokenizer.piece(end, special=True)) == (b"", b"<|im_end|>")
    vocabulary = tokenizer.vocabulary()
    assert len(vocabulary) == tokenizer.n_vocab == 49152
    assert vocabulary[end] == "<|im_end|>" and tokenizer.eos == end


@pytest.mark.model
def test_what_is_known_of_a_model(smollm2: LlamaModel):
    assert smollm2.architecture == "llama" and not smollm2.is_recurrent
    assert smollm2.n_ctx_train == 8192
    assert 130e6 < smollm2.n_params < 170e6
    assert 80e6 < smollm2.size_bytes < 100e6
