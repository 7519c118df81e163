"""Several sequences in one context, exactly: each of them writes what it writes alone, to the last bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from toy import Clock, Scripted

from slipstream.decoding.choice import Sampler
from slipstream.decoding.control import Control
from slipstream.decoding.cost import CostCurve
from slipstream.decoding.ring import Ring, SequenceState
from slipstream.decoding.sampling import Sampling
from slipstream.runtimes.llamacpp import ContextOptions, LlamaModel, LlamaRuntime

pytestmark = pytest.mark.model

LENGTHS = (24, 19, 14)
TEXTS = (
    "The river rose by 3.7 metres in 1984 and flooded the old town; nobody was hurt. The river rose",
    "def area(width, height):\n    return width * height\n\ndef volume(width, height, depth):\n",
    "One, two, three, four, five, six, seven, eight, nine, ten, eleven,",
)
SAMPLINGS = (Sampling(temperature=0), Sampling(temperature=0.9, seed=5), Sampling(temperature=1.3, seed=6, top_k=0))


def write(runtime: LlamaRuntime, which: Sequence[int], prompts: list[list[int]], known: list[list[int]]) -> list:
    """Writes the texts numbered `which` together: tokens and log-probabilities of each.

    Drafts are the `known` texts, wrong at every third token; without known texts there are none.
    """

    def script(seq: int, text: list[int]) -> list[int]:
        at = len(text)
        return [token if (at + i) % 3 else token + 1 for i, token in enumerate(known[which[seq]][at : at + 5])]

    control = Control(CostCurve({1: 1.0, 33: 1.1}), widths=(1, 2, 3, 4, 5, 6, 7, 8))
    ring = Ring(runtime, [Scripted(script)] if known else [], control, Clock())
    states = [
        SequenceState(seq, Sampler(SAMPLINGS[n], runtime.n_vocab), lambda token: False, len(prompts[n]) + LENGTHS[n], 3)
        for seq, n in enumerate(which)
    ]
    said = []
    for state, n in zip(states, which, strict=True):
        runtime.keep(state.seq, 0)
        said.append([*ring.begin(state, prompts[n], 0).logprobs])
    n_accepted = 0
    while live := [state for state in states if not state.ended]:
        for done in ring.step(live):
            said[done.seq] += done.logprobs
            n_accepted += done.accepted
    assert bool(n_accepted) == bool(known)
    return [(state.tokens, logprobs) for state, logprobs in zip(states, said, strict=True)]


def test_together_each_sequence_writes_what_it_writes_alone(smollm2_path):
    options = ContextOptions(n_ctx=256, n_threads=1)
    with LlamaModel(smollm2_path) as model:
        prompts = [model.tokenizer.tokenize(t, add_special=True, parse_special=False) for t in TEXTS]
        with LlamaRuntime(model, options) as runtime:
            alone = [write(runtime, [n], prompts, [])[0] for n in range(3)]
        with LlamaRuntime(model, replace(options, n_seq_max=3, split_cache=True)) as runtime:
            together = write(runtime, [0, 1, 2], prompts, [])
            drafted = write(runtime, [2, 0, 1], prompts, [tokens for tokens, _ in alone])
    assert together == alone
    assert drafted == [alone[2], alone[0], alone[1]]
