"""Flags that today's programs do not take: which are named, which are not, and what is said to write instead."""

from __future__ import annotations

import re

import pytest

from slipstream.cli.flags import flags
from slipstream.engines import flags_llamacpp_known, flags_vllm_known
from slipstream.engines.flags import translate
from slipstream.engines.flags_known import flags_of
from slipstream.engines.flags_llamacpp import FLAGS
from slipstream.engines.flags_llamacpp_known import INSTEAD

LLAMA = flags_of("flags_llamacpp_b11434")
VLLM = flags_of("flags_vllm_0.32.0")["vLLM"]

# Each was given to llama-server b11434 itself, which said "invalid argument".
REFUSED = [
    "--mlock",
    "--no-mmap",
    "--mmap",
    "--direct-io",
    "--dio",
    "--system-prompt-file",
    "-spf",
    "--grp-attn-n",
    "-gan",
    "-dkvc",
    "--log-format",
    "--logdir",
    "--memory-f32",
    "--no-mul-mat-q",
    "-nommq",
    "--low-vram",
    "--penalize-nl",
    "--no-penalize-nl",
    "--tfs",
    "--lora-base",
    "--verbose-prompt",
    "--draf-max",
    "-p",
    "--color",
]


@pytest.mark.parametrize("flag", REFUSED)
def test_what_llama_server_refuses_is_named(flag):
    result = translate(f"llama-server -m a {flag} --spec-type ngram-mod")
    assert result.unknown == (flag,)
    assert result.remarks[0].startswith(f"llama-server b11434 knows no {flag} and refuses the line")
    assert result.command.split()[3] == flag


@pytest.mark.parametrize("flag", INSTEAD)
def test_what_is_to_be_written_instead_is_known(flag):
    assert flag not in LLAMA["llama-server"]
    said = translate(["llama-server", flag]).remarks[0]
    assert INSTEAD[flag] in said
    for new in re.findall(r"(?<=write )--?[a-z][\w-]*", INSTEAD[flag]):
        assert new in LLAMA["llama-server"] or new in LLAMA["llama-cli"]


def test_the_replacement_of_a_loading_flag():
    remarks = translate("llama-server -m a --no-mmap").remarks
    assert "; write --load-mode none, or" in remarks[0] and remarks[0].endswith("(llama.cpp #20834).")


def test_a_flag_of_another_program_is_said_to_be_its():
    assert translate("llama-server -m a -no-cnv").remarks[0].endswith("it is a flag of llama-completion.")


@pytest.mark.parametrize("flag", sorted({flag.new for flag in FLAGS if flag.new}))
def test_what_old_flags_become_is_known(flag):
    assert flag in LLAMA["llama-server"] and flag in LLAMA["llama-speculative"]


def test_flags_are_read_as_llama_cpp_reads_them():
    assert translate("llama-server -m a --ctx_size 9 --spec-type none").unknown == ()
    assert translate("llama-cli -p --mlock --control-vector-layer-range -a -b --top-k 3").unknown == ()
    assert translate("llama-server -c 9 --mlock --mlock --Mlock").unknown == ("--mlock", "--Mlock")


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("llama serve -m a --mlock", "llama-server b11434"),
        ("llama client -m a --mlock", "llama-cli b11434"),
        ("llama-speculative-simple -m a --mlock", "llama-speculative-simple b11434"),
        ("--spec-type ngram-mod --mlock", "llama-server b11434"),
        ("docker run ghcr.io/ggml-org/llama.cpp:server-cuda -m a --mlock", "llama-server b11434"),
        ("docker run ghcr.io/ggerganov/llama.cpp:server -m a --mlock", "llama-server b11434"),
        ("docker run ghcr.io/ggml-org/llama.cpp:light@sha256:ab -m a --mlock", "llama-cli b11434"),
        ("vllm serve m --mlock", "vLLM 0.32.0"),
    ],
)
def test_flags_are_compared_with_those_of_the_program_that_reads_them(line, program):
    result = translate(line)
    assert (result.compared_with, result.unknown) == (program, ("--mlock",))


@pytest.mark.parametrize("line", ["docker run ghcr.io/ggml-org/llama.cpp:full --server -m a", "llama bench --mlock"])
def test_of_a_program_whose_flags_are_not_known_nothing_is_said(line):
    result = translate(line)
    assert (result.compared_with, result.unknown, result.remarks) == ("", (), ())


# What vLLM's own parser took, and what it refused.
TAKEN = (
    "--max-model 3",
    "-tp=2",
    "-O3",
    "-sc.method ngram",
    "--enable-log-req",
    "-qfp8",
    "--max_num_seqs 3",
    "--no-enable-chunked-prefill",
)


@pytest.mark.parametrize("words", TAKEN)
def test_what_vllm_takes_is_not_named(words):
    assert translate(f"vllm serve m {words}").unknown == ()


@pytest.mark.parametrize("flag", ["--unheard-of", "--num", "--swap-space", "--guided-decoding-backend", "-tp4"])
def test_what_vllm_refuses_is_named(flag):
    result = translate(f"vllm serve m {flag} 4 --spec-method ngram")
    assert result.remarks == (f"vLLM 0.32.0 knows no {flag} and refuses the line.",)


NOT_DRAFTED = "Nothing is drafted by this line: it has neither "


@pytest.mark.parametrize(
    "line",
    [
        "llama-server -m a",
        "llama-cli -m a -c 9",
        "llama serve -m a",
        "docker run ghcr.io/ggml-org/llama.cpp:server -m a",
        "vllm serve m",
        "vllm serve --model m --disable-log-requests",
    ],
)
def test_a_line_without_speculation_is_said_to_draft_nothing(line):
    assert [remark for remark in translate(line).remarks if remark.startswith(NOT_DRAFTED)]


@pytest.mark.parametrize(
    "line",
    [
        "llama-server -m a --spec-default",
        "llama-server -m a --spec-type ngram-mod",
        "LLAMA_ARG_SPEC_TYPE=ngram-mod llama-server -m a",
        "LLAMA_ARG_SPEC_DRAFT_MODEL=b llama-server -m a",
        "llama bench -m a",
        "vllm serve m -sc.method ngram",
        "vllm serve m --speculative_config.method=ngram",
        "vllm serve m --spec-method ngram",
        "vllm serve m --config c.yaml",
        "vllm serve m --speculative-model ibm/x-accelerator --num-speculative-tokens 3",
    ],
)
def test_of_a_line_that_drafts_or_may_do_so_it_is_not_said(line):
    assert not [remark for remark in translate(line).remarks if remark.startswith(NOT_DRAFTED)]


def test_the_lists_are_whole():
    assert {program: len(flags) for program, flags in LLAMA.items()} == {
        "llama-server": 405,
        "llama-cli": 341,
        "llama-completion": 249,
        "llama-speculative": 271,
    }
    assert len(VLLM) == 430


@pytest.mark.parametrize("release", [flags_llamacpp_known.RELEASE, flags_vllm_known.RELEASE])
def test_the_help_names_the_releases_that_are_compared_with(release):
    assert release in str(flags.__doc__)
