"""Exact mode in the ring: every pass has a width of one class, so that a text doesn't depend on what was drafted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from toy import N_VOCAB, Clock, Scripted, ToyRuntime
from width_toy import WidthToy, grouped

from slipstream.decoding.choice import Sampler
from slipstream.decoding.control import Control
from slipstream.decoding.cost import MAX_WIDTH, CostCurve
from slipstream.decoding.draft import EMPTY, chain
from slipstream.decoding.protocols import Budget, Drafter
from slipstream.decoding.record import DraftCost
from slipstream.decoding.ring import Ring, SequenceState
from slipstream.decoding.sampling import Sampling
from slipstream.decoding.statistics import Round
from slipstream.decoding.widths import PAGE
from slipstream.drafters.model import ModelDrafter
from slipstream.drafters.suffix import SuffixDrafter

GREEDY = Sampling(temperature=0)
SAMPLINGS = {
    "greedy": GREEDY,
    "0.7": Sampling(temperature=0.7, seed=5),
    "open": Sampling(temperature=1.2, top_k=0, top_p=1, min_p=0, seed=9),
    "penalties": Sampling(temperature=0.7, seed=5, repeat_penalty=1.3, presence_penalty=0.5, repeat_last_n=20),
}
CLASSES = {
    "all": (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16),
    "width 1 alone": (2, 3, 4, 5, 6, 7, 8, 10, 12, 16),
    "gaps": (3, 5, 8, 16),
    "wide": (6, 7, 12),
    "width 1 and one more": (1, 9),
    "no speculation": (1,),
}
FLAT = {1: 1.0, 33: 1.1}
RISING = {w: 1.0 + 0.2 * w for w in range(1, MAX_WIDTH + 1)}
PROMPTS = ([3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4])


class Text:
    """What a sequence came to: tokens, log-probabilities, rounds."""

    def __init__(self, state: SequenceState, begun: Round) -> None:
        self.state = state
        self.rounds = [begun]

    @property
    def said(self) -> tuple[list[int], list[object]]:
        return self.state.tokens, [said for done in self.rounds for said in done.logprobs]


def write(
    runtime: ToyRuntime,
    widths: Sequence[int],
    sampling: Sampling,
    prompts: Sequence[Sequence[int]],
    drafters: Sequence[Drafter] = (),
    n_new: int = 50,
    curve: dict[int, float] = FLAT,
    draft_costs: dict[str, DraftCost] | None = None,
) -> list[Text]:
    """Writes all texts in one ring; checks each pass."""
    ring = Ring(runtime, drafters, Control(CostCurve(curve), draft_costs, widths), Clock())
    texts = []
    for seq, prompt in enumerate(prompts):
        own = Sampling(**{**vars(sampling), "seed": sampling.seed + seq})
        state = SequenceState(seq, Sampler(own, N_VOCAB), lambda token: False, len(prompt) + n_new, n_top=3)
        texts.append(Text(state, ring.begin(state, prompt, 0)))
    while live := [text.state for text in texts if not text.state.ended]:
        n_passes = len(runtime.passes)
        for done in ring.step(live):
            texts[done.seq].rounds.append(done)
            if widths:
                assert done.width == done.n_outputs
        if widths:
            check_passes(runtime, widths, n_passes, live)
    return texts


def check_passes(runtime: ToyRuntime, widths: Sequence[int], n_passes: int, live: Sequence[SequenceState]) -> None:
    assert len(runtime.passes) == n_passes + len(live), "a pass of its own for each sequence"
    for (r,) in runtime.passes[n_passes:]:
        assert len(r.tokens) in widths and r.n_outputs == len(r.tokens) and r.n_padding == 0


def knowing(answers: Sequence[Sequence[int]], wrong: Callable[[int], bool], n: int = 99) -> Scripted:
    """Knows the texts, n tokens ahead, but errs at some of their places."""

    def script(seq: int, text: list[int]) -> list[int]:
        at = len(text)
        return [(t + 1) % N_VOCAB if wrong(at + i) else t for i, t in enumerate(answers[seq][at : at + n])]

    return Scripted(script)


def drafting(kind: str, answers: Sequence[Sequence[int]]) -> list[Drafter]:
    rng = np.random.default_rng(4)
    return {
        "right": lambda: [knowing(answers, lambda at: False)],
        "wrong": lambda: [knowing(answers, lambda at: True)],
        "every fourth": lambda: [knowing(answers, lambda at: at % 4 == 0)],
        "any length": lambda: [knowing(answers, lambda at: rng.random() < 0.3, 1 + int(rng.integers(9)))],
        "suffix": lambda: [SuffixDrafter()],
        "model": lambda: [SuffixDrafter(), ModelDrafter(ToyRuntime(seed=0, n_ctx=800), N_VOCAB)],
        "bad model": lambda: [ModelDrafter(ToyRuntime(seed=7, n_ctx=800), N_VOCAB)],
    }[kind]()


def toy(widths: Sequence[int], n_ctx: int = 800, **options: int) -> WidthToy:
    """Rows of other widths are quite different ones; on the second page so are those of other classes."""
    rest = [(w,) for w in range(1, 65) if w not in widths]
    return WidthToy(grouped([*rest, widths], [widths, *rest]), n_ctx=n_ctx, **options)


@pytest.mark.parametrize("drafter", ["right", "wrong", "every fourth", "any length", "suffix", "model", "bad model"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("classes", CLASSES)
def test_a_text_is_that_of_plain_decoding_to_the_last_bit(classes, sampling, drafter):
    widths, chosen = CLASSES[classes], SAMPLINGS[sampling]
    (plain,) = write(toy(widths), widths, chosen, PROMPTS[:1])
    drafters = drafting(drafter, [plain.state.tokens])
    (drafted,) = write(toy(widths), widths, chosen, PROMPTS[:1], drafters, draft_costs={"model": DraftCost(0.01)})
    assert drafted.said == plain.said
    assert {done.width for done in plain.rounds[1:]} == {widths[0]}, "plain decoding pads to the narrowest"
    n_drafted = sum(done.drafted for done in drafted.rounds)
    if drafter in ("right", "every fourth", "model"):
        assert (n_drafted > 0) == (widths != (1,))
        assert len(drafted.rounds) < len(plain.rounds) or widths == (1,)


@pytest.mark.parametrize("drafter", ["every fourth", "any length", "suffix"])
@pytest.mark.parametrize("classes", ["all", "width 1 alone", "gaps"])
def test_a_text_goes_on_over_the_edge_of_a_page(classes, drafter):
    """The classes are others there, but this one holds on both sides."""
    widths, chosen = CLASSES[classes], SAMPLINGS["0.7"]
    prompt = [[(7 * i * i + i) % N_VOCAB for i in range(PAGE - 20)]]
    (plain,) = write(toy(widths), widths, chosen, prompt)
    drafters = drafting(drafter, [plain.state.tokens])
    (drafted,) = write(toy(widths), widths, chosen, prompt, drafters)
    assert drafted.said == plain.said and len(plain.state.tokens) > PAGE + 20


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_in_normal_mode_the_same_runtime_parts_the_texts(sampling):
    """Else this file would show nothing."""
    (plain,) = write(toy(CLASSES["all"][1:]), (), SAMPLINGS[sampling], PROMPTS[:1])
    right = drafting("every fourth", [plain.state.tokens])
    (drafted,) = write(toy(CLASSES["all"][1:]), (), SAMPLINGS[sampling], PROMPTS[:1], right)
    assert drafted.state.tokens != plain.state.tokens


@pytest.mark.parametrize("drafter", ["every fourth", "any length", "suffix", "model"])
@pytest.mark.parametrize("sampling", ["greedy", "0.7"])
@pytest.mark.parametrize("classes", ["all", "width 1 alone", "gaps"])
def test_several_sequences_are_each_as_alone(classes, sampling, drafter):
    widths, chosen = CLASSES[classes], SAMPLINGS[sampling]
    alone = []
    for seq, prompt in enumerate(PROMPTS):
        own = Sampling(**{**vars(chosen), "seed": chosen.seed + seq})
        alone += write(toy(widths), widths, own, [prompt])
    drafters = drafting(drafter, [text.state.tokens for text in alone])
    together = write(toy(widths), widths, chosen, PROMPTS, drafters, draft_costs={"model": DraftCost(0.01)})
    assert [text.said for text in together] == [text.said for text in alone]
    assert [text.said for text in write(toy(widths), widths, chosen, PROMPTS)] == [text.said for text in alone]


@pytest.mark.parametrize("drafter", ["none", "right", "every fourth", "suffix"])
@pytest.mark.parametrize("n_ctx", range(20, 29))
@pytest.mark.parametrize("classes", ["all", "width 1 alone", "gaps", "wide"])
def test_the_end_of_the_context(classes, n_ctx, drafter):
    """A pass that has no width of the class left is not begun: the text ends before it."""
    widths, n_new = CLASSES[classes], n_ctx - len(PROMPTS[0])
    (plain,) = write(toy(widths, n_ctx), widths, GREEDY, PROMPTS[:1], n_new=n_new)
    (longer,) = write(toy(widths), widths, GREEDY, PROMPTS[:1], n_new=n_new + 9)
    drafters = [] if drafter == "none" else drafting(drafter, [longer.state.tokens])
    (drafted,) = write(toy(widths, n_ctx), widths, GREEDY, PROMPTS[:1], drafters, n_new=n_new)
    n = len(plain.state.tokens)
    assert drafted.said == plain.said and plain.state.tokens == longer.state.tokens[:n]
    assert n == min(n_ctx, n_ctx + 2 - widths[0]), "another token would have had no room for a pass of the class"


@pytest.mark.parametrize("n_new", range(1, 9))
@pytest.mark.parametrize("classes", ["all", "gaps", "wide"])
def test_the_limit_is_reached_and_never_exceeded(classes, n_new):
    widths = CLASSES[classes]
    (plain,) = write(toy(widths), widths, GREEDY, PROMPTS[:1], n_new=n_new)
    right = [Scripted(lambda seq, text: [1] * 40), knowing([plain.state.tokens + [0] * 40], lambda at: False)]
    (drafted,) = write(toy(widths), widths, GREEDY, PROMPTS[:1], right, n_new=n_new)
    assert drafted.said == plain.said and len(plain.state.tokens) == len(PROMPTS[0]) + n_new


@pytest.mark.parametrize("max_rollback", [1, 2, 5, 15])
@pytest.mark.parametrize("classes", ["all", "width 1 alone"])
def test_a_pass_is_no_wider_than_the_cache_can_drop(classes, max_rollback):
    widths = tuple(w for w in CLASSES[classes] if w <= max_rollback + 1)
    (plain,) = write(toy(widths, max_rollback=max_rollback), widths, GREEDY, PROMPTS[:1])
    drafters = drafting("every fourth", [plain.state.tokens])
    (drafted,) = write(toy(widths, max_rollback=max_rollback), widths, GREEDY, PROMPTS[:1], drafters)
    assert drafted.said == plain.said


def test_a_runtime_that_cannot_go_back_keeps_to_width_1():
    runtime = toy((1,), max_rollback=0)
    (plain,) = write(runtime, (1,), GREEDY, PROMPTS[:1], [knowing([[0] * 99], lambda at: False)])
    assert {done.width for done in plain.rounds[1:]} == {1}


@pytest.mark.parametrize("error", [RuntimeError("gives up"), KeyboardInterrupt()], ids=["error", "Ctrl-C"])
def test_a_failing_pass_changes_nothing(error):
    widths = CLASSES["width 1 alone"]
    (plain,) = write(toy(widths), widths, GREEDY, PROMPTS[:1])
    runtime, drafter = toy(widths), drafting("every fourth", [plain.state.tokens])[0]
    ring = Ring(runtime, [drafter], Control(CostCurve(FLAT), None, widths), Clock())
    state = SequenceState(0, Sampler(GREEDY, N_VOCAB), lambda token: False, 55, n_top=3)
    text = Text(state, ring.begin(state, PROMPTS[0], 0))
    while not state.ended:
        runtime.fail = error
        with pytest.raises(type(error)):
            ring.step([state])
        assert runtime.cache[0] == state.tokens[:-1]
        text.rounds += ring.step([state])
    assert text.said == plain.said


def draft(acceptance: float, n: int):
    return chain(range(n), np.cumprod([acceptance] * n))


CURVES = {"flat": FLAT, "rising": RISING, "jagged": {1: 1.0, 2: 1.9, 3: 2.6, 4: 2.1, 8: 2.4, 12: 4.0, 16: 3.0, 33: 8.0}}


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("classes", CLASSES)
def test_control_plans_allowed_widths_only(classes, curve):
    widths, cost = CLASSES[classes], CostCurve(CURVES[curve])
    control = Control(cost, None, widths)
    for limit in range(widths[0], 40):
        for acceptance in 0.1, 0.9, 0.99:
            for n in (0, 1, 2, 5, 6, 16, 39):
                plan = control.plan([draft(acceptance, n)], limit)
                assert plan.width in widths and plan.width <= limit
                assert 1 + len(plan.nodes[0]) <= plan.width
                assert plan.nodes[0] == tuple(range(len(plan.nodes[0])))


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("classes", CLASSES)
def test_control_takes_the_length_and_width_with_the_most_expected_tokens_a_second(classes, curve):
    widths, cost = CLASSES[classes], CostCurve(CURVES[curve])
    for acceptance in 0.3, 0.7, 0.95:
        proposal = draft(acceptance, 20)
        plan = Control(cost, None, widths).plan([proposal], 64)
        best = max((1 + proposal.survival[:n].sum()) / cost.time(w) for w in widths for n in range(21) if 1 + n <= w)
        n = len(plan.nodes[0])
        assert (1 + proposal.survival[:n].sum()) / cost.time(plan.width) == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("classes", CLASSES)
def test_a_drafter_is_given_no_more_room_than_the_widest_pass_has(classes):
    widths = CLASSES[classes]
    control = Control(CostCurve(FLAT), None, widths)
    for room in range(40):
        expected = min(room, widths[-1] - 1)
        budget = control.budget("suffix", room)
        assert budget is None if expected < 1 else budget is not None and budget.max_tokens == expected


def test_plain_decoding_costs_a_pass_of_the_narrowest_width():
    cost = CostCurve(RISING)
    assert Control(cost, None, (3, 5)).plain_token_s(0) == cost.time(3)
    assert Control(cost).plain_token_s(0) == cost.time(1)


class Asked(Scripted):
    """Keeps the budgets it was given."""

    def __init__(self) -> None:
        super().__init__(lambda seq, text: [0] * 99)
        self.rooms: list[int] = []

    def propose(self, seq: int, budget: Budget, choice, behind=()):
        self.rooms.append(budget.max_tokens)
        return EMPTY


def test_the_room_of_a_draft_shrinks_to_what_an_allowed_pass_still_holds():
    """At the end of the context, a draft of the widest pass that fits there, no longer."""
    widths, asked = (2, 4, 8), Asked()
    write(toy(widths, 20), widths, GREEDY, [[1, 2, 3]], [asked], n_new=17)
    free = [20 - n_tokens + 1 for n_tokens in range(4, 20)]
    limits = [20 - n_tokens - 1 for n_tokens in range(4, 20)]
    allowed = [max(w for w in widths if w <= f) - 1 for f in free]
    assert asked.rooms == [min(a, n) for a, n in zip(allowed, limits, strict=True) if min(a, n) >= 1]
