"""This machine in words, to stand beside figures that were measured on it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from slipstream.models.hardware import GIB, this_machine


def cpu() -> str:
    """What the system calls its processor, and the number of its cores."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return f"{next(named, platform.processor() or platform.machine())}, {os.cpu_count()} cores"


def in_words() -> str:
    """Processor, memory, GPUs and system."""
    memory, *gpus = this_machine().devices
    cards = [f"{gpu.name} with {gpu.total_bytes / GIB:.0f} GiB" for gpu in gpus]
    return ", ".join(
        [cpu(), f"{memory.total_bytes / GIB:.0f} GiB", *cards, f"{platform.system()} {platform.machine()}"]
    )
