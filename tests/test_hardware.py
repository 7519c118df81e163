"""What is found of a machine's memory; what `slipstream plan` shows of it; and what is said of nonsense."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import model_headers as headers
import pytest
import typer
from gguf_files import write_gguf
from tiny_models import LETTERS, write_tiny

from slipstream.cli.plan import plan as command
from slipstream.errors import InputError, ModelError, SlipstreamError
from slipstream.models import hardware
from slipstream.models.hardware import GIB, GPU_RESERVE_BYTES, Device, amd, nvidia, this_machine, with_gpus
from slipstream.models.memory.planning import place


class FakeDriver:
    """NVIDIA's library with two cards."""

    class NVMLError(Exception):
        pass

    def __init__(self, fails_at: str = "") -> None:
        self.fails_at = fails_at
        self.is_shut = False

    def nvmlInit(self) -> None:
        if self.fails_at == "init":
            raise self.NVMLError

    def nvmlShutdown(self) -> None:
        self.is_shut = True

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, i: int) -> int:
        if self.fails_at == "handle":
            raise self.NVMLError
        return i

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(total=24 * GIB, free=(20 + handle) * GIB)


@pytest.fixture(autouse=True)
def no_cards_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_nvidia_cards_with_what_is_free_of_them():
    driver = FakeDriver()
    first, second = nvidia(driver)
    assert (first.name, first.total_bytes, first.free_bytes) == ("CUDA0", 24 * GIB, 20 * GIB)
    assert second.usable_bytes == 21 * GIB - GPU_RESERVE_BYTES
    assert driver.is_shut


@pytest.mark.parametrize("fails_at", ["init", "handle"])
def test_a_driver_that_fails_is_none(fails_at):
    assert nvidia(FakeDriver(fails_at)) == ()


def test_a_missing_library_is_none(monkeypatch):
    def missing() -> None:
        raise ImportError

    monkeypatch.setattr(hardware, "_pynvml", missing)
    assert nvidia() == ()


def test_cards_hidden_from_programs_are_left_out(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [device.free_bytes for device in nvidia(FakeDriver())] == [21 * GIB]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert nvidia(FakeDriver()) == ()


def test_amd_cards_by_the_files_of_linux(tmp_path: Path):
    for card, total, used in (("card0", 16 * GIB, GIB), ("card1", "none of it", 0)):
        folder = tmp_path / card / "device"
        folder.mkdir(parents=True)
        (folder / "mem_info_vram_total").write_text(f"{total}\n")
        (folder / "mem_info_vram_used").write_text(f"{used}\n")
    (only,) = amd(tmp_path)
    assert (only.name, only.total_bytes, only.free_bytes) == ("ROCm0", 16 * GIB, 15 * GIB)
    assert amd(tmp_path / "nowhere") == ()


def test_apple_s_memory_is_one_for_both(monkeypatch):
    monkeypatch.setattr(hardware, "_memory", lambda: Device("CPU", 32 * GIB, 30 * GIB))
    monkeypatch.setattr(hardware.sys, "platform", "darwin")
    monkeypatch.setattr(hardware.platform, "machine", lambda: "arm64")
    machine = this_machine()
    assert machine.shared
    assert [(device.name, device.usable_bytes) for device in machine.devices] == [("unified memory", 24 * GIB)]


def test_this_machine_has_memory(monkeypatch):
    monkeypatch.setattr(hardware, "nvidia", lambda: ())
    monkeypatch.setattr(hardware, "amd", lambda: ())
    (memory,) = this_machine().devices
    assert 0 < memory.free_bytes <= memory.total_bytes


def test_cards_that_are_given():
    sizes = [device.total_bytes for device in with_gpus("24GiB, 12 gb,8G,512MiB").devices[1:]]
    assert sizes == [24 * GIB, 12 * 10**9, 8 * GIB, GIB // 2]


@pytest.mark.parametrize("text", ["", "24GiB,", "-1GiB", "0", "24TiB", "two", "1e9", "999999999GiB", "\n"])
def test_sizes_that_are_none_are_answered_in_one_line(text):
    with pytest.raises(InputError, match="--gpu") as caught:
        with_gpus(text)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


def test_layers_go_to_cards_in_proportion_to_what_is_free():
    assert place(4, [0], -1) == [0] * 5
    assert place(4, [9, 1], -1) == [1] * 5
    assert place(4, [9, 1], 2) == [0, 0, 0, 1, 1]
    assert place(9, [9, 4, 1], -1) == [1] * 8 + [2] * 2
    assert place(3, [9, 0, 0], -1) == [1, 1, 2, 2]


@pytest.fixture
def run(capsys, monkeypatch) -> Callable[..., str]:
    monkeypatch.setattr("slipstream.models.hardware._memory", lambda: Device("CPU", 64 * GIB, 64 * GIB))
    app = typer.Typer()
    app.command()(command)

    def run(*arguments: str | Path) -> str:
        app([*map(str, arguments)], standalone_mode=False)
        return str(capsys.readouterr().out)

    return run


def test_the_command_shows_parts_bars_and_a_verdict(run, tmp_path):
    pair = [headers.llama_70b(tmp_path), "--draft", headers.llama_8b(tmp_path)]
    out = run(*pair, "--gpu", "24GiB,24GiB")
    assert "draft: KV cache" in out
    assert "█" in out
    assert "Fits with changes" in out
    shown = json.loads(run(*pair, "--gpu", "24GiB,24GiB", "--kv-type", "q8_0,q8_0", "--json"))
    assert shown["verdict"] == "fits"
    assert shown["total_bytes"] == sum(part["n_bytes"] for part in shown["parts"])
    assert shown["total_bytes"] == sum(device["used_bytes"] for device in shown["devices"])


def test_a_draft_of_another_vocabulary_has_two_contexts(run, tmp_path):
    target, same = (write_tiny(tmp_path / f"{i}.gguf", "llama", i) for i in range(2))
    other = write_tiny(tmp_path / "other.gguf", "llama", pieces=LETTERS[::-1])
    shown = [json.loads(run(target, "--draft", draft, "--json")) for draft in (same, other)]
    caches = [[p for p in plan["parts"] if (p["model"], p["name"]) == ("draft", "KV cache")] for plan in shown]
    assert caches[1][0]["n_bytes"] == 2 * caches[0][0]["n_bytes"]
    assert [plan["models"]["draft"]["n_contexts"] for plan in shown] == [1, 2]
    assert "2 contexts (another vocabulary)" in run(target, "--draft", other)


@pytest.mark.model
def test_the_command_measures(run, smollm2_path):
    estimated, measured = (json.loads(run(smollm2_path, "--json", *more)) for more in ((), ("--measure",)))
    assert measured["models"]["target"]["measured"]
    assert measured["total_bytes"] == pytest.approx(estimated["total_bytes"], rel=0.02)


@pytest.mark.parametrize(
    "options",
    [
        ["--gpu", "two cards"],
        ["--kv-type", "q9_0"],
        ["--kv-type", "f16,f16,f16"],
        ["--ctx", "3"],
        ["--parallel", "0"],
        ["--ctx", "16777216", "--parallel", "256"],
        ["--draft", "mtp"],
        ["--draft", "/nowhere.gguf"],
    ],
)
def test_nonsense_is_answered_in_one_line(run, options, tmp_path):
    with pytest.raises((InputError, ModelError)) as caught:
        run(headers.lfm2_1b(tmp_path), *options)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    "number", ["block_count", "nextn_predict_layers", "expert_used_count", "attention.sliding_window"]
)
def test_a_header_that_lies_is_answered_in_one_line(run, number, tmp_path):
    path = write_gguf(tmp_path / "liar.gguf", extra={"llama.block_count": 1, f"llama.{number}": 4_000_000_000})
    with pytest.raises(ModelError, match=number):
        run(path)


def test_what_is_no_model_is_refused(run, tmp_path):
    with pytest.raises(ModelError, match="no language model"):
        run(write_gguf(tmp_path / "no-layers.gguf"))
    (tmp_path / "text.gguf").write_text("once upon a time")
    with pytest.raises(SlipstreamError, match="not a GGUF"):
        run(tmp_path / "text.gguf")
