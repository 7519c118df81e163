"""Prompts to tune with: logs of requests, the built-in set, and who chooses and who judges."""

from __future__ import annotations

import json

import pytest
from simulated_engines import prompts

from slipstream.errors import InputError
from slipstream.lab import workload
from slipstream.lab.tune_tasks import MIXED, pools
from slipstream.lab.workload import Prompt

USER = {"role": "user", "content": "Hello"}
REQUEST = {"model": "x", "messages": [USER], "temperature": 0.2}


@pytest.fixture
def read(tmp_path):
    def read(*lines: object) -> list[Prompt]:
        path = tmp_path / "log.jsonl"
        path.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines), encoding="utf-8")
        return workload.read(path)

    return read


@pytest.mark.parametrize(
    "line",
    [
        {"custom_id": "7", "method": "POST", "url": "/v1/chat/completions", "body": REQUEST},
        {"id": 7, "request": REQUEST, "response": {"status_code": 200}},
        {"id": 7, "request": {"body": REQUEST, "headers": {}}},
        {"id": 7, "request": {"body": json.dumps(REQUEST)}},
        {"id": 7, "body": json.dumps(REQUEST)},
        {"id": 7, "body": {"model": "x", "prompt": "Hello"}},
        {"id": 7, "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]},
        {"id": 7, "messages": [USER, {"role": "assistant", "content": "Hi"}]},
    ],
    ids=str,
)
def test_logs_of_requests(read, line):
    assert read(line) == [Prompt("7", "prompts", (USER,))]


def test_parts_of_a_content_are_joined_and_earlier_answers_stay(read):
    parts = [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]
    answer = {"role": "assistant", "content": "Hi"}
    (prompt,) = read({"messages": [USER, answer, {"role": "user", "content": parts}, answer]})
    assert prompt.messages == (USER, answer, {"role": "user", "content": "One.\nTwo."})


@pytest.mark.parametrize(
    "line",
    [
        {"body": {"messages": []}},
        {"body": "no JSON"},
        {"body": None, "request": 3},
        {"messages": [{"role": "assistant", "content": "Hi"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        {"messages": [{"role": "user", "content": []}]},
        {"messages": [{"role": "user", "content": None}]},
        {"body": {"body": {"body": {"body": {"body": {"messages": [USER]}}}}}},
    ],
    ids=str,
)
def test_a_line_without_a_prompt_is_named(read, line):
    with pytest.raises(InputError, match=r"log\.jsonl, line 2: no prompt"):
        read({"prompt": "Hello"}, line)


def test_the_built_in_set_for_tuning_has_six_prompts_of_each_category_and_real_lengths():
    found = workload.built_in_for_tuning()
    by_category: dict[str, list[str]] = {}
    for prompt in found:
        by_category.setdefault(prompt.category, []).append(prompt.messages[0]["content"])
    assert list(by_category) == ["chat", "code", "edit", "summary", "rag", "translation", "math", "json"]
    assert {len(texts) for texts in by_category.values()} == {6} and len({p.id for p in found}) == 48
    assert all(30 <= text.split("```")[1].count("\n") <= 84 for text in by_category["edit"])
    for text in by_category["summary"] + by_category["rag"]:
        assert 300 <= len(text.split()) <= 600 or len(text) >= 700, "Japanese has no spaces"
    japanese = [text for texts in by_category.values() for text in texts if any("ぁ" <= c <= "ん" for c in text)]
    assert len(japanese) >= 16


def test_categories_take_turns_and_what_judges_did_not_choose():
    some = pools(prompts(("a", "b", "c"), 6), 1)
    assert [len({t.category for t in some.search[i : i + 3]}) for i in (0, 3, 6)] == [3, 3, 3]
    assert not {t.id for t in some.search} & {t.id for t in some.fresh}
    assert len(some.search) == len(some.fresh) == 9


def test_the_order_is_always_the_same():
    assert pools(prompts(), 1) == pools(prompts(), 1)


def test_a_few_prompts_choose_and_judge():
    some = pools(prompts(("a", "b"), 3), 1)
    assert some.search is some.fresh and len(some.search) == 6


def test_requests_at_once_are_of_one_category_where_there_are_enough_and_no_prompt_is_asked_twice():
    some = pools(prompts({"a": 9, "b": 6, "c": 3}, 0), 4)
    tasks = [*some.search, *some.fresh] if some.search is not some.fresh else list(some.search)
    assert sorted(t.category for t in tasks) == ["a", "a", "b", MIXED]
    asked = [p.id for t in tasks for p in t.prompts]
    assert len(asked) == len(set(asked)) == 16


def test_fewer_prompts_than_requests_at_once():
    with pytest.raises(InputError, match="8 requests at once need as many prompts; there are 6"):
        pools(prompts(("a",), 6), 8)


def test_prompts_of_one_name_are_told_apart():
    same = [Prompt(name, "a", (USER,)) for name in ("x", "x (2)", "x", "x")]
    assert {p.id for t in pools(same, 1).search for p in t.prompts} == {"x", "x (2)", "x (3)", "x (4)"}
