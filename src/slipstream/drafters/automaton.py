"""An online suffix automaton over token ids: every substring of a text, with counts and likeliest continuations.

A. Blumer et al., "The smallest automaton recognizing the subwords of a text", 1985. Each state stands for the
substrings that end at the same positions; its link leads to the longest suffix that also ends elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator

MAX_LINKS = 8
"""Links followed a token: counts of shorter suffixes than these are left behind, and appending stays constant."""


class SuffixAutomaton:
    """Grows by one token in amortised constant time and at most two states.

    `length[s]` is the length of the longest substring of state s, `count[s]` how often it has occurred,
    `followed[s]` how often a token has followed it (its occurrence at the end of the text has none yet), `best[s]`
    the token that has followed it most often (the latest of equals), and `best_count[s]` how often that one has.
    """

    def __init__(self) -> None:
        self.next: list[dict[int, int]] = [{}]
        self.link = [-1]
        self.length = [0]
        self.count = [0]
        self.followed = [0]
        self.best = [-1]
        self.best_count = [0]
        self.last = 0

    def __len__(self) -> int:
        return self.length[self.last]

    def suffixes(self, state: int) -> Iterator[int]:
        """The state and those of its ever shorter suffixes, without the empty one; `MAX_LINKS` at most."""
        for _ in range(MAX_LINKS):
            if state <= 0:
                return
            yield state
            state = self.link[state]

    def longest_repeated_suffix(self) -> int:
        """The state of the longest suffix of the text that occurs elsewhere too; 0 if none does."""
        return max(self.link[self.last], 0)

    def append(self, token: int) -> None:
        before = self.last
        self._extend(token)
        self._count(before, token)

    def end_text(self, mark: int) -> None:
        """Ends a text, so that nothing matches across. The mark must stand nowhere else; it is no continuation."""
        self._extend(mark)

    def _extend(self, token: int) -> None:
        before = self.last
        state = self._add_state(self.length[before] + 1)
        at = before
        while at != -1 and token not in self.next[at]:
            self.next[at][token] = state
            at = self.link[at]
        if at == -1:
            self.link[state] = 0
        else:
            self.link[state] = self._split(at, token)
        self.last = state

    def _add_state(self, length: int) -> int:
        self.next.append({})
        self.link.append(-1)
        self.length.append(length)
        self.count.append(0)
        self.followed.append(0)
        self.best.append(-1)
        self.best_count.append(0)
        return len(self.next) - 1

    def _split(self, at: int, token: int) -> int:
        """The state of (longest substring of `at`) + token; cut out of a longer one where there is none yet."""
        whole = self.next[at][token]
        if self.length[at] + 1 == self.length[whole]:
            return whole
        part = self._add_state(self.length[at] + 1)
        self.next[part] = dict(self.next[whole])
        for field in (self.link, self.count, self.followed, self.best, self.best_count):
            field[part] = field[whole]
        self.link[whole] = part
        while at != -1 and self.next[at].get(token) == whole:
            self.next[at][token] = part
            at = self.link[at]
        return part

    def _count(self, before: int, token: int) -> None:
        for state in self.suffixes(self.last):
            self.count[state] += 1
        for state in self.suffixes(before):
            self.followed[state] += 1
            n = self.count[self.next[state][token]]
            if n >= self.best_count[state]:
                self.best[state], self.best_count[state] = token, n
