"""How a line is read: quotes, line ends, prompts of a terminal, paths of Windows, print; and how a word is written."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess

import pytest

from slipstream.engines.flags import translate
from slipstream.engines.flags_shell import read
from slipstream.engines.flags_word import quoted
from slipstream.errors import InputError

READ = {
    "quotes": ("a 'b c' \"d e\" f\\ g", ["a", "b c", "d e", "f g"]),
    "quotes within a word": ("--x='a b' 'it'\\''s'", ["--x=a b", "it's"]),
    "escapes within double quotes": (r'"a \"b\" \\ \n \$5"', [r'a "b" \ \n $5']),
    "nothing in quotes": ("a ''", ["a", ""]),
    "output of a command": ("-t $(nproc --all) -k `cat key`", ["-t", "$(nproc --all)", "-k", "`cat key`"]),
    "signs of a shell in quotes": ("-p '<s>[INST] a; b | c' -r \">\"", ["-p", "<s>[INST] a; b | c", "-r", ">"]),
    "places to fill in": ("serve <model> --path /x/<name>.gguf", ["serve", "<model>", "--path", "/x/<name>.gguf"]),
    "a comment": ("# first\na -b 'c # d' e#f # the rest\n -g", ["a", "-b", "c # d", "e#f", "-g"]),
    "sh goes on": ("a \\\n b \\  \r\n c", ["a", "b", "c"]),
    "cmd goes on": ("a ^\r\n b", ["a", "b"]),
    "PowerShell goes on": ("a `\n b", ["a", "b"]),
    "line ends that a page has lost": ("a \\ -b c \\ -d", ["a", "-b", "c", "-d"]),
    "an end without a next line": ("a b \\", ["a", "b"]),
    "lines that have lost their backslashes": ("a -b c\n  -d\n\n--e f\n", ["a", "-b", "c", "-d", "--e", "f"]),
    "a comment between lines that go on": ("a \\\n # why\n -b", ["a", "-b"]),
    "a line end that is escaped in single quotes": ("a 'b\\\nc'", ["a", "b\\\nc"]),
    "a line end that is escaped in double quotes": ('a "b\\\nc" d', ["a", "bc", "d"]),
    "a line end in quotes": ("a 'b\nc'", ["a", "b\nc"]),
    "a prompt": ("$ a b", ["a", "b"]),
    "a prompt of root": ("root@host:~# a b", ["a", "b"]),
    "a prompt with a folder": ("[me@host dir]$ a b", ["a", "b"]),
    "a prompt with an environment": ("(venv) me@host:~/x$ a b", ["a", "b"]),
    "a prompt of cmd": (r"C:\llama>a.exe b", ["a.exe", "b"]),
    "a prompt of PowerShell": ("PS C:\\Users\\me> .\\a.exe b", [".\\a.exe", "b"]),
    "a variable is no prompt": ("$BIN/a b", ["$BIN/a", "b"]),
    "Windows": (r'"C:\Program Files\a.exe" -m D:\b.gguf', [r"C:\Program Files\a.exe", "-m", r"D:\b.gguf"]),
    "Windows, without a drive": (r"a -m models\b.gguf", ["a", "-m", r"models\b.gguf"]),
    "Windows, a variable": (r"a -m %HOME%\b", ["a", "-m", r"%HOME%\b"]),
    "Windows, quotes within quotes": (r'a.exe -p "say \"hi\""', ["a.exe", "-p", 'say "hi"']),
    "sh, a program of Windows in a text": (r"a\ b -p 'see app.exe'", ["a b", "-p", "see app.exe"]),
    "sh, a name with a bracket": (r"a -m big\(1\).gguf", ["a", "-m", "big(1).gguf"]),
    "quotes of print": ("a -m “my model” -n ‘b c’ „d e“", ["a", "-m", "my model", "-n", "b c", "d e"]),
    "dashes of print": ("a –draft-max 3 —flag –m b", ["a", "--draft-max", "3", "--flag", "-m", "b"]),
    "other dashes of print": (
        "a \u2010m b \u2212\u2212draft-max 3 -n \u22121",
        ["a", "-m", "b", "--draft-max", "3", "-n", "\u22121"],
    ),
    "print within quotes": ("a -p 'say “hi” – don’t'", ["a", "-p", "say “hi” – don’t"]),
    "a space of print": ("a\u00a0b", ["a", "b"]),
}


@pytest.mark.parametrize("case", READ)
def test_a_text_is_read_as_a_shell_reads_it(case):
    text, words = READ[case]
    assert read(text).words == words


@pytest.mark.parametrize("text", [READ[case][0] for case in ("quotes", "quotes within a word", "nothing in quotes")])
def test_words_are_those_of_python_s_reader(text):
    assert read(text).words == shlex.split(text)


@pytest.mark.parametrize("text", ["a 'b", 'a "b', "a `b", "a\\", "a 'b' c'"])
def test_what_is_opened_and_not_closed_is_no_line(text):
    with pytest.raises(InputError, match="has no end"):
        read(text)


@pytest.mark.parametrize("text", ["a && b", "a; b", "a | b", "a > b", "a 2>&1", "a &", "a < b", "http://x?a=1&b=2"])
def test_more_than_one_command_is_refused(text):
    with pytest.raises(InputError, match="Give one command alone"):
        read(text)


@pytest.mark.parametrize("text", ["a -m b\nc -m d", "A=1\na", "$ a -m b\n$ a -m c", "a -m\nb", "a # why\nb"])
def test_a_line_that_begins_with_no_flag_is_a_second_command(text):
    with pytest.raises(InputError, match="begins a line, and so a second command"):
        read(text)


def test_words_that_a_shell_has_read_are_taken_as_they_are():
    assert read(["a", "-r", ">", "x y"]).words == ["a", "-r", ">", "x y"]
    with pytest.raises(InputError, match="There is no command line"):
        read([])


AS_WRITTEN = [
    'FOO="a b" llama-server -m "my model.gguf"',
    "llama-server -m a -t $(nproc) -c $CTX -p \"costs \\$5\" -e 'it is $5'",
    'llama-server -m "$DIR/a b.gguf" -k ~/key',
    'vllm serve m --speculative-config \'{"method": "ngram"}\'',
    "llama-server -m '$HOME/x' --alias \"$HOME/x\" -a $HOME/x",
    "llama-server -p 'a\\\nb' -e \"a\\\nb\"",
]


@pytest.mark.parametrize("line", AS_WRITTEN)
def test_what_is_not_changed_comes_back_as_it_was_written(line):
    assert translate(line).command == line


def test_a_variable_that_moves_is_still_the_shell_s():
    command = translate("vllm serve $MODEL --speculative-model ~/${NAME} --num-speculative-tokens 3").command
    assert command.startswith('vllm serve $MODEL --speculative-config "{')
    config = '{"method": "draft_model", "model": "$HOME/${NAME}", "num_speculative_tokens": 3}'
    assert read(command).words[-1] == config


MOVED = {
    "a variable": ("llama-server --draft-max=$N", '--spec-draft-n-max "$N"'),
    "a variable in double quotes": ('llama-server --draft-max="$N"', '--spec-draft-n-max "$N"'),
    "a variable in quotes with its flag": ('llama-server "--draft-max=$N"', '--spec-draft-n-max "$N"'),
    "a literal dollar": ("llama-server --draft-max='$N'", "--spec-draft-n-max '$N'"),
    "the output of a command": ("llama-server --draft-max=`nproc`", '--spec-draft-n-max "`nproc`"'),
    "both in one word": ("llama-server --model='$a'/$B --draft 3", '--model "\\$a/$B"'),
    "letters behind a variable": ("llama-server --model=$D'b c' --draft 3", '--model "${D}b c"'),
    "the home": ("llama-server --model=~/$B --draft 3", '--model ~/"$B"'),
    "a folder of a program": ("$BIN/main -m a", '"$BIN/llama-cli" -m a'),
    "a value of a variable": ("LLAMA_ARG_DRAFT_MAX=$N llama-server", 'LLAMA_ARG_SPEC_DRAFT_N_MAX="$N" llama-server'),
    "a type of drafts": ("llama-server -md b --spec-type $T", '--spec-type "$T,draft-simple"'),
    "a tag": ("docker run ghcr.io/ggerganov/llama.cpp:$TAG", '"ghcr.io/ggml-org/llama.cpp:$TAG"'),
}


@pytest.mark.parametrize("case", MOVED)
def test_what_moves_means_to_the_shell_what_it_meant(case):
    line, expected = MOVED[case]
    assert expected in translate(line).command


def in_sh(line: str) -> list[str]:
    """The words that sh makes of it."""
    surroundings = {"PATH": os.environ["PATH"], "D": "x", "N": "3", "HOME": "/h"}
    ran = subprocess.run(["sh", "-c", f"printf '%s\\0' {line}"], env=surroundings, capture_output=True, check=True)
    return ran.stdout.decode().split("\0")[:-1]


IN_OBJECT = ["$D", '"a b/${D}"', "'$D'", "'$D'/$D", r"\$D", "`echo d`", "'`echo d`'", "$(echo d)", "~/$D", "'~/d'"]
IN_OBJECT += ["'a\"b'", r'"a\"b$D"', r"'a\b'$D", r"'a\b'", "é"]


@pytest.mark.skipif(shutil.which("sh") is None, reason="sh is not here")
@pytest.mark.parametrize("value", IN_OBJECT)
def test_within_an_object_a_shell_puts_in_what_it_put_in_outside(value):
    for separator in " =":
        command = translate(f"vllm serve m --speculative-model{separator}{value} --num-speculative-tokens $N").command
        config = json.loads(in_sh(command)[-1])
        assert [config["model"]] == in_sh(value) and config["num_speculative_tokens"] == "3"


def test_an_object_that_a_shell_fills_in_is_not_joined_with_flags_of_old():
    with pytest.raises(InputError, match="-sc holds what a shell puts in"):
        translate('vllm serve m -sc "{\\"method\\": \\"$X\\"}" --speculative-model d')


def test_of_words_that_a_shell_has_read_nothing_is_put_in_again():
    line = ["vllm", "serve", "m", "--speculative-model", "~/$x", "--num-speculative-tokens", "3"]
    assert shlex.split(translate(line).command)[-1].count('"~/$x"') == 1
    assert "'" in translate(line).command.split()[-1]


def test_a_variable_before_the_program_keeps_its_name_outside_the_quotes():
    assert translate(["A=b c", "llama-server", "-m", "a b"]).command == "A='b c' llama-server -m 'a b'"
    assert quoted(read('"A=$B c"').words[0]) == 'A="$B c"'


def test_print_is_said_to_have_been_replaced():
    result = translate("llama-server –m “my model.gguf”")
    assert result.command == "llama-server -m 'my model.gguf'"
    assert [change.what for change in result.changes] == ["quotes and dashes of print → plain ones"]
