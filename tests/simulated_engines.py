"""Engines whose truth is known, behind the real protocol and in simulated time."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from slipstream.engines.protocol import Answer, Counters, Option, Rendering, Request, Settings, Speculation
from slipstream.errors import EngineError
from slipstream.lab.workload import Prompt

LAST_LINES = "Its last lines:\nloading tensors\nCUDA error 700"


class SimulatedClock:
    """Seconds that pass only where somebody says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class World:
    """What is true of an engine.

    speed, tokens: of a speculation in a category, against plain decoding and a pass. spread: standard deviation of the
    speed between prompts; noise: between answers. load: how much slower the machine is at a time.
    """

    speed: Callable[[Speculation, str], float] = lambda how, category: 1.0
    tokens: Callable[[Speculation, str], float] = lambda how, category: 1.0
    token_s: float = 0.02
    prefill_s: float = 0.1
    start_s: float = 1.0
    spread: float = 0.05
    noise: float = 0.02
    load: Callable[[float], float] = lambda seconds: 1.0


@dataclass
class SimulatedEngine:
    """Answers prompts made by `prompts`. The fields behind `world` are what can go wrong, by setting.

    text: of an answer. n_written: its tokens. lie: what the engine tells of its counters. dies, will_not_start: for
    which settings. refuses: which requests it answers with an error.
    """

    clock: SimulatedClock
    options: tuple[Option, ...]
    world: World = field(default_factory=World)
    seed: int = 0
    text: Callable[[Settings, str], str] = lambda settings, prompt: f"an answer to {prompt}"
    n_written: Callable[[str], int | None] = lambda prompt: None
    lie: Callable[[Settings, Counters], Counters | None] = lambda settings, counters: counters
    dies: Callable[[Settings], bool] = lambda settings: False
    will_not_start: Callable[[Settings], str] = lambda settings: ""
    refuses: Callable[[Settings, str], bool] = lambda settings, prompt: False
    by_request: bool = True
    name: str = "simulated"
    version: str = "1.0"
    concurrent: bool = True
    started: list[str] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    attached: str = ""
    _settings: Settings | None = None
    _totals: Counters = field(default_factory=Counters)
    _is_dead: bool = False
    _n_asked: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def speculative_options(self, settings: Settings) -> tuple[Option, ...]:
        return tuple(
            replace(o, why_not="it needs a draft model") if o.needs_draft and not settings.draft else o
            for o in self.options
        )

    def start(self, settings: Settings, progress: Callable[[str], None] = lambda line: None) -> None:
        assert self._settings is None, "stop comes first"
        self.clock.now += self.world.start_s
        trouble = self.will_not_start(settings)
        if trouble:
            raise EngineError("simulated ended before it was ready.", trouble)
        self._settings, self._is_dead, self._totals, self._n_asked = settings, False, Counters(drafts=0), 0
        self.started.append(settings.arm)

    def attach(self, url: str) -> None:
        self.attached = url

    def stop(self) -> None:
        self._settings = None

    def counters(self) -> Counters | None:
        assert self._settings is not None
        return None if self.by_request else self.lie(self._settings, self._totals)

    def complete(self, request: Request) -> Answer:
        settings, prompt = self._settings, request.messages[-1]["content"]
        assert settings is not None, "start comes first"
        with self._lock:
            self.asked.append((settings.arm, prompt))
            self._n_asked += 1
            if self._is_dead or (self.dies(settings) and self._n_asked > 3):
                self._is_dead = True
                raise EngineError("simulated does not answer.", LAST_LINES)
            if self.refuses(settings, prompt):
                raise EngineError("simulated answered status 500: out of cheese")
            return self._answer(settings, request, prompt)

    def _answer(self, settings: Settings, request: Request, prompt: str) -> Answer:
        category = prompt.partition(":")[0]
        how = settings.speculation[0] if settings.speculation else None
        speed = self.world.speed(how, category) if how else 1.0
        tokens = self.world.tokens(how, category) if how else 1.0
        own = random.Random(f"{self.seed} {settings.arm} {prompt}").gauss(0, self.world.spread) if how else 0.0
        noise = random.Random(f"{self.seed} {len(self.asked)}").gauss(0, self.world.noise)
        n_tokens = min(self.n_written(prompt) or request.n_tokens, request.n_tokens)
        rate = max(speed * (1 + own) * (1 + noise), 0.01)
        decode_s = self.world.load(self.clock.now) * self.world.token_s * (n_tokens - 1) / rate
        self.clock.now += (self.world.prefill_s + decode_s) / settings.parallel
        counted = _counted(how, n_tokens - 1, tokens)
        self._totals += counted
        told = self.lie(settings, counted) if self.by_request else None
        arrivals = ((self.world.prefill_s, 1), (self.world.prefill_s + decode_s, n_tokens))
        return Answer(self.text(settings, prompt), n_tokens, self.world.prefill_s, decode_s, arrivals, told)

    def render(self, settings: Settings) -> tuple[Rendering, ...]:
        return (
            Rendering("Command line", "sh", f"simulated {settings.model} --speculate '{settings.arm}'\n", "run.sh"),
        )


def _counted(how: Speculation | None, n_decoded: int, tokens: float) -> Counters:
    """So many tokens a pass, or as many as a draft and the token behind it are; drafts as long as they may be."""
    if how is None:
        return Counters(0, 0, 0)
    length = how.n_max or 4
    n_passes = math.ceil(n_decoded / min(tokens, length + 1))
    accepted = n_decoded - n_passes
    return Counters(n_passes * length, accepted, n_passes, (min(accepted, n_passes),), (n_passes,))


def prompts(categories: Mapping[str, int] | Iterable[str] = ("chat", "edit"), n: int = 12) -> list[Prompt]:
    """Prompts that say of which category they are; `n` of each unless told."""
    counts = categories if isinstance(categories, Mapping) else dict.fromkeys(categories, n)
    return [
        Prompt(f"{category}-{i}", category, ({"role": "user", "content": f"{category}: prompt {i}"},))
        for category, count in counts.items()
        for i in range(count)
    ]
