"""How each engine judges a pair, by the rule in its own source; none of them is run.

slipstream     attention alone; pairing.same_vocabulary decides whether drafts are translated
llama.cpp      common/speculative.cpp, common_speculative_are_compatible
vLLM           config/speculative.py, verify_equal_vocab_size_if_draft_model
MLX-LM         generate.py and server.py: sizes of the two tokenizers
transformers   generation/utils.py: config.vocab_size of both
OpenVINO GenAI are_tokenizers_equal: one sentence, and three ids
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from slipstream.models.description import Description, Head
from slipstream.models.pairing import Comparison, Verdict, same_vocabulary
from slipstream.models.vocabulary import Vocabulary

LLAMA_CPP_MAX_SIZE_DIFFERENCE: Final = 128
LLAMA_CPP_FIRST_TOKEN: Final = 5
_EAGLE3_LAYERS: Final = 3
_LLAMA_CPP_TYPES: Final = {"EAGLE-3": "draft-eagle3", "MTP": "draft-mtp", "DFlash": "draft-dflash"}
_SENTENCE: Final = "Could you please tell me something about OpenVINO.GenAI?"
_BLIND: Final = "Equal size hides different tokens: it would draft nonsense without a word of warning."


@dataclass(frozen=True)
class Judgement:
    """What an engine says. `takes`: None where files alone do not tell. `warning`: what it does not notice."""

    engine: str
    takes: bool | None
    reason: str
    warning: str = ""


def judge(target: Description, draft: Description, verdict: Verdict) -> tuple[Judgement, ...]:
    """Every engine's judgement of a pair on which `verdict` was given.

    A GGUF pair is judged for engines that read Hugging Face folders as the models that it was converted from.
    """
    if draft.head is not None:
        return _judge_head(target, draft, draft.head, verdict)
    assert target.vocabulary is not None and draft.vocabulary is not None and verdict.comparison is not None
    one, other, compared = target.vocabulary, draft.vocabulary, verdict.comparison
    return (
        _slipstream(target, draft),
        llama_cpp(one, other),
        vllm(one, other, compared),
        mlx_lm(one, other, compared),
        transformers(one, other, compared),
        openvino(one, other, compared),
    )


def llama_cpp(target: Vocabulary, draft: Vocabulary) -> Judgement:
    engine = "llama.cpp"
    if target.algorithm != draft.algorithm:
        return Judgement(engine, False, f"vocabulary types {target.algorithm} and {draft.algorithm} are not one")
    for what, adds, ids in (
        ("BOS", (target.add_bos, draft.add_bos), (target.bos_id, draft.bos_id)),
        ("EOS", (target.add_eos, draft.add_eos), (target.eos_id, draft.eos_id)),
    ):
        if adds[0] != adds[1]:
            return Judgement(engine, False, f"one adds {what} to a text and the other does not")
        if adds[0] and ids[0] != ids[1]:
            return Judgement(engine, False, f"both add {what}, as token {ids[0]} and {ids[1]}")
    difference = abs(target.n_rows - draft.n_rows)
    if difference > LLAMA_CPP_MAX_SIZE_DIFFERENCE:
        limit = LLAMA_CPP_MAX_SIZE_DIFFERENCE
        return Judgement(engine, False, f"the sizes differ by {difference:,}, more than {limit}")
    for token in range(LLAMA_CPP_FIRST_TOKEN, min(target.n_rows, draft.n_rows)):
        texts = target.tokens[token], draft.tokens[token]
        # Rows that a tokenizer.json does not know get a name by their id when they are converted.
        unnamed = "" in texts and target.is_padding(token) and draft.is_padding(token)
        if texts[0] != texts[1] and not unnamed:
            return Judgement(engine, False, f"token {token} is {texts[0]!r} and {texts[1]!r}")
    return Judgement(engine, True, "type, BOS, EOS, size and the texts from token 5 on pass (--spec-type draft-simple)")


def vllm(target: Vocabulary, draft: Vocabulary, compared: Comparison) -> Judgement:
    sizes = f"{target.n_rows:,} and {draft.n_rows:,} rows"
    if target.n_rows == draft.n_rows:
        return Judgement("vLLM", True, f"{sizes} are equal", _warning(compared))
    reason = f'{sizes} are not equal; with "use_heterogeneous_vocab": true it drafts, greedily, from the common tokens'
    return Judgement("vLLM", False, reason)


def mlx_lm(target: Vocabulary, draft: Vocabulary, compared: Comparison) -> Judgement:
    sizes = f"tokenizers of {target.n_base:,} and {draft.n_base:,} tokens, added ones not counted"
    if target.n_base == draft.n_base:
        return Judgement("MLX-LM", True, sizes, _warning(compared))
    return Judgement("MLX-LM", False, f"{sizes}: mlx_lm.generate refuses", "mlx_lm.server only logs a warning.")


def transformers(target: Vocabulary, draft: Vocabulary, compared: Comparison) -> Judgement:
    sizes = f"vocab_size {target.n_rows:,} and {draft.n_rows:,}"
    if target.n_rows == draft.n_rows:
        return Judgement("transformers", True, f"{sizes}: taken for the same tokenizer", _warning(compared))
    reason = f"{sizes}: taken for different tokenizers; needs tokenizer= and assistant_tokenizer=, then translates"
    warning = "" if compared.n_different else "The tokens are the same: the detour over text costs time for nothing."
    return Judgement("transformers", False, reason, warning)


def openvino(target: Vocabulary, draft: Vocabulary, compared: Comparison) -> Judgement:
    engine = "OpenVINO GenAI"
    for what, one, other in (
        ("EOS", target.eos_id, draft.eos_id),
        ("BOS", target.bos_id, draft.bos_id),
        ("padding", target.pad_id, draft.pad_id),
    ):
        if one != other:
            return Judgement(engine, False, f"the {what} token is {one} and {other}")
    if compared.n_different:
        reason = f"it counts the tokens of one sentence ({_SENTENCE!r}) and compares the counts alone"
        return Judgement(engine, None, reason, "Where the counts happen to agree, it would draft nonsense.")
    return Judgement(engine, True, "EOS, BOS and padding tokens agree, and so does the length of its test sentence")


def _warning(compared: Comparison) -> str:
    if compared.n_different:
        return _BLIND
    return "Its special tokens differ, which it does not notice." if compared.n_special else ""


def _slipstream(target: Description, draft: Description) -> Judgement:
    engine = "slipstream"
    if target.gguf is None or draft.gguf is None:
        return Judgement(engine, False, "it runs GGUF files alone")
    if draft.recurrent:
        return Judgement(engine, False, "the draft's architecture cannot take tokens back one by one")
    reason = same_vocabulary(target.gguf, draft.gguf)
    if reason is None:
        return Judgement(engine, True, "tokens, tokenizer and the ends of texts agree")
    how = f"{reason}; it drafts by common tokens and by text, in two contexts of the draft"
    return Judgement(engine, True, how, "Translated drafts are accepted less often than those of one vocabulary.")


def _judge_head(target: Description, draft: Description, head: Head, verdict: Verdict) -> tuple[Judgement, ...]:
    no = "it has no way to run such heads"
    trained = "its shape fits; whether it takes this architecture as a target depends on the release"
    misfit = next(iter(verdict.reasons[2 if head.layers else 1 :]), "its shape does not fit")
    fitting = Judgement("vLLM", None if verdict.fits else False, trained if verdict.fits else misfit)
    return (
        Judgement("slipstream", False, no),
        _llama_cpp_head(target, draft, head, verdict, misfit),
        fitting if draft.form == "Hugging Face" else Judgement("vLLM", False, "it reads heads in Hugging Face form"),
        Judgement("MLX-LM", False, no),
        Judgement("transformers", False, no),
        Judgement("OpenVINO GenAI", None, "whether it runs such heads depends on the release"),
    )


def _llama_cpp_head(target: Description, draft: Description, head: Head, verdict: Verdict, misfit: str) -> Judgement:
    engine, how = "llama.cpp", f"--spec-type {_LLAMA_CPP_TYPES[head.method]}"
    if draft.form != "GGUF":
        return Judgement(engine, False, f"it needs the head as GGUF: convert_hf_to_gguf.py, then {how}")
    if not verdict.fits:
        return Judgement(engine, False, misfit)
    if head.method == "EAGLE-3" and len(head.layers) != _EAGLE3_LAYERS:
        return Judgement(
            engine, False, f"it requires exactly {_EAGLE3_LAYERS} target layers, the head has {len(head.layers)}"
        )
    if head.method == "EAGLE-3" and (draft.n_rows or 0) < (target.n_rows or 0):
        return Judgement(engine, False, "the head's vocabulary is smaller than the target's")
    return Judgement(engine, True, f"hidden size, layers and vocabulary pass ({how})")
