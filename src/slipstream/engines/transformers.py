"""Hugging Face transformers: assisted generation by a draft model or prompt lookup, in a process of its own.

Read from transformers 5.24 (`generation/utils.py`, `generation/candidate_generator.py`) and run with torch on a CPU.
It answers one request at a time and takes what context the model has. Drafts it does not count: here they are, by
the widths of the target's passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from slipstream.errors import InputError

from .attached import needs_draft, one_speculation
from .child import ChildEngine
from .installed import find_installed
from .pairs import why_no_pair
from .protocol import Option, Rendering, Settings

ASSISTANT: Final = "assistant_model"
LOOKUP: Final = "prompt_lookup"
LOOKUP_N: Final = 10
"""Tokens a draft: the value of transformers' own documentation; it has no default."""


class TransformersEngine(ChildEngine):
    """Implements `protocol.Engine`. program: a python that has it installed; None for the one that runs this."""

    name = "transformers"
    title = "transformers"
    script = "run_transformers.py"

    def __init__(self, program: str | None = None) -> None:
        how = "pip install torch transformers accelerate gguf"
        self.installed = find_installed(self.title, "transformers", how, program)
        super().__init__()

    def speculative_options(self, settings: Settings) -> tuple[Option, ...]:
        """Both kinds. Raises EngineError where transformers is not installed."""
        self.installed.python()
        # Where nothing is said, a draft ends at a probability below 0.4.
        return (
            Option(ASSISTANT, (4, 8, 20), (0.0, 0.7), True, why_no_pair(self.title, settings)),
            Option(LOOKUP, (5, 10, 20)),
        )

    def render(self, settings: Settings) -> tuple[Rendering, ...]:
        """Python. Raises InputError for what transformers has no setting for."""
        return (Rendering("Python", "python", _python(self._options(settings)), "transformers_speculation.py"),)

    def _options(self, settings: Settings) -> dict[str, Any]:
        wanted = one_speculation(settings, self.title, (ASSISTANT, LOOKUP))
        generate, assistant, draft = {}, {}, None
        if wanted is not None and wanted.kind == LOOKUP:
            if wanted.p_min is not None:
                raise InputError(f"Prompt lookup has no confidence, and p {wanted.p_min:g} is asked for.")
            generate = {"prompt_lookup_num_tokens": wanted.n_max or LOOKUP_N}
        elif wanted is not None:
            draft = needs_draft(settings, self.title, ASSISTANT)
            if wanted.n_max is not None:
                assistant = {"num_assistant_tokens": wanted.n_max, "num_assistant_tokens_schedule": "constant"}
            if wanted.p_min is not None:
                assistant["assistant_confidence_threshold"] = wanted.p_min
        return {
            "model": settings.model,
            "draft": draft,
            "generate": generate,
            "assistant": assistant,
            "n_threads": settings.n_threads,
        }


def _python(options: Mapping[str, Any]) -> str:
    generate = dict(options["generate"])
    lines = [f"torch.set_num_threads({options['n_threads']})"] if options["n_threads"] else []
    lines += [f"tokenizer = AutoTokenizer.from_pretrained({_source(options['model'])})"]
    lines += [_loaded("model", options["model"])]
    if options["draft"] is not None:
        lines += [_loaded("assistant", options["draft"])]
        lines += [f"assistant.generation_config.{name} = {value!r}" for name, value in options["assistant"].items()]
        generate[ASSISTANT] = "assistant"
    arguments = "".join(f", {name}={value}" for name, value in generate.items())
    return (
        f"{'import torch' + chr(10) if options['n_threads'] else ''}"
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        + "\n".join(lines)
        + '\n\nmessages = [{"role": "user", "content": "Name three rivers of Europe."}]\n'
        "prompt = tokenizer.apply_chat_template(\n"
        '    messages, add_generation_prompt=True, return_tensors="pt", return_dict=True\n'
        ").to(model.device)\n"
        f"text = model.generate(**prompt, max_new_tokens=512{arguments})\n"
        'print(tokenizer.decode(text[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))\n'
    )


def _loaded(variable: str, name: str) -> str:
    call = f'AutoModelForCausalLM.from_pretrained({_source(name)}, dtype="auto", device_map="auto")'
    return f"{variable} = {call}"


def _source(name: str) -> str:
    """A GGUF file is read by its folder and its name, and dequantised."""
    path = Path(name)
    is_file = path.suffix.lower() == ".gguf"
    return f"{str(path.parent)!r}, gguf_file={path.name!r}" if is_file else repr(name)
