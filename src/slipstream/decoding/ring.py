"""The round: draft → forward → verify → commit, for any number of sequences in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .choice import Sampler
from .control import Control
from .cost import Clock
from .draft import EMPTY, Draft
from .logprobs import TokenLogprob, token_logprob
from .protocols import Drafter, Logits, Pass, Rows, Runtime
from .statistics import Round
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

    @property
    def ended(self) -> bool:
        return len(self.tokens) >= self.limit or self.is_end(self.tokens[-1])


@dataclass(frozen=True)
class _Proposal:
    draft: Draft
    drafter: str
    asked: tuple[tuple[str, Draft, float], ...]
    """Everyone who was asked: name, draft, seconds."""


class Ring:
    """Runs rounds over one runtime. Drafters are asked in the order given, the free ones first."""

    def __init__(self, runtime: Runtime, drafters: Sequence[Drafter], control: Control, clock: Clock) -> None:
        self.runtime = runtime
        self.drafters = drafters if runtime.max_rollback != 0 else ()
        self.control = control
        self.clock = clock

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
        state.tokens = list(prompt)
        token = state.sampler.bind(state.tokens)(result.logits[0][0], ())
        logprobs = _logprobs(state, Verdict((), (token,)), result.logits[0])
        state.tokens.append(token)
        for drafter in self.drafters:
            drafter.begin(state.seq, state.tokens)
        took = self.clock() - began
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
        proposals = [self._draft(state, len(live)) for state in live]
        drafts, rows = self._plan(live, [p.draft for p in proposals])
        drafted = self.clock()
        try:
            result = self.runtime.forward(rows)
            passed = self.clock()
            verdicts = [
                verify(draft, logits[: 1 + len(draft)], state.sampler.bind(state.tokens))
                for state, draft, logits in zip(live, drafts, result.logits, strict=True)
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
        times = began, drafted, passed
        rounds = [
            self._commit(state, proposal, draft, verdict, said, result, times)
            for state, proposal, draft, verdict, said in zip(live, proposals, drafts, verdicts, logprobs, strict=True)
        ]
        self.control.done(result.widths, passed - drafted, self.clock() - passed, sum(len(r.tokens) for r in rounds))
        return rounds

    def _draft(self, state: SequenceState, n_live: int) -> _Proposal:
        """The most promising draft for a sequence; later drafters are asked only where control sees a gain."""
        room = self._room(state) // n_live if self.runtime.max_rollback is not None else self._room(state)
        best, author, rate = EMPTY, "", 0.0
        asked: list[tuple[str, Draft, float]] = []
        choice = state.sampler.bind(state.tokens)
        if choice.draws:
            # A drawn draft is verified whole: all of them must fit into one pass.
            room = min(room, self.runtime.n_batch // n_live - 1)
        for drafter in self.drafters:
            budget = self.control.budget(drafter.name, room, rate)
            if budget is None:
                continue
            began = self.clock()
            draft = drafter.propose(state.seq, budget, choice)
            seconds = self.clock() - began
            # Drafts are in topological order: the head of one that is too long is a draft.
            draft = draft.select(range(min(len(draft), budget.max_tokens)))
            self.control.asked(drafter.name, seconds)
            asked.append((drafter.name, draft, seconds))
            if len(draft) and draft.q is not None:
                # Its tokens were drawn: to prefer another draft now would be to choose by what was drawn.
                best, author = draft, drafter.name
                break
            draft_rate = self.control.rate(draft) if len(draft) and len(self.drafters) > 1 else 0.0
            if len(draft) and draft_rate >= rate:
                best, author, rate = draft, drafter.name, draft_rate
        return _Proposal(best, author, tuple(asked))

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

    def _plan(self, live: Sequence[SequenceState], drafts: Sequence[Draft]) -> tuple[list[Draft], list[Rows]]:
        assert all(draft.is_chain for draft in drafts), "the cache of a sequence holds one line of tokens"
        plan = self.control.plan(drafts, self._limit(live))
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
        proposal: _Proposal,
        draft: Draft,
        verdict: Verdict,
        logprobs: tuple[TokenLogprob, ...],
        result: Pass,
        times: tuple[float, float, float],
    ) -> Round:
        """The only place that changes a text: cache, history, drafters, estimates, in this order."""
        began, drafted, passed = times
        n_context = len(state.tokens)
        tokens, accepted = self._until_end(state, verdict)
        self.runtime.keep(state.seq, n_context + len(tokens) - 1)
        state.tokens += tokens
        for drafter in self.drafters:
            drafter.observe(state.seq, tokens)
        total = self.clock() - began
        width = sum(result.widths)
        n_outputs = width if self.control.widths else 1 + len(draft)
        for name, proposed, seconds in proposal.asked:
            gained = 1.0 + accepted if name == proposal.drafter else 1.0 + float(proposed.survival.sum())
            self.control.learn(name, gained, seconds, passed - drafted)
        author = proposal.drafter if len(draft) else ""
        n_drafted = accepted if accepted == len(tokens) else len(draft)  # behind an accepted end nothing was verified
        return Round(
            state.seq,
            tokens,
            n_drafted,
            accepted,
            author,
            n_outputs,
            width,
            n_context,
            drafted - began,
            passed - drafted,
            total,
            logprobs[: len(tokens)],
        )

    def _until_end(self, state: SequenceState, verdict: Verdict) -> tuple[tuple[int, ...], int]:
        """The tokens up to the first that ends the text, and how many of them are accepted ones."""
        n = next((i + 1 for i, t in enumerate(verdict.tokens) if state.is_end(t)), len(verdict.tokens))
        return tuple(verdict.tokens[:n]), min(len(verdict.accepted), n)


def _logprobs(state: SequenceState, verdict: Verdict, rows: Logits) -> tuple[TokenLogprob, ...]:
    """What the target's raw rows say of the tokens of a verdict, if anyone wants to know."""
    if state.n_top is None:
        return ()
    behind = (0, *(1 + node for node in verdict.accepted))
    return tuple(token_logprob(rows[i], token, state.n_top) for i, token in zip(behind, verdict.tokens, strict=True))
