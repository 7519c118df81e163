"""How much less one text follows its own suffixes than others did: what a chat and a code edit differ in."""

from __future__ import annotations

import math

GREEDY, SAMPLED, VARIANCE = -0.3, -1.0, 2.0
"""What is believed of a text that begins (log-odds): a little doubt, more of one that is sampled, and little
certainty of either."""

MEMORY = 50.0
"""Tokens in which what was seen of the text fades."""

FARTHEST = 4.0


class Doubt:
    """A shift of all confidences of one text, in log-odds; it lowers them and never raises them.

    Estimated token by token as an extended Kalman filter does it: the state is the shift, what is seen is whether the
    likeliest continuation came, which a confidence p told with variance p·(1 − p).
    """

    def __init__(self, first: float) -> None:
        self._first = self._shift = first
        self._precision = 1.0 / VARIANCE

    def lowered(self, confidence: float) -> float:
        """The confidence in this text."""
        return confidence if self._shift >= 0 else _shifted(confidence, self._shift)

    def learn(self, confidence: float, came: bool) -> None:
        """A continuation expected with this confidence came, or did not."""
        expected = _shifted(confidence, self._shift)
        kept = 1.0 - 1.0 / MEMORY
        self._precision = kept * self._precision + (1.0 - kept) / VARIANCE + expected * (1.0 - expected)
        drawn_back = (1.0 - kept) / VARIANCE * (self._shift - self._first)
        self._shift += (came - expected - drawn_back) / self._precision
        self._shift = max(-FARTHEST, min(FARTHEST, self._shift))


def _shifted(share: float, shift: float) -> float:
    odds = share / max(1.0 - share, 1e-6) * math.exp(shift)
    return odds / (1.0 + odds)
