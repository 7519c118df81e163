"""From blocks to what is reported of one setting: figures, acceptance, the same text or not, one answer as it came."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import takewhile
from operator import add
from typing import get_args

from slipstream.engines.protocol import Counters, Option, Speculation
from slipstream.lab.loops import repeats_itself
from slipstream.lab.tune_counters import tally
from slipstream.lab.tune_search import NOT_MEASURED, Arm
from slipstream.lab.tune_statistics import Point, drift, points, ratio
from slipstream.lab.tune_verdict import LITTLE
from slipstream.lab.tune_visit import Block, Measured, Role, Visit
from slipstream.lab.tuned import ArmResult, Ratio, Sample, Timeline

MAX_PARTED = 20


MAX_PERIOD, MIN_LOOP = 200, 60
"""In characters: the longest period of a text that repeats itself, and the shortest such text."""


MIN_IDLE = 3
"""Tasks after which a setting that drafted nothing is no longer tried."""


@dataclass(frozen=True)
class Figures:
    """Of a setting. counted: what `overall` is of. judged: whether that are measurements that did not choose it."""

    overall: Ratio | None
    by_category: dict[str, Ratio]
    counted: list[Point]
    judged: bool


def figures(blocks: Sequence[Block], arm: str) -> Figures:
    """What was chosen is judged by blocks that did not choose it, where those suffice."""
    shared = drift(blocks)
    chose, judged = ([p for p in points(blocks, roles) if p.arm == arm] for roles in (("search",), ("winner",)))
    in_categories = [p for p in points(blocks, ("winner", "category")) if p.arm == arm]
    by_category: dict[str, Ratio] = {}
    for category in dict.fromkeys(p.category for p in [*chose, *in_categories]):
        found = ratio(_of(in_categories, category), shared) or ratio(_of(chose, category), shared)
        if found is not None:
            by_category[category] = found
    found = ratio(judged, shared)
    if found is not None:
        return Figures(found, by_category, judged, True)
    return Figures(ratio(chose, shared), by_category, chose, False)


def speeds(blocks: Sequence[Block], some: Sequence[Point]) -> tuple[float | None, float | None]:
    """Tokens a second of a setting and of plain decoding around it; their quotient is the speed-up of these points."""
    if not some:
        return None, None
    own = _over_tasks((p.task, -math.log(blocks[p.block].tried.measured[p.task].token_s or math.nan)) for p in some)
    gain = _over_tasks((p.task, p.log_ratio) for p in some)
    return math.exp(own), math.exp(own - gain)


def _over_tasks(values: Iterable[tuple[str, float]]) -> float:
    """The mean over tasks, however often each was measured."""
    tasks: dict[str, list[float]] = {}
    for task, value in values:
        tasks.setdefault(task, []).append(value)
    return statistics.fmean(map(statistics.fmean, tasks.values()))


def arm_result(arm: Arm, blocks: Sequence[Block], failed: str = "") -> ArmResult:
    """All that is known of a setting. failed: why its engine could not go on."""
    own = [block for block in blocks if block.arm == arm.name]
    found = figures(blocks, arm.name)
    overall = found.overall
    together = gain_together(blocks, arm.name)
    at_least = together * overall.low / overall.value if overall and together else None
    told = tally([block.tried for block in own], arm.settings, at_least)
    counters = told.trusted
    n_same, n_compared, parted = texts(own)
    out = arm.out or ("" if own else NOT_MEASURED)
    tokens_per_s, plain_tokens_per_s = speeds(blocks, found.counted)
    lie = f"Its counters cannot be right, and are not used: {told.lie}." if told.lie else ""
    return ArmResult(
        arm=arm.name,
        speculation=arm.settings.speculation,
        state="failed" if failed else "dropped" if out else "measured",
        reason=" ".join(filter(None, (failed or out, lie))),
        overall=overall,
        by_category=found.by_category,
        tokens_per_s=tokens_per_s,
        plain_tokens_per_s=plain_tokens_per_s,
        acceptance_rate=counters.acceptance_rate if counters else None,
        mean_tokens_a_pass=told.mean_tokens_a_pass,
        conditional=counters.conditional() if counters else (),
        survival=_survival(counters),
        n_same=n_same,
        n_compared=n_compared,
        parted=parted,
        timeline=timeline(blocks, arm.name),
        samples=samples(own),
        pass_cost=told.mean_tokens_a_pass / together if told.mean_tokens_a_pass and together else None,
        n_drafted=counters.drafted if counters else None,
        judged=found.judged,
    )


def gain_together(blocks: Sequence[Block], arm: str) -> float | None:
    """How much faster all tokens together came: what tokens a pass, which are those of all answers, compare with.

    The mean over prompts is the greater the more they differ: of 5 and 1 it is 2.2, and together they are 1.7.
    """
    own = [p for p in points(blocks, get_args(Role)) if p.arm == arm]
    known = [(blocks[p.block].tried.measured[p.task].n_tokens, math.exp(p.log_ratio)) for p in own]
    return sum(n for n, _ in known) / sum(n / gain for n, gain in known) if known else None


def is_idle(blocks: Sequence[Block], arm: str) -> bool:
    """Whether a setting drafted nothing, as its engine says, and gained nothing either, since counters may lie."""
    own = [block.tried for block in blocks if block.arm == arm]
    n_tasks = len({task for visit in own for task in visit.measured})
    if n_tasks < MIN_IDLE or not all(visit.counters is not None and not visit.counters.drafted for visit in own):
        return False
    found = figures(blocks, arm).overall
    return found is None or found.value < LITTLE


def not_run(option: Option) -> ArmResult:
    """A kind that the engine has and that cannot be had here."""
    what, why = (Speculation(option.kind),), f"not run: {option.why_not}"
    return ArmResult(option.kind, what, "dropped", why, None, {}, None, None, None, None, (), (), 0, 0, (), None)


def speed(visits: Iterable[Visit]) -> float | None:
    """Tokens a second, the median over tasks and over the visits of each."""
    known: dict[str, list[float]] = {}
    for visit in visits:
        for task, measured in visit.measured.items():
            if measured.token_s:
                known.setdefault(task, []).append(1 / measured.token_s)
    return statistics.median(map(statistics.median, known.values())) if known else None


def texts(blocks: Iterable[Block]) -> tuple[int, int, tuple[tuple[str, int], ...]]:
    """(answers with plain decoding's text, answers compared, where others part: prompt, characters that agree).

    Where plain decoding gave two texts, either counts as its own.
    """
    n_same = n_compared = 0
    parted: dict[str, int] = {}
    for block in blocks:
        plain = [_texts(block.before), _texts(block.after)]
        for prompt, text in _texts(block.tried).items():
            theirs = [known[prompt] for known in plain if prompt in known]
            if not theirs:
                continue
            n_compared += 1
            if text in theirs:
                n_same += 1
            else:
                parted.setdefault(prompt, max(_agreeing(text, other) for other in theirs))
    return n_same, n_compared, tuple(parted.items())[:MAX_PARTED]


def texts_of(visits: Iterable[Visit]) -> dict[str, set[str]]:
    """By prompt, the texts that it got."""
    found: dict[str, set[str]] = {}
    for visit in visits:
        for prompt, text in _texts(visit).items():
            found.setdefault(prompt, set()).add(text)
    return found


def is_loop(text: str) -> bool:
    """Whether a text, if it is no short one, ends by repeating itself."""
    return len(text) >= MIN_LOOP and repeats_itself(text, MAX_PERIOD)


def timeline(blocks: Sequence[Block], arm: str) -> Timeline | None:
    """The answer whose gain is the median of those of one request at a time that tell when their tokens came."""
    known = [
        (gain, task, block)
        for block in blocks
        if block.arm == arm
        for task, gain in block.log_ratios().items()
        if len(block.tried.measured[task].answers) == 1 and block.tried.measured[task].answers[0][1].arrivals
    ]
    if not known:
        return None
    _, task, block = sorted(known, key=lambda found: found[:2])[len(known) // 2]
    mine, theirs = (visit.measured[task].answers[0][1].arrivals for visit in (block.tried, block.before))
    return Timeline(task, block.category(task), mine, theirs)


def samples(blocks: Iterable[Block]) -> tuple[Sample, ...]:
    """The answers of blocks as they came."""
    return tuple(
        Sample(
            round(measured.at_s, 2),
            measured.category,
            _inverse(measured.token_s),
            _inverse(_mean([visit.measured[task].token_s for visit in (block.before, block.after)])),
            _acceptance(measured),
        )
        for block in blocks
        for task, measured in block.tried.measured.items()
        if task in block.before.measured and task in block.after.measured
    )


def _survival(counters: Counters | None) -> tuple[float, ...]:
    if counters is None or not counters.drafts:
        return ()
    return tuple(n / counters.drafts for n in counters.accepted_at)


def _inverse(seconds: float | None) -> float | None:
    return 1 / seconds if seconds else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _acceptance(measured: Measured) -> float | None:
    """Where the engine counts by request, and what it counted can be."""
    known = [answer.counters for _, answer in measured.answers if answer.counters is not None]
    if len(known) < len(measured.answers) or any(c.accepted > c.drafted for c in known):
        return None
    return reduce(add, known).acceptance_rate


def _of(some: Sequence[Point], category: str) -> list[Point]:
    return [p for p in some if p.category == category]


def _texts(visit: Visit) -> dict[str, str]:
    return {prompt: answer.text for measured in visit.measured.values() for prompt, answer in measured.answers}


def _agreeing(one: str, other: str) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
