"""Chat templates: what models' templates rely on, and that broken or hostile ones end in one clear line."""

from pathlib import Path

import pytest
from gguf_files import CHATML, write_gguf

from slipstream.errors import TemplateError
from slipstream.models.gguf import read_gguf
from slipstream.models.template import ChatTemplate

HELLO = [{"role": "user", "content": "Hello"}]


def test_the_template_of_a_file(tmp_path: Path) -> None:
    template = ChatTemplate.of(read_gguf(write_gguf(tmp_path / "x.gguf")))
    assert (template.bos, template.eos) == ("<s>", "</s>")
    assert template.render(HELLO) == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert template.render(HELLO, add_generation_prompt=False) == "<|im_start|>user\nHello<|im_end|>\n"


def test_a_file_without_template_says_what_to_do(tmp_path: Path) -> None:
    gguf = read_gguf(write_gguf(tmp_path / "x.gguf", template=None))
    with pytest.raises(TemplateError, match=r"x\.gguf holds no chat template.*--template FILE.*--raw"):
        ChatTemplate.of(gguf)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "<s>Hello</s>"),
        ("{% if true %}\n  x\n  {% endif %}\ny", "  x\ny"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% generation %}said{% endgeneration %}", "said"),
        ("{{ {'é': '<b>'} | tojson }}", '{"é": "<b>"}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{% if tools is not none %}tools{% else %}none{% endif %}", "none"),
        ("{{ '-' * 5 }}{{ 2 ** 10 }}", "-----1024"),
        ("{{ messages[0].content.split('l')[0] }}", "He"),
    ],
)
def test_what_templates_rely_on(source: str, text: str) -> None:
    assert ChatTemplate(source, "<s>", "</s>").render(HELLO) == text


def test_thinking_is_passed_on_only_when_decided() -> None:
    template = ChatTemplate("{{ enable_thinking | default('unsaid') }}")
    assert template.knows_thinking
    assert not ChatTemplate(CHATML).knows_thinking
    said = [template.render(HELLO, enable_thinking=decided) for decided in (None, True, False)]
    assert said == ["unsaid", "True", "False"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("one\n{% if %}", "line 2"),
        ("one\n\n{{ messages[0].content.nothing.at_all }}", "line 3"),
        ("{% for m in messages %}\n{{ 1 / 0 }}{% endfor %}", "line 2: division by zero"),
        ("{{ raise_exception('roles must\nalternate') }}", "refuses: roles must alternate"),
    ],
)
def test_broken_templates_name_the_line(source: str, said: str) -> None:
    with pytest.raises(TemplateError) as caught:
        ChatTemplate(source).render(HELLO)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ 'x' * 10 ** 10 }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{{ " + "(" * 5000 + ")" * 5000 + " }}",
    ],
)
def test_hostile_templates_are_stopped(source: str) -> None:
    with pytest.raises(TemplateError):
        ChatTemplate(source).render(HELLO)
