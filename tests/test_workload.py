"""Prompt files: the forms a line may have, what is said of others, and the prompts that come with the project."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_models import write_tiny

from slipstream.errors import InputError
from slipstream.lab import workload
from slipstream.lab.workload import Prompt
from slipstream.runtimes.llamacpp import LlamaModel

USER = {"role": "user", "content": "Hello"}


@pytest.fixture
def read(tmp_path):
    """Reads a file with these contents."""

    def read(content: str | bytes) -> list[Prompt]:
        path = tmp_path / "prompts.jsonl"
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        return workload.read(path)

    return read


@pytest.mark.parametrize(
    ("line", "messages"),
    [
        ({"prompt": "Hello"}, (USER,)),
        ({"turns": ["Hello"]}, (USER,)),
        ({"turns": ["Hello", "And then?"]}, (USER,)),
        ({"messages": [USER]}, (USER,)),
        (
            {"messages": [{"role": "system", "content": ""}, USER, {"role": "assistant", "content": "Hi"}, USER]},
            ({"role": "system", "content": ""}, USER, {"role": "assistant", "content": "Hi"}, USER),
        ),
        ({"messages": [{**USER, "name": "Ann"}]}, (USER,)),
        ({"turns": [], "prompt": "Hello"}, (USER,)),
        ({"turns": None, "messages": [], "prompt": "Hello", "reference": ["x"], "score": 1.5}, (USER,)),
    ],
    ids=str,
)
def test_the_forms_a_line_may_have(read, line, messages):
    (prompt,) = read(json.dumps(line))
    assert prompt == Prompt("1", "prompts", messages)


def test_id_and_category_are_taken_over_as_texts(read):
    lines = [{"prompt": "a", "id": "x-1", "category": "chat"}, {"prompt": "b", "id": 7, "category": 3}, {"prompt": "c"}]
    prompts = read("\n".join(map(json.dumps, lines)))
    assert [(p.id, p.category) for p in prompts] == [("x-1", "chat"), ("7", "3"), ("3", "prompts")]


def test_empty_lines_are_left_out_but_counted(read):
    prompts = read('\n{"prompt": "a"}\r\n\n   \n{"prompt": "b"}\n')
    assert [p.id for p in prompts] == ["2", "5"]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_only_a_line_feed_ends_a_line(read, separator):
    """JSON allows these within a text, and data from the web have them."""
    text = f"Hello{separator}you"
    one, other = read("\n".join([json.dumps({"prompt": text}, ensure_ascii=False)] * 2))
    assert one.messages == other.messages == ({"role": "user", "content": text},)


def test_texts_of_all_languages(read):
    assert read('{"prompt": "猫は椅子で眠る。 \\ud83d\\ude00"}')[0].messages[0]["content"] == "猫は椅子で眠る。 😀"


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "Hello",
        "[1, 2]",
        '"Hello"',
        "null",
        "{}",
        '{"prompt": ""}',
        '{"prompt": 3}',
        '{"prompt": null}',
        '{"turns": []}',
        '{"turns": [""]}',
        '{"turns": [3]}',
        '{"turns": "Hello"}',
        '{"messages": []}',
        '{"messages": "Hello"}',
        '{"messages": ["Hello"]}',
        '{"messages": [{"role": "user"}]}',
        '{"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": ["b"]}]}',
        '{"text": "Hello"}',
        '{"prompt": "a"} {"prompt": "b"}',
        "[" * 100_000,
    ],
    ids=lambda line: line[:60],
)
def test_any_other_line_is_an_error_that_names_it(read, line):
    with pytest.raises(InputError, match=r"prompts\.jsonl, line 2") as raised:
        read(f'{{"prompt": "a"}}\n{line}\n')
    assert len(str(raised.value)) < 1000 and "\n" not in str(raised.value)


@pytest.mark.parametrize("content", ["", "\n", "  \n\r\n\n"])
def test_an_empty_file(read, content):
    with pytest.raises(InputError, match="holds no prompts"):
        read(content)


def test_files_that_cannot_be_read(read, tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read(b'{"prompt": "caf\xe9"}')
    with pytest.raises(InputError, match="cannot be read"):
        workload.read(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="cannot be read"):
        workload.read(tmp_path)


def test_half_a_character_is_an_error_or_can_be_tokenised(read, tmp_path):
    """JSON can write half of a surrogate pair, which is no text."""
    with LlamaModel(write_tiny(tmp_path / "tiny.gguf", "llama")) as model:
        try:
            (prompt,) = read('{"prompt": "\\ud83d"}')
        except InputError:
            return
        half, mark = (
            model.tokenizer.tokenize(text, add_special=True, parse_special=True)
            for text in (prompt.messages[0]["content"], "?")
        )
        assert half == mark, "it stands for what cannot be written"


def test_the_built_in_prompts():
    prompts = workload.built_in()
    categories = {prompt.category for prompt in prompts}
    assert len(categories) >= 8 and all(len([p for p in prompts if p.category == c]) >= 1 for c in categories)
    assert len({prompt.id for prompt in prompts}) == len(prompts), "their names tell them apart"
    for prompt in prompts:
        (message,) = prompt.messages
        assert message["role"] == "user" and 20 < len(message["content"]) < 2000


def test_the_built_in_prompts_are_a_file_like_any_other():
    path = Path(workload.__file__).with_name("prompts.jsonl")
    assert workload.read(path) == workload.built_in()
