"""Chat templates: what models' templates rely on, and that broken or hostile ones end in one clear line."""

import time
from pathlib import Path

import pytest
from gguf_files import CHATML, write_gguf

from slipstream.errors import InputError, TemplateError
from slipstream.models import sandbox
from slipstream.models.gguf import read_gguf
from slipstream.models.template import ChatTemplate

HELLO = [{"role": "user", "content": "Hello"}]
DOUBLING = "{%% set n = namespace(x='aaaaaaaa') %%}{%% for i in range(40) %%}{%% set n.x = %s %%}{%% endfor %%}"


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
        ("{{ '%s, %02d' % ('12345 * 2', 7) }} {{ '{} {:>4}'.format('{x', 3) }}", "12345 * 2, 07 {x    3"),
        ("{{ ', '.join(['a', 'b']) ~ 1 ~ (['c', 'd'] | join('-')) }}", "a, b1c-d"),
        ("{% for m in [1, 2] %}{{ m }}{{ ',' if not loop.last }}{% else %}none{% endfor %}", "1,2"),
        ("{% for a, b in [(1, 2), (3, 4)] %}{{ a + b }}{{ loop.length }}{% endfor %}", "3272"),
        ("{% macro m(x, y=[]) %}<{{ x }}{{ y | length }}>{% endmacro %}{{ m(1) + m(2, y=[3]) }}", "<10><21>"),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x | upper }}{{ [1, 2, 3][1:] }}", "A1[2, 3]"),
        ("{{ messages | map(attribute='nothing') | list | length }}", "1"),
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
        ("one\n{% for m in messages %}\n\n{{ 'x' ~ [1 / 0] }}{% endfor %}", "line 4: division by zero"),
    ],
)
def test_broken_templates_name_the_line_and_say_it_once(source: str, said: str) -> None:
    with pytest.raises(TemplateError) as caught:
        ChatTemplate(source).render(HELLO)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).count("The chat template") == 1


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
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 999999999) }}",
        "{{ '%(a)99999d' | format(a=1) }}",
        "{{ ('%(' * 1000000) % 1 }}",
        "{{ 'a'.center(999999999) }}",
        "{{ 'a' | center(999999999) }}",
        "{{ range(99999) | map('center', 60000) | list | length }}",
        "{{ '1'.zfill(999999999) }}",
        "{{ '\t'.expandtabs(999999999) }}",
        "{{ 'a'.ljust(999999999) }}",
        "{{ [[1]] | tojson(indent=999999999) }}",
        "{{ [1] | slice(999999999) | list }}",
        "{{ ('a\n' * 1000) | indent(1000000) }}",
        "{{ 0 | round(999999999, 'floor') }}",
        "{{ lipsum(n=100000) }}",
        "{{ ('a' * 99999).replace('a', 'b' * 99999) }}",
        "{{ (range(99999) | list) | join('x' * 100000) }}",
        "{{ ('x' * 1000000).join(range(99999)) }}",
        f"{DOUBLING % 'n.x ~ n.x'}{{{{ n.x | length }}}}",
        f"{DOUBLING % 'n.x + n.x'}{{{{ n.x | length }}}}",
        f"{DOUBLING % '[n.x, n.x]'}{{{{ n.x }}}}",
        f"{DOUBLING % '(n.x, n.x)'}{{{{ n.x | tojson }}}}",
        f"{DOUBLING % 'dict(a=n.x, b=n.x)'}{{{{ n.x | string }}}}",
        "{% set n = namespace(x='a' * 99999) %}{% for i in range(40) %}"
        "{% set y %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = y %}{% endfor %}",
        "{% macro f(n) %}{{ f(n - 1) + f(n - 1) if n else 'x' * 10000 }}{% endmacro %}{{ f(30) }}",
        "{% set x = 'x' * 99999 %}{% for i in range(99999) %}{{ x }}{% endfor %}",
        "{% set x = 'x' * 9999999 %}{% for i in range(99999) %}{% set y = x[1:] %}{% endfor %}",
        "{% set n = namespace(x='x' * 99999) %}{{ [n] * 99999 | join('', attribute='x') }}",
    ],
)
def test_hostile_templates_are_stopped(source: str) -> None:
    began = time.perf_counter()
    with pytest.raises(TemplateError):
        ChatTemplate(source).render(HELLO)
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in [1] recursive %}{% if loop.depth < 40 %}{{ loop(range(2)) }}{% endif %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    ],
)
def test_endless_templates_are_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_MAX_SECONDS", 0.2)
    with pytest.raises(TemplateError, match=r"longer than 0\.2 seconds"):
        ChatTemplate(source).render(HELLO)


def test_a_long_conversation_is_no_hostile_one() -> None:
    source = (
        "{% for m in messages %}{% for later in messages[loop.index0:] %}{% break %}{% endfor %}"
        "{{ ('<' + m.role + '>' ~ m.content.replace('<|im_end|>', '') | trim) + '\n' }}{% endfor %}"
    )
    long = [{"role": "user", "content": "word * 123456 " * 2000}] * 200
    text = ChatTemplate(source).render(long)
    assert text == "".join(f"<user>{m['content'].strip()}\n" for m in long)


@pytest.mark.parametrize("messages", [["hi"], {"role": "user", "content": "x"}, "hi", None, [None]])
def test_what_are_no_messages(messages: object) -> None:
    with pytest.raises(InputError, match="not a list of messages"):
        ChatTemplate(CHATML).render(messages)  # type: ignore[arg-type]
