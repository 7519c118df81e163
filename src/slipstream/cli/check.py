"""`slipstream check`: whether one model can draft for another, told from their headers."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli.models import printable

if TYPE_CHECKING:
    from slipstream.models.advice import Advice
    from slipstream.models.description import Description
    from slipstream.models.judges import Judgement
    from slipstream.models.pairing import Verdict

_SIGNS = {True: "yes", False: "no", None: "?"}


def check(
    target: Annotated[str, typer.Argument(help="As for run; also a folder of Hugging Face's form.")],
    draft: Annotated[str, typer.Argument(help="As the target. Of hf:… only the header is fetched.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Tell whether a draft fits its target, what each engine will say, and what to expect.

    Status 1 if it cannot draft: where the hidden states that it reads are not the target's, or its tokens are others
    and slipstream does not translate them either.
    Reads headers alone, of remote files too; no model is loaded or fetched.
    """
    import json

    from slipstream.models.advice import advise
    from slipstream.models.describe import describe
    from slipstream.models.judges import judge
    from slipstream.models.pairing import verdict

    models = describe(target), describe(draft)
    ruling = verdict(*models)
    judgements, advice = judge(*models, ruling), advise(*models, ruling)
    if as_json:
        data = {
            "target": facts(models[0]),
            "draft": facts(models[1]),
            "verdict": asdict(ruling),
            "engines": [asdict(judgement) for judgement in judgements],
            "advice": [asdict(point) for point in advice],
        }
        typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        for line in _lines(models, ruling, judgements, advice):
            typer.echo(printable(line))
    if not ruling.fits and not any(j.engine == "slipstream" and j.takes for j in judgements):
        raise typer.Exit(1)


def facts(model: Description) -> dict[str, Any]:
    """What a header says of a model, as plain data."""
    named = "name form architecture n_params n_active_params size_bytes quantization hidden_size n_layers n_experts"
    shown = {name: getattr(model, name) for name in [*named.split(), "n_experts_used", "n_mtp_layers", "recurrent"]}
    return {**shown, "vocab_size": model.n_rows, "head": asdict(model.head) if model.head else None}


def _lines(
    models: tuple[Description, Description],
    ruling: Verdict,
    judgements: tuple[Judgement, ...],
    advice: tuple[Advice, ...],
) -> list[str]:
    lines = [f"{role:<7} {_described(model)}" for role, model in zip(("target", "draft"), models, strict=True)]
    misfit = "needs translation" if ruling.kind == "different" else "does not fit"
    lines += ["", f"Verdict: {ruling.kind}" + ("" if ruling.fits else f" ({misfit})")]
    lines += [f"  - {reason}" for reason in ruling.reasons]
    lines += [f"  Next: {ruling.next_step}", "", "Engines, by their own rules"]
    for judgement in judgements:
        lines.append(f"  {judgement.engine:<15} {_SIGNS[judgement.takes]:<4} {judgement.reason}")
        if judgement.warning:
            lines.append(f"  {'':<15} {'':<4} Warning: {judgement.warning}")
    lines += ["", "Advice"]
    for point in advice:
        lines += [f"  {point.topic}: {point.text}", f"      [{point.label}: {point.source}]"]
    return lines


def _described(model: Description) -> str:
    size = f"{model.n_params / 1e9:.3g} B parameters" if model.n_params else ""
    rows = f"{model.n_rows:,} rows" if model.n_rows else ""
    mtp = f"{model.n_mtp_layers} MTP layers of its own" if model.n_mtp_layers else ""
    head = f"{model.head.method} head" if model.head else ""
    parts = (model.architecture, head, size, model.quantization, rows, mtp)
    return f"{model.name}: {', '.join(part for part in parts if part)} ({model.form})"
