"""Files of JSON objects, one a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.lab import json_lines


def test_lines_are_read_as_they_were_written(tmp_path: Path) -> None:
    written = [{"kind": "run", "text": "ö \ud800 \u2028\n"}, {"kind": "note", "n": 1}]
    for line in written:
        json_lines.append(tmp_path / "j", line)
    assert json_lines.read(tmp_path / "j", ("run", "note")) == written
    assert (tmp_path / "j").read_bytes().isascii()
    assert json_lines.read(tmp_path / "none", ("run",)) == []


def test_a_line_cut_off_is_removed_with_the_next_one_written(tmp_path: Path) -> None:
    json_lines.append(tmp_path / "j", {"kind": "run"})
    with (tmp_path / "j").open("ab") as file:
        file.write(b'{"kind": "no')
    before = (tmp_path / "j").read_bytes()
    assert json_lines.read(tmp_path / "j", ("run",)) == [{"kind": "run"}]
    assert (tmp_path / "j").read_bytes() == before
    json_lines.append(tmp_path / "j", {"kind": "note"})
    assert (tmp_path / "j").read_text() == '{"kind": "run"}\n{"kind": "note"}\n'


def test_a_file_without_a_whole_line_is_not_cut(tmp_path: Path) -> None:
    (tmp_path / "j").write_text('{"my": "data"}')
    with pytest.raises(ValueError, match="line 1 has no end"):
        json_lines.read(tmp_path / "j", ("run",))
    with pytest.raises(ValueError, match="line 1 has no end"):
        json_lines.append(tmp_path / "j", {"kind": "run"})
    assert (tmp_path / "j").read_text() == '{"my": "data"}'


@pytest.mark.parametrize(
    ("text", "why"),
    [("[]", "of another kind"), ('{"kind": ["run"]}', "of another kind"), ("[" * 100_000, "no JSON"), ("", "no JSON")],
)
def test_a_line_of_something_else_is_named(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "j").write_text(f'{{"kind": "run"}}\n{text}\n')
    with pytest.raises(ValueError, match=f"line 2 is {why}"):
        json_lines.read(tmp_path / "j", ("run",))
