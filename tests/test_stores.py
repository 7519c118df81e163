"""Finding models in made-up home folders, and what a person's words resolve to."""

import hashlib
import json
from pathlib import Path

import pytest
from gguf_files import write_gguf

from slipstream.cli.models import models
from slipstream.cli.pull import pull
from slipstream.errors import DownloadError, ModelError
from slipstream.models import demo, hub
from slipstream.models.listing import list_models
from slipstream.models.resolve import resolve
from slipstream.models.stores import find_models, part_names


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder, in which every store is looked for."""
    for name in ("OLLAMA_MODELS", "LLAMA_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv(demo.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(demo, "cache_folder", lambda: tmp_path / ".cache/slipstream/models")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"GGUF")
    return path


def add_ollama(models: Path, manifest: str, content: bytes = b"GGUF", media: str = "model") -> Path:
    digest = hashlib.sha256(content).hexdigest()
    blob = touch(models / "blobs" / f"sha256-{digest}")
    blob.write_bytes(content)
    path = models / "manifests" / manifest
    path.parent.mkdir(parents=True, exist_ok=True)
    layer = {"mediaType": f"application/vnd.ollama.image.{media}", "digest": f"sha256:{digest}"}
    path.write_text(json.dumps({"layers": [{"mediaType": "application/x"}, layer]}))
    return blob


def add_hub(home: Path, repository: str, file: str, revision: str = "abc") -> Path:
    folder = home / ".cache/huggingface/hub" / f"models--{repository.replace('/', '--')}"
    return touch(folder / "snapshots" / revision / file)


def names(store: str) -> list[str]:
    return [found.name for found in find_models() if found.store == store]


class TestStores:
    def test_an_empty_home_holds_no_models(self, home: Path) -> None:
        assert find_models() == []

    def test_lm_studio(self, home: Path) -> None:
        touch(home / ".lmstudio/models/org/repo/model.gguf")
        touch(home / ".cache/lm-studio/models/org/old/model.gguf")
        touch(home / ".lmstudio/models/org/repo/mmproj-model.gguf")
        assert names("LM Studio") == ["org/old/model.gguf", "org/repo/model.gguf"]

    def test_lm_studio_with_a_folder_of_its_own(self, home: Path) -> None:
        touch(home / "big/org/repo/model.gguf")
        (home / "studio").mkdir()
        (home / ".lmstudio-home-pointer").write_text(str(home / "studio"))
        (home / "studio/settings.json").write_text(json.dumps({"downloadsFolder": str(home / "big")}))
        assert names("LM Studio") == ["org/repo/model.gguf"]

    @pytest.mark.parametrize("odd", ["~nobody-of-that-name/x", "~\0", "a\0b", "a\ud800"])
    def test_settings_that_name_no_folder_are_passed_over(
        self, home: Path, monkeypatch: pytest.MonkeyPatch, odd: str
    ) -> None:
        touch(home / ".lmstudio/models/org/repo/model.gguf")
        touch(home / ".cache/llama.cpp/other.gguf")
        (home / ".lmstudio/settings.json").write_text(json.dumps({"downloadsFolder": odd}))
        (home / ".lmstudio-home-pointer").write_bytes(odd.encode("utf-8", "surrogatepass"))
        for name in ("OLLAMA_MODELS", "LLAMA_CACHE", "HF_HOME"):
            if "\0" not in odd and odd.isascii():
                monkeypatch.setenv(name, odd)
        assert [found.name for found in find_models()] == ["org/repo/model.gguf", "other.gguf"]
        with pytest.raises(ModelError):
            resolve(odd)

    def test_ollama(self, home: Path) -> None:
        models = home / ".ollama/models"
        blob = add_ollama(models, "registry.ollama.ai/library/llama3.2/1b")
        add_ollama(models, "registry.ollama.ai/someone/thing/latest")
        add_ollama(models, "hf.co/org/repo-GGUF/Q4_K_M")
        add_ollama(models, "registry.ollama.ai/library/adapter/1", media="adapter")
        assert names("Ollama") == ["hf.co/org/repo-GGUF:Q4_K_M", "llama3.2:1b", "someone/thing:latest"]
        assert resolve("llama3.2:1b") == blob

    def test_ollama_elsewhere(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OLLAMA_MODELS", str(home / "elsewhere"))
        add_ollama(home / "elsewhere", "registry.ollama.ai/library/qwen3/8b")
        assert names("Ollama") == ["qwen3:8b"]

    @pytest.mark.parametrize("manifest", ["", "[1]", "{", '{"layers": 3}', '{"layers": [3]}', "[" * 9999, "\0"])
    def test_odd_manifests_are_passed_over(self, home: Path, manifest: str) -> None:
        path = home / ".ollama/models/manifests/registry.ollama.ai/library/odd/1"
        path.parent.mkdir(parents=True)
        path.write_text(manifest)
        assert find_models() == []

    def test_a_manifest_cannot_point_outside_the_blobs(self, home: Path) -> None:
        models = home / ".ollama/models"
        add_ollama(models, "registry.ollama.ai/library/evil/1")
        layer = {"mediaType": "application/vnd.ollama.image.model", "digest": "../../../secret"}
        path = models / "manifests/registry.ollama.ai/library/evil/1"
        path.write_text(json.dumps({"layers": [layer]}))
        assert find_models() == []

    def test_llama_cpp(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        touch(home / ".cache/llama.cpp/org_repo_model.gguf")
        assert names("llama.cpp") == ["org_repo_model.gguf"]
        monkeypatch.setenv("LLAMA_CACHE", str(home / "other"))
        touch(home / "other/another.gguf")
        assert names("llama.cpp") == ["another.gguf"]

    def test_hugging_face_prefers_the_current_revision(self, home: Path) -> None:
        add_hub(home, "org/repo-GGUF", "sub/model.gguf", revision="aaa")
        current = add_hub(home, "org/repo-GGUF", "sub/model.gguf", revision="bbb")
        touch(current.parents[3] / "refs/main").write_text("bbb")
        assert [(f.name, f.path) for f in find_models()] == [("org/repo-GGUF/sub/model.gguf", current)]

    def test_a_split_set_is_one_model(self, home: Path) -> None:
        for i in (1, 2, 3):
            touch(home / f".lmstudio/models/o/r/big-0000{i}-of-00003.gguf")
        assert names("LM Studio") == ["o/r/big-00001-of-00003.gguf"]
        assert part_names("big-00002-of-00003.gguf")[-1] == "big-00003-of-00003.gguf"

    def test_links_in_a_circle_end(self, home: Path) -> None:
        touch(home / ".lmstudio/models/o/r/model.gguf")
        (home / ".lmstudio/models/o/loop").symlink_to(home / ".lmstudio/models")
        assert names("LM Studio") == ["o/r/model.gguf"]


class TestListing:
    def test_good_damaged_and_other_files(self, home: Path) -> None:
        folder = home / ".lmstudio/models/o/r"
        write_gguf(folder / "good.gguf")
        touch(folder / "damaged.gguf")
        write_gguf(folder / "imatrix.gguf", extra={"general.type": "imatrix"})
        damaged, good = list_models()
        assert "ends inside its header" in str(damaged.problem)
        assert (good.name, good.n_params, good.vocab_size, good.problem) == ("o/r/good.gguf", 48, 6, None)

    def test_the_command_prints_a_table_or_json(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        models()
        assert "slipstream pull smollm2" in capsys.readouterr().out
        write_gguf(home / ".lmstudio/models/o/r/good.gguf")
        touch(home / ".lmstudio/models/o/r/damaged.gguf")
        models()
        table = capsys.readouterr().out
        assert "o/r/good.gguf  LM Studio  llama" in table
        assert "o/r/damaged.gguf (LM Studio): damaged.gguf ends inside its header." in table
        models(as_json=True)
        listed = json.loads(capsys.readouterr().out)
        assert [model["quantization"] for model in listed] == [None, "Q4_K_M"]

    def test_the_table_shows_what_would_steer_the_terminal(
        self, home: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write_gguf(home / ".lmstudio/models/o/r/a\x1b[31m\nb\u202e[bold]東京.gguf")
        touch(home / ".lmstudio/models/o/r/bad\x9b\r.gguf")
        models()
        out = capsys.readouterr().out
        assert r"o/r/a\x1b[31m\nb\u202e[bold]東京.gguf  LM Studio  llama" in out
        assert r"o/r/bad\x9b\r.gguf (LM Studio): bad\x9b\r.gguf ends inside its header." in out

    def test_only_what_can_be_pulled_is(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = add_hub(home, "o/r", "m.gguf")
        pull("hf:o/r")
        assert capsys.readouterr().out == f"{path}\n"
        with pytest.raises(ModelError, match="cannot be pulled"):
            pull("llama3.2")


class TestResolve:
    def test_a_path(self, home: Path) -> None:
        assert resolve(str(touch(home / "here.gguf"))) == home / "here.gguf"
        assert resolve("~/here.gguf") == home / "here.gguf"

    def test_a_folder_with_one_model_or_more(self, home: Path) -> None:
        path = touch(home / "folder/one.gguf")
        assert resolve(str(home / "folder")) == path
        touch(home / "folder/two.gguf")
        with pytest.raises(ModelError, match=r"holds 2 models: one\.gguf, two\.gguf"):
            resolve(str(home / "folder"))
        (home / "empty").mkdir()
        with pytest.raises(ModelError, match="holds no GGUF model"):
            resolve(str(home / "empty"))

    def test_any_part_of_a_split_set_means_the_first(self, home: Path) -> None:
        first = touch(home / "big-00001-of-00002.gguf")
        second = touch(home / "big-00002-of-00002.gguf")
        assert resolve(str(second)) == first
        second.unlink()
        with pytest.raises(ModelError, match=r"big-00002-of-00002\.gguf.*is missing"):
            resolve(str(first))

    def test_a_part_of_a_name(self, home: Path) -> None:
        path = touch(home / ".lmstudio/models/org/Qwen3-8B-GGUF/Qwen3-8B-Q4_K_M.gguf")
        assert resolve("qwen3-8b") == path
        touch(home / ".lmstudio/models/org/Qwen3-8B-GGUF/Qwen3-8B-Q8_0.gguf")
        with pytest.raises(ModelError, match=r"any of 2 models: .*Q4_K_M.*Q8_0"):
            resolve("qwen3-8b")

    def test_a_demo_model_that_is_not_where_it_was_said_to_be(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(demo.ENVIRONMENT_VARIABLE, str(home / "nowhere.gguf"))
        with pytest.raises(ModelError, match=r"SLIPSTREAM_DEMO_MODEL names .*nowhere\.gguf, where there is no file"):
            resolve("smollm2")
        assert find_models() == []

    def test_unknown_names_and_missing_files_differ(self, home: Path) -> None:
        touch(home / ".cache/llama.cpp/gemma.gguf")
        with pytest.raises(ModelError, match=r"There is no file \./gema\.gguf"):
            resolve("./gema.gguf")
        with pytest.raises(ModelError, match=r"called 'gemmma'.*Close to it: gemma\.gguf"):
            resolve("gemmma")
        with pytest.raises(ModelError):
            resolve("\0" + "x" * 5000)

    def test_the_demo_is_fetched_only_if_confirmed(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[str] = []
        with pytest.raises(DownloadError, match="slipstream pull smollm2"):
            resolve("smollm2", confirm=lambda question: bool(asked.append(question)))
        assert asked == ["Fetch the demo model smollm2 (98 MB)?"]
        monkeypatch.setattr(demo, "fetch_demo", lambda progress: home / "fetched")
        assert resolve("smollm2") == home / "fetched"


class TestHub:
    FILES = ("README.md", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-Q8_0-00001-of-00002.gguf", "mmproj-F16.gguf")

    @pytest.mark.parametrize(
        ("wanted", "chosen"),
        [
            (None, "m-Q4_K_M.gguf"),
            ("q4_k_s", "m-Q4_K_S.gguf"),
            ("Q8_0", "m-Q8_0-00001-of-00002.gguf"),
            ("m-q4_k_s.gguf", "m-Q4_K_S.gguf"),
        ],
    )
    def test_the_file_meant(self, wanted: str | None, chosen: str) -> None:
        assert hub.choose("o/r", self.FILES, wanted) == chosen

    def test_a_part_of_a_quantisation_is_none(self) -> None:
        with pytest.raises(ModelError, match=r"no file for 'Q4_K': m-Q4_K_M\.gguf, m-Q4_K_S\.gguf"):
            hub.choose("o/r", self.FILES, "Q4_K")

    def test_the_first_file_where_there_is_no_q4_k_m(self) -> None:
        assert hub.choose("o/r", ["b.gguf", "a.gguf"], None) == "a.gguf"
        with pytest.raises(ModelError, match="holds no GGUF"):
            hub.choose("o/r", ["model.safetensors"], None)

    def test_what_is_in_the_cache_needs_no_network(self, home: Path) -> None:
        path = add_hub(home, "o/r", "m-Q8_0.gguf")
        assert resolve("hf:o/r") == resolve("hf:o/r:Q8_0") == resolve("hf:o/r:m-Q8_0.gguf") == path

    def test_without_the_library(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
        with pytest.raises(ModelError, match="pip install huggingface_hub"):
            resolve("hf:o/r:Q4_K_M")

    def test_odd_references(self, home: Path) -> None:
        for reference in ("hf:", "hf:repo", "hf:a/b/c", "hf:a/b:"):
            with pytest.raises(ModelError, match="no Hugging Face reference"):
                resolve(reference)
