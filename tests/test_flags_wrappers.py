"""What runs another program: where that one stands, behind options, their values, variables and wrappers."""

from __future__ import annotations

import pytest

from slipstream.engines.flags import translate
from slipstream.engines.flags_wrappers import behind
from slipstream.errors import InputError

FOUND = [
    "sudo P",
    "sudo -u llama -E P",
    "sudo -Eu llama P",
    "sudo -ullama P",
    "sudo --user=llama P",
    "sudo --user llama -- P",
    "sudo A=1 P",
    "A=1 nohup P",
    "time -p P",
    "env -u HOME A=1 P",
    "exec -a name P",
    "nice P",
    "nice -n 5 P",
    "nice -10 P",
    "numactl --cpunodebind=0 -m 0 P",
    "numactl -N 0 --localalloc P",
    "taskset -c 0-3 P",
    "taskset 0xff P",
    "uv run P",
    "uv --quiet run --with vllm --python 3.12 P",
    "uvx --from vllm P",
    "sudo -u llama nice -n 5 /usr/bin/numactl -N 0 P",
]


@pytest.mark.parametrize("line", FOUND)
def test_the_program_stands_behind_what_runs_it(line):
    words = line.split()
    assert words[behind(words)[1]] == "P"


NOT_FOUND = [
    "sudo systemctl start llama",
    "sudo apt install llama-server",
    "sudo -u llama systemctl start llama-server",
    "uv pip install vllm",
    "nice echo llama-server",
    "sudo",
    "sudo -u",
    "taskset",
]


@pytest.mark.parametrize("line", NOT_FOUND)
def test_a_name_of_ours_elsewhere_in_the_line_is_no_program(line):
    with pytest.raises(InputError, match=f"No program whose flags are known stands behind '{line.split()[0]}'"):
        translate(line)


def test_what_runs_the_program_comes_back_as_it_was():
    line = "sudo -u llama env CUDA_VISIBLE_DEVICES=0 nice -n 5 llama-server -m a --spec-type ngram-mod"
    assert translate(line).command == line
