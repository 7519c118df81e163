"""What a tuning run leaves in its folder, above all where there is something already."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from simulated_engines import World, prompts
from tuning import by_kind, engine, one, run

from slipstream.errors import InputError
from slipstream.lab import tune_files
from slipstream.lab.tuned import Tuned, Written


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    world = World(by_kind(ngram=1.5), by_kind(ngram=2.0))
    return run(engine(world), tmp_path_factory.mktemp("tuned"), prompts(n=8), budget_s=300.0)


def with_settings(tuned: Tuned, **texts: str) -> Tuned:
    """With files of these names, `_` for `.`."""
    settings = tuple(Written("Title", "sh", text, name.replace("_", ".")) for name, text in texts.items())
    return replace(tuned, engines=(replace(one(tuned), settings=settings),))


def in_folder(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted((folder / "settings-simulated").glob("*"))}


def test_settings_that_the_new_result_has_not_are_removed(tuned, tmp_path):
    tune_files.write(with_settings(tuned, run_sh="1", old_sh="old"), tmp_path)
    tune_files.write(with_settings(tuned, run_sh="2"), tmp_path)
    assert in_folder(tmp_path) == {"run.sh": "2"}
    tune_files.write(with_settings(tuned), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"tune.json", "report.html"}


def test_settings_that_somebody_changed_are_kept(tuned, tmp_path):
    tune_files.write(with_settings(tuned, run_sh="1", old_sh="old"), tmp_path)
    for name in ("run.sh", "old.sh"):
        (tmp_path / "settings-simulated" / name).write_text("mine")
    paths = tune_files.write(with_settings(tuned, run_sh="2"), tmp_path)
    assert in_folder(tmp_path) == {"run.sh": "mine", "run.sh.new": "2", "old.sh": "mine"}
    assert paths[-1].name == "run.sh.new"
    tune_files.write(with_settings(tuned, run_sh="3"), tmp_path)
    assert in_folder(tmp_path) == {"run.sh": "mine", "run.sh.new": "3", "old.sh": "mine"}
    tune_files.write(with_settings(tuned), tmp_path)
    assert in_folder(tmp_path) == {"run.sh": "mine", "old.sh": "mine"}


def test_files_outside_the_folder_are_not_removed(tuned, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "mine").write_text("1")
    tune_files.write(with_settings(tuned), tmp_path / "folder")
    path = tmp_path / "folder" / "tune.json"
    crafted = replace(one(tuned), settings=(Written("Title", "sh", "1", "../../mine"),))
    path.write_text(path.read_text().replace('"settings": []', f'"settings": [{as_json(crafted.settings[0])}]'))
    tune_files.write(with_settings(tuned), tmp_path / "folder")
    assert (tmp_path / "mine").read_text() == "1"


def as_json(written: Written) -> str:
    fields = {"title": written.title, "language": written.language, "text": written.text}
    return str({**fields, "file_name": written.file_name}).replace("'", '"')


def test_settings_of_the_same_file_name_lie_beside_each_other(tuned, tmp_path):
    names = ("run-for-a_b.sh", "run-for-a_b.sh", "run-for-A_B.sh")
    settings = tuple(Written("Title", "sh", str(i), name) for i, name in enumerate(names))
    tune_files.write(replace(tuned, engines=(replace(one(tuned), settings=settings),)), tmp_path)
    assert in_folder(tmp_path) == {"run-for-a_b.sh": "0", "run-for-a_b-2.sh": "1", "run-for-A_B-3.sh": "2"}
    read = one(tune_files.read(tmp_path / "tune.json")).settings
    assert [written.file_name for written in read] == ["run-for-a_b.sh", "run-for-a_b-2.sh", "run-for-A_B-3.sh"]


def test_a_write_that_fails_leaves_the_earlier_files_as_they_were(tuned, tmp_path, monkeypatch):
    tune_files.write(with_settings(tuned, run_sh="1"), tmp_path)
    before = (tmp_path / "tune.json").read_bytes(), (tmp_path / "report.html").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match="cannot be written: No space left on device"):
        tune_files.write(with_settings(tuned, run_sh="2"), tmp_path)
    assert before == ((tmp_path / "tune.json").read_bytes(), (tmp_path / "report.html").read_bytes())
    assert in_folder(tmp_path) == {"run.sh": "1"} and not list(tmp_path.rglob("*.part"))


def test_any_text_can_be_written(tuned, tmp_path):
    odd = replace(with_settings(tuned, run_sh="a \udcff", other_sh="b \ud800"), model="m \ud800", command="é")
    tune_files.write(odd, tmp_path)
    assert tune_files.read(tmp_path / "tune.json") == odd
    assert (tmp_path / "settings-simulated" / "run.sh").read_bytes() == b"a \xff"


@pytest.mark.parametrize("name", ["tune.json", "report.html"])
def test_a_folder_in_place_of_a_file_is_named(tuned, tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(InputError, match=rf"{name} cannot be written: Is a directory.*--resume"):
        tune_files.write(tuned, tmp_path)


def test_a_file_in_place_of_the_settings_folder_is_named(tuned, tmp_path):
    (tmp_path / "settings-simulated").write_text("mine")
    with pytest.raises(InputError, match="settings-simulated cannot be written: File exists"):
        tune_files.write(tuned, tmp_path)
    assert (tmp_path / "settings-simulated").read_text() == "mine"


@pytest.mark.parametrize(
    ("old", "new"),
    [('"n_tokens": 128', '"n_tokens": "x"'), ('"seconds": ', '"seconds": NaN, "x": '), ('"format": 2', "[" * 99999)],
)
def test_a_result_whose_fields_are_of_another_type_is_refused(tuned, tmp_path, old, new):
    tune_files.write(tuned, tmp_path)
    text = (tmp_path / "tune.json").read_text()
    assert old in text
    (tmp_path / "tune.json").write_text(text.replace(old, new))
    with pytest.raises(InputError, match=r"tune\.json is no result of slipstream tune"):
        tune_files.read(tmp_path / "tune.json")
