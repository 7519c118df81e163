"""Engines of other people, each in an environment of its own; `make test-engines` makes these and sets the variables.

Where a variable is not set, the tests of that engine are skipped.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.engine)


def _named(variable: str, what: str) -> str:
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"{variable} names no {what}: make test-engines")
    return value


@pytest.fixture(scope="session")
def vllm_python() -> str:
    return _named("SLIPSTREAM_VLLM_PYTHON", "python with vLLM")


@pytest.fixture(scope="session")
def mlx_python() -> str:
    return _named("SLIPSTREAM_MLX_PYTHON", "python with MLX-LM")


@pytest.fixture(scope="session")
def transformers_python() -> str:
    return _named("SLIPSTREAM_TRANSFORMERS_PYTHON", "python with transformers")


@pytest.fixture(scope="session")
def openvino_python() -> str:
    return _named("SLIPSTREAM_OPENVINO_PYTHON", "python with OpenVINO GenAI")


@pytest.fixture(scope="session")
def hf_model() -> str:
    """The demo model in Hugging Face form, see hf_weights.py."""
    return _named("SLIPSTREAM_HF_MODEL", "folder of the demo model in Hugging Face form")
