"""Headers of remote models by range requests, against a server on this machine: what is asked, and what is not."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from gguf_files import TOKENS, write_gguf
from test_pairing import write_folder

from slipstream.errors import DownloadError, ModelError, SlipstreamError
from slipstream.models import remote
from slipstream.models.describe import describe
from slipstream.models.pairing import verdict

pytest.importorskip("httpx")
pytest.importorskip("huggingface_hub")

REPOSITORY = "org/repo-GGUF"


class Hub:
    """One repository, and what was read of it. `answers` overrides (status, headers, body) by file name."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.ranges = True
        self.n_sent = 0
        self.asked: list[str] = []

    def answer(self, path: str, asked: str | None) -> tuple[int, dict[str, str], bytes]:
        if path.startswith("/api/models/"):
            if not path.split("?")[0].endswith(REPOSITORY):
                return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
            siblings = [{"rfilename": name} for name in self.files]
            return (
                200,
                {"Content-Type": "application/json"},
                json.dumps({"id": REPOSITORY, "siblings": siblings}).encode(),
            )
        name = path.removeprefix(f"/{REPOSITORY}/resolve/main/")
        self.asked.append(name)
        if name in self.answers:
            return self.answers[name]
        content, match = self.files[name], re.fullmatch(r"bytes=(\d+)-(\d+)", asked or "")
        if not self.ranges or match is None:
            return 200, {}, content
        start, stop = int(match[1]), int(match[2]) + 1
        if start >= len(content):
            return 416, {}, b""
        body = content[start:stop]
        return 206, {"Content-Range": f"bytes {start}-{start + len(body) - 1}/{len(content)}"}, body


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = hub.answer(self.path, self.headers.get("Range"))
            self.send_response(status)
            for key, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            try:
                for at in range(0, len(body), 1 << 14):
                    self.wfile.write(body[at : at + (1 << 14)])
                    hub.n_sent += len(body[at : at + (1 << 14)])
            except OSError:
                return  # the client has what it wanted

        def log_message(self, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield hub
    server.shutdown()
    thread.join()
    server.server_close()


def big(tmp_path: Path, n_tokens: int, name: str = "big.gguf") -> bytes:
    return write_gguf(tmp_path / name, tokens=[f"token number {i}" for i in range(n_tokens)]).read_bytes()


def test_only_the_head_of_a_large_file_is_read(hub: Hub, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m-Q4_K_M.gguf")
    hub.files = {"m-Q4_K_M.gguf": path.read_bytes() + bytes(50 << 20), "README.md": b""}
    found = describe(f"hf:{REPOSITORY}")
    assert found.vocabulary is not None and found.vocabulary.tokens == TOKENS
    assert found.size_bytes == len(hub.files["m-Q4_K_M.gguf"])
    assert found.path is None
    assert verdict(found, describe(str(path))).kind == "same vocabulary"
    assert hub.n_sent < 3 << 20, "the megabyte that was asked for, and the list of files"


def test_a_header_longer_than_the_first_range_is_read_on(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_FIRST_BYTES", 1 << 10)
    hub.files = {"m.gguf": big(tmp_path, 2_000)}
    found = describe(f"hf:{REPOSITORY}:m.gguf")
    assert found.vocabulary is not None and found.vocabulary.n_rows == 2_000
    assert hub.asked.count("m.gguf") > 1


def test_a_server_without_ranges_is_not_read_to_the_end(hub: Hub, tmp_path: Path) -> None:
    hub.ranges = False
    hub.files = {"m.gguf": write_gguf(tmp_path / "m.gguf").read_bytes() + bytes(200 << 20)}
    assert describe(f"hf:{REPOSITORY}:m.gguf").vocabulary is not None
    assert hub.n_sent < 60 << 20, "a megabyte, and what the sockets had buffered"


def test_a_split_model_needs_all_its_parts(hub: Hub, tmp_path: Path) -> None:
    first = write_gguf(tmp_path / "a.gguf", extra={"split.count": 2}).read_bytes()
    hub.files = {"m-00001-of-00002.gguf": first, "m-00002-of-00002.gguf": write_gguf(tmp_path / "b.gguf").read_bytes()}
    found = describe(f"hf:{REPOSITORY}")
    assert found.n_params == 2 * 48
    del hub.files["m-00002-of-00002.gguf"]
    with pytest.raises(ModelError, match=r"m-00002-of-00002\.gguf, a part of .*, is missing"):
        describe(f"hf:{REPOSITORY}")


def test_a_repository_in_hugging_face_form(hub: Hub, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf")
    hub.files = {file.name: file.read_bytes() for file in folder.iterdir()}
    hub.files["model.safetensors"] += bytes(10 << 20)
    found = describe(f"hf:{REPOSITORY}")
    assert (found.form, found.n_params, found.hidden_size) == ("Hugging Face", 512 + 4096, 64)
    assert found.size_bytes == len(hub.files["model.safetensors"])
    assert hub.n_sent < 1 << 20


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        ((200, {}, b"PK not a model"), ModelError, "is not a GGUF file"),
        ((200, {}, b""), ModelError, "is empty"),
        ((416, {}, b""), ModelError, "is empty"),
        ((200, {}, b"GGUF" + (3).to_bytes(4, "big") + bytes(16)), ModelError, "big-endian"),
        ((200, {}, b"GGUF" + (9).to_bytes(4, "little") + bytes(16)), ModelError, "GGUF version 9"),
        ((200, {}, b"GGUF" + (3).to_bytes(4, "little") + b"\xff" * 16), ModelError, "more than can be in it"),
        ((206, {"Content-Range": "bytes 7-9/10"}, b"abc"), DownloadError, "another part"),
        ((206, {"Content-Range": "bytes 0-2/" + "9" * 30}, b"GGU"), ModelError, "is not a GGUF file"),
        ((401, {}, b""), DownloadError, "does not let you read"),
        ((500, {}, b""), DownloadError, "status 500"),
    ],
)
def test_bad_answers_are_told_in_one_line(
    hub: Hub, answer: tuple[int, dict[str, str], bytes], kind: type[SlipstreamError], said: str
) -> None:
    hub.files, hub.answers = {"m.gguf": b""}, {"m.gguf": answer}
    with pytest.raises(kind, match=said) as caught:
        describe(f"hf:{REPOSITORY}:m.gguf")
    assert "\n" not in str(caught.value) and caught.value.hint


def test_a_damaged_header_ends_after_a_few_ranges(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server says that the file is large and never sends more of it than its beginning."""
    monkeypatch.setattr(remote, "MAX_HEADER_BYTES", 1 << 14)
    monkeypatch.setattr(remote, "_FIRST_BYTES", 1 << 10)
    start = write_gguf(tmp_path / "m.gguf").read_bytes()[:300]
    hub.files = {"m.gguf": b""}
    hub.answers = {"m.gguf": (206, {"Content-Range": f"bytes 0-299/{1 << 40}"}, start)}
    with pytest.raises(SlipstreamError):
        describe(f"hf:{REPOSITORY}:m.gguf")
    assert len(hub.asked) < 6


def test_a_repository_that_is_not_there(hub: Hub) -> None:
    with pytest.raises(DownloadError, match="Hugging Face has no repository org/none"):
        describe("hf:org/none")


def test_no_network_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(DownloadError, match="cannot be fetched") as caught:
        describe("hf:org/repo")
    assert "\n" not in str(caught.value) and "network" in caught.value.hint


def test_what_lies_in_the_cache_is_read_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    write_folder(tmp_path / "models--org--repo" / "snapshots" / "abc")
    (tmp_path / "models--org--repo" / "refs").mkdir()
    (tmp_path / "models--org--repo" / "refs" / "main").write_text("abc")
    assert describe("hf:org/repo").form == "Hugging Face"
