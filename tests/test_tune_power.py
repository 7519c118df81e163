"""How often `slipstream tune` is right where gains are small and prompts differ, as on a real machine."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from simulated_engines import World, prompts
from tuning import engine, one, run

from slipstream.engines.protocol import Option, Speculation

KINDS = tuple(f"kind{i}" for i in range(5))
N_RUNS = 40


def verdicts(folder: Path, gain: float) -> Counter[str]:
    """Of ten minutes each: five kinds, of which the first gains; speed-ups differ by 15 % from prompt to prompt."""

    def speed(how: Speculation, category: str) -> float:
        return 1 + gain if how.kind == KINDS[0] else 1.0

    world = World(speed, lambda how, c: 1.2, token_s=0.024, prefill_s=0.3, start_s=2.5, spread=0.15, noise=0.06)
    found: Counter[str] = Counter()
    for seed in range(N_RUNS):
        simulated = engine(world, [Option(kind, n_max=(8, 16)) for kind in KINDS], seed=seed)
        arm = one(run(simulated, folder / str(seed), prompts(n=20), budget_s=600.0)).verdict.arm
        found[arm.partition(" ")[0] if arm else "undecided"] += 1
    return found


def test_where_nothing_is_to_be_gained_hardly_anything_is_said_to_pay(tmp_path):
    """One in forty may, by chance."""
    found = verdicts(tmp_path, gain=0.0)
    assert sum(found[kind] for kind in KINDS) <= 2 and found["plain"] >= 30


def test_a_gain_of_a_fifth_is_found_in_most_runs(tmp_path):
    found = verdicts(tmp_path, gain=0.2)
    assert found[KINDS[0]] >= 28 and not any(found[kind] for kind in KINDS[1:])
