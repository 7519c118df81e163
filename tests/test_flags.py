"""`slipstream flags`: lines of articles, of old documents and of today, and what is said of each change."""

from __future__ import annotations

import json
import shlex
import sys

import pytest

from slipstream.cli import main as cli
from slipstream.engines.flags import DIALECTS, KNOWN, translate
from slipstream.engines.flags_llamacpp import PROGRAMS
from slipstream.errors import InputError

ALONE = "llama.cpp #23988"
P_MIN = "--spec-draft-p-min 0.75 gives the old behaviour"
N_MAX = "3 today and was 16"

# Line of old, line of today, and words that must be said of it.
ARTICLES = [
    (
        "--draft-model llama-3-8b-instruct.gguf --draft-model-path ./models/llama-3-8b.gguf",
        "--model-draft ./models/llama-3-8b.gguf --spec-type draft-simple",
        ["llama.cpp never had it; the path names the draft", ALONE, N_MAX, P_MIN],
    ),
    (
        "python -m vllm.entrypoints.openai.api_server --model /path/to/target_model "
        "--speculative-model /path/to/draft_model --num-prefill-tokens 512",
        "vllm serve /path/to/target_model --speculative-config "
        '\'{"method": "draft_model", "model": "/path/to/draft_model", "num_speculative_tokens": 3}\'',
        [
            "vLLM 0.8.3, #14434 and #15466",
            '"method": "draft_model" added: vLLM guessed it from the model',
            '"num_speculative_tokens": 3 added',
            "--num-prefill-tokens 512 taken out",
        ],
    ),
    (
        "--speculative-model meta-llama/Llama-3.2-1B --num-speculative-tokens 5",
        "--speculative-config "
        '\'{"method": "draft_model", "model": "meta-llama/Llama-3.2-1B", "num_speculative_tokens": 5}\'',
        ["vLLM 0.8.3"],
    ),
    (
        "llama-server -m big.gguf --model-draft small.gguf --spec-draft-n-max 3",
        "llama-server -m big.gguf --model-draft small.gguf --spec-draft-n-max 3 --spec-type draft-simple",
        ["--spec-type draft-simple added: a draft model alone no longer turns speculation on", ALONE, P_MIN],
    ),
    (
        "--spec-type mtp --spec-draft-n-max 3",
        "--spec-type draft-mtp --spec-draft-n-max 3",
        ["--spec-type mtp → draft-mtp"],
    ),
    (
        "--spec-type ngram-mod",
        "--spec-type ngram-mod",
        ["Nothing was changed", "llama-server b11434 takes all of these flags"],
    ),
]

LLAMA_CPP = [
    (
        "-m big --model-draft small --spec-draft-n-max 3",
        "-m big --model-draft small --spec-draft-n-max 3 --spec-type draft-simple",
        [ALONE],
    ),
    (
        "llama-server -m a -md b --draft-max 16 --draft-min 4 --draft-p-min 0.75",
        "llama-server -m a -md b --spec-draft-n-max 16 --spec-draft-n-min 4 --spec-draft-p-min 0.75 "
        "--spec-type draft-simple",
        ["llama.cpp #22397", "the old one is still read"],
    ),
    ("llama-server -m a --draft 8", "llama-server -m a --spec-draft-n-max 8", ["--draft → --spec-draft-n-max"]),
    (
        "./llama-server -m a --spec-type ngram-mod --spec-ngram-size-n 24 --draft-min 48 --draft-max 64",
        "./llama-server -m a --spec-type ngram-mod --spec-ngram-mod-n-match 24 --spec-ngram-mod-n-min 48 "
        "--spec-ngram-mod-n-max 64",
        ["each n-gram type has its own"],
    ),
    (
        "llama-server -m a --spec-type ngram-map-k4v --spec-ngram-size-n 8 --spec-ngram-size-m 8 "
        "--spec-ngram-min-hits 2 --draft-max 64",
        "llama-server -m a --spec-type ngram-map-k4v --spec-ngram-map-k4v-size-n 8 --spec-ngram-map-k4v-size-m 8 "
        "--spec-ngram-map-k4v-min-hits 2",
        ["--draft-max 64 taken out"],
    ),
    (
        "llama-server -m a --spec-type ngram-simple --draft-max 16",
        "llama-server -m a --spec-type ngram-simple --spec-ngram-simple-size-m 16",
        ["--draft-max → --spec-ngram-simple-size-m"],
    ),
    (
        "llama-server -m a --spec-ngram-size-n 12",
        "llama-server -m a",
        ["none of the types that run here has such a setting"],
    ),
    (
        "llama-server -m a -md b --spec-type ngram-mod",
        "llama-server -m a -md b --spec-type ngram-mod,draft-simple",
        ["--spec-type ngram-mod,draft-simple added"],
    ),
    (
        "llama-server -m a -md b --spec-type draft",
        "llama-server -m a -md b --spec-type draft-simple",
        ["draft → draft-simple", "llama.cpp #22964"],
    ),
    (
        "llama-server -m a -md Qwen3-EAGLE3-q8.gguf",
        "llama-server -m a -md Qwen3-EAGLE3-q8.gguf --spec-type draft-eagle3",
        ["the type is read from its name"],
    ),
    (
        "./main -m a -md b -cd 4096 -fa -p hi",
        "./llama-cli -m a -md b -fa on -p hi --spec-type draft-simple",
        ["main → llama-cli", "llama.cpp #7809", "-cd 4096 taken out", "it takes on, off or auto", "is a chat today"],
    ),
    (
        "llama-speculative -m a -md b --draft 8",
        "llama-speculative -m a -md b --spec-draft-n-max 8",
        ["--draft → --spec-draft-n-max"],
    ),
    (
        "llama-speculative -m a -md b",
        "llama-speculative -m a -md b",
        ["Nothing was changed", "llama-speculative b11434 takes all of these flags", N_MAX],
    ),
    (
        "llama-speculative-simple -m a -md b --draft-max 8 --draft-p-min 0.9",
        "llama-speculative-simple -m a -md b --spec-draft-n-max 8 --spec-draft-p-min 0.9 --spec-type draft-simple",
        ["the program ends with an error", ALONE],
    ),
    ("llama serve -m a -hfd b", "llama serve -m a -hfd b --spec-type draft-simple", [ALONE]),
    ("llama-server -m a --draft-max=8", "llama-server -m a --spec-draft-n-max 8", ["reads no ="]),
    ("llama-server -m a --draft_max 8", "llama-server -m a --spec-draft-n-max 8", []),
    ("llama-server -m a -md b --spec-type none", "llama-server -m a -md b --spec-type none", ["Nothing was changed"]),
    ("llama-server -m a --spec-draft-n-max 8", "llama-server -m a --spec-draft-n-max 8", ["Nothing is drafted"]),
]

VLLM = [
    (
        "vllm serve big --speculative-model [ngram] --num-speculative-tokens 5 --ngram-prompt-lookup-max 4",
        'vllm serve big --speculative-config \'{"method": "ngram", "num_speculative_tokens": 5, '
        '"prompt_lookup_max": 4}\'',
        ['--speculative-model → "method": "ngram" in --speculative-config', "prompt_lookup_max"],
    ),
    (
        "vllm serve big --speculative_model yuhuili/EAGLE3-LLaMA3 --num_speculative_tokens 2 "
        "--speculative-draft-tensor-parallel-size 1 --speculative-disable-mqa-scorer --use-v2-block-manager",
        'vllm serve big --speculative-config \'{"method": "eagle3", "model": "yuhuili/EAGLE3-LLaMA3", '
        '"num_speculative_tokens": 2, "draft_tensor_parallel_size": 1}\'',
        ['"method": "eagle3" added', "--speculative-disable-mqa-scorer taken out"],
    ),
    (
        "vllm serve big --speculative-model ibm-fms/llama3-70b-accelerator --num-speculative-tokens 3 -tp 4",
        "vllm serve big -tp 4",
        [
            "--speculative-model and --num-speculative-tokens with mlp_speculator taken out",
            "runs without speculation",
            "vLLM 0.33",
        ],
    ),
    (
        'vllm serve big --speculative-config \'{"method": "medusa", "model": "m", "num_speculative_tokens": 3}\'',
        "vllm serve big",
        ["medusa taken out", "vLLM 0.33"],
    ),
    (
        'vllm serve big -sc \'{"method": "deepseek_mtp", "num_speculative_tokens": 1, "disable_by_batch_size": 8}\'',
        'vllm serve big -sc \'{"method": "mtp", "num_speculative_tokens": 1}\'',
        ["one name for all of them", "num_speculative_tokens_per_batch_size"],
    ),
    (
        "vllm serve --model big --speculative-disable-by-batch-size 8 --disable-log-requests "
        "--disable-logprobs-during-spec-decoding False --spec-decoding-acceptance-method typical_acceptance_sampler",
        "vllm serve big",
        ["#35060", "vLLM 0.12.0, #29402"],
    ),
    (
        "/venv/bin/python3 -m vllm.entrypoints.openai.api_server --model big",
        "/venv/bin/vllm serve big",
        ["deprecated"],
    ),
    (
        "vllm serve big --num-speculative-tokens 1",
        "vllm serve big --speculative-config '{\"num_speculative_tokens\": 1}'",
        ["names no drafter"],
    ),
    ("vllm serve big --spec-method ngram --spec-tokens 4", "vllm serve big --spec-method ngram --spec-tokens 4", []),
    (
        "vllm serve big --speculative-config {oops",
        "vllm serve big --speculative-config {oops",
        ["Nothing was changed", "is no JSON object"],
    ),
]

SGLANG = "python -m sglang.launch_server --model-path m --max-running-requests 8 --speculative-algorithm EAGLE3"
OTHERS = [
    (
        f"{SGLANG} --speculative-num-steps 4",
        f"{SGLANG} --speculative-num-steps 4 --speculative-eagle-topk 1 --speculative-num-draft-tokens 5",
        ["SGLang takes all three lengths or none"],
    ),
    (
        f"{SGLANG} --speculative-num-draft-tokens 4 --speculative-eagle-topk 1",
        f"{SGLANG} --speculative-num-draft-tokens 4 --speculative-eagle-topk 1 --speculative-num-steps 3",
        ["--speculative-num-steps 3 added"],
    ),
    (
        f"{SGLANG} --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 16",
        f"{SGLANG} --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
        ["16 → 4: with top-k 1 it is always steps + 1"],
    ),
    (f"{SGLANG} --speculative-eagle-topk 1", SGLANG, ["--speculative-eagle-topk 1 taken out"]),
    (
        f"{SGLANG} --speculative-num-steps 3 --speculative-eagle-topk 4",
        f"{SGLANG} --speculative-num-steps 3 --speculative-eagle-topk 4",
        ["--speculative-num-draft-tokens must be given as well"],
    ),
    (
        f"{SGLANG} --speculative-adaptive-config a.json",
        f"{SGLANG} --speculative-adaptive --speculative-adaptive-config a.json",
        ["the file alone turns nothing on"],
    ),
    (
        "sglang serve --model-path m --speculative-algo NGRAM --speculative-adaptive",
        "sglang serve --model-path m --speculative-algorithm NGRAM --speculative-adaptive",
        ["its whole name", "takes 48", "works with EAGLE and EAGLE3 at top-k 1 only"],
    ),
    (
        f"{SGLANG} --speculative-accept-threshold-single 0.8",
        f"{SGLANG} --speculative-accept-threshold-single 0.8",
        ["the text changes"],
    ),
    (
        "python3 -m mlx_lm.server --model a --draft-model b --num-draft-tokens 3",
        "python3 -m mlx_lm server --model a --draft-model b --num-draft-tokens 3",
        ["mlx-lm #71"],
    ),
    ("mlx_lm.server --model a --num-draft-tokens 3", "mlx_lm.server --model a --num-draft-tokens 3", ["does nothing"]),
    (
        "lms load big --speculative-draft-model small",
        "lms load big --speculative-draft-simple --speculative-draft-model small",
        ["a draft model is used with it"],
    ),
    (
        "lms load big --draft-model small",
        "lms load big --speculative-draft-simple --speculative-draft-model small",
        ["lms load has no such flag"],
    ),
    (
        "lms load big --speculative-draft-max-tokens 4",
        "lms load big --speculative-draft-max-tokens 4",
        ["The lengths need --speculative-draft-mtp"],
    ),
]


@pytest.fixture
def command(capsys, monkeypatch):
    """Runs `slipstream flags` in this process: (exit status, standard output, standard error)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["slipstream", "flags", *arguments])
        with pytest.raises(SystemExit) as left:
            cli.main()
        out, err = capsys.readouterr()
        return (0 if left.value.code is None else int(left.value.code)), out, err

    return run


@pytest.mark.parametrize(("old", "new", "said"), [*ARTICLES, *LLAMA_CPP, *VLLM, *OTHERS])
def test_a_line_becomes_todays_and_every_change_is_said(command, old, new, said):
    code, out, err = command(old)
    assert (code, err) == (0, "")
    assert out.splitlines()[:2] == [new, ""]
    for words in said:
        assert words in out


@pytest.mark.parametrize(("old", "new", "said"), [*ARTICLES, *LLAMA_CPP, *VLLM, *OTHERS])
def test_todays_line_is_left_as_it_is(old, new, said):
    again = translate(new)
    assert (again.command, again.changes) == (new, ())


@pytest.mark.parametrize(("old", "new", "said"), [*ARTICLES, *LLAMA_CPP])
def test_separate_words_are_the_same_line(command, old, new, said):
    code, out, err = command(*shlex.split(old))
    assert (code, err) == (0, "") and out.splitlines()[0] == new


COMPARED = {
    "llama-server -m big.gguf -md small.gguf --spec-type draft-simple --spec-draft-n-max 8 --spec-draft-p-min 0.5": (
        "llama-server b11434"
    ),
    "vllm serve org/model --max-model-len 8192 --spec-method ngram --spec-tokens 4": "vLLM 0.32.0",
}


@pytest.mark.parametrize("line", COMPARED)
def test_a_line_that_is_fine_says_with_what_it_was_compared(command, line):
    code, out, _ = command(line)
    said = f"{COMPARED[line]} takes all of these flags; values were looked at for speculation alone."
    assert (code, out.splitlines()) == (0, [line, "", "Nothing was changed.", said])


def test_an_unknown_flag_is_passed_through_and_named(command):
    line = "llama-server -hf org/repo:Q4_K_M --spec-type ngram-mod --no-such-flag 7 --temp 0.0"
    assert command(line)[1].splitlines() == [
        line,
        "",
        "Nothing was changed.",
        "  llama-server b11434 knows no --no-such-flag and refuses the line.",
        "All flags were compared with those of llama-server b11434; values only those of speculation.",
    ]


NOT_COMPARED = [
    "lms load org/model --gpu max --context-length 8192",
    "lms server start --port 1234",
    "sglang serve --model-path m --unheard-of",
    "mlx_lm.server --model m --unheard-of",
    "llama bench -m a --unheard-of",
]


@pytest.mark.parametrize("line", NOT_COMPARED)
def test_where_other_flags_are_not_known_they_are_said_not_to_be_looked_at(command, line):
    code, out, _ = command(line)
    said = "No outdated flag of speculation is known here; other flags were not looked at."
    assert (code, out.splitlines()) == (0, [line, "", said])


def test_what_was_not_looked_at_is_said_of_a_changed_line_too(command):
    out = command("lms load big --draft-model small")[1]
    assert out.splitlines()[-1] == "Flags that are not of speculation were not looked at."


def test_json(command):
    code, out, err = command("--json", "llama-server", "-m", "a", "-md", "b", "--draft-max", "16")
    assert (code, err, out.count("\n")) == (0, "", 1)
    data = json.loads(out)
    assert set(data) == {"engine", "command", "changes", "remarks", "compared_with", "unknown"}
    assert data["engine"] == "llama.cpp" and data["command"].startswith("llama-server -m a -md b --spec-draft-n-max 16")
    assert data["changes"][0] == {
        "what": "--draft-max → --spec-draft-n-max",
        "why": "llama.cpp refuses it today: each type of draft has a flag of its own for it",
        "since": "llama.cpp #22397",
    }
    assert len(data["remarks"]) == 1
    assert (data["compared_with"], data["unknown"]) == ("llama-server b11434", [])


def test_an_option_behind_a_line_in_quotes_is_said_to_go_before_it(command):
    code, out, err = command("llama-server -m a", "--json")
    assert (code, out) == (2, "")
    assert err == 'slipstream: --json stands behind the line. Options go before it: slipstream flags --json "LINE".\n'


LONG_NUMBERS = [
    "sglang serve --speculative-algorithm EAGLE --speculative-num-steps N",
    "sglang serve --speculative-algorithm EAGLE --speculative-num-draft-tokens N",
    "llama-server -m a --spec-type ngram-simple --draft-max N",
    "vllm serve m --speculative-config '{\"n\": N}'",
]


@pytest.mark.parametrize("line", LONG_NUMBERS)
def test_a_number_longer_than_python_reads_is_left_or_taken_out(command, line):
    code, _, err = command(line.replace("N", "9" * 5000))
    assert (code, err) == (0, "")


@pytest.mark.parametrize("hidden", ["\t", "\u202e", "\u200b"])
def test_what_a_terminal_cannot_show_is_said_to_be_written_otherwise(command, hidden):
    line = f"llama-server -m a -p 'x{hidden}y' --spec-type ngram-mod"
    out = command(line)[1]
    assert "written as escapes here: --json gives it" in out and hidden not in out
    assert json.loads(command("--json", line)[1])["command"] == line


def test_lines_within_quotes_are_shown_as_they_are(command):
    line = "llama-server -m a -p 'x\ny' --spec-type ngram-mod"
    out = command(line)[1]
    assert out.startswith(line) and "--json" not in out


def test_help_of_the_line_is_not_ours(command):
    assert command("llama-server", "-h")[1].splitlines()[0] == "llama-server -h"
    assert command("-hf", "big", "-hfd", "small", "--draft-max", "4")[1].startswith("-hf big -hfd small")


SHELL = {
    "what stands before the program": ("CUDA_VISIBLE_DEVICES=0 nohup llama-server -m a", None),
    "what runs the program": ("numactl --cpunodebind=0 ./llama-server -m a", None),
    "quotes": ("llama-server -m 'my models/a.gguf'", None),
    "home and variables": ('llama-server -m ~/models/a.gguf -md ~/"${SMALL}.gguf" -c "$CTX" --spec-type none', None),
    "what a shell would take apart": ("llama-server -m a -p 'ä {b,c} $(d) `e`'", None),
    "several lines": ("llama-server \\\n  -m a \\\n  -c 1", "llama-server -m a -c 1"),
    "a prompt before it": ("$ llama-server -m a", "llama-server -m a"),
    "Windows": (r"C:\llama\llama-server.exe -m C:\models\a.gguf -ngl 9", None),
    "PowerShell": (".\\llama-server.exe `\r\n -m .\\a.gguf", r".\llama-server.exe -m .\a.gguf"),
}


@pytest.mark.parametrize("case", SHELL)
def test_a_line_comes_back_ready_for_the_shell(case):
    line, expected = SHELL[case]
    assert translate(line).command == (expected or line)


BAD = {
    "open quotes": ("llama-server -m 'a", "This is no command line: ' has no end. Check its quotes."),
    "nothing": ("", "There is no command line"),
    "blanks": ("   ", "There is no command line"),
    "another program": ("ollama run gemma4", "'ollama' is no program whose flags are known. Known are llama-server"),
    "another module": ("python -m http.server", "'python -m http.server' is no program whose flags are known"),
    "another program behind one": ("sudo ollama serve", "No program whose flags are known stands behind 'sudo'"),
    "a name of ours behind another program": ("sudo systemctl start llama", "stands behind 'sudo'"),
    "only variables": ("CUDA_VISIBLE_DEVICES=0", "There is no program"),
    "unknown flags alone": ("--port 80", "Begin with one of llama-server"),
    "two lines": ("llama-server -m a --draft-max 3\nllama-cli -m b", "'llama-cli' begins a line, and so a second"),
    "two commands": ("cd /models && llama-server -m a", "Give one command alone"),
    "a pipe": ("llama-server -m a | tee log", "'|' joins commands"),
    "output elsewhere": ("llama-server -m a 2>log", "sends output elsewhere"),
    "no value": ("llama-server -m a --draft-max", "--draft-max has no value"),
    "a word for a number": (
        "vllm serve m --num-speculative-tokens five",
        "takes a number of at most 9 digits, not 'five'",
    ),
    "a digit that is none": ("vllm serve m --num-speculative-tokens ²", "takes a number of at most 9 digits, not '²'"),
    "a number without an end": (f"vllm serve m --num-speculative-tokens {'9' * 5000}", "at most 9 digits, not '999"),
    "two objects, one broken": ("vllm serve m --speculative-model d -sc {oops", "-sc '{oops' is no JSON object"),
    "a flag for a value": ("llama-server -m a --draft-max --draft-min 3", "--draft-max has no value"),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_input_is_one_line_and_status_2(command, bad):
    line, said = BAD[bad]
    code, out, err = command(line)
    assert (code, out) == (2, "")
    assert err.startswith("slipstream: ") and err.count("\n") == 1 and said in err
    with pytest.raises(InputError):
        translate(line)


def test_every_program_that_is_known_is_recognised():
    for dialect in DIALECTS:
        for name in dialect.KNOWN:
            assert dialect.recognise(name.replace("COMMAND", "server").split()), name
            assert name in KNOWN


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_of_llama_cpp_is_among_the_known(name):
    assert any(known.split()[0] == name for known in KNOWN.split(", "))
