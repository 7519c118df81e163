"""Lines of docker and podman: what stands behind the image of an engine is translated, the rest stays."""

from __future__ import annotations

import pytest

from slipstream.engines.flags import translate
from slipstream.errors import InputError

LLAMA = "docker run -v /models:/models -p 8080:8080 ghcr.io/ggml-org/llama.cpp:server"
VLLM = 'docker run --gpus all -v ~/.cache:/root/.cache --env "HF_TOKEN=<secret>" --ipc=host vllm/vllm-openai:latest'
SGLANG = "sudo docker run --shm-size 32g lmsysorg/sglang:latest python3 -m sglang.launch_server"

LINES = [
    (
        f"{LLAMA} -m /models/a.gguf -md /models/b.gguf --draft-max 16 --host 0.0.0.0",
        f"{LLAMA} -m /models/a.gguf -md /models/b.gguf --spec-draft-n-max 16 --host 0.0.0.0 --spec-type draft-simple",
    ),
    (
        "docker run --name server -e LLAMA_ARG_MODEL_DRAFT=/b.gguf ghcr.io/ggerganov/llama.cpp:server-cuda -m /a "
        "--draft 8",
        "docker run --name server -e LLAMA_ARG_SPEC_DRAFT_MODEL=/b.gguf ghcr.io/ggml-org/llama.cpp:server-cuda -m /a "
        "--spec-draft-n-max 8 --spec-type draft-simple",
    ),
    (
        f"{VLLM} --model big --speculative-model '[ngram]' --num-speculative-tokens 5",
        f'{VLLM} --model big --speculative-config \'{{"method": "ngram", "num_speculative_tokens": 5}}\'',
    ),
    (
        f"{SGLANG} --model-path m --speculative-algo NGRAM --max-running-requests 8",
        f"{SGLANG} --model-path m --speculative-algorithm NGRAM --max-running-requests 8",
    ),
    (
        "podman run --rm -it docker.io/vllm/vllm-openai-rocm@sha256:ab big --disable-log-requests",
        "podman run --rm -it docker.io/vllm/vllm-openai-rocm@sha256:ab big",
    ),
    (
        "docker run -v C:\\models:/m vllm/vllm-openai --model /m/x -sc "
        '"{\\"method\\": \\"deepseek_mtp\\", \\"num_speculative_tokens\\": 1}"',
        "docker run -v C:\\models:/m vllm/vllm-openai --model /m/x -sc "
        '"{\\"method\\": \\"mtp\\", \\"num_speculative_tokens\\": 1}"',
    ),
]


@pytest.mark.parametrize(("old", "new"), LINES)
def test_what_stands_behind_the_image_is_translated(old, new):
    result = translate(old)
    assert result.command == new
    assert any("the image must be as new as that" in remark for remark in result.remarks)
    again = translate(new)
    assert (again.command, again.changes) == (new, ())


def test_a_line_that_is_fine_says_nothing_of_its_image():
    result = translate(f"{VLLM} --model big --spec-method ngram")
    assert (result.engine, result.changes, result.remarks) == ("vllm", (), ())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("docker run -v ~/llama.cpp:/x ollama/ollama", "runs no image whose flags are known"),
        ("docker compose up -d", "runs no image whose flags are known"),
        ("docker exec -it box vllm serve m", "give what stands behind the image alone"),
        (
            'docker run lmsysorg/sglang bash -c "python3 -m sglang.launch_server"',
            "A shell runs within this docker line",
        ),
        ("docker run --entrypoint /bin/bash vllm/vllm-openai -c 'vllm serve m'", "A shell runs within this docker"),
        ("podman run --entrypoint=sh vllm/vllm-openai -c 'vllm serve m'", "A shell runs within this podman"),
    ],
)
def test_a_container_that_is_not_known_is_refused(line, said):
    with pytest.raises(InputError, match=said):
        translate(line)
