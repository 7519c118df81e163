"""Which speculation pays, of which engine, on whose prompts: measured, decided, written down.

Each engine at each number of requests at once gets a share of the budget. Within it, settings are compared with plain
decoding measured before and after them, from coarse to fine, and the best is judged on measurements of its own.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from slipstream import __version__
from slipstream.decoding.cost import FIRST_BAND, CostCurve
from slipstream.engines.own import SlipstreamEngine
from slipstream.engines.protocol import Engine, Settings
from slipstream.errors import EngineError, InputError
from slipstream.lab.machine import in_words
from slipstream.lab.tune_journal import Budget, Journal
from slipstream.lab.tune_measure import Bench, Clock, Watch
from slipstream.lab.tune_outcome import engine_results
from slipstream.lab.tune_rounds import Rounds
from slipstream.lab.tune_tasks import pools
from slipstream.lab.tuned import CostPoint, Tuned
from slipstream.lab.workload import Prompt

JOURNAL = "journal.jsonl"

MIN_CTX, CTX_STEP, CTX_MARGIN = 2048, 1024, 256
BYTES_A_TOKEN = 3
"""Fewer than English text and code have, and about what Japanese has."""


@dataclass(frozen=True)
class Asked:
    """What a run is to find out.

    urls: of servers that run already, by engine. concurrency: numbers of requests at once. programs: by engine, those
    that were named.

    Raises InputError for values out of range.
    """

    model: str
    draft: str | None = None
    n_tokens: int = 128
    budget_s: float = 600.0
    concurrency: tuple[int, ...] = (1,)
    urls: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 16 <= self.n_tokens <= 65536:
            hint = "It must be from 16, since shorter answers tell nothing of speed, to 65536."
            raise InputError(f"-n is {self.n_tokens}.", hint)
        if not self.concurrency or not all(1 <= n <= 1024 for n in self.concurrency):
            raise InputError(f"--concurrency is {self.concurrency}.", "Give numbers from 1 to 1024, such as 1,4.")
        if len(set(self.concurrency)) < len(self.concurrency):
            raise InputError("--concurrency names a number twice.", "Give each once.")


def tune(
    asked: Asked,
    engines: Sequence[Engine],
    prompts: Sequence[Prompt],
    folder: Path,
    command: str = "",
    clock: Clock = time.monotonic,
    watch: Watch = lambda doing, done: None,
) -> Tuned:
    """Measures until the budget is spent or nothing is left to ask; goes on where the journal in `folder` ends.

    A larger budget than the journal's is spent behind the smaller one, whose decisions are repeated as they were.
    Raises InputError for prompts that are too few and for what `Journal` refuses, and EngineError where not one engine
    could be measured, with the first one's last lines.
    """
    all_pools = {n: pools(prompts, n) for n in asked.concurrency}
    budget = Budget(asked.budget_s, clock)
    with Journal(folder / JOURNAL, _identity(asked, engines, prompts), _about(command), budget) as journal:
        n_ctx = _n_ctx(prompts, asked.n_tokens)
        runs: list[Rounds] = []
        for engine in engines:
            for n in asked.concurrency:
                settings = Settings(asked.model, draft=asked.draft, n_ctx=n_ctx, parallel=n)
                url = _only(asked.urls.get(engine.name, ()))
                bench = Bench(engine, settings, asked.n_tokens, url, journal, budget, clock, watch)
                runs.append(Rounds(bench, all_pools[n], settings))
        for seconds in journal.budgets:
            budget.seconds = seconds
            for i, rounds in enumerate(runs):
                rounds.run(until_s=budget.spent_s + budget.left_s / (len(runs) - i))
                _keep_costs(rounds.bench.engine, journal)
        if not any(rounds.bench.plain_visits for rounds in runs):
            raise EngineError(runs[0].broke)
        return Tuned(
            slipstream=__version__,
            started=journal.about["began"],
            seconds=budget.spent_s,
            command=journal.about["command"],
            machine=in_words(),
            model=asked.model,
            draft=asked.draft,
            n_tokens=asked.n_tokens,
            prompts=dict(Counter(prompt.category for prompt in prompts)),
            engines=engine_results(runs),
            cost=journal.cost,
        )


def _only(urls: Sequence[str]) -> str | None:
    """The one server of an engine; one of several is chosen by the engine that knows them all (`SeveralServers`)."""
    return urls[0] if len(urls) == 1 else None


def _about(command: str) -> dict[str, str]:
    return {"began": datetime.now().astimezone().isoformat(timespec="seconds"), "command": command}


def _keep_costs(engine: Engine, journal: Journal) -> None:
    """What passes cost, of the house's own engine: no other tells."""
    if isinstance(engine, SlipstreamEngine) and engine.cost is not None:
        journal.costs(_points(engine.cost))


def _points(curve: CostCurve) -> list[CostPoint]:
    """t(w) ÷ t(1) of the widths that were measured, in a short context and, where that was measured, in a long one."""
    contexts = [FIRST_BAND] + ([curve.far.n_context] if curve.far else [])
    return [CostPoint(w, n, curve.time(w, n) / curve.time(1, n)) for n in contexts for w in sorted(curve.measured)]


def _n_ctx(prompts: Sequence[Prompt], n_tokens: int) -> int:
    """Context for the longest prompt and its answer."""
    longest = max(sum(len(m["content"].encode(errors="surrogatepass")) for m in prompt.messages) for prompt in prompts)
    needed = longest // BYTES_A_TOKEN + n_tokens + CTX_MARGIN
    return max(MIN_CTX, -(-needed // CTX_STEP) * CTX_STEP)


def _identity(asked: Asked, engines: Sequence[Engine], prompts: Sequence[Prompt]) -> dict[str, Any]:
    """All that figures depend on, but the budget: a run that goes on must have the same."""
    texts = json.dumps([[p.id, p.category, [dict(m) for m in p.messages]] for p in prompts])
    return {
        **{name: value for name, value in asdict(asked).items() if name != "budget_s"},
        "model": _named(asked.model),
        "draft": asked.draft and _named(asked.draft),
        "prompts": hashlib.sha256(texts.encode(errors="surrogatepass")).hexdigest()[:16],
        "slipstream": __version__,
        # Those of servers are known once they are asked, and stand in the journal with what was measured.
        "engines": {engine.name: "" if engine.name in asked.urls else engine.version for engine in engines},
    }


def _named(model: str) -> str:
    """A file by its path and size, since another one may lie there the next time."""
    path = Path(model)
    return f"{model}, {path.stat().st_size} bytes" if path.is_file() else model
