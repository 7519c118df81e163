"""One prompt put to an engine in several arms, and what must hold of every engine."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from slipstream.engines.protocol import Answer, Engine, Rendering, Request, Settings

TEXT = (
    "The quick brown fox jumps over the lazy dog. The small grey cat sleeps on the warm stone. "
    "The old white horse stands under the apple tree and looks at the river."
)
MESSAGES = ({"role": "user", "content": f"Repeat this text word by word: {TEXT}"},)


@contextmanager
def running(engine: Engine, settings: Settings) -> Iterator[Engine]:
    """Started; stopped at the end, with all its processes."""
    before = _processes()
    engine.start(settings)
    try:
        assert _processes() > before
        yield engine
    finally:
        engine.stop()
    engine.stop()
    assert _processes() <= before


def ask(engine: Engine, n_tokens: int = 48) -> Answer:
    """Checks what every answer must be."""
    answer = engine.complete(Request(MESSAGES, n_tokens))
    assert answer.text.strip() and 1 < answer.n_tokens <= n_tokens
    assert 0 < answer.ttft_s < 120 and answer.decode_s > 0
    times, counts = zip(*answer.arrivals, strict=True)
    assert list(times) == sorted(times) and list(counts) == sorted(counts)
    assert times[0] == answer.ttft_s and counts[-1] <= answer.n_tokens
    return answer


def printed(python: str, rendering: Rendering) -> str:
    """What a program prints that settings were rendered to; shortened to a few tokens."""
    assert rendering.language == "python" and "512" in rendering.text
    program = rendering.text.replace("512", "8")
    ran = subprocess.run([python, "-c", program], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout.strip()


def _processes() -> set[int]:
    found = psutil.Process().children(recursive=True)
    return {process.pid for process in found if process.status() != psutil.STATUS_ZOMBIE}
