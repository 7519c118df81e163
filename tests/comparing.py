"""What tests of `lab.verify` share: LLMs put together from parts, and drafters that know the text or nothing at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from forced import Fixed
from toy import Scripted

from slipstream import LLM, Sampling
from slipstream.decoding.control import Control
from slipstream.decoding.protocols import Drafter, Runtime
from slipstream.decoding.widths import WIDTHS, Band, WidthClasses
from slipstream.lab.verify import Report
from slipstream.lab.verify import verify as compare
from slipstream.lab.workload import Prompt
from slipstream.models.template import ChatTemplate
from slipstream.runtimes.llamacpp import LlamaModel, LlamaRuntime

FLAT = {1: 1.0, 33: 1.001}
PADS = {1: 1.0, 2: 0.98, 3: 0.97, 4: 0.5, 5: 4.0, 8: 9.0, 33: 99.0}
"""Passes of four are cheapest: shorter ones are padded to it."""
ALL = WidthClasses((Band(64, 8, (WIDTHS,), 0.0, 0),))
ONE_APART = WidthClasses((Band(64, 8, ((1,), WIDTHS[1:]), 0.5, 0),))
UNKNOWN = WidthClasses()
RAW = ChatTemplate("{{ messages[0].content }}")


def asking(*texts: str) -> list[Prompt]:
    return [Prompt(f"prompt {i}", "test", ({"role": "user", "content": text},)) for i, text in enumerate(texts)]


Fault = Callable[[Runtime], Runtime]


def build(
    model: LlamaModel,
    runtime: LlamaRuntime,
    drafters: Sequence[Drafter],
    classes: WidthClasses = UNKNOWN,
    curve: dict[int, float] = FLAT,
    fault: Fault = lambda runtime: runtime,
) -> LLM:
    runtime.keep(0, 0)
    return LLM(model.tokenizer, fault(runtime), Control(Fixed(curve)), drafters, RAW, classes)


def plain_text(model: LlamaModel, runtime: LlamaRuntime, prompt: Prompt, sampling: Sampling, n: int) -> list[int]:
    """Prompt and answer of plain decoding, by a sound runtime."""
    llm = build(model, runtime, [])
    answer = llm.generate(prompt.messages, sampling, n)
    return [*llm.prompt_tokens(prompt.messages), *answer.tokens]


def head(drafter: Scripted, n: int) -> Scripted:
    """No more than n tokens at a time."""
    return Scripted(lambda seq, text: drafter.script(seq, text)[:n])


def guesses(n_vocab: int) -> Scripted:
    """Knows nothing."""
    rng = np.random.default_rng(0)
    return Scripted(lambda seq, text: rng.integers(0, n_vocab, 1 + len(text) % 7).tolist())


def verify(llm: LLM, *arguments, **named) -> Report:
    """With the cost that was put into the LLM."""
    return compare(llm, *arguments, cost=llm.control.cost, **named)
