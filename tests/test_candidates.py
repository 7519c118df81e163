"""The search for drafters: where it looks, what it leaves out, and the order of what is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from gguf_files import TOKENS, write_gguf
from test_pairing import write_folder

from slipstream import estimates
from slipstream.cli.pair import pair
from slipstream.decoding.cost import CostCurve
from slipstream.errors import InputError, PairError
from slipstream.models import candidates, stores
from slipstream.models import describe as describe_module
from slipstream.models.candidates import known_curves, predict, search
from slipstream.models.describe import describe
from slipstream.models.description import Description
from slipstream.models.known_drafters import known_drafters, plain


@pytest.fixture(autouse=True)
def empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No stores but a Hugging Face cache below `tmp_path`, and no estimates."""
    for variable in ("HF_HUB_CACHE", "LLAMA_CACHE", "OLLAMA_MODELS", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(variable, str(tmp_path / "home" / variable.lower()))
    monkeypatch.delenv("SLIPSTREAM_DEMO_MODEL", raising=False)
    monkeypatch.setattr(estimates, "folder", lambda: tmp_path / "estimates")
    return tmp_path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of models whose sizes, which all are the writer's, are told by their names: `b-700.gguf`."""
    real = candidates.describe_gguf

    def sized(path: Path, name: str) -> Description:
        found = real(path, name)
        n_params = int(path.stem.rpartition("-")[2])
        return Description(**{**vars(found), "n_params": n_params, "n_active_params": n_params})

    for module in (candidates, describe_module):
        monkeypatch.setattr(module, "describe_gguf", sized)
    return tmp_path / "models"


def target(folder: Path) -> Description:
    return candidates.describe_gguf(write_gguf(folder / "target-7000.gguf"), "target")


def names(folder: Path) -> list[str]:
    return [Path(candidate.name).name for candidate in search(target(folder), [folder]).candidates]


def save_curve(path: Path, seconds: dict[int, float], threads: int = 2, **stale: Any) -> None:
    status = path.stat()
    key = {"model": str(path.resolve()), "size": status.st_size, "time": status.st_mtime_ns, "threads": threads}
    estimates.save("cost", {**key, **stale, "probe_s": 3.0}, CostCurve(seconds).to_data())


def test_without_curves_the_fitting_size_comes_first(folder: Path) -> None:
    for n_params in (5000, 1000, 100):
        write_gguf(folder / f"draft-{n_params}.gguf")
    assert names(folder) == ["draft-1000.gguf", "draft-5000.gguf", "draft-100.gguf"]


def test_one_of_another_vocabulary_is_translated_and_comes_last_without_a_prediction(folder: Path) -> None:
    other = write_gguf(folder / "other-1000.gguf", tokens=TOKENS[::-1])
    write_gguf(folder / "draft-100.gguf")
    model = target(folder)
    for path in (model.path, other):
        save_curve(path, {1: 1.0, 8: 1.1})
    last = search(model, [folder]).candidates[-1]
    assert Path(last.name).name == "other-1000.gguf" and last.kind == "different"
    assert last.speed_up is None and "slipstream" in last.engines


def test_what_cannot_draft_is_counted_and_left_out(folder: Path) -> None:
    write_gguf(folder / "larger-8000.gguf")
    (folder / "broken-1.gguf").write_bytes(b"GGUF")
    found = search(target(folder), [folder])
    assert (found.candidates, found.n_seen, found.n_misfits) == ((), 2, 1)
    assert len(found.problems) == 1 and "ends inside its header" in found.problems[0]


def test_a_pair_with_known_curves_comes_first_with_its_speed_up(folder: Path) -> None:
    model, slow = target(folder), write_gguf(folder / "slow-5000.gguf")
    write_gguf(folder / "draft-1000.gguf")
    assert model.path is not None
    flat = dict.fromkeys(range(1, 34), 0.1)
    save_curve(model.path, flat)
    save_curve(slow, {1: 0.01})
    first = search(model, [folder]).candidates[0]
    assert Path(first.name).name == "slow-5000.gguf"
    expected, n_draft = predict(CostCurve(flat), CostCurve({1: 0.01}))
    assert (first.speed_up, first.n_draft) == (pytest.approx(expected), n_draft)
    assert first.engines[:2] == ("slipstream", "llama.cpp")


def test_curves_of_other_options_or_of_an_older_file_are_not_used(folder: Path) -> None:
    model, draft = target(folder), write_gguf(folder / "draft-1000.gguf")
    assert model.path is not None
    save_curve(model.path, {1: 0.1}, threads=2)
    save_curve(draft, {1: 0.01}, threads=4)
    save_curve(draft, {1: 0.01}, threads=2, time=1)
    assert len(known_curves(draft)) == 1
    assert search(model, [folder]).candidates[0].speed_up is None


def test_damaged_estimates_are_passed_over(folder: Path, tmp_path: Path) -> None:
    model = target(folder)
    assert model.path is not None
    save_curve(model.path, {1: 0.1})
    for name, content in (("a", "{"), ("b", "[]"), ("c", '{"format": 1}'), ("d", "[" * 100_000)):
        (tmp_path / "estimates" / "cost" / f"{name}.json").write_text(content)
    assert len(known_curves(model.path)) == 1


class TestPredict:
    def test_it_is_leviathans_formula_where_verifying_is_free(self) -> None:
        """α .7, c .1: (1 − .7^(n+1)) / .3 / (1 + .1 n) has its best, 1.999, at n = 4."""
        flat = CostCurve(dict.fromkeys(range(1, 34), 1.0))
        speed_up, n_draft = predict(flat, CostCurve({1: 0.1}))
        tokens = (1 - 0.7 ** (n_draft + 1)) / 0.3
        assert (speed_up, n_draft) == (pytest.approx(tokens / (1 + 0.1 * n_draft)), 4)

    def test_where_drafting_does_not_pay_it_is_one_at_no_draft(self) -> None:
        assert predict(CostCurve({1: 1.0}), CostCurve({1: 0.5})) == (1.0, 0)


def test_heads_and_folders_of_the_hugging_face_cache_are_found(folder: Path, tmp_path: Path) -> None:
    repository = tmp_path / "home" / "hf_hub_cache" / "models--org--head"
    config = {"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 64, "vocab_size": len(TOKENS)}
    write_folder(repository / "snapshots" / "abc", config, vocab=False)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    found = search(target(folder)).candidates
    assert [(c.name, c.where, c.method) for c in found] == [("org/head", stores.HUGGING_FACE, "EAGLE-3")]


def test_a_head_is_no_target(tmp_path: Path) -> None:
    config = {"architectures": ["LlamaForCausalLMEagle3"]}
    with pytest.raises(PairError, match="no target"):
        search(describe(str(write_folder(tmp_path / "head", config, vocab=False))))


class TestTheTable:
    @pytest.mark.parametrize(
        ("name", "drafter"),
        [
            ("Qwen2.5-Coder-14B-Instruct-Q4_K_M.gguf", "Qwen/Qwen2.5-Coder-0.5B-Instruct"),
            ("qwen3:8b", "Qwen/Qwen3-0.6B"),
            ("Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.2-1B-Instruct"),
            ("Llama 3.3 70B Instruct", "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B"),
            ("gemma-4-31B-it", "google/gemma-4-31B-it-assistant"),
        ],
    )
    def test_targets_are_known_however_they_are_spelt(self, name: str, drafter: str) -> None:
        assert drafter in [known.drafter for known in known_drafters() if known.drafts_for(plain(name))]

    @pytest.mark.parametrize("name", ["Qwen3.5-8B", "Qwen3-Next-80B-A3B", "Qwen2.5-Coder-0.5B-Instruct", "qwen3-18b"])
    def test_what_only_looks_alike_is_not_matched(self, name: str) -> None:
        assert [known.drafter for known in known_drafters() if known.drafts_for(plain(name))] == []

    def test_every_row_names_a_repository_and_its_source(self) -> None:
        rows = known_drafters()
        assert {known.method for known in rows} == {"draft model", "EAGLE-3", "DFlash", "MTP"}
        for known in rows:
            assert known.drafter.count("/") == 1 and known.source
            assert known.gguf is None or known.gguf.endswith("GGUF")

    def test_it_is_listed_after_what_is_here(self, folder: Path) -> None:
        write_gguf(folder / "draft-1000.gguf")
        model = target(folder)
        named = Description(**{**vars(model), "name": "Qwen3-8B"})
        found = search(named, [folder]).candidates
        assert found[0].kind == "same vocabulary" and all(c.kind is None and c.source for c in found[1:])
        assert "Qwen/Qwen3-0.6B" in [c.name for c in found[1:]]
        json.dumps([vars(c) for c in found])


class TestCommand:
    """`slipstream pair`."""

    def run(self, *arguments: str | Path) -> Any:
        from typer.testing import CliRunner

        app = typer.Typer()
        app.command()(pair)
        return CliRunner().invoke(app, list(map(str, arguments)))

    def test_a_table_and_what_it_rests_on(self, folder: Path) -> None:
        path = target(folder).path
        write_gguf(folder / "draft-1000.gguf")
        done = self.run(path, "--folder", folder)
        assert done.exit_code == 0 and "rule of thumb" in done.output and "same vocabulary" in done.output
        assert "1 models looked at, 0 of them" in done.output

    def test_nothing_found(self, folder: Path) -> None:
        assert "The suffix drafter needs no model" in self.run(target(folder).path).output

    def test_json(self, folder: Path) -> None:
        path = target(folder).path
        write_gguf(folder / "draft-1000.gguf")
        data = json.loads(self.run(path, "--folder", folder, "--json").output)
        assert data["n_seen"] == 1 and data["candidates"][0]["kind"] == "same vocabulary"

    def test_a_folder_that_is_none(self, folder: Path) -> None:
        done = self.run(target(folder).path, "--folder", folder / "none")
        assert isinstance(done.exception, InputError)
