"""Models that several test files share."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.models.demo import fetch_demo


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The demo model SmolLM2-135M-Instruct Q4_1; fetched once unless SLIPSTREAM_DEMO_MODEL names it."""
    return fetch_demo()


@pytest.fixture(scope="session")
def small_draft_path(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft for the demo model: six of its thirty layers."""
    from small_draft import write_small_draft

    path = tmp_path_factory.mktemp("draft") / "small-draft.gguf"
    return write_small_draft(smollm2_path, path, [0, 1, 2, 3, 28, 29])


@pytest.fixture(scope="session")
def session_cache(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache directory of the session's own: what was measured once serves all tests that ask for `own_cache`."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def own_cache(session_cache: Path, smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keeps a test, and the programs it starts, away from the user's cache; the demo model stays where it is."""
    from slipstream import estimates
    from slipstream.models import demo

    monkeypatch.setenv(demo.ENVIRONMENT_VARIABLE, str(smollm2_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(session_cache))
    monkeypatch.setattr(estimates, "folder", lambda: session_cache / "slipstream")
    return session_cache
