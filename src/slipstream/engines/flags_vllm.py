"""vLLM's flags of old and of 0.33: one JSON object for speculation, and methods that are gone."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from slipstream.errors import InputError

from .command_line import N_DIGITS, Flag, Line, Taken, is_count, name_of, program_name
from .flags_vllm_known import compare
from .flags_word import Part, Word, expands, joined, parts_of

ENGINE: Final = "vllm"
MODULE = "vllm.entrypoints.openai.api_server"
KNOWN = ("vllm serve", f"python -m {MODULE}")
LEFT = "vLLM 0.8.3, #14434 and #15466"
CONFIG = ("--speculative-config", "-sc")
CONFIG_KEYS = tuple(f"{name}." for name in CONFIG)
"""How flags begin that each give one key of it."""

SHORT = ("--spec-method", "--spec-model", "--spec-tokens")
"""Flags of three keys of it."""

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

NGRAM = ("ngram", "[ngram]")
"""What `--speculative-model` said for drafts without a model."""

GONE_KEYS = (
    "acceptance_method",
    "posterior_threshold",
    "posterior_alpha",
    "disable_mqa_scorer",
    "disable_logprobs",
    "disable_log_stats",
    "speculative_token_tree",
)
"""Keys of the object that vLLM refuses today."""

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
GONE_WHY = "the method is gone, so the line runs without speculation; EAGLE-3, suffix or ngram may do instead"


def recognise(words: list[str]) -> int:
    """How many words name the program; 0 where it is another."""
    if program_name(words[0]) == "vllm" and words[1:2] == ["serve"]:
        return 2
    return 3 if program_name(words[0]).startswith("python") and words[1:3] == ["-m", MODULE] else 0


def claims(words: list[str]) -> bool:
    """Whether flags without a program are this engine's."""
    own = {*KEYS, *CONFIG, *SHORT, *(old for f in FLAGS for old in f.old)}
    return any(name_of(word) in own for word in words)


def modernise(line: Line) -> None:
    """Makes a line of vLLM one of 0.33."""
    _serve(line)
    _one_object(line)
    _logprobs(line)
    line.replace(FLAGS)
    _methods(line)
    compare(line)
    _say_nothing_is_drafted(line)


def _serve(line: Line) -> None:
    if line.program and line.program[-1] == MODULE:
        python = line.program[0]
        beside = python[: max(python.rfind("/"), python.rfind("\\")) + 1]
        line.program = [beside + "vllm", "serve"]
        line.note(f"python -m {MODULE} → vllm serve", "the module as a program is deprecated")
    if line.program and (found := line.take("--model")) is not None:
        line.put(found.value, at=0)
        line.note("--model MODEL → MODEL", "vllm serve takes the model without a flag")


def _one_object(line: Line) -> None:
    """Gathers the flags of old in one JSON object, where the first of them stood."""
    taken = [(found, key) for old, key in KEYS.items() if (found := line.take(old))]
    if not taken:
        return
    given = _given(line)
    config = {**{key: _value(found, key) for found, key in taken}, **given}
    method = str(config.get("method") or _method_of(str(config.get("model") or "")))
    if method in GONE:
        flags = " and ".join(found.name for found, _ in taken)
        line.note(f"{flags} with {method} taken out", GONE_WHY, GONE_SINCE)
        return
    for found, key in taken:
        new = '"method": "ngram"' if key == "model" and method == "ngram" else f'"{key}"'
        line.note(f"{found.name} → {new} in --speculative-config", "one JSON object says it all", LEFT)
    place = min(found.at for found, _ in taken)
    line.put("--speculative-config", _json(_named(line, config, method)), at=min(place, len(line.words)))


def _given(line: Line) -> dict[str, Any]:
    """The object that the line has already, taken out. Raises InputError where it is none."""
    found = line.take(*CONFIG)
    if found and expands(found.value):
        raise InputError(
            f"{found.name} holds what a shell puts in, and so cannot be joined with flags of old.",
            "Write its values out, or write the flags into it.",
        )
    config = _parsed(found.value) if found else {}
    if found and not isinstance(config, dict):
        raise InputError(f"{found.name} {found.value[:60]!r} is no JSON object.", "Mend it, or leave it out.")
    return config if isinstance(config, dict) else {}


def _value(found: Taken, key: str) -> str | int:
    """The value in the object. Raises InputError where it should be a number."""
    text = found.value
    if key in WORDS or expands(text) or "<" in text:
        return text
    if not is_count(text):
        raise InputError(
            f"{found.name} takes a number of at most {N_DIGITS} digits, not {text[:60]!r}.",
            "Give the command line as it was run.",
        )
    return int(text)


def _named(line: Line, config: dict[str, Any], method: str) -> dict[str, Any]:
    """The object with its method, which vLLM guessed from the model, and with a length."""
    if not method:
        line.remarks.append("The line names no drafter: only a target with layers for it, or n-grams, can do without.")
        return config
    if method == "ngram":
        config = {key: value for key, value in config.items() if key != "model"}
    elif "method" not in config:
        why = "vLLM guessed it from the model, as it still does where none is given"
        line.note(f'"method": "{method}" added', why, LEFT)
    config = {"method": method, **config}
    if "num_speculative_tokens" not in config:
        config["num_speculative_tokens"] = N_TOKENS
        line.note(f'"num_speculative_tokens": {N_TOKENS} added', "vLLM asks for a number; tune finds a better one")
    return config


def _method_of(model: str) -> str:
    """The method by the model's name; empty without a model."""
    name = model.lower()
    if not name or name in NGRAM:
        return "ngram" if name else ""
    if found := GONE_NAMES.search(name):
        return "medusa" if found[0] == "medusa" else "mlp_speculator"
    kind = re.search("eagle-?3|eagle|dflash|dspark", name)
    return kind[0].replace("-", "") if kind else "draft_model"


def _logprobs(line: Line) -> None:
    """The switch took a value or none."""
    flag = "--disable-logprobs-during-spec-decoding"
    at = line.index(flag)
    if at is None:
        return
    has_value = line.words[at + 1 : at + 2] in (["True"], ["False"], ["true"], ["false"])
    line.replace([Flag((flag,), "", UNKNOWN + " any more", LEFT, n_values=1 if has_value else 0)])


def _methods(line: Line) -> None:
    """Names of methods within the object, and methods and keys that are gone."""
    text = line.value(*CONFIG)
    if text is None or expands(text):
        return
    config = _parsed(text)
    if not isinstance(config, dict):
        line.remarks.append('--speculative-config is no JSON object: names and texts stand in double quotes (") there.')
        return
    method = config.get("method")
    if method in GONE:
        line.take(*CONFIG)
        line.note(f"--speculative-config with {method} taken out", GONE_WHY, GONE_SINCE)
        return
    fixed = {key: value for key, value in config.items() if key not in ("disable_by_batch_size", *GONE_KEYS)}
    if isinstance(method, str) and method.endswith("_mtp"):
        fixed["method"] = "mtp"
        line.note(f'"method": "{method}" → "mtp"', "one name for all of them")
    if "disable_by_batch_size" in config:
        why = "it had had no effect since vLLM 0.10.0; num_speculative_tokens_per_batch_size does it today"
        line.note('"disable_by_batch_size" taken out', why, "#35060")
    for key in GONE_KEYS:
        if key in config:
            line.note(f'"{key}" taken out', "vLLM knows no such key any more")
    if fixed != config and (found := line.take(*CONFIG)) is not None:
        line.put(found.name, _json(fixed), at=found.at)


def _say_nothing_is_drafted(line: Line) -> None:
    """Says it unless a change has; what a file of --config holds is not known."""
    given = line.has(*CONFIG, *SHORT, "--config") or any(name_of(word).startswith(CONFIG_KEYS) for word in line.words)
    if not given and not any(change.why == GONE_WHY for change in line.changes):
        line.remarks.append("Nothing is drafted by this line: it has neither --speculative-config nor --spec-method.")


def _parsed(text: str) -> object:
    """The JSON of a value; None for what is none, which is passed through."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _json(config: dict[str, Any]) -> str:
    """The object as a word, in which a shell still puts in what it put in outside."""
    members = (joined(": ", [_json_of(key), _json_of(value)]) for key, value in config.items())
    return "{" + joined(", ", members) + "}"


def _json_of(value: object) -> str:
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    parts = [Part(text if does_expand else _in_json(text), does_expand) for text, does_expand in parts_of(value)]
    return '"' + Word(parts) + '"'


def _in_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
