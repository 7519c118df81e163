"""Hugging Face transformers behind the pipe: plain and assisted generation, its rounds counted.

Runs where torch and transformers are, for GGUF files gguf and accelerate too. Options: {"model", "draft", "generate"
(arguments of `generate`), "assistant" (fields of the draft's generation configuration), "n_threads"}; null for none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipe import Answer, Asked, Rounds, serve  # type: ignore[import-not-found]


class Watch:
    """Counts what the target verifies: a hook tells the width of a pass, a stopping criterion the text after it."""

    def __init__(self, model: Any) -> None:
        self.n_text = self.n_seen = self.n_in = 0
        self.rounds = Rounds(lambda said: None)
        self.each: list[tuple[int, int]] = []
        model.register_forward_pre_hook(self._before_pass, with_kwargs=True)

    def begin(self, n_prompt: int, rounds: Rounds) -> None:
        self.n_text, self.n_seen, self.rounds, self.each = n_prompt, 0, rounds, []

    def _before_pass(self, model: Any, args: Any, options: dict[str, Any]) -> None:
        self.n_in = self.n_seen + options["input_ids"].shape[1]

    def __call__(self, input_ids: Any, scores: Any, **options: Any) -> Any:
        """A stopping criterion that stops nothing; called once a round."""
        import torch

        n_new = input_ids.shape[1] - self.n_text
        # In the cache was all but the last token of the text; what the pass had beyond the text was the draft.
        self.each.append((self.n_in - self.n_text, n_new - 1))
        self.n_text = input_ids.shape[1]
        self.n_seen = self.n_text - 1
        self.rounds.came(n_new)
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)

    def counters(self) -> dict[str, Any]:
        """Of the rounds since `begin`, as slipstream names them."""
        drafted, accepted = ([round[i] for round in self.each] for i in (0, 1))
        at = range(max(drafted, default=0))
        return {
            "drafted": sum(drafted),
            "accepted": sum(accepted),
            "drafts": sum(n > 0 for n in drafted),
            "drafted_at": [sum(n > i for n in drafted) for i in at],
            "accepted_at": [sum(n > i for n in accepted) for i in at],
        }


def load(options: dict[str, Any]) -> Answer:
    import torch
    from transformers import StoppingCriteriaList, set_seed

    if options["n_threads"]:
        torch.set_num_threads(options["n_threads"])
    tokenizer, model = open_model(options["model"])
    generate = dict(options["generate"])
    if options["draft"]:
        assistant = open_model(options["draft"])[1]
        for name, value in options["assistant"].items():
            setattr(assistant.generation_config, name, value)
        generate["assistant_model"] = assistant
    watch = Watch(model)

    def answer(asked: Asked, rounds: Rounds) -> dict[str, Any]:
        prompt = tokenizer.apply_chat_template(
            asked["messages"], add_generation_prompt=True, return_tensors="pt", return_dict=True
        ).to(model.device)
        n_prompt = prompt["input_ids"].shape[1]
        watch.begin(n_prompt, rounds)
        set_seed(asked["seed"])
        how = {"do_sample": True, "temperature": asked["temperature"]} if asked["temperature"] else {"do_sample": False}
        text = model.generate(
            **prompt,
            **how,
            **generate,
            max_new_tokens=asked["n_tokens"],
            stopping_criteria=StoppingCriteriaList([watch]),
        )[0, n_prompt:]
        return {
            "text": tokenizer.decode(text, skip_special_tokens=True),
            "n_tokens": len(text),
            "counters": watch.counters() if generate else None,
        }

    return answer


def open_model(name: str) -> tuple[Any, Any]:
    """Tokenizer and model of a folder, a GGUF file (dequantised) or a repository; on the GPU if there is one."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = Path(name)
    where = {"gguf_file": path.name} if path.suffix.lower() == ".gguf" else {}
    source = str(path.parent) if where else name
    model = AutoModelForCausalLM.from_pretrained(source, dtype="auto", **where)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return AutoTokenizer.from_pretrained(source, **where), model.to(device)


if __name__ == "__main__":
    serve(load)
