"""The report of bench/peers.py: Markdown, JSON and a plot, from the journal alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peers_arms import ENGINES, LLAMA, SLIPSTREAM, baseline
from peers_journal import MAX_PERIOD, Journal, Settings
from peers_statistics import (
    Figure,
    Row,
    by_category,
    geometric_mean,
    goals,
    hindsight,
    median_ratio,
    never_drafted,
    rows,
    seconds,
    speed_up,
)

from slipstream.lab.loops import SHARE

NOTES = f"""\
Speed-up: seconds a token of plain decoding ÷ those of the arm, of the sums over a category's prompts; the median is
that over prompts. In brackets: 95 % bootstrap over prompts. Tokens behind the first count, and the time from the first
to the last, for slipstream with the indexing of the prompt. transformers and OpenVINO with prompt lookup are compared
with their own plain decoding, since their arithmetic is not llama.cpp's. A loop: at least {SHARE:.0%} of the last
half of plain decoding's answer equal the token p places before, for a p of at most {MAX_PERIOD}. "same": answers with
the tokens of plain decoding.
"""


def write(journal: Journal, out: Path) -> list[Path]:
    """Writes OUT.md, OUT.json and, where matplotlib is installed, OUT.png; returns what was written.

    Raises InputError if the journal holds no measurements.
    """
    settings, some = journal.settings, rows(journal.complete())
    written = [out.with_name(out.name + ".md"), out.with_name(out.name + ".json")]
    written[0].write_text(markdown(journal, settings, some), encoding="utf-8")
    data = to_data(journal, settings, some)
    written[1].write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    usual, image = without_loops(some), out.with_name(out.name + ".png")
    return [*written, image] if usual and plot(usual, settings, image) else written


def without_loops(some: Sequence[Row]) -> list[Row]:
    return [row for row in some if not row.loop]


def loops(some: Sequence[Row]) -> list[Row]:
    return [row for row in some if row.loop]


def shown(figure: Figure | None) -> str:
    if figure is None:
        return "–"
    spread = "" if figure.low is None else f" [{figure.low:.2f}–{figure.high:.2f}]"
    return f"{figure.value:.2f}{spread}"


def markdown(journal: Journal, settings: Settings, some: Sequence[Row]) -> str:
    usual, degenerate = without_loops(some), loops(some)
    parts = [_head(journal, settings, some), _warnings(some, settings)]
    parts += [_goals("Goals, without loops", usual, settings), _overview("Speed-up, without loops", usual, settings)]
    parts += [_hindsight(usual, settings), _details("By category, without loops", usual, settings)]
    if degenerate:
        parts += [_overview(f"Loops alone ({len(degenerate)})", degenerate, settings)]
        parts += [_goals("Goals, loops included", some, settings)]
        parts += [_overview("Speed-up, loops included", some, settings)]
    return "\n".join(part for part in parts if part)


def _head(journal: Journal, settings: Settings, some: Sequence[Row]) -> str:
    first = journal.runs[0]
    draft = f", draft {settings.draft}" if settings.draft else ""
    lines = [
        f"# {settings.model}: slipstream and llama.cpp's own speculation\n",
        f"- {len(some)} prompts, {len(loops(some))} of them loops; left out: {len(journal.left_out)}"
        + (f" ({'; '.join(f'{p}: {why}' for p, why in journal.left_out.items())})" if journal.left_out else ""),
        f"- {settings.n_tokens} tokens each, end of text ignored, temperature {settings.temperature}, "
        f"{settings.n_threads} threads, context {settings.n_ctx}{draft}",
        f"- prompts: {settings.per_category} a category of {', '.join(settings.prompts) or 'the built-in ones'}",
        f"- {', '.join(f'{name} {version}' for name, version in first['versions'].items())}",
        *(f"- {run['began']}, revision {run['revision']}: `{run['command']}`" for run in journal.runs),
    ]
    if journal.n_disturbed:
        lines.append(f"- {journal.n_disturbed} more prompts do not count: other programs were at work meanwhile.")
    n_runs = len({arm.run for arms in journal.complete().values() for arm in arms.values()})
    if n_runs > 1:
        lines.append(f"- **Measured in {n_runs} runs: every arm's n-gram state began anew in each.**")
    return "\n".join(lines) + "\n\n" + NOTES


def _warnings(some: Sequence[Row], settings: Settings) -> str:
    idle = never_drafted(some, settings.arms)
    return f"**Never drafted a token: {', '.join(idle)}.**\n" if idle else ""


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [heads, ["---"] * len(heads), *lines]) + "\n"


def _goals(title: str, some: Sequence[Row], settings: Settings) -> str:
    lines = [[g.text, f"{g.target:.2f}", shown(g.figure), g.where, g.verdict] for g in goals(some, settings)]
    return f"## {title}\n\n" + _table(["goal", "at least", "measured", "where", ""], lines)


def _overview(title: str, some: Sequence[Row], settings: Settings) -> str:
    categories = by_category(some)
    heads = ["arm", *(f"{c} ({len(group)})" for c, group in categories.items()), "geometric mean"]
    lines = [
        [arm, *(shown(speed_up(group, arm)) for group in categories.values()), shown(geometric_mean(some, arm))]
        for arm in settings.arms
        if arm != "plain" and some
    ]
    return f"## {title}\n\n" + _table(heads, lines)


def _hindsight(some: Sequence[Row], settings: Settings) -> str:
    """Ours against llama.cpp's best arm, chosen on one half of a category's prompts and scored on the other."""
    pool = [arm for arm in settings.arms if arm in LLAMA]
    ours = [arm for arm in settings.arms if arm in SLIPSTREAM and arm != "plain"]
    lines = []
    for category, group in by_category(some).items():
        found = [hindsight(group, arm, pool) for arm in ours] if pool else []
        chosen = next((" / ".join(h.chosen) for h in found if h), "–")
        lines.append([category, chosen, *(shown(h.figure if h else None) for h in found)])
    if not (pool and ours and lines):
        return ""
    heads = ["category", "chosen on either half", *(f"{arm} ÷ it, on the other" for arm in ours)]
    return "## Against llama.cpp's best arm in hindsight, without loops\n\n" + _table(heads, lines)


def _details(title: str, some: Sequence[Row], settings: Settings) -> str:
    parts = [f"## {title}\n"]
    for category, group in by_category(some).items():
        lines = [
            [
                arm,
                f"{len(group) / seconds(group, arm).sum():.1f}",
                shown(speed_up(group, arm)),
                shown(speed_up(group, arm, median_ratio)),
                _acceptance(group, arm),
                f"{sum(row.same[arm] for row in group)}/{len(group)}",
            ]
            for arm in settings.arms
        ]
        heads = ["arm", "tokens/s", "speed-up", "median", "accepted/drafted", "same"]
        parts.append(f"### {category} ({len(group)})\n\n" + _table(heads, lines))
    return "\n".join(parts)


def _acceptance(group: Sequence[Row], arm: str) -> str:
    if all(row.n_drafted[arm] is None for row in group):
        return "–"
    return f"{sum(row.n_accepted[arm] or 0 for row in group)}/{sum(row.n_drafted[arm] or 0 for row in group)}"


def to_data(journal: Journal, settings: Settings, some: Sequence[Row]) -> dict[str, Any]:
    """All figures, for programs."""
    sets = {"without_loops": without_loops(some), "loops": loops(some), "all": list(some)}
    return {
        "settings": asdict(settings),
        "runs": [{k: v for k, v in run.items() if k != "settings"} for run in journal.runs],
        "left_out": journal.left_out,
        "never_drafted": never_drafted(some, settings.arms),
        **{name: _set_data(part, settings) for name, part in sets.items() if part},
    }


def _set_data(some: Sequence[Row], settings: Settings) -> dict[str, Any]:
    categories = by_category(some)
    pool = [arm for arm in settings.arms if arm in LLAMA]
    found = {c: hindsight(group, "auto", pool) for c, group in categories.items() if pool and "auto" in settings.arms}
    return {
        "n_prompts": len(some),
        "goals": [asdict(g) | {"verdict": g.verdict} for g in goals(some, settings)],
        "geometric_mean": {arm: asdict(geometric_mean(some, arm)) for arm in settings.arms},
        "auto_against_best_in_hindsight": {c: asdict(h) if h else None for c, h in found.items()},
        "categories": {c: {arm: _arm_data(group, arm) for arm in settings.arms} for c, group in categories.items()},
    }


def _arm_data(group: Sequence[Row], arm: str) -> dict[str, Any]:
    return {
        "n_prompts": len(group),
        "tokens_per_second": len(group) / float(seconds(group, arm).sum()),
        "baseline": baseline(arm),
        "ratio": asdict(speed_up(group, arm)),
        "median": asdict(speed_up(group, arm, median_ratio)),
        "drafted": sum(row.n_drafted[arm] or 0 for row in group),
        "accepted": sum(row.n_accepted[arm] or 0 for row in group),
        "same_tokens": sum(row.same[arm] for row in group),
    }


def plot(some: Sequence[Row], settings: Settings, path: Path) -> bool:
    """Speed-up by category and arm, with intervals, as PNG; False without matplotlib."""
    try:
        from matplotlib import colormaps
        from matplotlib.figure import Figure as Canvas
    except ImportError:
        return False
    categories = by_category(some)
    arms = [arm for arm in settings.arms if arm != "plain" and arm not in ENGINES]
    width_in = 3.0 + len(categories) * max(1.15, 0.11 * len(arms))
    canvas = Canvas(figsize=(width_in, 5.5), layout="constrained")
    axes = canvas.subplots()
    width = 0.85 / len(arms)
    for i, arm in enumerate(arms):
        bars = [speed_up(group, arm) for group in categories.values()]
        values = [f.value for f in bars]
        errors = [
            [max(0.0, f.value - (f.low or f.value)) for f in bars],
            [max(0.0, (f.high or f.value) - f.value) for f in bars],
        ]
        n_ours = sum(a in SLIPSTREAM for a in arms)
        colour = ("#b3001b", "#ff7f50")[i] if i < n_ours else colormaps["viridis"](i / len(arms))
        at = [c + (i - (len(arms) - 1) / 2) * width for c in range(len(categories))]
        axes.bar(at, values, width, yerr=errors, label=arm, color=colour, error_kw={"elinewidth": 0.7})
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(categories)), [f"{c}\n({len(group)})" for c, group in categories.items()])
    axes.set_ylabel("speed-up over plain decoding")
    axes.set_title(f"{settings.model}, {settings.n_tokens} tokens, temperature {settings.temperature}, without loops")
    canvas.legend(loc="outside right upper", fontsize="small")
    canvas.savefig(path, dpi=120)
    return True
