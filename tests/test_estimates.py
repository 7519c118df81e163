"""Cost curves kept in the user's cache directory."""

import pytest

from slipstream import estimates
from slipstream.decoding.cost import CostCurve

KEY = {"model": "a.gguf", "threads": 2}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(estimates, "folder", lambda: tmp_path)
    return tmp_path / "cost"


def test_a_curve_comes_back_under_its_own_key_only():
    estimates.save("cost", KEY, CostCurve({1: 0.02, 2: 0.03}).to_data())
    assert CostCurve.from_data(estimates.load("cost", KEY)).measured == {1: 0.02, 2: 0.03}
    assert estimates.load("cost", {**KEY, "threads": 4}) is None


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"format": 0}', '{"format": 1, "seconds": {"1": "x"}}', "\0\0"])
def test_a_damaged_file_counts_as_none(cache, damage):
    estimates.save("cost", KEY, CostCurve({1: 0.02}).to_data())
    (file,) = cache.iterdir()
    file.write_text(damage)
    data = estimates.load("cost", KEY)
    assert data is None or CostCurve.from_data(data) is None


def test_a_cache_that_cannot_be_written_is_no_error(cache):
    cache.write_text("a file where the folder should be")
    estimates.save("cost", KEY, CostCurve({1: 0.02}).to_data())
    assert estimates.load("cost", KEY) is None
