"""What happened: one `Round` for each verified draft, added up to `Statistics`."""

from __future__ import annotations

from dataclasses import dataclass, field

from .logprobs import TokenLogprob


@dataclass(frozen=True)
class Round:
    """One draft and its verification, for one sequence.

    tokens:     what was committed: the accepted tokens and the bonus token (fewer where the text ended).
    drafted:    tokens drafted, not counting those behind an accepted end of the text, which nothing verified;
                `accepted` of them stand in `tokens`, at its beginning.
    drafter:    who proposed them, "" for plain decoding.
    n_outputs:  rows computed for this sequence: one more than its draft, or the width in exact mode.
    width:      the tokens of the whole pass, padding and other sequences included.
    n_context:  tokens of the sequence before the round.
    logprobs:   one for each token, where they were asked for.
    draft_s, pass_s, total_s: seconds of drafting, of the target's pass, and of the whole round.
    """

    seq: int
    tokens: tuple[int, ...]
    drafted: int
    accepted: int
    drafter: str
    n_outputs: int
    width: int
    n_context: int
    draft_s: float
    pass_s: float
    total_s: float
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass
class Statistics:
    """Sums over the rounds of one answer; rates are None where nothing was counted.

    exact: the width probe has shown that the rows of all passes are those of plain decoding, to the last bit.
    The first token comes with the prefill: it belongs to `ttft_s` (time to first token), not to the decode speed.
    """

    n_prompt: int = 0
    n_cached: int = 0
    n_tokens: int = 0
    n_rounds: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    n_decoded: int = 0
    ttft_s: float = 0.0
    decode_s: float = 0.0
    plain_s: float = 0.0
    exact: bool = False
    by_drafter: dict[str, list[int]] = field(default_factory=dict)
    reached: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def first(self, seconds: float) -> None:
        """Counts the first token, which came `seconds` after the request."""
        self.n_tokens += 1
        self.ttft_s = seconds

    def add(self, done: Round, plain_token_s: float) -> None:
        """Counts a round; `plain_token_s` is what one token of plain decoding would cost now."""
        self.n_rounds += 1
        self.n_tokens += len(done.tokens)
        self.n_decoded += len(done.tokens)
        self.n_drafted += done.drafted
        self.n_accepted += done.accepted
        self.decode_s += done.total_s
        self.plain_s += plain_token_s * len(done.tokens)
        if done.drafted:
            counts = self.by_drafter.setdefault(done.drafter, [0, 0])
            counts[0] += done.drafted
            counts[1] += done.accepted
        _count(self.reached, min(done.accepted + 1, done.drafted))
        _count(self.accepted, done.accepted)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted ÷ drafted."""
        return self.n_accepted / self.n_drafted if self.n_drafted else None

    @property
    def mean_tokens_per_pass(self) -> float | None:
        """(Accepted + bonus) ÷ passes of the target, from the first token on."""
        return self.n_decoded / self.n_rounds if self.n_rounds else None

    @property
    def tokens_per_second(self) -> float | None:
        return self.n_decoded / self.decode_s if self.decode_s > 0 else None

    @property
    def predicted_speedup(self) -> float | None:
        """Decode speed ÷ that of plain decoding as the cost curve predicts it."""
        return self.plain_s / self.decode_s if self.decode_s > 0 else None

    @property
    def acceptance_by_position(self) -> list[float]:
        """Conditional acceptance at each position of the draft: accepted ÷ reached."""
        accepted = self.accepted + [0] * (len(self.reached) - len(self.accepted))
        return [a / r for a, r in zip(accepted, self.reached, strict=False)]

    def to_data(self) -> dict[str, object]:
        """All counts and rates under their names, for JSON. Times in seconds."""
        return {
            "prompt_tokens": self.n_prompt,
            "cached_prompt_tokens": self.n_cached,
            "tokens": self.n_tokens,
            "target_passes": self.n_rounds,
            "drafted": self.n_drafted,
            "accepted": self.n_accepted,
            "acceptance_rate": self.acceptance_rate,
            "acceptance_by_position": self.acceptance_by_position,
            "mean_tokens_per_pass": self.mean_tokens_per_pass,
            "by_drafter": {n: {"drafted": d, "accepted": a} for n, (d, a) in self.by_drafter.items()},
            "time_to_first_token_s": self.ttft_s,
            "decode_s": self.decode_s,
            "tokens_per_second": self.tokens_per_second,
            "exact": self.exact,
            "predicted_speedup": self.predicted_speedup,
        }


def _count(histogram: list[int], n: int) -> None:
    histogram.extend([0] * (n - len(histogram)))
    for i in range(n):
        histogram[i] += 1
