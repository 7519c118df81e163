"""OpenVINO GenAI: prompt lookup or a draft model, in a process of its own, on the CPU.

Read from openvino-genai 2026.4 (its type stubs, `prompt_lookup_impl.cpp`) and run with that release. It answers one
request at a time. Drafts it counts with a draft model alone, and not those of an answer's last round.
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
from .protocol import Option, Rendering, Settings, Speculation

DRAFT: Final = "draft_model"
LOOKUP: Final = "prompt_lookup"
DEVICE: Final = "CPU"
N_DRAFTED: Final = 5
N_GRAM: Final = 3
"""What OpenVINO's own samples take for prompt lookup, which has no defaults."""

_EXPORT: Final = "Export it: optimum-cli export openvino --model NAME FOLDER."
_SAVE: Final = f"Load it once as LLMPipeline(FILE, {DEVICE!r}, enable_save_ov_model=True), which writes a folder."


class OpenVinoEngine(ChildEngine):
    """Implements `protocol.Engine`. program: a python that has it installed; None for the one that runs this."""

    name = "openvino"
    title = "OpenVINO GenAI"
    script = "run_openvino.py"

    def __init__(self, program: str | None = None) -> None:
        self.installed = find_installed(self.title, "openvino-genai", "pip install openvino-genai", program)
        super().__init__()

    def speculative_options(self, settings: Settings) -> tuple[Option, ...]:
        """Both kinds. Raises EngineError where OpenVINO GenAI is not installed."""
        self.installed.python()
        no_model = _why_no_model(settings.model)
        no_draft = no_model or _why_no_draft(settings.draft) or why_no_pair(self.title, settings)
        return (
            Option(DRAFT, (3, 5, 8), needs_draft=True, why_not=no_draft),
            Option(LOOKUP, (3, 5, 10), why_not=no_model),
        )

    def render(self, settings: Settings) -> tuple[Rendering, ...]:
        """Python. Raises InputError for what OpenVINO GenAI has no setting for."""
        return (Rendering("Python", "python", _python(self._options(settings)), "openvino_speculation.py"),)

    def _options(self, settings: Settings) -> dict[str, Any]:
        if no_model := _why_no_model(settings.model):
            raise InputError(f"{no_model}.", _EXPORT)
        wanted = one_speculation(settings, self.title, (DRAFT, LOOKUP))
        draft = None
        if wanted is not None and wanted.kind == DRAFT:
            draft = needs_draft(settings, self.title, DRAFT)
            if no_draft := _why_no_draft(draft):
                raise InputError(f"{no_draft}.", _SAVE if draft.lower().endswith(".gguf") else _EXPORT)
        return {
            "model": settings.model,
            "draft": draft,
            "device": DEVICE,
            "prompt_lookup": wanted is not None and wanted.kind == LOOKUP,
            "generate": _fields(wanted),
            "n_threads": settings.n_threads,
        }


def _fields(wanted: Speculation | None) -> dict[str, Any]:
    """Of the generation configuration."""
    if wanted is None:
        return {}
    if wanted.kind == LOOKUP:
        if wanted.p_min is not None:
            raise InputError(f"Prompt lookup has no confidence, and p {wanted.p_min:g} is asked for.")
        return {"num_assistant_tokens": wanted.n_max or N_DRAFTED, "max_ngram_size": N_GRAM}
    if wanted.p_min is None:
        return {"num_assistant_tokens": wanted.n_max or N_DRAFTED}
    if wanted.n_max is not None:
        raise InputError(f"OpenVINO GenAI takes a number of tokens or a threshold of confidence, not both ({wanted}).")
    return {"assistant_confidence_threshold": wanted.p_min}


def _why_no_model(name: str) -> str:
    path = Path(name)
    if path.suffix.lower() == ".gguf" or _is_exported(path):
        return ""
    return f"OpenVINO GenAI reads a GGUF file or a folder with openvino_model.xml, and {name} is neither"


def _why_no_draft(name: str | None) -> str:
    if name is None or _is_exported(Path(name)):
        return ""
    return f"OpenVINO GenAI takes a draft model from a folder with openvino_model.xml alone, and {name} is none"


def _is_exported(path: Path) -> bool:
    return (path / "openvino_model.xml").is_file()


def _python(options: Mapping[str, Any]) -> str:
    threads = f", INFERENCE_NUM_THREADS={options['n_threads']}" if options["n_threads"] else ""
    arguments = [repr(options["model"]), repr(options["device"])]
    if options["draft"] is not None:
        draft = f"{options['draft']!r}, {options['device']!r}{threads}"
        arguments += [f"draft_model=openvino_genai.draft_model({draft})"]
    arguments += ["prompt_lookup=True"] if options["prompt_lookup"] else []
    lines = ",\n    ".join(arguments) + threads.replace(", ", ",\n    ")
    fields = "".join(f"config.{name} = {value!r}\n" for name, value in options["generate"].items())
    return (
        "import openvino_genai\n\n"
        f"pipeline = openvino_genai.LLMPipeline(\n    {lines},\n)\n"
        "config = openvino_genai.GenerationConfig()\n"
        "config.max_new_tokens = 512\n"
        f"{fields}"
        'messages = [{"role": "user", "content": "Name three rivers of Europe."}]\n'
        "print(pipeline.generate(openvino_genai.ChatHistory(messages), config).texts[0])\n"
    )
