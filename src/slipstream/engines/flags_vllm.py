"""vLLM's flags of old and of 0.33: one JSON object for speculation, and methods that are gone."""

from __future__ import annotations

import json
import re
from pathlib import PurePath
from typing import Any, Final

from .command_line import Flag, Line, name_of

ENGINE: Final = "vllm"
MODULE = "vllm.entrypoints.openai.api_server"
LEFT = "vLLM 0.8.3, #14434 and #15466"
CONFIG = ("--speculative-config", "-sc")
N_TOKENS = 3
"""Tokens of a draft where a line says none; as llama.cpp and MLX-LM have it."""

KEYS = {
    "--speculative-model": "model",
    "--num-speculative-tokens": "num_speculative_tokens",
    "--speculative-draft-tensor-parallel-size": "draft_tensor_parallel_size",
    "-spec-draft-tp": "draft_tensor_parallel_size",
    "--speculative-model-quantization": "quantization",
    "--speculative-max-model-len": "max_model_len",
    "--ngram-prompt-lookup-max": "prompt_lookup_max",
    "--ngram-prompt-lookup-min": "prompt_lookup_min",
}
"""Flags of old that are keys of `--speculative-config` today."""

WORDS = {"model", "quantization"}
"""Keys whose value is no number."""

UNKNOWN = "vLLM knows no such flag"
LOSSY = "the sampler that it chose is gone, and it changed the text"

FLAGS = (
    Flag(("--speculative-disable-by-batch-size",), "", "it had had no effect since vLLM 0.10.0", "#35060"),
    Flag(("--speculative-disable-mqa-scorer",), "", UNKNOWN + " any more", LEFT, n_values=0),
    Flag(("--spec-decoding-acceptance-method",), "", "drafts are verified losslessly unless asked otherwise", LEFT),
    Flag(("--typical-acceptance-sampler-posterior-threshold",), "", LOSSY, LEFT),
    Flag(("--typical-acceptance-sampler-posterior-alpha",), "", LOSSY, LEFT),
    Flag(("--num-lookahead-slots",), "", UNKNOWN + " any more"),
    Flag(("--use-v2-block-manager",), "", UNKNOWN + " any more: there is one block manager", n_values=0),
    Flag(
        ("--disable-log-requests",), "", "requests are not logged unless asked for", "vLLM 0.12.0, #29402", n_values=0
    ),
    Flag(
        ("--num-prefill-tokens",),
        "",
        UNKNOWN + "; what limits the prompt tokens of a step is --max-num-batched-tokens",
    ),
)

GONE = ("medusa", "mlp_speculator")
GONE_NAMES = re.compile(r"medusa|mlp[-_]?speculator|accelerator")
GONE_SINCE = "vLLM 0.33"


def recognise(words: list[str]) -> int:
    """How many words name the program; 0 where it is another."""
    if PurePath(words[0]).name == "vllm" and words[1:2] == ["serve"]:
        return 2
    return 3 if PurePath(words[0]).name.startswith("python") and words[1:3] == ["-m", MODULE] else 0


def claims(words: list[str]) -> bool:
    """Whether flags without a program are this engine's."""
    own = {*KEYS, *CONFIG, "--spec-method", "--spec-model", "--spec-tokens", *(old for f in FLAGS for old in f.old)}
    return any(name_of(word) in own for word in words)


def modernise(line: Line) -> None:
    """Makes a line of vLLM one of 0.33."""
    _serve(line)
    _one_object(line)
    _logprobs(line)
    line.replace(FLAGS)
    _methods(line)


def _serve(line: Line) -> None:
    if line.program and line.program[-1] == MODULE:
        beside = line.program[0][: -len(PurePath(line.program[0]).name)]
        line.program = [beside + "vllm", "serve"]
        line.note(f"python -m {MODULE} → vllm serve", "the module as a program is deprecated")
    if line.program and (found := line.take("--model")) is not None:
        line.put(found.value, at=0)
        line.note("--model MODEL → MODEL", "vllm serve takes the model without a flag")


def _one_object(line: Line) -> None:
    """Gathers the flags of old in one JSON object, where the first of them stood."""
    gathered: dict[str, Any] = {}
    place = None
    for old, key in KEYS.items():
        while (found := line.take(old)) is not None:
            place = found.at if place is None else min(place, found.at)
            gathered[key] = _value(key, found.value)
            line.note(f'{found.name} → "{key}" in --speculative-config', "one JSON object says it all", LEFT)
    if place is None:
        return
    config = _named(line, gathered)
    given = line.take(*CONFIG)
    if given is not None and isinstance(old_config := _parsed(given.value), dict):
        config = {**config, **old_config}
    line.put("--speculative-config", _json(config), at=min(place, len(line.words)))


def _value(key: str, text: str) -> str | int:
    return int(text) if key not in WORDS and text.isdigit() else text


def _named(line: Line, gathered: dict[str, Any]) -> dict[str, Any]:
    """The object with its method, which vLLM guessed from the model, and with a length."""
    model = str(gathered.get("model") or "")
    if not model:
        line.remarks.append("The line names no drafter: only a target with layers for it, or n-grams, can do without.")
        return gathered
    if model == "[ngram]":
        config = {"method": "ngram", **{key: value for key, value in gathered.items() if key != "model"}}
    else:
        config = {"method": _method_of(model), **gathered}
    if "num_speculative_tokens" not in config:
        config["num_speculative_tokens"] = N_TOKENS
        line.note(f'"num_speculative_tokens": {N_TOKENS} added', "vLLM asks for a number; tune finds a better one")
    return config


def _method_of(model: str) -> str:
    name = model.lower()
    if found := GONE_NAMES.search(name):
        return "medusa" if found[0] == "medusa" else "mlp_speculator"
    return "eagle3" if re.search("eagle-?3", name) else "eagle" if "eagle" in name else "draft_model"


def _logprobs(line: Line) -> None:
    """The switch took a value or none."""
    flag = "--disable-logprobs-during-spec-decoding"
    at = line.index(flag)
    if at is None:
        return
    has_value = line.words[at + 1 : at + 2] in (["True"], ["False"], ["true"], ["false"])
    line.replace([Flag((flag,), "", UNKNOWN + " any more", LEFT, n_values=1 if has_value else 0)])


def _methods(line: Line) -> None:
    """Names of methods within the object, and methods that are gone."""
    text = line.value(*CONFIG)
    config = _parsed(text or "")
    if not isinstance(config, dict):
        return
    method = config.get("method")
    if method in GONE:
        line.take(*CONFIG)
        why = "the method is gone, so the line runs without speculation; EAGLE-3, suffix or ngram may do instead"
        line.note(f"--speculative-config with {method} taken out", why, GONE_SINCE)
        return
    fixed = dict(config)
    if isinstance(method, str) and method.endswith("_mtp"):
        fixed["method"] = "mtp"
        line.note(f'"method": "{method}" → "mtp"', "one name for all of them")
    if "disable_by_batch_size" in fixed:
        del fixed["disable_by_batch_size"]
        why = "it had had no effect since vLLM 0.10.0; num_speculative_tokens_per_batch_size does it today"
        line.note('"disable_by_batch_size" taken out', why, "#35060")
    if fixed != config and (found := line.take(*CONFIG)) is not None:
        line.put(found.name, _json(fixed), at=found.at)


def _parsed(text: str) -> object:
    """The JSON of a value; None for what is none, which is passed through."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _json(config: dict[str, Any]) -> str:
    return json.dumps(config, ensure_ascii=False)
