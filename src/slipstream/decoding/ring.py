"""The round: draft → forward → verify → commit, for any number of sequences in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .choice import Choice, Sampler
from .control import Control, Plan, Standing
from .cost import Clock
from .draft import Draft
from .drafting import Asked, Drafting, Proposal
from .logprobs import TokenLogprob, token_logprob
from .protocols import Drafter, Logits, Pass, Rows, Runtime
from .record import Outcome
from .statistics import Round
from .trace import Trace, TracedRound
from .verdict import Verdict
from .verify import verify


@dataclass
class SequenceState:
    """One text in the making. Between rounds the runtime's cache holds all of `tokens` but the last.

    limit: the number of tokens, prompt included, at which the text ends. `is_end` tells tokens that end it.
    n_top: asks for log-probabilities, with so many of the likeliest tokens; None for none.
    """

    seq: int
    sampler: Sampler
    is_end: Callable[[int], bool]
    limit: int
    n_top: int | None = None
    tokens: list[int] = field(default_factory=list)
    n_prompt: int = 0

    @property
    def ended(self) -> bool:
        return len(self.tokens) >= self.limit or self.is_end(self.tokens[-1])


@dataclass(frozen=True)
class _Times:
    """When a round began, had its drafts, had its pass; and how long the pass was expected to take."""

    began: float
    drafted: float
    passed: float
    predicted_s: float

    @property
    def draft_s(self) -> float:
        return self.drafted - self.began

    @property
    def pass_s(self) -> float:
        return self.passed - self.drafted


class Ring:
    """Runs rounds over one runtime. Which drafters are asked, and in which order, see `Drafting`.

    `trace`: told of every round; all drafters are then asked at every place, which is not counted in any time.
    A draft model learns from these proposals too: how far it drafts may then differ.
    """

    def __init__(
        self,
        runtime: Runtime,
        drafters: Sequence[Drafter],
        control: Control,
        clock: Clock,
        trace: Trace | None = None,
    ) -> None:
        self.runtime = runtime
        self.drafters = drafters if runtime.max_rollback != 0 else ()
        self.control = control
        self.clock = clock
        self.trace = trace
        self._drafting = Drafting(self.drafters, control, clock)
        self._traced_s = 0.0

    def begin(self, state: SequenceState, prompt: Sequence[int], n_cached: int) -> Round:
        """Reads the prompt behind the `n_cached` tokens that the cache already holds, and chooses the first token.

        Raises KeyboardInterrupt between or within passes; the cache then holds a prefix of the prompt or nothing.
        """
        began = self.clock()
        # Where a pass of the narrowest width has no room any more, the text ends.
        state.limit = min(state.limit, self.runtime.n_ctx + 2 - max(self.control.widths[:1], default=1))
        self.runtime.keep(state.seq, n_cached)
        for start in range(n_cached, len(prompt), self.runtime.n_batch):
            chunk = prompt[start : start + self.runtime.n_batch]
            is_last = start + len(chunk) == len(prompt)
            result = self.runtime.forward([Rows(state.seq, chunk, start, int(is_last))])
        passed = self.clock()
        state.tokens, state.n_prompt = list(prompt), len(prompt)
        token = state.sampler.bind(state.tokens)(result.logits[0][0], ())
        logprobs = _logprobs(state, Verdict((), (token,)), result.logits[0])
        state.tokens.append(token)
        for drafter in self.drafters:
            drafter.begin(state.seq, state.tokens)
        took = self.clock() - began
        if self.trace is not None:
            self.trace.request(prompt, token)
        return Round(
            state.seq, (token,), 0, 0, "", 1, result.widths[-1], len(prompt), 0.0, passed - began, took, logprobs
        )

    def step(self, live: Sequence[SequenceState]) -> list[Round]:
        """One round for every sequence given, none of which may have ended.

        One pass of the target; in exact mode one for each sequence, so that its width is that of the sequence alone.
        """
        if self.control.widths and len(live) > 1:
            return [done for state in live for done in self.step([state])]
        began = self.clock()
        choices = [state.sampler.bind(state.tokens) for state in live]
        proposals = [self._draft(state, choice, len(live)) for state, choice in zip(live, choices, strict=True)]
        n_context = sum(len(state.tokens) for state in live) // len(live)
        plan = self.control.plan([p.draft for p in proposals], self._limit(live), n_context)
        drafts, rows = self._rows(live, [p.draft for p in proposals], plan)
        drafted = self.clock()
        try:
            result = self.runtime.forward(rows)
            passed = self.clock()
            verdicts = [
                verify(draft, logits[: 1 + len(draft)], choice)
                for choice, draft, logits in zip(choices, drafts, result.logits, strict=True)
            ]
            logprobs = [
                _logprobs(state, verdict, logits)
                for state, verdict, logits in zip(live, verdicts, result.logits, strict=True)
            ]
        except BaseException:
            for state in live:
                n = len(state.tokens) - 1
                self.runtime.keep(state.seq, n if self.runtime.floor(state.seq) <= n else 0)
            raise
        times = _Times(began, drafted, passed, plan.seconds)
        self._traced_s = 0.0
        rounds = [
            self._commit(state, proposal, draft, verdict, said, result, times)
            for state, proposal, draft, verdict, said in zip(live, proposals, drafts, verdicts, logprobs, strict=True)
        ]
        n_tokens = sum(len(r.tokens) for r in rounds)
        total_s = self.clock() - drafted - self._traced_s
        self.control.done(result.widths, times.pass_s, total_s, n_tokens, n_context, len(live))
        return rounds

    def _draft(self, state: SequenceState, choice: Choice, n_live: int) -> Proposal:
        room = self._room(state) // n_live if self.runtime.max_rollback is not None else self._room(state)
        if choice.draws:
            # A drawn draft is verified whole: all of them must fit into one pass.
            room = min(room, self.runtime.n_batch // n_live - 1)
        n_tokens = len(state.tokens)
        n_left = min(state.limit, self.runtime.n_ctx) - n_tokens
        standing = Standing(n_tokens, n_left, n_written=n_tokens - state.n_prompt)
        return self._drafting.propose(state.seq, room, choice, standing)

    def _room(self, state: SequenceState) -> int:
        """Tokens that a draft may have: the bonus token comes on top, and the cache must be able to drop them."""
        room = min(state.limit, self.runtime.n_ctx) - len(state.tokens) - 1
        if self.control.widths:
            room = min(room, max(w for w in self.control.widths if w <= self._free(state)) - 1)
        return room if self.runtime.max_rollback is None else min(room, self.runtime.max_rollback)

    def _free(self, state: SequenceState) -> int:
        """The widest pass that the context of a sequence, and what its cache can drop again, have room for."""
        free = self.runtime.n_ctx - len(state.tokens) + 1
        return free if self.runtime.max_rollback is None else min(free, self.runtime.max_rollback + 1)

    def _rows(
        self, live: Sequence[SequenceState], drafts: Sequence[Draft], plan: Plan
    ) -> tuple[list[Draft], list[Rows]]:
        assert all(draft.is_chain for draft in drafts), "the cache of a sequence holds one line of tokens"
        chosen = [draft.select(nodes) for draft, nodes in zip(drafts, plan.nodes, strict=True)]
        padding = plan.width - len(live) - sum(map(len, chosen))
        rows = []
        for state, draft in zip(live, chosen, strict=True):
            # Padding is a sequence's own tail: it must fit its context and what its cache can drop again.
            pad = max(0, min(padding, self._free(state) - len(draft) - 1))
            padding -= pad
            tokens = [state.tokens[-1], *draft.tokens.tolist()]
            if self.control.widths:
                # Rows without an output leave the last layer early; the probe compared passes in which all stay.
                tokens, pad = tokens + tokens[-1:] * pad, 0
            rows.append(Rows(state.seq, tokens, len(state.tokens) - 1, len(tokens), pad))
        return chosen, rows

    def _limit(self, live: Sequence[SequenceState]) -> int:
        """The widest pass now. Plain decoding is one token a sequence, whatever a wider pass costs."""
        if self.control.widths:
            free = min(self.runtime.n_batch, self._free(live[0]))
            return free if self.drafters else max(self.control.widths[0], 1)
        return self.runtime.n_batch if self.drafters else len(live)

    def _commit(
        self,
        state: SequenceState,
        proposal: Proposal,
        draft: Draft,
        verdict: Verdict,
        logprobs: tuple[TokenLogprob, ...],
        result: Pass,
        times: _Times,
    ) -> Round:
        """The only place that changes a text: cache, history, drafters, estimates, in this order."""
        n_context = len(state.tokens)
        tokens, accepted = self._until_end(state, verdict)
        self.runtime.keep(state.seq, n_context + len(tokens) - 1)
        state.tokens += tokens
        proposals = self._observe(state, tokens)
        total_s = self.clock() - times.began - self._traced_s
        width = sum(result.widths)
        plain_s = self.control.plain_s(n_context)
        for asked in proposal.asked:
            if asked.drafter not in self.control.records:
                continue  # a free drafter has none
            gained = accepted if asked.drafter in proposal.authors else float(asked.draft.survival.sum())
            outcome = Outcome(
                1.0 + gained, asked.seconds, times.predicted_s, plain_s, asked.backlog, _was_right(asked.draft, tokens)
            )
            self.control.learn(asked.drafter, outcome)
        done = Round(
            state.seq,
            tokens,
            # Behind an accepted end nothing was verified.
            drafted=accepted if accepted == len(tokens) else len(draft),
            accepted=accepted,
            drafter="+".join(proposal.authors) if len(draft) else "",
            n_outputs=width if self.control.widths else 1 + len(draft),
            width=width,
            n_context=n_context,
            draft_s=times.draft_s,
            pass_s=times.pass_s,
            total_s=total_s,
            logprobs=logprobs[: len(tokens)],
        )
        if self.trace is not None:
            began = self.clock()
            self.trace.round(TracedRound(**vars(done), predicted_s=times.predicted_s, proposals=proposals))
            self._traced_s += self.clock() - began
        return done

    def _observe(self, state: SequenceState, tokens: Sequence[int]) -> tuple[tuple[Asked, ...], ...]:
        """Tells the drafters what was committed; for a trace, first asks them all at each place."""
        if self.trace is None:
            for drafter in self.drafters:
                drafter.observe(state.seq, tokens)
            return ()
        proposals = []
        began = self.clock()
        for i, token in enumerate(tokens, len(state.tokens) - len(tokens)):
            choice = state.sampler.bind(state.tokens[:i])
            proposals.append(self._drafting.everything(state.seq, choice))
            for drafter in self.drafters:
                drafter.observe(state.seq, [token])
        self._traced_s += self.clock() - began
        return tuple(proposals)

    def _until_end(self, state: SequenceState, verdict: Verdict) -> tuple[tuple[int, ...], int]:
        """The tokens up to the first that ends the text, and how many of them are accepted ones."""
        n = next((i + 1 for i, t in enumerate(verdict.tokens) if state.is_end(t)), len(verdict.tokens))
        return tuple(verdict.tokens[:n]), min(len(verdict.accepted), n)


def _was_right(draft: Draft, tokens: Sequence[int]) -> bool:
    """Whether all of a draft's tokens that can be compared are those that came."""
    return len(draft) > 0 and all(mine == true for mine, true in zip(draft.tokens.tolist(), tokens, strict=False))


def _logprobs(state: SequenceState, verdict: Verdict, rows: Logits) -> tuple[TokenLogprob, ...]:
    """What the target's raw rows say of the tokens of a verdict, if anyone wants to know."""
    if state.n_top is None:
        return ()
    behind = (0, *(1 + node for node in verdict.accepted))
    return tuple(token_logprob(rows[i], token, state.n_top) for i, token in zip(behind, verdict.tokens, strict=True))
