"""Who drafts: the best draft wins, a drawn one is never compared, a model's draft is gone on with by the suffix's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from test_ring import new_state, plain, run
from toy import N_VOCAB, AlwaysTake, Clock, Scripted, ToyRuntime

from slipstream.decoding.choice import Choice, Sampler
from slipstream.decoding.control import ANYWHERE, FLOOR, Control
from slipstream.decoding.cost import MAX_WIDTH, CostCurve
from slipstream.decoding.distribution import Distribution
from slipstream.decoding.draft import Draft
from slipstream.decoding.drafting import Drafting, Proposal
from slipstream.decoding.protocols import Budget, Drafter
from slipstream.decoding.record import DraftCost, Outcome
from slipstream.decoding.ring import Ring
from slipstream.decoding.sampling import Sampling
from slipstream.drafters.model import ModelDrafter
from slipstream.drafters.suffix import SuffixDrafter

TEXT = [9, 8, 3, 4, 5, 6, 7, 2, 1]
"""Nothing repeats at its end; behind 3 4 came 5 6 7 2 1."""

CHOICE = Sampler(Sampling(temperature=0), N_VOCAB).bind(TEXT)


class Drawn(Scripted):
    """Says that its tokens were drawn, each from an even distribution over all."""

    def propose(self, seq: int, budget: Budget, choice: Choice, behind: Sequence[int] = ()) -> Draft:
        draft = super().propose(seq, budget, choice)
        even = Distribution(np.arange(N_VOCAB), np.full(N_VOCAB, 1 / N_VOCAB))
        return Draft(draft.tokens, draft.parents, draft.survival, (even,) * len(draft))


def says(tokens: list[int], name: str = "model", survival: float = 0.95) -> Scripted:
    return Scripted(lambda seq, text: tokens, name, survival)


def propose(*drafters: Drafter, n_asked: int = 32, room: int = 100) -> Proposal:
    for drafter in drafters:
        drafter.begin(0, TEXT)
    return Drafting(drafters, AlwaysTake(n_asked), Clock()).propose(0, room, CHOICE, ANYWHERE)


def test_of_several_drafts_the_most_promising_is_verified_and_all_who_were_asked_are_known():
    proposal = propose(says([1, 2], "poor", 0.4), says([3, 4], "good", 0.9), says([5, 6], "middling", 0.7))
    assert proposal.authors == ("good",) and proposal.draft.tokens.tolist() == [3, 4]
    assert [asked.drafter for asked in proposal.asked] == ["poor", "good", "middling"]
    assert [asked.draft.tokens.tolist() for asked in proposal.asked] == [[1, 2], [3, 4], [5, 6]]
    assert all(asked.seconds == pytest.approx(0.001) for asked in proposal.asked), "one tick of the clock"


def test_a_drafter_with_nothing_to_say_is_no_author():
    proposal = propose(says([], "silent"))
    assert proposal.authors == () and len(proposal.draft) == 0
    assert [asked.drafter for asked in proposal.asked] == ["silent"]


@pytest.mark.parametrize("better", ["one", "other"])
def test_of_two_that_cost_time_the_one_that_has_paid_more_is_asked_first(better):
    """The free one before both; the other not at all where the first one's draft promises more than it ever brought."""
    control = Control(CostCurve({1: 1.0, 33: 1.3}), dict.fromkeys(("one", "other"), DraftCost(0.01)))
    for name in "one", "other":
        for _ in range(60):
            tokens = 5.0 if name == better else 1.5
            control.learn(name, Outcome(tokens, draft_s=0.05, pass_s=1.1, plain_s=1.0))
    drafters = [says([1, 2, 3, 4], "one"), says([5, 6, 7, 8], "other"), says([9], "free", 0.1)]
    for drafter in drafters:
        drafter.begin(0, TEXT)
    proposal = Drafting(drafters, control, Clock()).propose(0, 100, CHOICE, ANYWHERE)
    assert [asked.drafter for asked in proposal.asked] == ["free", better] and proposal.authors == (better,)


def test_a_drawn_draft_is_never_compared():
    """A better one before it does not displace it, and nobody is asked after it: either would choose by its tokens."""
    drawn = Drawn(lambda seq, text: [1, 2], "drawn", survival=0.05)
    proposal = propose(says([3, 4, 5, 6], "better"), drawn, says([7, 8, 9], "later"))
    assert proposal.authors == ("drawn",) and proposal.draft.tokens.tolist() == [1, 2]
    assert proposal.draft.q is not None and len(proposal.draft.q) == 2
    assert [asked.drafter for asked in proposal.asked] == ["better", "drawn"]


def test_a_drawn_draft_is_not_gone_on_with():
    drawn = Drawn(lambda seq, text: [3, 4], "drawn")
    assert propose(SuffixDrafter(), drawn).draft.tokens.tolist() == [3, 4]


def test_a_model_s_draft_is_gone_on_with_by_the_suffix():
    suffix, model = SuffixDrafter(), says([3, 4])
    proposal = propose(suffix, model)
    assert proposal.draft.tokens.tolist() == [3, 4, 5, 6, 7, 2, 1]
    assert proposal.authors == ("model", "suffix")
    assert proposal.draft.is_chain and proposal.draft.q is None


def test_the_survival_of_what_follows_is_a_product():
    suffix, model = SuffixDrafter(), says([3, 4], survival=0.9)
    survival = propose(suffix, model).draft.survival
    tail = suffix.propose(0, Budget(32, FLOOR / 0.81), CHOICE, [3, 4]).survival
    assert survival == pytest.approx([0.9, 0.81, *(0.81 * tail)])
    assert all(np.diff(survival) <= 0) and tail[0] < 1


def test_what_would_not_survive_together_is_not_added():
    """The suffix drafter is sure enough of its tokens, but not behind tokens that will hardly come."""
    assert propose(SuffixDrafter(), says([3, 4], survival=0.9)).authors == ("model", "suffix")
    alive = np.sqrt(1.2 * FLOOR)
    assert propose(SuffixDrafter(), says([3, 4], survival=alive)).authors == ("model",)


def test_where_the_suffix_has_nothing_to_add_the_model_is_the_author():
    assert propose(SuffixDrafter(), says([11, 12])).authors == ("model",)


def test_a_drafter_that_continues_others_is_not_continued():
    one, other = says([3], "one"), says([4], "other")
    one.can_continue = other.can_continue = True
    assert propose(one, other).draft.tokens.tolist() in ([3], [4])


@pytest.mark.parametrize("room", [1, 2, 3, 5, 7, 100])
def test_the_room_is_that_of_the_whole_draft(room):
    draft = propose(SuffixDrafter(), says([3, 4]), room=room).draft
    assert draft.tokens.tolist() == [3, 4, 5, 6, 7, 2, 1][:room]


@pytest.mark.parametrize("n", [29, 31, 32, 40])
def test_no_draft_is_longer_than_the_widest_pass(n):
    long = says([12] * (n - 2) + [3, 4], survival=0.99)
    long.obeys = False
    draft = propose(SuffixDrafter(), long).draft
    assert len(draft) == min(n + 5, MAX_WIDTH - 1)
    assert draft.tokens.tolist() == ([12] * (n - 2) + [3, 4, 5, 6, 7, 2, 1])[: len(draft)]


def test_everything_is_what_all_would_say_whether_or_not_it_pays():
    drafters = [SuffixDrafter(), says([3, 4], survival=0.3), says([5] * 40, survival=0.99)]
    for drafter in drafters:
        drafter.begin(0, TEXT)
    asked = Drafting(drafters, AlwaysTake(0), Clock()).everything(0, CHOICE)
    assert [a.draft.tokens.tolist() for a in asked] == [[], [3, 4], [5] * 32]


SAMPLINGS = {
    "greedy": Sampling(temperature=0),
    "coupled": Sampling(temperature=0.3, seed=5),
    "penalties": Sampling(temperature=0.3, seed=5, repeat_penalty=1.2, repeat_last_n=20),
}
PROMPT = [3, 1, 4, 1, 5]


def small(seed: int) -> ModelDrafter:
    return ModelDrafter(ToyRuntime(seed=seed), N_VOCAB)


@pytest.mark.parametrize("seed", [0, 1], ids=["a model that is right", "a model that errs"])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_a_draft_of_two_authors_leaves_the_text_alone(sampling, seed):
    """The small model writes two tokens, the suffix drafter what followed them before; seed 0 is the target's own."""
    prompts = [PROMPT, [9, 2, 6]]
    states = [new_state(seq, sampling, prompt) for seq, prompt in enumerate(prompts)]
    model = small(seed)
    rounds = run(Ring(ToyRuntime(), [SuffixDrafter(), model], AlwaysTake(2), Clock()), states, prompts)
    assert [s.tokens for s in states] == [plain(seq, sampling, prompt) for seq, prompt in enumerate(prompts)]
    together = [done for done in rounds if done.drafter == "model+suffix"]
    assert together
    assert seed != 0 or any(done.accepted > 2 for done in together), "the suffix's part is accepted, too"


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_where_tokens_are_drawn_the_model_writes_alone(rule):
    sampling = Sampling(temperature=0.3, seed=5, verification=rule)
    model = small(0)
    rounds = run(
        Ring(ToyRuntime(), [SuffixDrafter(), model], AlwaysTake(2), Clock()), [new_state(0, sampling, PROMPT)], [PROMPT]
    )
    assert {done.drafter for done in rounds if done.drafted} == {"model"}
