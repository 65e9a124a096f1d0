"""A suffix automaton over prompt and output: what followed the longest earlier occurrence, by frequency.

SuffixDecoding (Oliaro et al. 2024) with the online construction of Blumer et al. 1985 in place of a tree.
Each sequence has its own automaton, in `view.state`; nothing is shared between sequences.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import islice

from taslak.core.draft import EMPTY, ROOT, Draft
from taslak.drafters.base import Budget, Drafter, DrafterOptions, Needs, Report, View, register
from taslak.drafters.ngram import Context
from taslak.models.target import Target

FLOOR = 0.1
"""Nodes less likely than this are not drafted, however large the budget."""

CONTEXT = 64
"""Longest context looked at, in tokens. Longer ones hardly predict better, and counting them costs a walk."""

FOLLOWERS = 256
"""Followers of one context that are ranked: its first so many. One that makes up FLOOR or more of a context
has nearly always shown up by then; without the bound a frequent token would make a step cost O(context)."""

NEW = 2.0
"""Occurrences that a follower never seen before counts for, per follower seen and per token of context. With
2 a first token given confidence 0.5 came true 0.3 to 0.6 of the time in code, licences and prose."""

LIMIT = 65_536
"""Most tokens an automaton holds; past it, it starts over with the newer half."""

_BEGIN = 0


class Automaton:
    """The suffix automaton of one text, with occurrence counts that are exact after every token.

    A state stands for all strings with the same set of end positions; they are suffixes of one another, of
    `length[link] + 1` to `length` tokens. At most 2n states and 3n transitions for n tokens.

    Adding a token gives one more occurrence to every suffix, which are the states on the link path of the
    newest: n of them in periodic text. So only strings of up to `longest` + 1 tokens, a context and the token
    after it, are counted, and the walk starts at the state of the newest such suffix: at most `longest` + 1
    steps a token, a handful in prose. States whose strings are all longer keep meaningless numbers and are
    never asked.

    longest: tokens of the longest context asked for
    next:    [states] token -> state, in order of first appearance
    link:    [states] the state of the longest suffix with more occurrences; the empty string links to itself
    length:  [states] tokens of its longest string
    count:   [states] occurrences
    recent:  [states] tokens up to and including the latest occurrence
    size:    tokens added
    """

    def __init__(self, longest: int = CONTEXT) -> None:
        self.longest = longest
        self.next: list[dict[int, int]] = [{}]
        self.link = [_BEGIN]
        self.length = [0]
        self.count = [0]
        self.recent = [0]
        self.size = 0
        self._newest = _BEGIN  # the state of the whole text
        self._counted = _BEGIN  # the state of its last `longest` + 1 tokens

    def push(self, token: int) -> None:
        """Add one token. Amortised O(1) for the states, at most `longest` + 1 steps for the counts."""
        self.size += 1
        newest = self._add({}, link=_BEGIN, length=self.size, count=0, recent=0)
        state = self._newest
        while token not in self.next[state]:
            self.next[state][token] = newest
            if state == _BEGIN:
                break
            state = self.link[state]
        else:
            self.link[newest] = self._split(state, token)
        self._newest = newest
        self._counted = self.within(self.next[self._counted][token], self.longest + 1)
        state = self._counted
        while state != _BEGIN:
            self.count[state] += 1
            self.recent[state] = self.size
            state = self.link[state]

    def within(self, state: int, longest: int) -> int:
        """The state of the last `longest` tokens of `state`'s strings; itself where they are shorter."""
        while state != _BEGIN and self.length[self.link[state]] >= longest:
            state = self.link[state]
        return state

    def match(self) -> tuple[int, int]:
        """The longest suffix, of up to `longest` tokens, that occurred before: its state and its length.
        Length 0 where not even the last token did."""
        return self.earlier(self.within(self._counted, self.longest), min(self.size, self.longest))

    def earlier(self, state: int, length: int) -> tuple[int, int]:
        """Itself, or the longest suffix that was ever followed where this one only ends the text."""
        if state != self._newest:
            return state, length
        return self.link[state], self.length[self.link[state]]

    def follow(self, state: int, length: int, token: int) -> tuple[int, int]:
        """One token further, the context cut to `longest` tokens again."""
        length = min(length + 1, self.longest)
        return self.within(self.next[state][token], length), length

    def followed(self, state: int) -> int:
        """How often a string of this state was followed by a token: all its occurrences but one that ends
        the text."""
        return self.count[state] - (self.recent[state] == self.size)

    def _split(self, state: int, token: int) -> int:
        """The state of exactly the longest string of `state` and `token`, cloned out of a state that holds
        longer ones as well."""
        whole = self.next[state][token]
        length = self.length[state] + 1
        if self.length[whole] == length:
            return whole
        part = self._add(
            dict(self.next[whole]), self.link[whole], length, self.count[whole], self.recent[whole]
        )
        self.link[whole] = part
        while self.next[state].get(token) == whole:
            self.next[state][token] = part
            if state == _BEGIN:
                break
            state = self.link[state]
        return part

    def _add(self, following: dict[int, int], link: int, length: int, count: int, recent: int) -> int:
        self.next.append(following)
        self.link.append(link)
        self.length.append(length)
        self.count.append(count)
        self.recent.append(recent)
        return len(self.link) - 1


class SuffixIndex:
    """The automaton of the last LIMIT tokens of one text, at most, and what it was built over.

    Memory is 0.4 to 0.7 kB a token, so at most about 45 MB a sequence. An automaton can't be popped, so a
    text that does not extend the last one is read again, which costs at most LIMIT tokens (microseconds
    each). Which tokens it holds depends on the text alone, never on the calls before.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self.context = Context()
        self.automaton = Automaton()

    def update(self, tokens: list[int]) -> Automaton:
        """Bring the automaton to this text: extend it, or read the text again."""
        known = self.context.tokens
        shared = self.context.shared(tokens)
        begin = self._begin(len(tokens))
        if shared < len(known) or begin != self._begin(len(known)):
            self.automaton = Automaton()
            known[:] = tokens[:begin]
            shared = begin
        for token in tokens[shared:]:
            known.append(token)
            self.automaton.push(token)
        self.context.show(tokens)
        return self.automaton

    def _begin(self, n: int) -> int:
        """The first token held of a text of n tokens: a multiple of half the limit."""
        half = self.limit // 2
        return max(0, -(-(n - self.limit) // half) * half)


class Suffix:
    """Proposes what followed the longest suffix that occurred before, more frequent followers first.

    A context of m tokens that was followed k times, by s different tokens, c times by x, gives x the
    confidence c / (k + 2s/m): as in prediction by partial matching (method C, Moffat 1990), something new is
    the likelier the more different tokens followed, and the less likely the longer the context. A node's
    confidence is the product down its path, the context growing with it.

    Nodes are taken best first while they have at least max(stop_below, FLOOR): a chain where the budget has
    no more nodes than depth, a tree otherwise. Followers seen equally often are ranked latest first. Where a
    path reaches the end of the text, its longest suffix that occurred before goes on, so that periodic text
    is continued.

    All tokens are one-hot, so that what is kept may depend on confidence; ids not below `vocab_size` are
    passed over.
    """

    needs = Needs()
    watch = None

    def __init__(self, vocab_size: int, limit: int = LIMIT) -> None:
        self._vocab_size = vocab_size
        self._limit = limit

    def propose(self, views: Sequence[View], budgets: Sequence[Budget]) -> list[Draft]:
        """One draft a view, its `confidence` filled; empty where the last token never occurred before.
        At most FOLLOWERS followers are looked at for each node, whatever the length of the text."""
        return [self._one(view, budget) for view, budget in zip(views, budgets, strict=True)]

    def _one(self, view: View, budget: Budget) -> Draft:
        if budget.depth <= 0 or budget.nodes <= 0:
            return EMPTY
        if not isinstance(view.state, SuffixIndex):
            view.state = SuffixIndex(self._limit)
        automaton = view.state.update(view.tokens)
        branches = 1 if budget.nodes <= budget.depth else budget.nodes
        floor = max(budget.stop_below, FLOOR)
        tokens: list[int] = []
        parents: list[int] = []
        confidence: list[float] = []
        # (−confidence, order found, token, parent, depth, state and length of its context with the token)
        open_nodes: list[tuple[float, int, int, int, int, int, int]] = []
        found = 0
        node, depth, joint = ROOT, 0, 1.0
        state, length = automaton.match()
        while True:
            if depth < budget.depth and length > 0:
                for token, share in self._followers(automaton, state, length, branches):
                    if joint * share >= floor:
                        step = automaton.follow(state, length, token)
                        heapq.heappush(open_nodes, (-joint * share, found, token, node, depth + 1, *step))
                        found += 1
            if not open_nodes or len(tokens) == budget.nodes:
                return Draft(tuple(tokens), tuple(parents), confidence=tuple(confidence))
            negative, _, token, parent, depth, state, length = heapq.heappop(open_nodes)
            node, joint = len(tokens), -negative
            tokens.append(token)
            parents.append(parent)
            confidence.append(joint)
            state, length = automaton.earlier(state, length)

    def _followers(self, automaton: Automaton, state: int, length: int, most: int) -> list[tuple[int, float]]:
        """The `most` most frequent followers with their confidence, best first."""
        following = islice(automaton.next[state].items(), FOLLOWERS)
        count, recent = automaton.count, automaton.recent
        ranked = heapq.nlargest(
            most, ((count[to], recent[to], token) for token, to in following if 0 <= token < self._vocab_size)
        )
        total = automaton.followed(state) + NEW * len(automaton.next[state]) / length
        return [(token, times / total) for times, _, token in ranked]

    def observe(self, views: Sequence[View], reports: Sequence[Report]) -> None:
        """Nothing to do: `propose` reads the committed tokens themselves."""

    def lag(self, view: View) -> int:
        """Tokens not in the automaton yet; all that it would hold where it must be read again."""
        if not isinstance(view.state, SuffixIndex):
            return min(len(view.tokens), self._limit)
        known = len(view.state.context.tokens)
        shared = view.state.context.shared(view.tokens)
        return min(len(view.tokens) - (shared if shared == known else 0), self._limit)

    def forget(self, view: View) -> None:
        """Drop the automaton."""
        view.state = None


@register("suffix", looks_up=True)
def _suffix(target: Target, _options: DrafterOptions) -> Drafter:
    return Suffix(target.vocab_size)
