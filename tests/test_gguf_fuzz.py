"""Mutated GGUF headers: read or refused with a ModelError, soon, and without much memory.

The seed is fixed. SLIPSTREAM_FUZZ=20000 runs as many headers instead of a few hundred.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from gguf_files import write_gguf
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from slipstream.errors import ModelError
from slipstream.models.description import of_gguf
from slipstream.models.gguf import read_gguf
from slipstream.models.header import check_model

N_HEADERS = int(os.environ.get("SLIPSTREAM_FUZZ", "400"))
LIMIT_BYTES = 1 << 30
SECONDS_A_HEADER = 5.0

NUMBERS = st.sampled_from(
    [
        *(0, 1, 4, 8, 9, 0x7F, 0xFF, 0xFFFF, 1 << 24, (1 << 24) + 1, 1 << 28, (1 << 31) - 1, 1 << 31),
        *((1 << 32) - 1, 1 << 32, 1 << 40, 1 << 60, (1 << 63) - 1, 1 << 63, (1 << 64) - 1),
    ]
)
"""Counts, lengths and types that a header may lie with."""

EDITS = st.lists(
    st.one_of(
        st.tuples(st.just("byte"), st.integers(0, 1 << 16), st.integers(0, 255)),
        st.tuples(st.just("u32"), st.integers(0, 1 << 16), NUMBERS),
        st.tuples(st.just("u64"), st.integers(0, 1 << 16), NUMBERS),
        st.tuples(st.just("cut"), st.integers(0, 1 << 16), st.just(0)),
        st.tuples(st.just("repeat"), st.integers(0, 1 << 16), st.integers(1, 64)),
        st.tuples(st.just("drop"), st.integers(0, 1 << 16), st.integers(1, 64)),
    ),
    min_size=1,
    max_size=6,
)


def edited(content: bytes, edits: list[tuple[str, int, int]]) -> bytes:
    data = bytearray(content)
    for kind, place, value in edits:
        at = place % max(len(data), 1)
        if kind == "byte" and data:
            data[at] = value
        elif kind == "u32":
            data[at : at + 4] = struct.pack("<I", value & 0xFFFFFFFF)
        elif kind == "u64":
            data[at : at + 8] = struct.pack("<Q", value)
        elif kind == "cut":
            del data[at:]
        elif kind == "repeat":
            data[at:at] = data[at : at + value]
        elif kind == "drop":
            del data[at : at + value]
    return bytes(data)


def read_all(path: Path) -> None:
    """What the program does with a header before it trusts it. Only ModelError may come out."""
    for arrays in (True, False):
        try:
            gguf = read_gguf(path, arrays=arrays)
            assert isinstance(gguf.quantization, str) and isinstance(gguf.chat_templates, dict)
            if arrays:
                of_gguf([gguf], path.name, path)
                check_model(gguf)
        except ModelError as error:
            assert error.message and "\n" not in error.message


def fuzz(folder: Path, n_headers: int) -> int:
    """Returns how many headers were read; raises at the first that does harm."""
    content = write_gguf(folder / "good.gguf").read_bytes()
    path, n_read = folder / "mutated.gguf", 0

    @seed(20_261_129)
    @settings(
        max_examples=n_headers,
        deadline=SECONDS_A_HEADER * 1000,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(EDITS)
    def run(edits: list[tuple[str, int, int]]) -> None:
        nonlocal n_read
        n_read += 1
        path.write_bytes(edited(content, edits))
        read_all(path)

    run()
    return n_read


@pytest.mark.skipif(sys.platform == "win32", reason="no resource limits")
def test_mutated_headers_end_in_model_errors_within_a_gibibyte(tmp_path: Path) -> None:
    """In a process of its own that may take 1 GiB more than it has after its imports: more is a MemoryError there."""
    program = textwrap.dedent(f"""
        import resource, sys
        from pathlib import Path
        import test_gguf_fuzz
        import numpy
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() \\
            if Path("/proc/self/statm").exists() else 0
        limit = now + {LIMIT_BYTES}
        if now:
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        print(test_gguf_fuzz.fuzz(Path({str(tmp_path)!r}), {N_HEADERS}))
    """)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=120 + N_HEADERS * 0.2,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) >= N_HEADERS


def test_the_edits_reach_good_and_bad_headers(tmp_path: Path) -> None:
    """The fuzzing is worth something: an unedited file is read, and each kind of lie is refused."""
    content = write_gguf(tmp_path / "x.gguf").read_bytes()
    path = tmp_path / "y.gguf"
    path.write_bytes(edited(content, [("byte", 0, content[0])]))
    assert read_gguf(path).tokens
    for edits in ([("u64", 8, 1 << 60)], [("u64", 16, 1 << 60)], [("cut", 100, 0)], [("u64", 24, 1 << 63)]):
        path.write_bytes(edited(content, edits))
        with pytest.raises(ModelError):
            read_gguf(path)
