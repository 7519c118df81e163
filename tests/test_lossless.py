"""Lossless on a real model: whatever drafts, and however far, the tokens are those of plain decoding.

Where two arms part all the same, it must be the width of the passes, which is part of the arithmetic: `explain`
replays both arms from a clean cache, in passes of the same widths but without a single drafted token. A rejected token
that stayed in the cache, or a row at the wrong place, cannot come out of that bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from toy import AlwaysTake, Clock, Scripted

from slipstream.decoding.choice import Sampler
from slipstream.decoding.protocols import Drafter, Rows, Runtime
from slipstream.decoding.ring import Ring, SequenceState
from slipstream.decoding.sampling import Sampling
from slipstream.drafters.model import ModelDrafter
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.lab.recorder import Recorded, Recorder, replay
from slipstream.models.gguf import read_gguf
from slipstream.models.template import ChatTemplate
from slipstream.runtimes.llamacpp import ContextOptions, LlamaModel, LlamaRuntime

pytestmark = pytest.mark.model

N_NEW = 12
OPTIONS = ContextOptions(n_ctx=512, n_threads=1)
"""One thread: llama.cpp's threads wait for each other so eagerly that a busy machine makes two of them crawl."""
WIDTH_MATTERS = 4.0
"""Rows of two width classes differ by some 1 logit at most (docs); far beyond it something else is wrong."""

PROMPTS = {
    "chat": "Give me three ideas for a rainy Sunday with two children.",
    "code edit": "Rename x to width and y to height:\ndef area(x, y):\n    return x * y\nprint(area(3, 4))",
    "summary": "Summarise: The river rose by 3.7 metres in 1984 and flooded the old town; nobody was hurt.",
    "retrieval": "Notes: Ann has key 12. Bob has key 7. Eve has key 31. Who has key 7? Quote the note.",
    "translation": "Translate into French: The cat sleeps on the chair near the window.",
    "maths": "A train goes 60 km in 45 minutes. How fast is it in km/h? Think step by step.",
    "japanese": "次の文を英語にしてください。猫は窓のそばの椅子で眠っています。",
    "json": 'Write as JSON with the keys "name", "age" and "city": Ann, 31, from Paris; Bob, 45, from Rome.',
}


@dataclass(frozen=True)
class Arm:
    """One way to write a text: its tokens, and the passes they came from, that of the prompt included."""

    sampler: Sampler
    tokens: list[int]
    passes: list[Recorded]

    @property
    def n_rounds(self) -> int:
        """Passes behind those that read the prompt and its last token."""
        return len(self.passes) - 2


class Stale(Recorder):
    """A broken cache: after a while the last row that `keep` should leave is that of another token."""

    def keep(self, seq: int, n_tokens: int) -> None:
        super().keep(seq, n_tokens)
        if len(self.passes) > 3:
            super().keep(seq, n_tokens - 1)
            self.inner.forward([Rows(seq, [1000 + n_tokens % 7], n_tokens - 1, 0)])


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Iterator[LlamaModel]:
    with LlamaModel(smollm2_path) as model:
        yield model


@pytest.fixture(scope="module")
def runtimes(model: LlamaModel) -> Iterator[tuple[LlamaRuntime, LlamaRuntime]]:
    """One to write with, and one that stays clean to compute everything afresh."""
    with LlamaRuntime(model, OPTIONS) as writing, LlamaRuntime(model, OPTIONS) as clean:
        yield writing, clean


@pytest.fixture(scope="module")
def parting_runtimes(model: LlamaModel) -> Iterator[tuple[LlamaRuntime, LlamaRuntime]]:
    """Without flash attention width 1 stands alone: its rows differ from those of wider passes (docs)."""
    options = replace(OPTIONS, flash_attn="off")
    with LlamaRuntime(model, options) as writing, LlamaRuntime(model, options) as clean:
        yield writing, clean


@pytest.fixture(scope="module")
def small(small_draft_path: Path) -> Iterator[LlamaRuntime]:
    with LlamaModel(small_draft_path) as model, LlamaRuntime(model, OPTIONS) as runtime:
        yield runtime


def prompt_tokens(model: LlamaModel, text: str) -> list[int]:
    rendered = ChatTemplate.of(read_gguf(model.path)).render([{"role": "user", "content": text}])
    return model.tokenizer.tokenize(rendered, add_special=True, parse_special=True)


def read(runtime: Runtime, prompt: Sequence[int]) -> list[Recorded]:
    """All of a prompt but its last token, which every arm reads itself."""
    recorder = Recorder(runtime)
    recorder.keep(0, 0)
    recorder.forward([Rows(0, prompt[:-1], 0, 0)])
    return recorder.passes


def write(
    runtime: Runtime,
    prompt: list[int],
    was_read: list[Recorded],
    sampling: Sampling,
    drafters: Sequence[Drafter] = (),
    n_draft: int = 4,
    recording: type[Recorder] = Recorder,
) -> Arm:
    """Writes behind a prompt that was read; goes on behind the end of the text, so that all arms are as long."""
    recorder = recording(runtime)
    recorder.passes += was_read
    sampler = Sampler(sampling, runtime.n_vocab)
    state = SequenceState(0, sampler, lambda token: False, len(prompt) + N_NEW)
    ring = Ring(recorder, drafters, AlwaysTake(n_draft), Clock())
    ring.begin(state, prompt, len(prompt) - 1)
    while not state.ended:
        ring.step([state])
    return Arm(sampler, state.tokens, recorder.passes)


def check_same(plain: Arm, drafted: Arm, clean: Runtime) -> bool:
    """Both arms wrote the same tokens, or it is the width of their passes that explains why not."""
    assert len(plain.tokens) == len(drafted.tokens)
    pairs = zip(plain.tokens, drafted.tokens, strict=True)
    parting = next((i for i, (one, other) in enumerate(pairs) if one != other), None)
    if parting is None:
        return True
    explain(plain, drafted, parting, clean)
    return False


def explain(plain: Arm, drafted: Arm, parting: int, clean: Runtime) -> None:
    rows = []
    for arm in plain, drafted:
        again = replay(clean, arm.passes, arm.tokens, parting)
        assert again.wrong_at is None, "a clean cache gives another row"
        choose = arm.sampler.bind(arm.tokens[:parting])
        assert choose(again.row, ()) == arm.tokens[parting], "the row chooses another token"
        rows.append(again.row)
    difference = float(np.abs(rows[0] - rows[1]).max())
    assert 0 < difference < WIDTH_MATTERS
    if plain.sampler.sampling.greedy:
        one, other = plain.tokens[parting], drafted.tokens[parting]
        assert rows[0][one] - rows[0][other] <= 2 * difference, "each of the two logits moves by that much at most"


def rehearsed(answer: Sequence[int]) -> Scripted:
    """Knows the text, and is wrong at every fourth token of it: every length is accepted sooner or later."""

    def script(seq: int, text: list[int]) -> list[int]:
        at = len(text)
        return [t if (at + i) % 4 else t + 1 for i, t in enumerate(answer[at:])]

    return Scripted(script, "rehearsed")


@pytest.mark.parametrize("category", PROMPTS)
def test_every_drafter_gives_the_text_of_plain_decoding(category, model, runtimes, small):
    writing, clean = runtimes
    prompt = prompt_tokens(model, PROMPTS[category])
    was_read = read(writing, prompt)
    small_drafter = ModelDrafter(small, writing.n_vocab)
    for i, sampling in enumerate((Sampling(temperature=0), Sampling(temperature=0.8))):
        sampling = replace(sampling, seed=i + len(category))
        n_always = (1, 3, 7)[(i + list(PROMPTS).index(category)) % 3]
        plain = write(writing, prompt, was_read, sampling)
        assert plain.n_rounds == N_NEW - 1
        arms: dict[str, tuple[list[Drafter], int]] = {
            "suffix": ([SuffixDrafter()], 4),
            "model": ([SuffixDrafter(), small_drafter], 2),
            "always": ([rehearsed(plain.tokens)], n_always),
        }
        for name, (drafters, n_draft) in arms.items():
            drafted = write(writing, prompt, was_read, sampling, drafters, n_draft)
            same = check_same(plain, drafted, clean)
            if name == "always" and same:
                assert drafted.n_rounds < 0.8 * N_NEW, "drafts were accepted"


def test_where_the_width_matters_a_parting_is_explained(model, parting_runtimes):
    writing, clean = parting_runtimes
    prompt = prompt_tokens(model, PROMPTS["chat"])
    was_read = read(writing, prompt)
    n_same = 0
    for sampling in Sampling(temperature=0), *(Sampling(temperature=1.5, top_k=0, seed=i) for i in range(3)):
        plain = write(writing, prompt, was_read, sampling)
        drafted = write(writing, prompt, was_read, sampling, [rehearsed(plain.tokens)], 3)
        n_same += check_same(plain, drafted, clean)
    assert n_same < 4, "none of them parted: this test showed nothing"


def test_all_rows_of_both_arms_come_out_of_a_clean_cache(model, runtimes):
    """The explanation itself: at every place, with rejected drafts, bit by bit."""
    writing, clean = runtimes
    prompt = prompt_tokens(model, PROMPTS["chat"])
    was_read = read(writing, prompt)
    plain = write(writing, prompt, was_read, Sampling(temperature=0))
    drafted = write(writing, prompt, was_read, Sampling(temperature=0), [rehearsed(plain.tokens)], 3)
    for arm in plain, drafted:
        assert replay(clean, arm.passes, arm.tokens, len(arm.tokens) - 1).wrong_at is None


def test_a_stale_cache_is_found_out(model, runtimes):
    """What this file would say of a cache that keeps a wrong row: the check must fail."""
    writing, clean = runtimes
    prompt = prompt_tokens(model, PROMPTS["chat"])
    was_read = read(writing, prompt)
    plain = write(writing, prompt, was_read, Sampling(temperature=0))
    stale = write(writing, prompt, was_read, Sampling(temperature=0), [rehearsed(plain.tokens)], 3, Stale)
    with pytest.raises(AssertionError, match="a clean cache gives another row"):
        explain(plain, stale, len(stale.tokens) - 1, clean)
