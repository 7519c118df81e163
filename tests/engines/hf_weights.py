"""Writes a GGUF model of the Llama kind as a folder in Hugging Face form, weights in float32.

    python hf_weights.py FILE.gguf FOLDER

Runs in an environment with torch, transformers, gguf and accelerate; needs nothing of slipstream.
"""

from __future__ import annotations

import sys
from pathlib import Path


def write(source: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    read = AutoModelForCausalLM.from_pretrained(str(source.parent), gguf_file=source.name, dtype=torch.float32)
    # What was read from a GGUF file refuses to be saved: its weights go into a fresh model, which does not.
    config = LlamaConfig.from_dict({**read.config.to_dict(), "quantization_config": None})
    del config.quantization_config
    model = LlamaForCausalLM(config)
    model.load_state_dict(read.state_dict())
    model.generation_config.eos_token_id = read.config.eos_token_id
    model.save_pretrained(str(folder))
    AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name).save_pretrained(str(folder))


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
