"""Headers of models in Hugging Face repositories, by range requests: a few megabytes instead of the model.

Needs httpx, which comes with the extra `hub`.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final

from slipstream.errors import DownloadError, ModelError
from slipstream.models import stores
from slipstream.models.gguf import parse_header
from slipstream.models.header import GGUF
from slipstream.models.hub import choose, explained

if TYPE_CHECKING:
    import httpx

MAX_HEADER_BYTES: Final = 1 << 26
"""Of a GGUF header; those with 262,144 tokens take about 10 MB."""

_FIRST_BYTES: Final = 1 << 20
_GROWTH: Final = 4
_TIMEOUT_S: Final = 20.0
_RANGE: Final = re.compile(r"bytes (\d+)-\d+/(\d+)")
_NETWORK: Final = "Check the network and try again, or give a model on this machine."


class Repository:
    """The files of one Hugging Face repository (`Files` of hf_folder), for use in a `with` block.

    Raises DownloadError where it cannot be reached, ModelError where httpx is missing.
    """

    path: Path | None = None

    def __init__(self, name: str) -> None:
        try:
            import httpx
            from huggingface_hub import constants, get_token
        except ImportError:
            hint = "Run pip install 'slipstream[hub]'."
            raise ModelError(f"{name} is not on this machine, and reading it there needs httpx.", hint) from None
        self.name = name
        self._endpoint = (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
        # Compressed, a range would be one of other bytes.
        headers = {"Accept-Encoding": "identity", "User-Agent": "slipstream"}
        token = get_token()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._client = httpx.Client(headers=headers, follow_redirects=True, timeout=_TIMEOUT_S)
        self._read: dict[str, bytes] = {}
        self._sizes: dict[str, int] = {}

    def __enter__(self) -> Repository:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def names(self) -> list[str]:
        from huggingface_hub import HfApi

        try:
            siblings = HfApi(endpoint=self._endpoint).model_info(self.name, timeout=_TIMEOUT_S).siblings or []
        except Exception as error:  # the library's errors share no base class
            raise explained(self.name, error) from None
        return [file.rfilename for file in siblings]

    def read(self, name: str, n_bytes: int) -> bytes:
        have = self._read.get(name, b"")
        complete = len(have) >= self._sizes.get(name, len(have) + 1)
        if len(have) < n_bytes and not complete:
            self._read[name] = have + self._span(name, len(have), n_bytes)
        return self._read[name][:n_bytes]

    def size_bytes(self, name: str) -> int:
        return self._sizes[name]

    def _span(self, name: str, start: int, stop: int) -> bytes:
        """Bytes `start` … `stop` − 1, fewer where the file ends before; notes the file's size."""
        with self._answer(name, start, stop) as answer:
            if answer.status_code == 416:
                self._sizes.setdefault(name, start)
                return b""
            # A server that knows no ranges sends the file from its start.
            skip = start - self._began(name, answer)
            wanted, kept = skip + stop - start, bytearray()
            for chunk in answer.iter_bytes(1 << 16):
                kept += chunk
                if len(kept) >= wanted:
                    break
        return bytes(kept[skip:wanted])

    @contextmanager
    def _answer(self, name: str, start: int, stop: int) -> Iterator[httpx.Response]:
        import httpx

        url = f"{self._endpoint}/{self.name}/resolve/main/{name}"
        try:
            with self._client.stream("GET", url, headers={"Range": f"bytes={start}-{stop - 1}"}) as answer:
                if answer.status_code in (401, 403):
                    hint = f"Accept its terms at https://huggingface.co/{self.name}, then run `hf auth login`."
                    raise DownloadError(f"{self.name} does not let you read {name}.", hint)
                if answer.status_code not in (200, 206, 416):
                    said = f"{self.name}/{name} cannot be read: status {answer.status_code}."
                    raise DownloadError(said, _NETWORK)
                yield answer
        except httpx.HTTPError as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise DownloadError(f"{self.name}/{name} cannot be read: {reason}.", _NETWORK) from None

    def _began(self, name: str, answer: httpx.Response) -> int:
        """The place of an answer's first byte in the file."""
        if answer.status_code == 200:
            self._sizes[name] = int(answer.headers.get("Content-Length", 0))
            return 0
        match = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        asked = answer.request.headers["Range"].removeprefix("bytes=").partition("-")[0]
        if match is None or match[1] != asked:
            raise DownloadError(f"The server sent another part of {name} than was asked for.", _NETWORK)
        self._sizes[name] = int(match[2])
        return int(match[1])


def read_remote_gguf(repository: Repository, wanted: str | None) -> list[GGUF]:
    """Headers of all parts of the GGUF model that `wanted` means (see `hub.choose`), the first with its arrays.

    Their paths are those within the repository. Raises ModelError for damaged files and missing parts.
    """
    names = repository.names()
    parts = stores.part_names(choose(repository.name, names, wanted))
    missing = [part for part in parts if part not in names]
    if missing:
        hint = "Look for a repository that is complete."
        raise ModelError(f"{missing[0]}, a part of {parts[0]}, is missing in {repository.name}.", hint)
    return [_header(repository, part, arrays=part == parts[0]) for part in parts]


def _header(repository: Repository, name: str, arrays: bool) -> GGUF:
    n_bytes = _FIRST_BYTES
    while True:
        start = repository.read(name, n_bytes)
        size = max(repository.size_bytes(name), len(start))
        try:
            return _parsed(Path(name), start, size, arrays)
        except ModelError:
            # What looks damaged may only be cut off here; where the whole header is there, it is.
            if n_bytes >= min(size, MAX_HEADER_BYTES) or start[:4] != b"GGUF":
                raise
        n_bytes *= _GROWTH


def _parsed(path: Path, start: bytes, size_bytes: int, arrays: bool) -> GGUF:
    if not start:
        raise ModelError(f"{path.name} is empty.", "Look for another file.")
    with mmap.mmap(-1, len(start)) as data:
        data.write(start)
        return parse_header(path, data, size_bytes, arrays=arrays)
