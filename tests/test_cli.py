"""The command line: what it prints, what it says of bad input, and how it ends."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from gguf_files import write_gguf
from tiny_models import write_tiny

from slipstream.cli import main as cli
from slipstream.text import Piece

FAST = ["--threads", "1", "--ctx", "512"]
GREEDY = [*FAST, "--temp", "0"]
REPEAT = "Repeat: one two three four, one two three four, one two three four"
COMMAND = Path(sys.executable).with_name("slipstream")
NOTHING_LOUD = ("Traceback", "Exception ignored", "Error:")


@pytest.fixture
def slipstream(capsys, monkeypatch, own_cache):
    """Runs the command in this process: (exit status, standard output, standard error)."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["slipstream", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        out, err = capsys.readouterr()
        code = left.value.code
        return (0 if code is None else int(code)), out, err

    return run


@pytest.fixture
def program(own_cache):
    """Starts the installed command as a process."""

    def start(*arguments: str | Path, code: str | None = None, **options) -> subprocess.Popen:
        command = [sys.executable, "-c", code] if code else [COMMAND]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([*command, *map(str, arguments)], **{**pipes, **options})

    return start


@pytest.mark.model
def test_the_prompt_comes_from_anywhere(slipstream, tmp_path, monkeypatch):
    file = tmp_path / "prompt.txt"
    file.write_text(REPEAT, encoding="utf-8")
    code, argument, err = slipstream("run", "smollm2", REPEAT, *GREEDY, "-n", 8)
    assert (code, err) == (0, "") and argument.endswith("\n") and argument.strip()
    assert slipstream("run", "smollm2", "-f", file, *GREEDY, "-n", 8) == (0, argument, "")
    for more in [], ["-"]:
        with file.open(encoding="utf-8") as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            assert slipstream("run", "smollm2", *more, *GREEDY, "-n", 8) == (0, argument, "")


@pytest.mark.model
def test_json(slipstream):
    code, out, err = slipstream("run", "smollm2", REPEAT, "--json", *GREEDY, "-n", 12, "-l", "5-inf", "-l", "7+1e-3")
    assert (code, err, out.count("\n")) == (0, "", 1)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    data = json.loads(out, parse_constant=refuse)
    assert set(data) == {"model", "text", "tokens", "finish_reason", "sampling", "statistics"}
    assert data["model"] == "smollm2" and data["finish_reason"] == "length" and len(data["tokens"]) == 12
    assert data["sampling"]["temperature"] == 0 and data["sampling"]["logit_bias"] == {"5": "-inf", "7": 0.001}
    assert set(data["statistics"]) >= {
        *("prompt_tokens", "cached_prompt_tokens", "tokens", "target_passes", "drafted", "accepted"),
        *("acceptance_rate", "acceptance_by_position", "mean_tokens_per_pass", "by_drafter"),
        *("time_to_first_token_s", "decode_s", "tokens_per_second", "predicted_speedup"),
    }


@pytest.mark.model
def test_raw_takes_the_prompt_as_it_is(slipstream):
    counts = []
    for raw in [], ["--raw"]:
        _, out, _ = slipstream("run", "smollm2", "one two three one two", "--json", *raw, *GREEDY, "-n", 3)
        counts.append(json.loads(out)["statistics"]["prompt_tokens"])
    assert counts[1] == 5 < counts[0]


@pytest.mark.model
def test_a_seed_gives_the_same_text(slipstream):
    def say(seed: int, *more: str) -> str:
        return slipstream("run", "smollm2", "Tell a story.", *FAST, "-n", 16, "--seed", seed, *more)[1]

    assert say(3) == say(3) == say(3, "--draft", "off") != say(4)


@pytest.mark.model
def test_stats_are_on_standard_error(slipstream):
    code, _, err = slipstream("run", "smollm2", REPEAT, "--stats", *GREEDY, "-n", 8)
    assert code == 0 and re.search(r"tokens/s +\d", err) and "acceptance rate" in err


@pytest.fixture
def bad(tmp_path, request):
    """The arguments of one kind of bad input; MODEL stands for the demo model."""
    (tmp_path / "text.gguf").write_text("This is no model at all.")
    (tmp_path / "broken.jinja").write_text("{% for m in messages %}{{ m.content }")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    write_gguf(tmp_path / "other.gguf")
    return [argument.replace("TMP", str(tmp_path)) for argument in request.param]


def bad_input(*arguments: str, said: str, id: str):
    return pytest.param(list(arguments), said, id=id, marks=pytest.mark.model)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        bad_input("TMP/none.gguf", "a", said="no file", id="missing file"),
        bad_input("TMP/truncated.gguf", "a", said="truncated.gguf", id="truncated"),
        bad_input("TMP/text.gguf", "a", said="text.gguf", id="text file"),
        bad_input("no-such-model-anywhere", "a", said="no-such-model-anywhere", id="unknown name"),
        bad_input("MODEL", "a", "--draft", "TMP/other.gguf", said="other.gguf cannot be loaded", id="empty draft"),
        bad_input("MODEL", "a", "--draft", "TMP/none.gguf", said="no file", id="missing draft"),
        bad_input("MODEL", "word " * 100, "--ctx", "64", said="context holds 64", id="prompt too long"),
        bad_input("MODEL", "a", "--threads", "0", said="threads", id="no threads"),
        bad_input("MODEL", "a", "--ctx", "1", said="ctx", id="no context"),
        bad_input("MODEL", "a", "--batch", "0", said="batch", id="no batch"),
        bad_input("MODEL", "a", "--temp", "-1", said="--temp", id="temperature"),
        bad_input("MODEL", "a", "--temp", "nan", said="--temp", id="temperature nan"),
        bad_input("MODEL", "a", "--top-p", "2", said="--top-p", id="top-p"),
        bad_input("MODEL", "a", "--seed", "-2", said="seed", id="seed"),
        bad_input("MODEL", "a", "-n", "0", said="n-predict", id="n-predict"),
        bad_input("MODEL", "a", "--stop", "", said="stop string", id="empty stop"),
        bad_input("MODEL", "a", "--logit-bias", "nonsense", said="logit-bias", id="bias"),
        bad_input("MODEL", "a", "--logit-bias", "500", said="logit-bias", id="bias without a sign"),
        bad_input("MODEL", "a", "--logit-bias", "5+nan", said="--logit-bias", id="bias nan"),
        bad_input("MODEL", "a", "--logit-bias", "9999999+1", said="logit_bias", id="bias of no token"),
        bad_input("MODEL", "a", "--template", "TMP/broken.jinja", said="template", id="broken template"),
        bad_input("MODEL", "a", "--template", "TMP/none.jinja", said="template", id="missing template"),
        bad_input("MODEL", "a", "--device", "NOPE", said="NOPE", id="device"),
        bad_input("MODEL", "a", "--cache-type-k", "foo", said="cache-type-k", id="cache type"),
        bad_input("MODEL", "a", "--flash-attn", "maybe", said="flash-attn", id="flash attention"),
        bad_input("MODEL", "a", "--think", said="thinking", id="think"),
        bad_input("MODEL", "--raw", "", said="empty", id="empty prompt"),
        bad_input("MODEL", "a", "--raw", "--system", "b", said="--raw", id="raw and system"),
        bad_input("MODEL", "a", "-f", "TMP/latin.txt", said="two prompts", id="two prompts"),
        bad_input("MODEL", "-f", "TMP/latin.txt", said="cannot be read", id="prompt not UTF-8"),
        bad_input("MODEL", "-f", "TMP/none.txt", said="cannot be read", id="no prompt file"),
    ],
    indirect=["bad"],
)  # fmt: skip
def test_bad_input_is_one_line_and_status_2(slipstream, smollm2_path, tmp_path, bad, said):
    with smollm2_path.open("rb") as whole:
        (tmp_path / "truncated.gguf").write_bytes(whole.read(3_000_000))
    arguments = [str(smollm2_path) if a == "MODEL" else a for a in bad]
    more = [] if "--ctx" in arguments else ["--ctx", "256"]
    more += [] if "--threads" in arguments else ["--threads", "1"]
    more += [] if "-n" in arguments else ["-n", "4"]
    code, out, err = slipstream("run", *arguments, *more)
    assert (code, out) == (2, "")
    assert err.startswith("slipstream: ") and err.endswith("\n") and err.count("\n") == 1
    assert said in err


@pytest.mark.model
def test_ctrl_c_while_the_answer_streams(program):
    running = program("run", "smollm2", "Write a very long story.", *GREEDY, "--draft", "off")
    assert running.stdout.read(8)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=20)
    assert running.returncode == 130 and out.endswith("\n")
    assert err.startswith("interrupted: ") and re.search(r"\d tokens/s", err) and err.count("\n") == 1


BEGIN_TOLD = """
import sys
from slipstream.decoding.ring import Ring
from slipstream.cli.main import main
begin = Ring.begin
def told(*arguments):
    print("begun", flush=True)
    return begin(*arguments)
Ring.begin = told
main()
"""


@pytest.mark.model
@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_while_a_long_prompt_is_read(program, tmp_path, as_json):
    (tmp_path / "long.txt").write_text("All work and no play makes Jack a dull boy. " * 500)
    options = ["--threads", "1", "--ctx", "8000", "-n", "4", "--draft", "off", *(["--json"] if as_json else [])]
    running = program("run", "smollm2", "-f", tmp_path / "long.txt", *options, code=BEGIN_TOLD)
    assert running.stdout.readline() == "begun\n"
    time.sleep(0.3)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=5)  # the whole prompt takes half a minute
    assert running.returncode == 130
    assert not any(loud in err for loud in NOTHING_LOUD)
    if as_json:
        assert json.loads(out)["finish_reason"] == "interrupted" and err == ""
    else:
        assert err.startswith("interrupted: ") and err.count("\n") == 1


@pytest.mark.model
def test_ctrl_c_while_the_model_loads(program):
    code = """
import sys, slipstream.loading
def load(*arguments, **options):
    print("loading", flush=True)
    import time; time.sleep(20)
slipstream.loading.load = load
from slipstream.cli.main import main
main()
"""
    running = program("run", "smollm2", "a", code=code)
    assert running.stdout.readline() == "loading\n"
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=5)
    assert running.returncode == 130 and err.strip() == ""


@pytest.mark.model
@pytest.mark.parametrize("as_json", [False, True])
def test_a_reader_that_leaves_is_no_error(program, as_json):
    options = ["-n", "40", *(["--json"] if as_json else [])]
    running = program("run", "smollm2", REPEAT, *GREEDY, *options)
    if not as_json:
        assert running.stdout.read(1)
    running.stdout.close()
    err = running.stderr.read()
    running.stderr.close()
    assert err == "" and running.wait(20) == 0


@pytest.mark.model
def test_chat_of_two_turns(program):
    running = program("chat", "smollm2", "--stats", *GREEDY, "-n", "8", stdin=subprocess.PIPE)
    out, err = running.communicate("Hi, I am Ann.\nWhat is my name?\n", timeout=60)
    assert running.returncode == 0 and len(out.splitlines()) >= 2 and all(out.splitlines()[:2])
    first, second = (int(n) for n in re.findall(r"\((\d+) from the cache\)", err))
    assert first == 0 < second, "the second turn finds the first in the cache"


@pytest.mark.model
def test_chat_goes_on_when_a_line_is_too_long_for_the_context(program):
    running = program("chat", "smollm2", *GREEDY, "-n", "4", stdin=subprocess.PIPE)
    out, err = running.communicate("word " * 600 + "\nHi!\n\n", timeout=60)
    assert running.returncode == 0 and out.strip()
    assert err.startswith("slipstream: ") and err.count("\n") == 1


def test_chat_goes_on_when_the_template_refuses_a_line(program, tmp_path):
    (tmp_path / "strict.jinja").write_text(
        "{% for m in messages %}{% if m.content == 'bad' %}{{ raise_exception('not\x1b[31mthat') }}{% endif %}"
        "{{ m.content }}{% endfor %}"
    )
    model = write_tiny(tmp_path / "tiny.gguf", "llama")
    options = ["--template", tmp_path / "strict.jinja", "-n", "4", "-t", "1", "--temp", "0"]
    running = program("chat", model, *options, stdin=subprocess.PIPE)
    out, err = running.communicate("AB\nbad\nCD\n\n", timeout=60)
    assert running.returncode == 0 and len(out.splitlines()) == 2
    assert err == "slipstream: The chat template refuses: not\\x1b[31mthat\n"


FULL = "slipstream: The output cannot be written: No space left on device.\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize(
    ("redirected", "status", "answers", "err"),
    [
        ("", 0, True, ""),
        ("<&-", 0, True, ""),
        ("2>&-", 0, True, ""),
        (">&-", 0, False, ""),
        ("<&- >&- 2>&-", 0, False, ""),
        (">/dev/full", 2, False, FULL),
        ("--json >/dev/full", 2, False, FULL),
        ("--stats 2>/dev/full", 2, True, ""),
    ],
)
def test_closed_and_full_streams(own_cache, tmp_path, redirected, status, answers, err):
    model = write_tiny(tmp_path / "tiny.gguf", "llama")
    line = f"{COMMAND} run {model} ABC --raw -n 4 -t 1 --temp 0 --draft off {redirected}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60)
    assert (done.returncode, bool(done.stdout.strip()), done.stderr) == (status, answers, err)


def test_what_an_encoding_lacks_becomes_a_question_mark(program):
    code = "from slipstream.cli import main; main.app = lambda **given: print('é 東'); main.main()"
    for encoding, said in ("ascii", "? ?\n"), ("latin-1", "é ?\n"):
        environment = {**os.environ, "PYTHONIOENCODING": encoding}
        running = program(code=code, env=environment, encoding=encoding)
        assert running.communicate(timeout=20) == (said, "")


def test_ctrl_c_in_the_first_moments(program):
    code = """
import sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from slipstream.cli.main import main
main()
"""
    running = program(code=code)
    assert running.communicate(timeout=20) == ("", "") and running.returncode == 130


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class FakeGeneration(list):
    statistics = SimpleNamespace(n_prompt=1, n_cached=0)

    def completion(self):
        return SimpleNamespace(finish_reason="stop", statistics=self.statistics)


@pytest.mark.parametrize(
    ("environment", "in_colour", "with_line"),
    [
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False, True),
        ({"TERM": "dumb"}, False, False),
    ],
)
def test_what_a_terminal_is_sent(monkeypatch, environment, in_colour, with_line):
    from slipstream.cli import answer

    for name in "TERM", "NO_COLOR":
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setattr(answer, "summary", lambda statistics: "figures")
    monkeypatch.setattr(answer, "print_table", lambda statistics: None)
    answer.show(FakeGeneration([Piece("a", False), Piece("b", True)]), stats=True, show_drafts=True)
    written = sys.stdout.getvalue()
    assert ("\x1b[32mb" in written, "figures" in written) == (in_colour, with_line)
    if not with_line:
        assert written == "ab\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "", "a"], "The name of the model is empty."),
        (["run", "~nobody-of-that-name/x.gguf", "a"], "There is no file ~nobody-of-that-name/x.gguf."),
        (["run", "smollm2", "a"], "SLIPSTREAM_DEMO_MODEL names /none/x.gguf, where there is no file."),
        (["pull", "smollm2"], "SLIPSTREAM_DEMO_MODEL names /none/x.gguf, where there is no file."),
        (["run", "/none/\x1b[31m\n\u202e.gguf", "a"], r"There is no file /none/\x1b[31m\n\u202e.gguf."),
    ],
)
def test_names_that_mean_no_model(capsys, monkeypatch, arguments, said):
    monkeypatch.setattr(sys, "argv", ["slipstream", *arguments])
    monkeypatch.setenv("SLIPSTREAM_DEMO_MODEL", "/none/x.gguf")
    with pytest.raises(SystemExit) as left:
        cli.main()
    out, err = capsys.readouterr()
    assert (left.value.code, out) == (2, "") and err.startswith(f"slipstream: {said}") and err.count("\n") == 1


def test_help_is_quick_and_imports_little():
    used = [1.0]
    while min(used) >= 0.3 and len(used) < 20:  # beside other tests it takes longer
        process = subprocess.Popen([COMMAND, "--help"], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = status
        assert status == 0
        used.append(usage.ru_utime + usage.ru_stime)
    assert min(used) < 0.3, "seconds of computing, whatever else the machine does"
    code = (
        "import sys; sys.argv = ['slipstream', '--help']; from slipstream.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: print([m for m in ('numpy', 'cffi', 'xllamacpp', 'jinja2', 'psutil', 'huggingface_hub', "
        "'rich.progress') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


def test_version_and_no_arguments(capsys, monkeypatch):
    from slipstream import __version__

    monkeypatch.setattr(sys, "argv", ["slipstream", "--version"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert not left.value.code and capsys.readouterr().out == f"slipstream {__version__}\n"


def test_models(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in "HF_HOME", "HF_HUB_CACHE", "LLAMA_CACHE", "OLLAMA_MODELS", "SLIPSTREAM_DEMO_MODEL":
        monkeypatch.delenv(name, raising=False)

    def run(*more: str) -> str:
        monkeypatch.setattr(sys, "argv", ["slipstream", "models", *more])
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert not left.value.code
        return capsys.readouterr().out

    assert "slipstream pull smollm2" in run() and json.loads(run("--json")) == []
    write_gguf(tmp_path / "cache" / "slipstream" / "models" / "tiny-one.gguf")
    assert "tiny-one" in run()
    (listed,) = json.loads(run("--json"))
    assert listed["name"].startswith("tiny-one") and listed["architecture"] == "llama"


def test_a_model_that_cannot_go_back_is_decoded_plainly_and_says_so(slipstream, tmp_path):
    model = write_tiny(tmp_path / "mamba.gguf", "mamba")
    code, out, err = slipstream("run", model, "ab", "--raw", "-n", 3, "--temp", 0, "-t", 1)
    assert code == 0 and out.strip() and "decoding plainly" in err
    assert "decoding plainly" not in slipstream("run", model, "ab", "--raw", "-n", 3, "-t", 1, "--draft", "off")[2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "m", "--threads", "abc"], "--threads"),
        (["run", "m", "--nonsense"], "--nonsense"),
        (["run"], "model"),
        (["nothing"], "nothing"),
    ],
)
def test_a_wrong_command_line_is_answered_in_one_line(program, arguments, said):
    running = program(*arguments)
    out, err = running.communicate(timeout=20)
    assert running.returncode == 2 and out == ""
    assert len(err.splitlines()) == 1 and said in err and "--help" in err


def test_a_bare_command_shows_its_help(program):
    running = program()
    out, _ = running.communicate(timeout=20)
    assert running.returncode == 0 and "Usage" in out and "verify" in out
