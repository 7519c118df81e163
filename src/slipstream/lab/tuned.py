"""What a tuning run found, as plain data: `tune.json`, from which tables and the report are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from slipstream.engines.protocol import Speculation

FORMAT = 2

State = Literal["measured", "dropped", "failed"]
"""measured to the end; dropped early, since its interval lay below the best; failed with its engine."""


@dataclass(frozen=True)
class Ratio:
    """Speed against plain decoding, measured around it: geometric mean over prompts, with a 95 % interval.

    n: prompts in it.
    """

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Timeline:
    """One answer as it came: (seconds since the request, tokens so far), of an arm and of plain decoding."""

    prompt: str
    category: str
    arm: tuple[tuple[float, int], ...]
    plain: tuple[tuple[float, int], ...]


@dataclass(frozen=True)
class Sample:
    """One answer of an arm in the course of the run, so that decay and drift can be seen.

    at_s: seconds spent measuring by then. tokens_per_s, plain_tokens_per_s: of the answer, and of plain decoding around
    it for the same prompt. acceptance_rate: of the answer alone. None where not known.
    """

    at_s: float
    category: str
    tokens_per_s: float | None
    plain_tokens_per_s: float | None
    acceptance_rate: float | None


@dataclass(frozen=True)
class ArmResult:
    """One setting. arm: its name (`Settings.arm`). speculation: what that stands for. reason: why it was dropped or
    failed, with the last log lines.

    tokens_per_s, plain_tokens_per_s: over the prompts of `overall` and as that is, geometric means. conditional[i]:
    accepted ÷ reached of draft token i, None where not known. survival[i]: drafts whose tokens up to i were all
    accepted ÷ all drafts; empty where not known. n_same of n_compared answers had plain decoding's greedy text; parted:
    where others did (prompt, characters that agree). samples: its answers in the order of their measurement. pass_cost:
    of a pass and its draft, in plain ones. n_drafted: tokens, None where not known. judged: whether `overall` is of
    measurements that did not choose it. rendered: as the engine's users write it down, the most usual way; empty where
    they cannot.
    """

    arm: str
    speculation: tuple[Speculation, ...]
    state: State
    reason: str
    overall: Ratio | None
    by_category: Mapping[str, Ratio]
    tokens_per_s: float | None
    plain_tokens_per_s: float | None
    acceptance_rate: float | None
    mean_tokens_a_pass: float | None
    conditional: tuple[float | None, ...]
    survival: tuple[float, ...]
    n_same: int
    n_compared: int
    parted: tuple[tuple[str, int], ...]
    timeline: Timeline | None
    samples: tuple[Sample, ...] = ()
    pass_cost: float | None = None
    n_drafted: int | None = None
    judged: bool = False
    rendered: str = ""


@dataclass(frozen=True)
class Written:
    """Settings to copy: see `engines.protocol.Rendering`."""

    title: str
    language: str
    text: str
    file_name: str


@dataclass(frozen=True)
class Verdict:
    """What to use. arm: "plain" for leaving speculation off, None where too little was measured to decide.

    reason: why, in words, without the answer itself. hint: what acceptance would suggest, beside the answer.
    """

    arm: str | None
    ratio: Ratio | None
    reason: str
    hint: str = ""


@dataclass(frozen=True)
class EngineResult:
    """One engine at one number of requests at once.

    prompts: by category, those that plain decoding answered; fewer than `Tuned.prompts` where time ran out.
    plain_tokens_per_s: of plain decoding, the median over these prompts; None where all answers were too short.
    n_disturbed: of n_measured answers to settings, those in no speed-up, as plain decoding around them hardly agreed.
    n_loops: prompts that plain decoding answered by repeating itself. n_unsteady: those that it gave several texts for.
    """

    name: str
    version: str
    concurrency: int
    prompts: Mapping[str, int]
    plain_tokens_per_s: float | None
    n_disturbed: int
    n_measured: int
    n_loops: int
    n_unsteady: int
    arms: tuple[ArmResult, ...]
    verdict: Verdict
    by_category: Mapping[str, Verdict]
    settings: tuple[Written, ...]


@dataclass(frozen=True)
class CostPoint:
    """t(w) ÷ t(1) of the target at a context of `n_context` tokens; the house's own engine alone knows it.

    `decoding.cost.FIRST_BAND` stands for all contexts up to it.
    """

    width: int
    n_context: int
    ratio: float


@dataclass(frozen=True)
class Tuned:
    """A whole run. started: when its first part began, ISO 8601. seconds: spent measuring, in all parts of a run that
    was resumed. machine: in words. n_tokens: of each answer at most; all are greedy. prompts: given, by category.
    """

    slipstream: str
    started: str
    seconds: float
    command: str
    machine: str
    model: str
    draft: str | None
    n_tokens: int
    prompts: Mapping[str, int]
    engines: tuple[EngineResult, ...]
    cost: tuple[CostPoint, ...] = ()
    format: int = FORMAT
