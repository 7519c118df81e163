"""`slipstream simulate`: what a trace would have cost under other policies, on other hardware."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli.models import printable
from slipstream.errors import InputError

if TYPE_CHECKING:
    from slipstream.decoding.cost import CostCurve
    from slipstream.lab.trace import TracedRun
    from slipstream.lab.whatif import WhatIf

COST_HELP = (
    'Another cost curve: a JSON file of seconds by width, {"1": 0.02, …}, or a roofline as NAME=NUMBER,… with '
    "weight_bytes (without experts), n_parameters (that a token uses), bandwidth (bytes/s), flops (a second) and, if "
    "you like, overhead_s (a pass), kv_bytes (a token of context), expert_bytes (all), n_experts and n_used (a layer)."
)


def simulate(
    trace: Annotated[Path, typer.Argument(help="A file that --trace has written.")],
    cost: Annotated[str | None, typer.Option("--cost", help=COST_HELP)] = None,
    acceptance: Annotated[
        float | None, typer.Option("--acceptance", help="Drafts that are right so often, 0 to 1, instead of its own.")
    ] = None,
    parallel: Annotated[int, typer.Option("--parallel", help="Requests answered at a time.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="The result as one JSON object.")] = False,
) -> None:
    """Replay a trace: plain decoding, fixed lengths, control and the oracle, in simulated time."""
    from slipstream.cli.progress import working
    from slipstream.lab.trace import read
    from slipstream.lab.whatif import what_if

    if acceptance is not None and not 0.0 <= acceptance <= 1.0:
        raise InputError(f"--acceptance is {acceptance}.", "It must be a number from 0 to 1.")
    if not 1 <= parallel <= 256:
        raise InputError(f"--parallel is {parallel}.", "It must be a whole number from 1 to 256.")
    run = _one(read(trace), trace)
    if parallel > len(run.requests):
        raise InputError(f"{trace} holds {len(run.requests)} requests.", f"--parallel {parallel} needs as many.")
    curve = None if cost is None else read_cost(cost)
    with working(f"replaying {len(run.requests)} requests") as progress:
        result = what_if(run, curve, acceptance, parallel, progress)
    if as_json:
        typer.echo(json.dumps(_data(run, result), allow_nan=False))
    else:
        _print(run, result)


def _one(runs: list[TracedRun], path: Path) -> TracedRun:
    """All requests of a trace as one run; the costs are those of its last load."""
    models = sorted({run.model for run in runs})
    if len(models) > 1:
        raise InputError(f"{path} holds traces of several models: {', '.join(models)}.", "Write one file a model.")
    last = runs[-1]
    last.requests[:0] = [request for run in runs[:-1] for request in run.requests]
    return last


def read_cost(text: str) -> CostCurve:
    """A cost curve as `--cost` gives it. Raises InputError."""
    from slipstream.decoding.cost import CostCurve

    if "=" in text:
        return _roofline(text)
    try:
        data = json.loads(Path(text).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"--cost {text} cannot be read: {error}.", 'Give JSON such as {"1": 0.02, "8": 0.03}.'
        ) from None
    curve = CostCurve.from_data(data if isinstance(data, dict) and "seconds" in data else {"seconds": data})
    if curve is None:
        raise InputError(f"--cost {text} is no cost curve.", 'Give seconds by width, "1" among them, up to "33".')
    return curve


def _roofline(text: str) -> CostCurve:
    from slipstream.decoding.cost import MAX_WIDTH
    from slipstream.lab.theory import N_FAR, Roofline

    known = [field.name for field in fields(Roofline)]
    given: dict[str, Any] = {}
    for part in text.split(","):
        name, _, number = part.partition("=")
        name = name.strip()
        if name not in known:
            raise InputError(f"--cost knows no {name!r}.", f"It knows {', '.join(known)}.")
        try:
            given[name] = _finite(number)
        except ValueError:
            raise InputError(f"--cost: {name} is {number!r}.", "Give a number, such as 936e9.") from None
    missing = [name for name in ("weight_bytes", "n_parameters", "bandwidth", "flops") if not given.get(name, 0) > 0]
    if missing or any(number < 0 for number in given.values()) or given.get("n_used", 0) > given.get("n_experts", 0):
        said = f"{', '.join(missing)} must be given, above 0" if missing else "a number is out of range"
        raise InputError(f"--cost: {said}.", "None may be negative, nor n_used more than n_experts.")
    if any(given[name] % 1 for name in ("n_experts", "n_used") if name in given):
        raise InputError("--cost: n_experts and n_used count experts.", "They must be whole numbers.")
    experts = [name for name in ("expert_bytes", "n_experts", "n_used") if given.get(name)]
    if len(experts) not in (0, 3):
        raise InputError("--cost: experts are told in part.", "Give expert_bytes, n_experts and n_used, or none.")
    given |= {name: int(given[name]) for name in ("n_experts", "n_used") if name in given}
    roofline = Roofline(**given)
    slowest, fastest = roofline.time(MAX_WIDTH, N_FAR), roofline.time(1)
    if not 1e-7 <= fastest <= slowest <= 1e3:
        raise InputError(
            f"--cost: passes take {fastest:.2g} to {slowest:.2g} seconds.", "Check the figures; 1e-7 to 1000 can be."
        )
    return roofline.curve()


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError("no figure")
    return value


def _print(run: TracedRun, result: WhatIf) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{_shown(run.model)}: speed-up over plain decoding, in simulated time")
    for name in ("category", "tokens", "plain t/s", "best fixed", "auto", "oracle", "share of the oracle"):
        is_text = name in ("category", "best fixed")
        table.add_column(name, justify="left" if is_text else "right", no_wrap=name == "best fixed")
    for category in (*(result.categories if len(result.categories) > 1 else ()), None):
        best, share = result.best_fixed(category), result.share(category)
        tokens = result.plain.tokens
        table.add_row(
            _shown(category) if category else "all of them",
            str(sum(tokens.values()) if category is None else tokens[category]),
            f"{result.plain.rate(category):.1f}",
            f"{best.policy}: {result.speedup(best, category):.2f}",
            f"{result.speedup(result.auto, category):.2f}",
            f"{result.speedup(result.oracle, category):.2f}",
            "–" if share is None else f"{share:.0%}",
            end_section=category == result.categories[-1],
        )
    Console().print(table)
    measured = [(p, m) for request in run.requests for p, m in zip(request.predicted, request.measured, strict=True)]
    if measured:
        ratio = sum(m for _, m in measured) / sum(p for p, _ in measured)
        typer.echo(f"While the trace was written, passes took {ratio:.2f} of what control expected of them.")


def _shown(text: str) -> str:
    """What a file says of itself, harmless to the terminal and without markup."""
    from rich.markup import escape

    return escape(printable(text))


def _data(run: TracedRun, result: WhatIf) -> dict[str, object]:
    played = (result.plain, *result.fixed, result.auto, result.oracle)

    def of(category: str | None) -> dict[str, object]:
        return {
            "tokens_per_second": {p.policy: p.rate(category) for p in played},
            "best_fixed": result.best_fixed(category).policy,
            "share_of_oracle": result.share(category),
        }

    return {
        "model": run.model,
        "requests": len(run.requests),
        "all": of(None),
        "by_category": {category: of(category) for category in result.categories},
        "acceptance_rate": {p.policy: p.n_accepted / p.n_drafted for p in played if p.n_drafted},
    }
