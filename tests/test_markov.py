"""The toy runtime: the contract of all runtimes, and rows that are those of its table."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from runtime_contract import TEXT, RuntimeContract, read

from slipstream.errors import InputError
from slipstream.runtimes.markov import MarkovRuntime


class TestContract(RuntimeContract):
    @pytest.fixture(params=[None, 4, 0], ids=["any rollback", "rollback 4", "no rollback"])
    def make(self, request: pytest.FixtureRequest) -> Callable:
        return lambda n: MarkovRuntime.random(16, order=2, n_seq_max=n, max_rollback=request.param)


@pytest.mark.parametrize("order", [1, 2])
def test_rows_are_those_of_the_table(order: int):
    runtime = MarkovRuntime.random(16, order)
    rows = read(runtime, TEXT[:9], 4, 5)
    for i, row in enumerate(rows):
        before = tuple(TEXT[: 5 + i][-order:])
        assert np.array_equal(row, runtime.table[before])
        assert np.array_equal(row, runtime.row(TEXT[: 5 + i]))


def test_before_the_text_stands_token_zero():
    runtime = MarkovRuntime.random(16, order=2)
    assert np.array_equal(read(runtime, [7], 1)[0], runtime.table[0, 7])


@pytest.mark.parametrize("shape", [(4,), (4, 5), (3, 3, 3, 3)])
def test_a_table_of_another_shape_is_refused(shape: tuple[int, ...]):
    with pytest.raises(InputError, match="equal axes"):
        MarkovRuntime(np.zeros(shape, dtype=np.float32))
