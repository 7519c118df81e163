"""Lossless on a real model: whatever drafts, and however far, the tokens are those of plain decoding.

Where two arms part all the same, it must be the width of the passes, which is part of the arithmetic: `explain`
computes both arms' rows afresh, from a clean cache, in passes of the same widths but without a single drafted token.
A rejected token that stayed in the cache, or a row at the wrong place, cannot come out of that bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from toy import AlwaysTake, Clock, Scripted

from slipstream.decoding.choice import Sampler
from slipstream.decoding.protocols import Drafter, Logits, Pass, Rows, Runtime
from slipstream.decoding.ring import Ring, SequenceState
from slipstream.decoding.sampling import Sampling
from slipstream.drafters.model import ModelDrafter
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.models.gguf import read_gguf
from slipstream.models.template import ChatTemplate
from slipstream.runtimes.llamacpp import ContextOptions, LlamaModel, LlamaRuntime

pytestmark = pytest.mark.model

N_NEW = 16
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


@dataclass
class Arm:
    """One way to write a text: its tokens, and for each the pass it came from."""

    sampler: Sampler
    n_prompt: int
    tokens: list[int] = field(default_factory=list)
    rounds: list[tuple[int, int, Logits]] = field(default_factory=list)
    """Tokens before the pass, its width, and its rows, of which the first stands behind the last of these tokens."""

    def row(self, n: int) -> Logits:
        """The row that chose the token number n."""
        before, _, rows = self.of(n)
        return rows[n - before]

    def of(self, n: int) -> tuple[int, int, Logits]:
        return next(r for r in reversed(self.rounds) if r[0] <= n)


class Recorder:
    """A runtime that passes everything on and keeps a copy of the rows."""

    def __init__(self, inner: Runtime) -> None:
        self.inner = inner
        self.arm: Arm | None = None
        self.n_vocab, self.n_ctx, self.n_seq_max = inner.n_vocab, inner.n_ctx, inner.n_seq_max
        self.n_batch, self.max_rollback = inner.n_batch, inner.max_rollback

    def forward(self, rows: Sequence[Rows]) -> Pass:
        result = self.inner.forward(rows)
        if self.arm is not None:
            self.arm.rounds.append((rows[0].start + 1, sum(result.widths), result.logits[0].copy()))
        return result

    def keep(self, seq: int, n_tokens: int) -> None:
        self.inner.keep(seq, n_tokens)


class Stale(Recorder):
    """A broken cache: the last row that `keep` should leave is that of another token."""

    def keep(self, seq: int, n_tokens: int) -> None:
        self.inner.keep(seq, n_tokens)
        if self.arm is not None and len(self.arm.rounds) > 3:
            self.inner.keep(seq, n_tokens - 1)
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


def read(runtime: Runtime, tokens: Sequence[int]) -> None:
    """All of a prompt but its last token, which every arm reads itself."""
    runtime.keep(0, 0)
    runtime.forward([Rows(0, tokens[:-1], 0, 0)])


def write(
    runtime: Recorder, prompt: list[int], sampling: Sampling, drafters: Sequence[Drafter] = (), n_draft: int = 4
) -> Arm:
    """Writes behind a prompt that was read; goes on behind the end of the text, so that all arms are as long."""
    sampler = Sampler(sampling, runtime.n_vocab)
    arm = runtime.arm = Arm(sampler, len(prompt))
    state = SequenceState(0, sampler, lambda token: False, len(prompt) + N_NEW)
    ring = Ring(runtime, drafters, AlwaysTake(n_draft), Clock())
    ring.begin(state, prompt, len(prompt) - 1)
    while not state.ended:
        ring.step([state])
    arm.tokens = state.tokens
    runtime.arm = None
    return arm


def compute_afresh(clean: Runtime, arm: Arm, n: int) -> Logits:
    """The row that chooses token number n, from the arm's own tokens, widths and nothing else."""
    read(clean, arm.tokens[: arm.n_prompt])
    rows: Logits | None = None
    start = arm.n_prompt - 1
    while start < n:
        _, width, _ = arm.of(start + 1)
        # What an arm drafted and lost is replaced by padding: it must not matter.
        ends = [before - 1 for before, _, _ in arm.rounds if before - 1 > start] + [n]
        tokens = arm.tokens[start : min(ends[0], n)]
        rows = clean.forward([Rows(0, tokens, start, len(tokens), width - len(tokens))]).logits[0].copy()
        start += len(tokens)
        clean.keep(0, start)
    assert rows is not None
    return rows[-1]


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
        row, afresh = arm.row(parting), compute_afresh(clean, arm, parting)
        assert np.array_equal(row, afresh), f"a clean cache gives another row: {np.abs(row - afresh).max():.3g}"
        choose = arm.sampler.bind(arm.tokens[:parting])
        assert choose(afresh, ()) == arm.tokens[parting], "the row chooses another token"
        rows.append(afresh)
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
    writing, clean = Recorder(runtimes[0]), runtimes[1]
    prompt = prompt_tokens(model, PROMPTS[category])
    read(writing, prompt)
    small_drafter = ModelDrafter(small, writing.n_vocab)
    for seed, sampling in enumerate((Sampling(temperature=0), Sampling(temperature=0.8))):
        sampling = replace(sampling, seed=seed + len(category))
        plain = write(writing, prompt, sampling)
        assert len(plain.rounds) == N_NEW
        arms: dict[str, tuple[list[Drafter], int]] = {
            "suffix": ([SuffixDrafter()], 4),
            "model": ([SuffixDrafter(), small_drafter], 2),
            **{f"always {n}": ([rehearsed(plain.tokens)], n) for n in (1, 3, 7)},
        }
        for name, (drafters, n_draft) in arms.items():
            drafted = write(writing, prompt, sampling, drafters, n_draft)
            same = check_same(plain, drafted, clean)
            if name.startswith("always") and same:
                assert len(drafted.rounds) < 0.8 * N_NEW, "drafts were accepted"


def test_where_the_width_matters_a_parting_is_explained(model, parting_runtimes):
    writing, clean = Recorder(parting_runtimes[0]), parting_runtimes[1]
    prompt = prompt_tokens(model, PROMPTS["chat"])
    read(writing, prompt)
    n_same = 0
    for sampling in Sampling(temperature=0), *(Sampling(temperature=1.5, top_k=0, seed=i) for i in range(3)):
        plain = write(writing, prompt, sampling)
        n_same += check_same(plain, write(writing, prompt, sampling, [rehearsed(plain.tokens)], 3), clean)
    assert n_same < 4, "none of them parted: this test showed nothing"


def test_a_row_computed_afresh_is_the_one_that_was_used(model, runtimes):
    """The explanation itself: at every place, with rejected drafts, bit by bit."""
    writing, clean = Recorder(runtimes[0]), runtimes[1]
    prompt = prompt_tokens(model, PROMPTS["chat"])
    read(writing, prompt)
    plain = write(writing, prompt, Sampling(temperature=0))
    drafted = write(writing, prompt, Sampling(temperature=0), [rehearsed(plain.tokens)], 3)
    for arm in plain, drafted:
        for n in (len(prompt), len(prompt) + 7, len(prompt) + N_NEW - 1):
            assert np.array_equal(arm.row(n), compute_afresh(clean, arm, n))


def test_a_stale_cache_is_found_out(model, runtimes):
    """What this file would say of a cache that keeps a wrong row: the check must fail."""
    prompt = prompt_tokens(model, PROMPTS["chat"])
    writing = Recorder(runtimes[0])
    read(writing, prompt)
    plain = write(writing, prompt, Sampling(temperature=0))
    read(writing, prompt)
    stale = write(Stale(runtimes[0]), prompt, Sampling(temperature=0), [rehearsed(plain.tokens)], 3)
    with pytest.raises(AssertionError, match="a clean cache gives another row"):
        check_same(plain, stale, runtimes[1])
