"""Lines as they stand in old articles, issues and scripts, whole: what becomes of them and what is said."""

from __future__ import annotations

import pytest

from slipstream.engines.flags import translate

LINES = {
    "speculative of 2023": (
        './speculative -m ./big.gguf -md ./small.gguf -p "// Quick-sort" -e -t 16 -s 8 --top_k 1 --draft 16 -pa 0.5 '
        "-ps 0.1 -ngl 99 -ngld 99",
        './llama-speculative -m ./big.gguf -md ./small.gguf -p "// Quick-sort" -e -t 16 -s 8 --top_k 1 '
        "--spec-draft-n-max 16 --spec-draft-p-split 0.1 -ngl 99 -ngld 99",
        ["speculative → llama-speculative", "-ps → --spec-draft-p-split", "-pa 0.5 taken out"],
    ),
    "main of 2023": (
        "./main -m a.gguf --color -ins -c 2048 -t $(nproc)",
        "./llama-cli -m a.gguf --color on -c 2048 -t $(nproc)",
        ["-ins taken out", "--color → --color on", "llama-completion completes a text as main did"],
    ),
    "server of 2023 on Windows": (
        r".\build\bin\Release\server.exe -m models\7B\a.gguf -c 2048",
        r".\build\bin\Release\llama-server.exe -m models\7B\a.gguf -c 2048",
        ["server.exe → llama-server"],
    ),
    "the readme of speculative-simple": (
        "./bin/llama-speculative-simple -m big.gguf -md small.gguf -f test.txt -c 0 -ngl 99 --color --sampling-seq k "
        "--top-k 1 -fa --temp 0.0 -ngld 99 --draft-max 16 --draft-min 5 --draft-p-min 0.9",
        "./bin/llama-speculative-simple -m big.gguf -md small.gguf -f test.txt -c 0 -ngl 99 --color on --sampling-seq "
        "k --top-k 1 -fa on --temp 0.0 -ngld 99 --spec-draft-n-max 16 --spec-draft-n-min 5 --spec-draft-p-min 0.9 "
        "--spec-type draft-simple",
        ["-fa → -fa on", "llama.cpp #15434", "the program ends with an error"],
    ),
    "a repository for a draft": (
        "llama-server -hf org/big-GGUF -hfd org/small-GGUF --ctx-size 32768 -fa -t 1 --draft-max 16 --draft-min 2",
        "llama-server -hf org/big-GGUF -hfd org/small-GGUF --ctx-size 32768 -fa on -t 1 --spec-draft-n-max 16 "
        "--spec-draft-n-min 2 --spec-type draft-simple",
        ["--draft-min → --spec-draft-n-min"],
    ),
    "devices and caches of the draft": (
        "llama-server -m a -md b -dev CUDA1 -devd CUDA0 -cd 8192 -ctkd q8_0",
        "llama-server -m a -md b -dev CUDA1 -devd CUDA0 -ctkd q8_0 --spec-type draft-simple",
        ["-cd 8192 taken out"],
    ),
    "a chat without a chat": ("llama-cli -m a -no-cnv -p hi", "llama-cli -m a -no-cnv -p hi", ["with -st it ends"]),
    "values behind =": (
        'llama-server --model="my big.gguf" --model-draft=b.gguf --draft-max=8 -ngl 99',
        "llama-server --model 'my big.gguf' --model-draft b.gguf --spec-draft-n-max 8 -ngl 99 --spec-type draft-simple",
        ["llama.cpp reads no = within a flag"],
    ),
    "a flag twice": (
        "llama-server -m a -md b --draft-max 8 --draft-max 16",
        "llama-server -m a -md b --spec-draft-n-max 16 --spec-type draft-simple",
        [],
    ),
    "types twice, which add up": (
        "llama-server -m a --spec-type mtp --spec-type ngram-mod --draft-max 3",
        "llama-server -m a --spec-type draft-mtp,ngram-mod --spec-draft-n-max 3 --spec-ngram-mod-n-max 3",
        ["--draft-max → --spec-draft-n-max and --spec-ngram-mod-n-max"],
    ),
    "a draft that one of the types has": (
        "llama-server -m a -md b --spec-type draft-mtp --spec-type ngram-mod",
        "llama-server -m a -md b --spec-type draft-mtp --spec-type ngram-mod",
        [],
    ),
    "a type that never was": (
        "llama-server -m a --spec-type ngram",
        "llama-server -m a --spec-type ngram",
        ["'ngram' is no type that llama.cpp knows. Types are none, draft-simple"],
    ),
    "a type without a length": (
        "llama-server -m a --spec-type ngram-cache --draft-max 8 --draft-min 2",
        "llama-server -m a --spec-type ngram-cache",
        ["--spec-type ngram-cache has no flag for the length of drafts", "no flag for a least length of drafts"],
    ),
    "a length that no number is": (
        "llama-server -m a --spec-type ngram-simple --draft-max ²",
        "llama-server -m a --spec-type ngram-simple",
        ["--draft-max ² taken out"],
    ),
    "variables": (
        'LLAMA_ARG_MODEL_DRAFT="my b.gguf" LLAMA_ARG_DRAFT_MAX=16 LLAMA_ARG_DRAFT_P_MIN=0.75 llama-server -m a',
        "LLAMA_ARG_SPEC_DRAFT_MODEL='my b.gguf' LLAMA_ARG_SPEC_DRAFT_N_MAX=16 LLAMA_ARG_SPEC_DRAFT_P_MIN=0.75 "
        "llama-server -m a --spec-type draft-simple",
        ["the old one is not read", "LLAMA_ARG_DRAFT_MAX → LLAMA_ARG_SPEC_DRAFT_N_MAX: refused today"],
    ),
    "a type in a variable": (
        "LLAMA_ARG_SPEC_TYPE=mtp,ngram-mod llama-server -m a --draft-max 4",
        "LLAMA_ARG_SPEC_TYPE=draft-mtp,ngram-mod llama-server -m a --spec-draft-n-max 4 --spec-ngram-mod-n-max 4",
        ["mtp → draft-mtp"],
    ),
    "vLLM 0.5": (
        "python -m vllm.entrypoints.openai.api_server --host 0.0.0.0 --model facebook/opt-6.7b --seed 42 -tp 1 "
        "--speculative_model facebook/opt-125m --use-v2-block-manager --num_speculative_tokens 5",
        "vllm serve facebook/opt-6.7b --host 0.0.0.0 --seed 42 -tp 1 --speculative-config "
        '\'{"method": "draft_model", "model": "facebook/opt-125m", "num_speculative_tokens": 5}\'',
        ["as it still does where none is given (vLLM 0.8.3"],
    ),
    "vLLM 0.6, Medusa": (
        "python3 -m vllm.entrypoints.openai.api_server --model /m/q -tp 1 --speculative-model /m/q/medusa "
        "--speculative-draft-tensor-parallel-size 1 --num-speculative-tokens 3 --use-v2-block-manager "
        "--spec-decoding-acceptance-method typical_acceptance_sampler",
        "vllm serve /m/q -tp 1",
        ["with medusa taken out: the method is gone"],
    ),
    "vLLM 0.8, n-grams": (
        'vllm serve big --speculative-model "[ngram]" --ngram-prompt-lookup-max 4 --ngram-prompt-lookup-min 2',
        "vllm serve big --speculative-config "
        '\'{"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2, "num_speculative_tokens": 3}\'',
        ['--speculative-model → "method": "ngram" in --speculative-config'],
    ),
    "vLLM 0.9, keys of old": (
        'vllm serve big --speculative-config \'{"model": "e/EAGLE-x", "num_speculative_tokens": 3, '
        '"disable_logprobs": false, "disable_log_stats": false, "disable_by_batch_size": 30, "method": "eagle"}\'',
        "vllm serve big --speculative-config "
        '\'{"model": "e/EAGLE-x", "num_speculative_tokens": 3, "method": "eagle"}\'',
        ['"disable_logprobs" taken out: vLLM knows no such key any more', '"disable_by_batch_size" taken out'],
    ),
    "vLLM, an object and a flag of old": (
        'vllm serve big --num-speculative-tokens 5 --speculative-config \'{"method": "ngram"}\'',
        'vllm serve big --speculative-config \'{"method": "ngram", "num_speculative_tokens": 5}\'',
        [],
    ),
    "vLLM, an object of Python": (
        "vllm serve big --speculative-config \"{'method': 'ngram'}\"",
        "vllm serve big --speculative-config \"{'method': 'ngram'}\"",
        ["is no JSON object: names and texts stand in double quotes"],
    ),
    "vLLM behind uv": (
        "uv run --with vllm vllm serve big --disable-log-requests",
        "uv run --with vllm vllm serve big",
        ["requests are not logged"],
    ),
    "vLLM, another Python": (
        r"C:\venv\python.exe -m vllm.entrypoints.openai.api_server --model m",
        r"C:\venv\vllm serve m",
        ["deprecated"],
    ),
    "SGLang 0.4": (
        "python3 -m sglang.launch_server --model m --speculative-algo EAGLE --speculative-draft d "
        "--speculative-num-steps 5 --speculative-eagle-topk 8 --speculative-num-draft-tokens 64",
        "python3 -m sglang.launch_server --model m --speculative-algorithm EAGLE --speculative-draft-model-path d "
        "--speculative-num-steps 5 --speculative-eagle-topk 8 --speculative-num-draft-tokens 64",
        ["--speculative-draft → --speculative-draft-model-path", "takes 48"],
    ),
    "SGLang 0.5.3": (
        "python -m sglang.launch_server --model m --speculative-algorithm LOOKAHEAD --speculative-num-draft-tokens 8 "
        "--speculative-lookahead-branch-length 18 --speculative-lookahead-max-match-window-size 12 "
        "--speculative-lookahead-max-bfs-breadth 8",
        "python -m sglang.launch_server --model m --speculative-algorithm NGRAM --speculative-num-draft-tokens 8 "
        "--speculative-ngram-max-trie-depth 18 --speculative-ngram-max-bfs-breadth 8",
        ["SGLang #11010", "SGLang #21181", "SGLang #21225"],
    ),
    "MLX-LM": (
        "python -m mlx_lm.generate --model a --draft-model b --prompt 'hi there'",
        "python -m mlx_lm generate --model a --draft-model b --prompt 'hi there'",
        ["mlx-lm #71"],
    ),
    "LM Studio": (
        "lms load big --draft-model=small --gpu=max",
        "lms load big --speculative-draft-simple --speculative-draft-model small --gpu=max",
        ["lms load has no such flag"],
    ),
    "several lines": (
        "$ llama-server \\\n  -m a.gguf \\ \n  -md b.gguf \\\n  --draft-max 16  # as before",
        "llama-server -m a.gguf -md b.gguf --spec-draft-n-max 16 --spec-type draft-simple",
        [],
    ),
}


@pytest.mark.parametrize("case", LINES)
def test_a_line_of_old_becomes_todays(case):
    old, new, said = LINES[case]
    result = translate(old)
    assert result.command == new
    text = "\n".join([f"{c.what}: {c.why} ({c.since})" for c in result.changes] + list(result.remarks))
    for words in said:
        assert words in text


@pytest.mark.parametrize("case", LINES)
def test_todays_line_is_left_as_it_is(case):
    new = LINES[case][1]
    again = translate(new)
    assert (again.command, again.changes) == (new, ())


@pytest.mark.parametrize("case", LINES)
def test_nothing_is_said_twice(case):
    changes = translate(LINES[case][0]).changes
    assert len(set(changes)) == len(changes)
