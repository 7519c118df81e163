"""Closed forms and cost models: what a pass costs on hardware that is described, not measured."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.decoding.acceptance import expected_tokens
from slipstream.decoding.cost import MAX_WIDTH, CostCurve, Far

N_FAR = 4096


def speedup(acceptance: float, n_drafted: int, draft_cost: float) -> float:
    """Speed-up over plain decoding where verification is free (Leviathan et al., arXiv 2211.17192, theorem 3.8).

    `draft_cost`: a draft step's time ÷ a target step's.
    """
    return expected_tokens(acceptance, n_drafted) / (n_drafted * draft_cost + 1.0)


def best_length(acceptance: float, draft_cost: float, longest: int = MAX_WIDTH - 1) -> tuple[int, float]:
    """The draft length with the highest `speedup`, 0 included, and that speed-up."""
    n = max(range(longest + 1), key=lambda n: speedup(acceptance, n, draft_cost))
    return n, speedup(acceptance, n, draft_cost)


def distinct_experts(n_experts: int, n_used: int, width: int) -> float:
    """How many of a layer's experts a pass over `width` tokens reads on average: N·(1 − (1 − k/N)^w).

    Routing is taken to be even and independent from token to token.
    """
    return n_experts * (1.0 - (1.0 - n_used / n_experts) ** width)


@dataclass(frozen=True)
class Roofline:
    """A machine and a model by their figures: a pass takes what memory takes or arithmetic, whichever is longer.

    weight_bytes: all weights that every token reads (without experts). expert_bytes: weights of all experts.
    n_experts, n_used: experts a layer, and how many of them a token uses. n_parameters: those that a token's
    arithmetic touches, experts used included. kv_bytes: KV cache a token of the context. bandwidth: bytes a second.
    flops: floating-point operations a second. overhead_s: what every pass takes on top, launches and sampling.
    """

    weight_bytes: float
    n_parameters: float
    bandwidth: float
    flops: float
    overhead_s: float = 0.0
    kv_bytes: float = 0.0
    expert_bytes: float = 0.0
    n_experts: int = 0
    n_used: int = 0

    def time(self, width: int, n_context: int = 0) -> float:
        """Seconds of a pass over `width` tokens behind `n_context`."""
        share = distinct_experts(self.n_experts, self.n_used, width) / self.n_experts if self.n_experts else 0.0
        read = self.weight_bytes + share * self.expert_bytes + n_context * self.kv_bytes
        return self.overhead_s + max(read / self.bandwidth, 2.0 * self.n_parameters * width / self.flops)

    def curve(self) -> CostCurve:
        """The same as a cost curve, as if it had been measured in an empty context and behind `N_FAR` tokens."""
        widths = range(1, MAX_WIDTH + 1)
        far = Far(N_FAR, {w: self.time(w, N_FAR) for w in widths}) if self.kv_bytes else None
        return CostCurve({w: self.time(w) for w in widths}, far=far)
