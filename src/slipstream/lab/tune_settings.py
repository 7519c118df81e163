"""The settings to copy: those of the verdict, of categories where another setting is better, and by batch size."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from slipstream.engines.protocol import Engine, Settings
from slipstream.engines.schedules import sglang_adaptive, vllm_schedule, with_schedule
from slipstream.errors import InputError
from slipstream.lab.tune_search import Arm
from slipstream.lab.tuned import ArmResult, Verdict, Written

SCHEDULED = "vllm"
"""The engine that takes a draft length by batch size."""


def written(
    engine: Engine, plain: Settings, arms: Sequence[Arm], verdict: Verdict, by_category: Mapping[str, Verdict]
) -> tuple[Written, ...]:
    """As the engine's users write them down; nothing where nothing was decided."""
    settings = {plain.arm: plain, **{arm.name: arm.settings for arm in arms}}
    found = _rendered(engine, settings[verdict.arm]) if verdict.arm is not None else []
    others: dict[str, list[str]] = {}
    for category, decided in by_category.items():
        if decided.arm not in (None, verdict.arm, plain.arm):
            others.setdefault(str(decided.arm), []).append(category)
    for arm, categories in others.items():
        found += [_for_categories(some, categories) for some in _rendered(engine, settings[arm])]
    return tuple(found)


def rendered(engine: Engine, settings: Settings) -> str:
    """The most usual way to write settings down; empty where they cannot be."""
    found = _rendered(engine, settings)
    return found[0].text if found else ""


def by_batch_size(engine: Engine, measured: Mapping[int, Sequence[tuple[Arm, ArmResult]]]) -> tuple[Written, ...]:
    """vLLM's schedule, and SGLang's adaptive file where heads were measured that it has too.

    measured: by requests at once. The kind is the one with the greatest gain; nothing where no length was measured at
    two batch sizes. A gain that is not sure is none, as in a verdict.
    """
    kinds = _speeds(measured) if engine.name == SCHEDULED else {}
    kinds = {kind: speeds for kind, speeds in kinds.items() if len(speeds) > 1}
    if not kinds:
        return ()
    kind = max(kinds, key=lambda kind: sum(max(speeds.values()) for speeds in kinds[kind].values()))
    speeds = kinds[kind]
    found = []
    some = next(arm for arms in measured.values() for arm, _ in arms if _kind(arm) == kind)
    own = _configuration(engine, some.settings)
    config = with_schedule(own, vllm_schedule(speeds, max(speeds))) if own else None
    if config is not None:
        text = json.dumps(config, indent=2) + "\n"
        found.append(Written("Draft length by batch size", "json", text, "vllm-by-batch-size.json"))
    if kind.lower().startswith("eagle"):
        text = json.dumps(sglang_adaptive(speeds), indent=2) + "\n"
        found.append(Written("SGLang's adaptive file", "json", text, "sglang-adaptive.json"))
    return tuple(found)


def _rendered(engine: Engine, settings: Settings) -> list[Written]:
    try:
        return [Written(r.title, r.language, r.text, r.file_name) for r in engine.render(settings)]
    except InputError:
        return []


def _for_categories(some: Written, categories: Sequence[str]) -> Written:
    name = PurePath(some.file_name)
    safe = "-".join("".join(c if c.isalnum() else "_" for c in category) for category in categories)[:40]
    title = f"{some.title}, for {', '.join(categories)}"
    return Written(title, some.language, some.text, f"{name.stem}-for-{safe}{name.suffix}")


def _speeds(measured: Mapping[int, Sequence[tuple[Arm, ArmResult]]]) -> dict[str, dict[int, dict[int, float]]]:
    """By kind, batch size and draft length, the speed against plain decoding."""
    kinds: dict[str, dict[int, dict[int, float]]] = {}
    for size, arms in measured.items():
        for arm, result in arms:
            (speculation, *more), found = arm.settings.speculation, result.overall
            if not more and speculation.n_max and speculation.p_min is None and found is not None:
                by_size = kinds.setdefault(speculation.kind, {})
                gain = found.value if found.low > 1 else min(found.value, 1.0)
                by_size.setdefault(size, {0: 1.0})[speculation.n_max] = gain
    return kinds


def _kind(arm: Arm) -> str:
    return arm.settings.speculation[0].kind


def _configuration(engine: Engine, settings: Settings) -> dict[str, object]:
    """The engine's own JSON of its speculation, {} where it writes none."""
    texts = [written.text for written in _rendered(engine, settings) if written.language == "json"]
    return dict(json.loads(texts[0])) if texts else {}
