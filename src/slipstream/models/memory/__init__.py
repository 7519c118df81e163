"""What a model needs in memory, worked out from its header: weights, caches, buffers, and on which device each lies.

The figures are those that llama.cpp b11549 writes to its log as it loads. `bench/memory.py` compares the two.
"""

from .buffers import compute_bytes, output_bytes
from .cache import Context, kv_bytes, state_bytes
from .planning import Load, Measurement, MemoryPlan, Part, Setup, plan
from .remedies import Advice, Remedy, advise
from .shape import Layer, Shape, read_shape

__all__ = [
    "Advice",
    "Context",
    "Layer",
    "Load",
    "Measurement",
    "MemoryPlan",
    "Part",
    "Remedy",
    "Setup",
    "Shape",
    "advise",
    "compute_bytes",
    "kv_bytes",
    "output_bytes",
    "plan",
    "read_shape",
    "state_bytes",
]
