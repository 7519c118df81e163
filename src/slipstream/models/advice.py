"""Advice on a pair: rules of thumb with their source, figures that somebody measured, formulas with their inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from slipstream.models.description import Description
from slipstream.models.pairing import Verdict

Label = Literal["rule of thumb", "measured", "formula"]

GUIDE: Final = "“Speculative Decodingで推論を高速化 — ドラフトモデルとターゲットモデルの組み合わせ 2026”"
TOGGLE: Final = "vettedconsumer.com, “Speculative Decoding, Explained”, 25 July 2026"
LM_STUDIO: Final = "LM Studio's own advice"
AUDIT: Final = "the RTX 3090 benchmark of Qwen3.6-35B-A3B behind that article, corrected by its author in August 2026"

QUANTISATION: Final = (
    "bench/draft_quantisation.py: 19 prompts of ten categories, greedy; weights that had been Q4_1 before, the "
    "speed-ups predicted"
)

RATIO: Final = (1 / 10, 1 / 5)
"""Parameters of the draft ÷ those of the target, by rule of thumb."""

_DRAFT_LENGTH: Final = 4
_LINKS: Final = (("PCIe 4.0 ×16", 31.5e9), ("PCIe 3.0 ×4", 3.9e9), ("NVLink of an RTX 3090", 56e9))
"""Bytes a second in one direction, nominal."""

_PASS_S: Final = 30e-3
_TRANSFER_S: Final = 20e-6
"""A copy and its synchronisation, whatever its size."""

_TARGET_SIZES: Final = (8e9, 14e9, 32e9, 70e9)
_VENDOR: Final = "≤ 1 B for 7 B, ≤ 3 B for 14 B, ≤ 7 B for 32 B"


@dataclass(frozen=True)
class Advice:
    """One point. `source`: who says or measured it, or what a formula takes as given."""

    topic: str
    text: str
    label: Label
    source: str


def advise(target: Description, draft: Description, verdict: Verdict) -> tuple[Advice, ...]:
    """Advice on a pair on which `verdict` was given; what cannot be known of the files is left out."""
    if verdict.kind == "different":
        return (_family(verdict), *_size(target, draft), *_quantization(draft))
    points = [_family(verdict), *_size(target, draft), *_quantization(draft), *_moe(target), *_recurrent(target)]
    return (*points, *_temperature(), _same_gpu(), _second_gpu(target, draft))


def size_ratio(target: Description, draft: Description) -> float | None:
    """Parameters of the draft ÷ those of the target, of experts the active ones; None where they are not known."""
    if not target.n_active_params or not draft.n_active_params:
        return None
    return draft.n_active_params / target.n_active_params


def fitting_sizes(n_params: float) -> tuple[float, float]:
    """The least and the most parameters that a draft should have, by rule of thumb."""
    return n_params * RATIO[0], n_params * RATIO[1]


def experts_read(n_experts: int, n_used: int, width: int) -> float:
    """Expected number of distinct experts of a layer that a pass over `width` tokens reads, if routing were random."""
    return n_experts * (1 - (1 - n_used / n_experts) ** width)


def transfer_s(n_bytes: float, bytes_per_s: float, n_copies: int = 2) -> float:
    """Seconds a round spends between two cards: `n_copies` copies that carry `n_bytes` together."""
    return n_copies * _TRANSFER_S + n_bytes / bytes_per_s


def _family(verdict: Verdict) -> Advice:
    if verdict.kind == "needs the target's hidden states":
        text = (
            "A head knows one model alone: that which it was trained on, in that version. "
            "On Vicuna-7B trained heads did better than draft models (EAGLE-2 2.19×, draft model 1.79×, RTX 3090)."
        )
        return Advice("family", text, "measured", "Spec-Bench, greedy, Vicuna-7B")
    text = "Draft and target of one family, and of one kind (instruct with instruct, coder with coder)."
    return Advice("family", text, "rule of thumb", f"{GUIDE}; {TOGGLE}")


def _size(target: Description, draft: Description) -> list[Advice]:
    ratio = size_ratio(target, draft)
    if ratio is None or draft.head is not None:
        return []
    assert target.n_active_params is not None
    where = "within" if RATIO[0] <= ratio <= RATIO[1] else ("above" if ratio > RATIO[1] else "below")
    text = (
        f"The draft has {ratio:.2g} times the target's parameters, {where} 1/10 to 1/5, which for this target is "
        f"{_billions(target.n_active_params)}. Smaller drafts are cheap and often wrong, larger ones right and dear."
    )
    table = "; ".join(f"{n / 1e9:.0f} B: {_billions(n)}" for n in _TARGET_SIZES)
    others = f"{LM_STUDIO}: {_VENDOR}; as {TOGGLE} gives it: 1 B for 8 B, 1.5 B for 32 B"
    return [
        Advice("size", text, "rule of thumb", f"{GUIDE} (1/5 to 1/10); {TOGGLE} (1/10)"),
        Advice("size", f"Drafts by size of the target: {table}. {others}.", "rule of thumb", f"{GUIDE}; {LM_STUDIO}"),
        Advice(
            "size",
            "Fitting size is no promise: Qwen2.5-14B with 0.5B fell from 67.7 to 52.1 tokens/s on an A100.",
            "measured",
            "llama.cpp #10664",
        ),
    ]


def _billions(n_params: float) -> str:
    low, high = fitting_sizes(n_params)
    return f"{low / 1e9:.2g} to {high / 1e9:.2g} B"


def _quantization(draft: Description) -> list[Advice]:
    if draft.head is not None:
        return []
    text = (
        f"The draft is {draft.quantization or 'of unknown quantisation'}. The same article says 6 bits or more "
        "(the draft's errors cost acceptance) and, further down, Q4_K_M (bytes cost time). They pull against each "
        "other: try Q8_0 and Q4_K_M of the draft and keep the faster."
    )
    measured = (
        "SmolLM2-135M as the draft of Qwen2.5-Coder-0.5B was right at 59.4 % of places at Q4_0, 63.9 % at Q8_0 and "
        "64.5 % at F16; a token took it 9.1, 14.4 and 19.2 ms on two CPU cores. So Q8_0 cost 0.6 points and Q4_0 "
        "5.0, and by t(w) Q4_0 was worth most all the same: 1.20, 1.14 and 1.07 times plain decoding."
    )
    return [
        Advice("draft quantisation", text, "rule of thumb", f"{GUIDE}, which contradicts itself"),
        Advice("draft quantisation", measured, "measured", QUANTISATION),
    ]


def _moe(target: Description) -> list[Advice]:
    if not target.is_moe or not 0 < target.n_experts_used <= target.n_experts:
        return []
    n, k = target.n_experts, target.n_experts_used
    reads = [f"{experts_read(n, k, width) / k:.2f} times the experts at width {width}" for width in (2, 4, 8)]
    text = f"{k} of {n} experts serve a token; a pass reads {', '.join(reads)}. Keep drafts short: 1 to 3 tokens."
    measured = (
        "MTP with 2 tokens +23 %, DFlash with 2 tokens +26 %, a separate 0.8B draft −73 to −75 %. "
        "The 3 % loss and 100 % acceptance first reported were withdrawn."
    )
    return [
        Advice("MoE target", text, "formula", "N·(1 − (1 − k/N)^w) distinct experts, if routing were random"),
        Advice("MoE target", measured, "measured", AUDIT),
    ]


def _recurrent(target: Description) -> list[Advice]:
    if not target.recurrent:
        return []
    text = (
        "The target keeps a recurrent state. Rejected tokens are taken back by snapshots, "
        "which took 600 of 825 ms a round in one report. Prefer its own MTP layers."
    )
    return [Advice("recurrent target", text, "measured", "llama.cpp #28118")]


def _temperature() -> list[Advice]:
    rule = "Gains fall with temperature and with free prose: code and copied text draft best."
    measured = "Code 1.35×, prose 1.08×, creative writing 0.91× with the same settings."
    return [
        Advice("temperature", rule, "rule of thumb", TOGGLE),
        Advice("temperature", measured, "measured", "llama.cpp #23052"),
    ]


def _same_gpu() -> Advice:
    text = "Both models on one GPU where they fit, unless the target would need a coarser quantisation for it."
    return Advice("placement", text, "rule of thumb", f"{GUIDE}; {TOGGLE}")


def _second_gpu(target: Description, draft: Description) -> Advice:
    n = _DRAFT_LENGTH
    if draft.head is not None:
        n_layers = max(len(draft.head.layers), 1)
        n_bytes = float(2 * n_layers * (target.hidden_size or 4096) * (n + 1))
        carried = f"the hidden states of {n_layers} layers for {n + 1} tokens, 2 bytes a value"
    else:
        n_bytes = 4.0 * (target.n_rows or 0) * n
        carried = (
            f"{n} rows of draft probabilities in 4 bytes; greedy drafts carry 4 bytes a token and only the copies count"
        )
    times = ", ".join(f"{link} {transfer_s(n_bytes, speed) * 1e3:.2f} ms" for link, speed in _LINKS)
    share = transfer_s(n_bytes, _LINKS[0][1]) / _PASS_S
    text = (
        f"A draft on a second card costs a round {times} ({n_bytes / 1e6:.2g} MB). "
        f"Of a pass of {_PASS_S * 1e3:.0f} ms the first is {share:.1%}; set it against your own t(1)."
    )
    given = f"2 copies of {_TRANSFER_S * 1e6:.0f} µs + bytes ÷ bandwidth, with {carried}"
    return Advice("second GPU", text, "formula", given)
