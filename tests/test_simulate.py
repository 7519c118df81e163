"""The simulation against theory, the oracle against all schedules, a replay against what happened."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from made_traces import MODEL_COST, STEPS, copying, traced
from scenarios import GPU, Helper, World, constant, play

from slipstream.decoding.acceptance import expected_tokens
from slipstream.decoding.choice import Sampler
from slipstream.decoding.control import Control
from slipstream.decoding.cost import MAX_WIDTH, CostCurve, Far
from slipstream.decoding.protocols import Budget
from slipstream.decoding.sampling import Sampling
from slipstream.decoding.statistics import Round
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.lab.simulate import PADDING, FixedLength, Foresight, oracle, simulate
from slipstream.lab.simulated import Clock, OnClock, Text
from slipstream.lab.theory import speedup
from slipstream.lab.trace import TracedRun, read
from slipstream.lab.whatif import WhatIf, what_if

FREE = {w: 0.020 for w in range(1, MAX_WIDTH + 1)}
TEXTS = [copying(80, seed) for seed in range(3)]


@pytest.mark.parametrize(("acceptance", "n", "draft_cost"), [(0.6, 4, 0.05), (0.8, 8, 0.05), (0.3, 2, 0.2)])
def test_a_fixed_length_gives_what_theory_says(acceptance, n, draft_cost):
    """Leviathan et al., theorems 3.1 and 3.8, for a drafter that errs by chance alone; within 4 standard errors."""
    world = World(FREE, {"model": Helper(constant(acceptance), draft_cost * 0.020)}, n_tokens=8000)
    steps = play(world, FixedLength(CostCurve(FREE), n, world.costs()), ["model"])
    rounds = [done for step in steps[:-8] for _, done in step.rounds]  # the last ones may have no room
    tokens = [len(done.tokens) for done in rounds]
    error = np.std(tokens) / math.sqrt(len(tokens))
    assert {done.drafted for done in rounds} == {n}
    assert abs(np.mean(tokens) - expected_tokens(acceptance, n)) < 4 * error
    seconds = sum(step.seconds for step in steps[:-8])
    gain = sum(tokens) / seconds * 0.020
    assert abs(gain - speedup(acceptance, n, draft_cost)) < 4 * error / (1 + n * draft_cost)


def test_a_simulated_pass_takes_what_its_width_says_and_a_draft_what_its_tokens_say():
    world = World(STEPS, {"model": Helper(constant(1.0), 0.002)}, n_tokens=400)
    steps = play(world, FixedLength(CostCurve(STEPS), 7, world.costs()), ["model"])
    (_, done) = steps[10].rounds[0]
    assert (done.width, done.accepted) == (8, 7)
    # The token that the drafter has not read yet takes a hundredth of one that it writes.
    assert steps[10].seconds == pytest.approx(STEPS[8] + 7 * 0.002 + 0.00002, abs=0.00003)


@pytest.mark.parametrize("n_parallel", [1, 3, 8])
def test_all_texts_are_written_whoever_shares_a_pass(n_parallel):
    clock = Clock()
    steps = list(simulate(TEXTS, [SuffixDrafter()], Control(CostCurve(GPU)), CostCurve(GPU).time, clock, n_parallel))
    for number, text in enumerate(TEXTS):
        written = [token for step in steps for n, done in step.rounds if n == number for token in done.tokens]
        assert written == text.answer[1:], "the first token comes with the prompt"
    assert max(len(step.rounds) for step in steps) == min(n_parallel, len(TEXTS))
    assert sum(step.seconds for step in steps) == pytest.approx(clock.now - prompts_s())


def prompts_s() -> float:
    return sum(CostCurve(GPU).time(len(text.prompt)) for text in TEXTS)


def test_a_text_of_one_token_is_over_before_its_first_round():
    texts = [Text([1, 2], [3]), Text([1, 2], [3, 4])]
    steps = list(simulate(texts, [], Control(CostCurve(FREE)), CostCurve(FREE).time, Clock()))
    assert [number for step in steps for number, _ in step.rounds] == [1]


def brute_force(text: Text, drafters: list[Foresight], pass_s: Callable[[int, int], float]) -> float:
    """Every schedule: at each place any drafter, any length, right or wrong, any free one behind it, any padding."""
    n = len(text.answer)

    @cache
    def rest(i: int) -> float:
        if i >= n - 1:
            return 0.0
        n_context = len(text.prompt) + i  # what the cache holds
        best = math.inf
        for drafter in drafters:
            for k in range(n - i):
                right = min(k, drafter.accepted[i])
                tails = [(0, 0)]
                if drafter.token_s and i + k < n:
                    free = [d for d in drafters if not d.token_s]
                    tails += [
                        (m, min(m, d.accepted[i + k]) if right == k else 0) for d in free for m in range(1, n - i - k)
                    ]
                for m, more in tails:
                    ahead = min(i + 1 + right + more, n - 1)
                    for width in range(1 + k + m, 2 + k + m + PADDING):
                        best = min(best, k * drafter.token_s + pass_s(width, n_context) + rest(ahead))
        return best

    return rest(0)


@pytest.mark.parametrize("seed", range(40))
def test_the_oracle_is_the_best_of_all_schedules(seed):
    """What passes cost rises with the width, but for steps down that padding reaches."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 8))
    steps = 3 + 0.3 * np.arange(MAX_WIDTH + PADDING + 1) - rng.uniform(0, 0.3 * PADDING, MAX_WIDTH + PADDING + 1)
    text = Text([0] * int(rng.integers(1, 300)), list(range(n)))
    n_near = len(text.prompt) + 3

    def pass_s(width: int, n_context: int) -> float:
        return float(steps[width]) * (1.0 if n_context < n_near else 1.5)

    def foresight(token_s: float) -> Foresight:
        return Foresight([int(rng.integers(0, n - i)) for i in range(n)], token_s)

    drafters = [foresight(0.0), foresight(0.0), foresight(0.1), foresight(float(rng.uniform(0, 1)))]
    some = drafters[: 1 + seed % 4] if seed % 5 else drafters[2:]
    assert oracle(text, some, pass_s) == pytest.approx(brute_force(text, some, pass_s))


def test_the_oracle_without_drafters_decodes_plainly():
    assert oracle(Text([1, 2], [3, 4, 5]), [], lambda width, n_context: 0.02 * width) == pytest.approx(0.04)


def test_the_oracle_reckons_with_the_context_as_a_pass_does():
    """A pass behind 256 tokens is the last of the first band: one too early made the oracle slower than control."""
    contexts = []

    def pass_s(width: int, n_context: int) -> float:
        contexts.append(n_context)
        return 1.0

    text = Text([7] * 10, [1, 2, 3])
    oracle(text, [], pass_s)
    foreseen = set(contexts)
    contexts.clear()
    list(simulate([text], [], Control(CostCurve(FREE)), pass_s, Clock()))
    assert set(contexts) - {0} == foreseen == {10, 11}


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., TracedRun]:
    """Makes a trace of the texts, and reads it."""

    def make(**options) -> TracedRun:
        path = tmp_path / "trace.jsonl"
        path.unlink(missing_ok=True)
        traced(path, TEXTS, **options)
        return read(path)[0]

    return make


def check_order(result: WhatIf) -> None:
    """What holds whatever was played: nobody beats the oracle, and the best of many is no worse than one of them."""
    oracle = result.speedup(result.oracle)
    assert result.speedup(result.auto) <= oracle + 1e-9
    assert all(result.speedup(played) <= oracle + 1e-9 for played in result.fixed)
    assert result.speedup(result.best_fixed()) >= 1.0 == result.speedup(result.plain)
    share = result.share()
    assert share is None or share <= 1.0 + 1e-9


@pytest.mark.parametrize("seconds", [STEPS, FREE, {1: 0.02}], ids=["steps", "free", "dear"])
@pytest.mark.parametrize("options", [{}, {"acceptance": 0.8}], ids=["suffix", "model"])
def test_nobody_is_faster_than_the_oracle(made, options, seconds):
    check_order(what_if(made(**options), CostCurve(seconds)))


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.9, 1.0])
def test_nobody_is_faster_than_the_oracle_where_chance_decides(made, acceptance):
    """With free passes long lucky streaks pay, however little they were to be expected."""
    check_order(what_if(made(), CostCurve(FREE), acceptance=acceptance))


@pytest.mark.parametrize("options", [{}, {"acceptance": 0.8}], ids=["suffix", "model"])
def test_a_replay_takes_as_long_as_what_happened(tmp_path, options):
    rounds = traced(tmp_path / "trace.jsonl", TEXTS, **options)
    result = what_if(read(tmp_path / "trace.jsonl")[0])
    happened = sum(done.total_s for done in rounds)
    assert sum(result.auto.seconds.values()) == pytest.approx(happened, rel=0.1)
    assert sum(result.auto.tokens.values()) == sum(len(done.tokens) for done in rounds)
    assert result.auto.n_passes == pytest.approx(len(rounds), rel=0.1)
    assert rate(result.auto.n_accepted, result.auto.n_drafted) == pytest.approx(accepted(rounds), abs=0.05)


def rate(n_accepted: int, n_drafted: int) -> float:
    return n_accepted / n_drafted


def accepted(rounds: list[Round]) -> float:
    return rate(sum(done.accepted for done in rounds), sum(done.drafted for done in rounds))


def test_plain_decoding_takes_a_pass_for_each_token(made):
    plain = what_if(made()).plain
    n_tokens = sum(len(text.answer) - 1 for text in TEXTS)
    assert plain.n_passes == sum(plain.tokens.values()) == n_tokens and plain.n_drafted == 0
    assert sum(plain.seconds.values()) == pytest.approx(n_tokens * STEPS[1])


def test_what_is_played_does_not_change_what_passes_cost(made):
    """Control corrects its curve while it plays: that must not be the curve of the world."""
    curve = CostCurve({1: 0.02, 33: 0.03}, far=Far(1000, {1: 0.03, 33: 0.09}))
    before = [curve.time(w, n) for w in (1, 2, 8, 33) for n in (0, 300, 600)]
    what_if(made(), curve, n_parallel=3)
    assert [curve.time(w, n) for w in (1, 2, 8, 33) for n in (0, 300, 600)] == before


def test_on_another_machine_drafting_costs_as_much_more_as_plain_passes_do(made):
    run = made(acceptance=0.8)
    here, there = what_if(run), what_if(run, CostCurve({w: 3 * t for w, t in STEPS.items()}))
    for one, other in zip((*here.fixed, here.oracle), (*there.fixed, there.oracle), strict=True):
        if not one.policy.startswith("suffix"):  # what the suffix drafter takes is as it was
            assert there.speedup(other) == pytest.approx(here.speedup(one), rel=0.02)


@pytest.mark.parametrize("acceptance", [0.0, 0.7, 1.0])
def test_drafts_are_right_as_often_as_they_are_told_to_be(made, acceptance):
    result = what_if(made(), CostCurve(FREE), acceptance=acceptance)
    (one,) = (played for played in result.fixed if played.policy == "draft 1")
    assert rate(one.n_accepted, one.n_drafted) == pytest.approx(acceptance, abs=0.08)
    if acceptance == 0.0:
        assert result.share() is None and result.speedup(result.best_fixed()) == pytest.approx(1.0)
    if acceptance == 1.0:
        assert result.speedup(result.oracle) > 20


def test_a_drafter_by_chance_costs_what_the_trace_s_model_cost(made):
    run = made(acceptance=0.8)
    result = what_if(run, acceptance=1.0)
    (one,) = (played for played in result.fixed if played.policy == "draft 1")
    n_passes = sum(math.ceil((len(text.answer) - 1) / 2) for text in TEXTS)
    seconds = n_passes * (STEPS[2] + MODEL_COST.token_s)
    assert sum(one.seconds.values()) == pytest.approx(seconds, rel=0.1)


def test_requests_at_a_time_share_their_passes(made):
    run = made()
    alone, together = what_if(run, CostCurve(FREE)), what_if(run, CostCurve(FREE), n_parallel=3)
    assert together.plain.rate() == pytest.approx(3 * alone.plain.rate(), rel=0.02)
    assert together.plain.tokens == alone.plain.tokens
    assert together.oracle.seconds == alone.oracle.seconds


def test_categories_are_counted_apart(made):
    result = what_if(made(categories=["edit", "chat", ""]))
    assert set(result.categories) == {"edit", "chat", "all"}
    for played in result.plain, result.auto, result.oracle:
        assert played.tokens == {"edit": 79, "chat": 79, "all": 79}
        seconds = sum(79 / played.rate(category) for category in result.categories)
        assert 237 / played.rate() == pytest.approx(seconds)


def test_progress_is_told_to_the_end(made):
    done: list[float] = []
    what_if(made(), progress=done.append)
    assert done == sorted(done) and done[-1] == 1.0 and len(done) > 10


def test_a_drafter_on_the_clock_takes_its_time_and_says_the_same():
    clock = Clock()
    drafter = OnClock(SuffixDrafter(), 0.5, clock)
    drafter.begin(0, [1, 2, 3, 4, 1])
    drafter.observe(0, [2])
    assert clock.now == 0.0
    choice = Sampler(Sampling(temperature=0), 5).bind(())
    assert drafter.propose(0, Budget(2), choice).tokens.tolist() == [3, 4]
    assert clock.now == 0.5
