"""OpenVINO GenAI behind the pipe: plain, prompt lookup, or a draft model.

Runs where openvino-genai is. Options: {"model", "draft", "device", "prompt_lookup", "generate" (fields of the
generation configuration), "n_threads"}; null for none.
"""

from __future__ import annotations

from typing import Any

from pipe import Answer, Asked, Rounds, serve  # type: ignore[import-not-found]


def load(options: dict[str, Any]) -> Answer:
    import openvino_genai

    class Streamer(openvino_genai.StreamerBase):  # type: ignore[misc]
        """Called once a round: with its only token, or with all of them."""

        def __init__(self, rounds: Rounds) -> None:
            super().__init__()
            self.rounds = rounds

        def write(self, tokens: int | list[int]) -> Any:
            self.rounds.came(1 if isinstance(tokens, int) else len(tokens))
            return openvino_genai.StreamingStatus.RUNNING

        def end(self) -> None:
            pass

    pipeline = open_pipeline(openvino_genai, options)

    def answer(asked: Asked, rounds: Rounds) -> dict[str, Any]:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = asked["n_tokens"]
        config.do_sample = asked["temperature"] > 0
        if config.do_sample:
            config.temperature, config.rng_seed = asked["temperature"], asked["seed"]
        for name, value in options["generate"].items():
            setattr(config, name, value)
        done = pipeline.generate(openvino_genai.ChatHistory(asked["messages"]), config, Streamer(rounds))
        return {
            "text": done.texts[0],
            "n_tokens": rounds.n_tokens,
            "counters": counted(done.extended_perf_metrics),
        }

    return answer


def open_pipeline(openvino_genai: Any, options: dict[str, Any]) -> Any:
    """Without its prefix cache, which would else answer a prompt faster the second time."""
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    threads = {"INFERENCE_NUM_THREADS": options["n_threads"]} if options["n_threads"] else {}
    how = {"prompt_lookup": True} if options["prompt_lookup"] else {}
    if options["draft"]:
        how["draft_model"] = openvino_genai.draft_model(options["draft"], options["device"], **threads)
    return openvino_genai.LLMPipeline(options["model"], options["device"], scheduler_config=scheduler, **how, **threads)


def counted(metrics: Any) -> dict[str, int] | None:
    """The figures of one answer that a pipeline with a draft model gives; the others give none."""
    if metrics is None or not hasattr(metrics, "get_num_draft_tokens"):
        return None
    return {"drafted": metrics.get_num_draft_tokens(), "accepted": metrics.get_num_accepted_tokens()}


if __name__ == "__main__":
    serve(load)
