#!/usr/bin/env python3
"""The demo: two prompts, plain decoding against slipstream, and whether the texts are the same.

    python bench/demo.py [MODEL]

One prompt copies much of its input (edit this code), the other does not (open chat). Greedy.
"""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

from slipstream import LLM, Sampling, load
from slipstream.errors import SlipstreamError
from slipstream.lab import workload
from slipstream.lab.workload import Prompt
from slipstream.llm import Completion

PROMPTS = {"edit this code": "edit-2", "open chat": "chat-1"}
N_TOKENS = 160


def answer(llm: LLM, prompt: Prompt, speculate: bool) -> Completion:
    """Streams the answer; accepted draft tokens are green."""
    generation = llm.stream(prompt.messages, Sampling(temperature=0), N_TOKENS, speculate=speculate)
    colour = sys.stdout.isatty()
    for piece in generation:
        print(f"\x1b[32m{piece.text}\x1b[0m" if piece.drafted and colour else piece.text, end="", flush=True)
    print("\n")
    return generation.completion()


def main() -> None:
    console = Console(highlight=False)
    table = Table(title="plain decoding against slipstream, greedy, tokens/s")
    for name in ("prompt", "plain", "slipstream", "speed-up", "accepted", "tokens/pass", "same text"):
        table.add_column(name, justify="left" if name == "prompt" else "right")
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
    print(f"loading {model}, and measuring what passes cost on this machine (once) …", flush=True)
    with load(model) as llm:
        prompts = {prompt.id: prompt for prompt in workload.built_in()}
        for title, name in PROMPTS.items():
            # The prompt is read once beforehand, so that both arms start from the same cache.
            llm.generate(prompts[name].messages, Sampling(temperature=0), 1, speculate=False)
            console.rule(f"{title}: plain decoding")
            plain = answer(llm, prompts[name], speculate=False)
            console.rule(f"{title}: slipstream")
            fast = answer(llm, prompts[name], speculate=True)
            before, after = plain.statistics.tokens_per_second, fast.statistics.tokens_per_second
            assert before and after
            table.add_row(
                title,
                f"{before:.1f}",
                f"{after:.1f}",
                f"{after / before:.2f}×",
                f"{fast.statistics.acceptance_rate or 0:.0%}",
                f"{fast.statistics.mean_tokens_per_pass:.2f}",
                "yes" if plain.tokens == fast.tokens else "NO",
            )
    console.print(table)


if __name__ == "__main__":
    try:
        main()
    except SlipstreamError as error:
        sys.exit(f"slipstream: {error}")
