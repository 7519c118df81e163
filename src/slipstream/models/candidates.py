"""Who could draft for a target: the models on this machine and a table of well-known drafters, ranked.

A pair whose two cost curves are known by the same options is ranked by its predicted speed-up: expected tokens of a
round at one assumed acceptance (arXiv 2211.17192, eq. 1), over its time by the measured t(w) of both. The others
follow by rule of thumb: heads that fit first, then by how near their size is to 1/10 to 1/5 of the target's. Last come
those of another vocabulary, whose drafts slipstream translates.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slipstream import estimates
from slipstream.decoding.acceptance import expected_tokens
from slipstream.decoding.cost import MAX_WIDTH, CostCurve
from slipstream.errors import ModelError
from slipstream.models import stores
from slipstream.models.advice import RATIO, size_ratio
from slipstream.models.describe import cached_folders, describe_gguf, folders_below
from slipstream.models.description import Description
from slipstream.models.hf_folder import Folder, describe_files
from slipstream.models.judges import judge
from slipstream.models.known_drafters import known_drafters, plain
from slipstream.models.pairing import Kind, verdict

ACCEPTANCE: Final = 0.7
"""Assumed of every draft model alike: what it really is, only running the pair can tell."""


@dataclass(frozen=True)
class Candidate:
    """One drafter. `where`: the store or folder it lies in, or Hugging Face.

    kind: the verdict's; None for one of the table that is not on this machine. engines: those that take the pair by
    their own rules. ratio: its parameters ÷ the target's. speed_up: predicted for this machine, n_draft tokens a
    draft; None where no cost curve is known. source: of an entry of the table.
    """

    name: str
    where: str
    method: str
    kind: Kind | None
    engines: tuple[str, ...]
    n_params: int | None
    ratio: float | None
    quantization: str | None = None
    speed_up: float | None = None
    n_draft: int | None = None
    source: str | None = None


@dataclass(frozen=True)
class Search:
    """What was found, best first. n_seen: models looked at; n_misfits: of those, such as cannot draft for it.

    problems: models that could not be read, and why.
    """

    candidates: tuple[Candidate, ...]
    n_seen: int
    n_misfits: int
    problems: tuple[str, ...]


def search(target: Description, folders: Sequence[Path] = ()) -> Search:
    """Looks for drafters in the stores of this machine, in `folders`, and in the table.

    Raises PairError for a target that is a head, ModelError for one without a vocabulary.
    """
    verdict(target, target)
    found: list[Candidate] = []
    problems: list[str] = []
    n_seen = n_misfits = 0
    for name, where, read in _local(folders):
        if target.path is not None and os.path.realpath(read) == os.path.realpath(target.path):
            continue
        n_seen += 1
        try:
            draft = describe_files(Folder(read, name)) if read.is_dir() else describe_gguf(read, name)
            candidate = _candidate(target, draft, where)
        except ModelError as error:
            problems.append(f"{name} ({where}): {error.message}")
            continue
        if candidate is None:
            n_misfits += 1
        else:
            found.append(candidate)
    ranked = sorted([*found, *_known(target)], key=_rank)
    return Search(tuple(ranked), n_seen, n_misfits, tuple(problems))


def predict(target: CostCurve, draft: CostCurve, acceptance: float = ACCEPTANCE) -> tuple[float, int]:
    """The best speed-up over plain decoding at a constant acceptance, and the draft length that gives it.

    0 is among the lengths: where drafting does not pay, the speed-up is 1.
    """
    plain_s, token_s = target.time(1), draft.time(1)

    def speed_up(n: int) -> float:
        return expected_tokens(acceptance, n) * plain_s / (target.time(1 + n) + n * token_s)

    n_draft = max(range(MAX_WIDTH), key=speed_up)
    return speed_up(n_draft), n_draft


def known_curves(path: Path) -> dict[str, CostCurve]:
    """The cost curves on disk of a model file as it is now, by the options that they were measured with."""
    try:
        status = path.stat()
    except OSError:
        return {}
    wanted = {"model": str(path.resolve()), "size": status.st_size, "time": status.st_mtime_ns}
    curves: dict[str, CostCurve] = {}
    for data in _estimates():
        key = data.get("key")
        curve = CostCurve.from_data(data)
        if isinstance(key, dict) and curve is not None and all(key.get(k) == v for k, v in wanted.items()):
            options = {k: v for k, v in key.items() if k not in (*wanted, "probe_s")}
            curves[json.dumps(options, sort_keys=True)] = curve
    return curves


def _estimates() -> Iterator[Mapping[str, object]]:
    """All cost files, older ones first."""
    files = (estimates.folder() / "cost").glob("*.json")
    for file in sorted(files, key=lambda f: (f.stat().st_mtime_ns, f.name)):
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(data, dict) and data.get("format") == estimates.FORMAT:
            yield data


def _local(folders: Sequence[Path]) -> Iterator[tuple[str, str, Path]]:
    """(name, where, file or folder) of every model on this machine, each path once."""
    listed = [(found.name, found.store, found.path) for found in stores.find_models()]
    listed += [(name, stores.HUGGING_FACE, path) for name, path in cached_folders()]
    for folder in folders:
        listed += [(str(path), str(folder), path) for path in stores.models_below(folder)]
        listed += [(str(path), str(folder), path) for path in folders_below(folder)]
    seen: set[str] = set()
    for name, where, path in listed:
        real = os.path.realpath(path)
        if real not in seen:
            seen.add(real)
            yield name, where, path


def _candidate(target: Description, draft: Description, where: str) -> Candidate | None:
    """None for a model that cannot draft for this target, or is no smaller."""
    ratio = size_ratio(target, draft)
    if draft.head is None and (draft.vocabulary is None or (ratio is not None and ratio >= 1)):
        return None
    ruling = verdict(target, draft)
    engines = tuple(judgement.engine for judgement in judge(target, draft, ruling) if judgement.takes)
    if not ruling.fits and not (ruling.kind == "different" and "slipstream" in engines):
        return None
    # How much of a translated draft is accepted, nothing tells beforehand.
    speed_up, n_draft = _predicted(target, draft) if ruling.fits else (None, None)
    return Candidate(
        draft.name,
        where,
        draft.head.method if draft.head else "draft model",
        ruling.kind,
        engines,
        draft.n_params,
        ratio,
        draft.quantization,
        speed_up,
        n_draft,
    )


def _predicted(target: Description, draft: Description) -> tuple[float, int] | tuple[None, None]:
    if target.path is None or draft.path is None or draft.head is not None:
        return None, None
    ours, theirs = known_curves(target.path), known_curves(draft.path)
    common = [options for options in ours if options in theirs]
    return predict(ours[common[-1]], theirs[common[-1]]) if common else (None, None)


def _known(target: Description) -> Iterator[Candidate]:
    gguf = target.gguf
    described = [gguf.text(f"general.{key}") or "" for key in ("name", "basename", "size_label")] if gguf else []
    file_name = target.path.name if target.path is not None else ""
    names = plain(target.name, file_name, described[0] if described else "", "-".join(described[1:]))
    for known in known_drafters():
        if known.drafts_for(names):
            n_active = target.n_active_params
            ratio = known.n_params / n_active if known.n_params and n_active else None
            where = f"Hugging Face, as GGUF in {known.gguf}" if known.gguf else "Hugging Face"
            yield Candidate(known.drafter, where, known.method, None, (), known.n_params, ratio, source=known.source)


def _rank(candidate: Candidate) -> tuple[bool, float, bool, bool, bool, float, str]:
    predicted = candidate.speed_up is not None
    distance = math.inf
    if candidate.ratio:
        low, high = (math.log(candidate.ratio / bound) for bound in RATIO)
        distance = max(-low, high, 0.0)
    here = candidate.kind is not None
    head = candidate.method != "draft model"
    foreign = candidate.kind == "different"
    return (not predicted, -(candidate.speed_up or 0.0), foreign, not here, not head, distance, candidate.name)
