"""The documents say what the code says. `python tests/test_docs.py` writes docs/cli.md anew."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import typer

import slipstream
from slipstream.cli.main import app
from slipstream.decoding.statistics import Statistics
from slipstream.llm import LLM, Completion, Generation
from slipstream.text import Piece

ROOT = Path(__file__).parents[1]
CLI = ROOT / "docs" / "cli.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

INTRODUCTION = """\
# The command line

Written by `python tests/test_docs.py` from the commands themselves; a test compares the two. The names of options
are llama.cpp's where llama.cpp has them. `slipstream COMMAND --help` shows the same on the terminal, and
`slipstream --version` the version.

Exit status: 0, or 2 with one line on standard error for what a user can mend, or 130 after Ctrl-C. The answer goes to
standard output; progress, questions, figures and errors go to standard error.
"""


def cli_page() -> str:
    group: Any = typer.main.get_command(app)
    return "\n".join([INTRODUCTION, *(_command(name, command) for name, command in group.commands.items())])


def _command(name: str, command: Any) -> str:
    arguments = [p for p in command.params if not p.opts[0].startswith("-")]
    options = [p for p in command.params if p.opts[0].startswith("-")]
    usage = " ".join(p.name.upper() if p.required else f"[{p.name.upper()}]" for p in arguments)
    parts = [f"## slipstream {name}\n", f"{inspect.cleandoc(command.help)}\n"]
    parts.append(f"```\nslipstream {name} {'[OPTIONS] ' if options else ''}{usage}".rstrip() + "\n```\n")
    panels = {"Arguments": arguments}
    for option in options:
        panels.setdefault(option.rich_help_panel or "Options", []).append(option)
    parts += [_table(title, rows) for title, rows in panels.items() if rows]
    return "\n".join(parts)


def _table(title: str, params: list[Any]) -> str:
    rows = [f"### {title}\n", "| name | default | what it does |", "|---|---|---|"]
    rows += [f"| {_names(p)} | {_default(p)} | {p.help.replace('|', chr(92) + '|')} |" for p in params]
    return "\n".join(rows) + "\n"


def _names(param: Any) -> str:
    names = [*param.opts, *param.secondary_opts]
    return ", ".join(f"`{name if name.startswith('-') else name.upper()}`" for name in names)


def _default(param: Any) -> str:
    """Empty for flags and for what is absent unless given, in whichever way typer's releases say so."""
    value = param.default
    return f"`{value}`" if isinstance(value, str | int | float) and not isinstance(value, bool) else ""


def blocks(page: str, language: str | None = None) -> list[str]:
    found = FENCE.findall((ROOT / page).read_text(encoding="utf-8"))
    return [code for kind, code in found if language is None or kind == language]


def prose(page: str) -> str:
    return FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))


def test_the_command_line_page_is_that_of_the_commands() -> None:
    assert CLI.read_text(encoding="utf-8") == cli_page(), "run: python tests/test_docs.py"


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_python_examples_compile_and_use_names_that_exist(page: str) -> None:
    examples = blocks(page, "python")
    assert examples
    parts = [LLM, Generation(Statistics()), Completion("", (), "stop", Statistics()), Statistics(), Piece("", False)]
    attributes = {name for part in parts for name in dir(part)}
    callables = [slipstream.load, slipstream.Sampling, LLM.stream, LLM.generate, *_options()]
    keywords = {name for f in callables for name in inspect.signature(f).parameters} | {"end", "flush"}
    for example in examples:
        tree = ast.parse(example)
        compile(tree, page, "exec")
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                module = __import__(node.module, fromlist=["_"])
                assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)
            elif isinstance(node, ast.Attribute):
                assert node.attr in attributes, node.attr
            elif isinstance(node, ast.Call):
                assert {k.arg for k in node.keywords} <= keywords, ast.unparse(node)


def _options() -> list[Any]:
    from slipstream.runtimes.llamacpp import ContextOptions, ModelOptions

    return [ContextOptions, ModelOptions]


@pytest.mark.model
@pytest.mark.usefixtures("smollm2_path")
def test_the_readme_example_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.runtimes.llamacpp.options.default_threads", lambda: 1)  # other tests run beside it
    for example in blocks("README.md", "python"):
        exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out.strip()


def test_the_changelog_begins_with_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    top = re.search(r"^## (\d+\.\d+\.\d+), \d{4}-\d{2}-\d{2}$", changelog, re.MULTILINE)
    assert top is not None and top[1] == slipstream.__version__


def test_both_readmes_have_the_same_structure() -> None:
    english, japanese = "README.md", "README.ja.md"
    assert blocks(english) == blocks(japanese)
    levels = [re.findall(r"^#+(?= )", prose(page), re.MULTILINE) for page in (english, japanese)]
    assert levels[0] == levels[1]


def test_both_readmes_give_the_same_figures() -> None:
    figures = []
    for page in ("README.md", "README.ja.md"):
        between = re.findall(r"^<!-- figures -->\n(.*?)^<!-- /figures -->$", prose(page), re.MULTILINE | re.DOTALL)
        assert len(between) == 1, page
        figures.append(re.findall(r"\d[\d.,]*", re.sub(r"^.*\n.*\n", "", between[0], count=1)))
    assert figures[0] == figures[1]


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_architecture_page_stays_one_page() -> None:
    assert len((ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8").splitlines()) <= 60


if __name__ == "__main__":
    CLI.write_text(cli_page(), encoding="utf-8")
