"""Width classes of real runtimes: probed at load, kept, taken up again where a probe was stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tiny_models import write_tiny
from width_toy import WIDTHS_OF

import slipstream
from slipstream import LLM, estimates
from slipstream.decoding import widths as widths_module
from slipstream.decoding.protocols import Rows
from slipstream.decoding.widths import PAGE, SHORT_ROWS, WHOLE_ROWS, WIDTHS, WidthClasses, probe, starts
from slipstream.errors import InputError
from slipstream.loading import PROBE_TEXT
from slipstream.runtimes.llamacpp import ContextOptions, LlamaModel, LlamaRuntime

CONTEXT = ContextOptions(n_ctx=1024, n_batch=64, n_threads=1)


@pytest.fixture
def own_folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(estimates, "folder", lambda: tmp_path / "cache")
    return tmp_path / "cache" / "widths"


@pytest.fixture
def tiny(tmp_path) -> Path:
    return write_tiny(tmp_path / "llama.gguf", "llama")


@contextmanager
def loaded(path: Path, told: list[str] | None = None, **options) -> Iterator[LLM]:
    progress = (lambda doing, done: None) if told is None else (lambda doing, done: told.append(doing))
    options = {"context_options": CONTEXT, "probe_s": 0.02, **options}
    with slipstream.load(path, progress=progress, **options) as llm:
        yield llm


def compared(told: list[str]) -> bool:
    return any("comparing widths" in doing for doing in told)


def test_what_was_probed_serves_the_next_load(tiny, own_folder):
    first, second, other = [], [], []
    with loaded(tiny, first) as llm:
        classes = llm.classes
    with loaded(tiny, second) as llm:
        assert llm.classes == classes and classes.bands
    assert compared(first) and not compared(second)
    with loaded(tiny, other, context_options=ContextOptions(n_ctx=1024, n_batch=32, n_threads=1)) as llm:
        assert llm.classes.bands
    assert compared(other), "another batch is another runtime"


def test_the_short_form_knows_two_pages_and_the_whole_one_all(tiny, own_folder):
    with loaded(tiny) as llm:
        assert llm.classes.reach == 2 * PAGE and {b.n_rows for b in llm.classes.bands} == {SHORT_ROWS}
    with loaded(tiny, width_probe="whole") as llm:
        assert llm.classes.reach == 4 * PAGE and {b.n_rows for b in llm.classes.bands} == {WHOLE_ROWS}
    told: list[str] = []
    for form in "short", "whole", "auto":
        with loaded(tiny, told, width_probe=form) as llm:
            assert llm.classes.reach == 4 * PAGE
    assert not compared(told), "the whole one is the short one too"


def test_a_probe_that_was_stopped_goes_on_where_it_was(tiny, own_folder, monkeypatch):
    looked: list[int] = []

    def stopping(runtime, text, at, n_rows, progress):
        for one in probe(runtime, text, at, n_rows, progress):
            looked.append(one.start)
            yield one
            if stop_after == len(looked):
                raise KeyboardInterrupt

    monkeypatch.setattr("slipstream.loading.probe", stopping)
    stop_after = 1
    with pytest.raises(KeyboardInterrupt), loaded(tiny, width_probe="whole"):
        pass
    at = starts(CONTEXT.n_ctx, WHOLE_ROWS)
    assert looked == at[:1] and len(at) == 4
    stop_after = 0
    with loaded(tiny, width_probe="whole") as llm:
        assert looked == at and llm.classes.reach == 4 * PAGE
    with loaded(tiny, width_probe="whole"):
        assert looked == at


def test_a_band_that_was_stopped_in_the_middle_is_not_known(tiny, own_folder, monkeypatch):
    calls = []

    def stopped(*arguments):
        calls.append(arguments)
        if len(calls) == len(WIDTHS) + 3:
            raise KeyboardInterrupt
        return rows_of(*arguments)

    rows_of = widths_module._rows
    monkeypatch.setattr(widths_module, "_rows", stopped)
    with pytest.raises(KeyboardInterrupt), loaded(tiny):
        pass
    (file,) = own_folder.iterdir()
    assert len(json.loads(file.read_text())["bands"]) == 1


@pytest.mark.parametrize("damage", ["", "{", "[1]", '{"format": 1, "bands": [[64, 8, [[2, 1e400]], 0, 0]]}'])
def test_a_damaged_file_is_probed_anew(tiny, own_folder, damage):
    with loaded(tiny) as llm:
        classes = llm.classes
    (file,) = own_folder.iterdir()
    file.write_text(damage)
    told: list[str] = []
    with loaded(tiny, told) as llm:
        assert llm.classes == classes
    assert compared(told)


def test_who_is_probed_and_which_mode_follows(tiny, own_folder, monkeypatch):
    def load(**options) -> tuple[bool, tuple[int, ...]]:
        told: list[str] = []
        with loaded(tiny, told, **options) as llm:
            return compared(told), llm.control.widths

    assert load(exact=False) == (False, ()), "nobody asked"
    assert load(draft="off") == (False, ())
    monkeypatch.setattr("slipstream.loading.SMALL_BYTES", 10)
    assert load() == (False, ()), "a large model"
    monkeypatch.undo()
    monkeypatch.setattr(estimates, "folder", lambda: own_folder.parent)
    assert load() == (True, ()), "a small one: its widths do not all agree, so that exact mode would cost something"
    assert load(exact=True) == (False, WIDTHS[1:])
    assert load(exact=True, draft="off") == (False, WIDTHS[1:])
    assert load(exact=False) == (False, ())
    with monkeypatch.context() as patched:
        patched.setattr(WidthClasses, "is_free", property(lambda self: True))
        assert load() == (False, WIDTHS[1:]), "where it is free it is the default"
        assert load(exact=False) == (False, ())


def test_a_context_too_short_to_compare_widths(tiny, own_folder):
    small = ContextOptions(n_ctx=64, n_threads=1)
    with loaded(tiny, context_options=small) as llm:
        assert not llm.classes.bands and llm.control.widths == ()
    with (
        pytest.raises(InputError, match=r"64 tokens is too short.*\n?.*--ctx"),
        loaded(tiny, context_options=small, exact=True),
    ):
        pass


def test_the_cache_is_empty_after_a_probe(tiny, own_folder):
    with loaded(tiny, width_probe="whole") as llm:
        assert llm.runtime.held(0) == 0


@pytest.mark.parametrize("architecture", ["gemma3", "lfm2", "mamba"])
def test_other_kinds_of_cache_are_probed(tmp_path, own_folder, architecture):
    """Rows that a snapshot brings back must be right: a wrong one would part the widths."""
    with loaded(write_tiny(tmp_path / "model.gguf", architecture), exact=True, width_probe="whole") as llm:
        assert llm.classes.reach == 4 * PAGE
        assert llm.control.widths == WIDTHS_OF.get(architecture, WIDTHS[1:])


@pytest.mark.model
@pytest.mark.parametrize(("flash_attn", "classes"), [("auto", (WIDTHS,)), ("off", ((1,), WIDTHS[1:]))])
def test_widths_of_the_demo_model(smollm2_path, flash_attn, classes):
    options = ContextOptions(n_ctx=128, n_batch=64, n_threads=1, flash_attn=flash_attn)
    with LlamaModel(smollm2_path) as model, LlamaRuntime(model, options) as runtime:
        text = model.tokenizer.tokenize(PROBE_TEXT, add_special=True, parse_special=False)
        (seen,) = probe(runtime, text, [24], 6)
        assert seen.classes == classes and (seen.difference > 0) == (len(classes) > 1)
        rows = {}
        for width in 2, 48:
            runtime.keep(0, 24)
            tokens = [text[i % len(text)] for i in range(24, 24 + width)]
            rows[width] = runtime.forward([Rows(0, tokens, 24, width)]).logits[0][:2].copy()
        assert np.array_equal(rows[2], rows[48]), "and the probe's widths are not the only ones"
