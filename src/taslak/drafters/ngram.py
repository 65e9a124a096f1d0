"""Prompt lookup: what followed the last few tokens the last time they occurred.

Saxena 2023, "Prompt Lookup Decoding". No model, no training; strong wherever the answer quotes its context.
Each sequence has its own index, in `view.state`; nothing is shared between sequences.
"""

from __future__ import annotations

from collections.abc import Sequence

from taslak.core.draft import EMPTY, Draft
from taslak.drafters.base import Budget, Drafter, DrafterOptions, Needs, Report, View, register
from taslak.models.target import Target

NEVER = -1

_TAIL = 64
"""Tokens compared when a view shows the very list it showed before (see `Context.shared`)."""

_BLOCK = 1024
"""Tokens compared at once when looking for the first difference."""


class Context:
    """The tokens an index was built over, and how much of them a view still shows.

    tokens: [n] token ids, all of them committed when they were taken over
    """

    __slots__ = ("_shown", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._shown: list[int] | None = None

    def shared(self, shown: list[int]) -> int:
        """Length of the longest common prefix of `shown` and `tokens`.

        Committed tokens are never taken back, so a list that was shown before has only grown: of it the last
        64 known tokens are compared, which makes a step's cost independent of the context. Any other list is
        compared in full.
        """
        known = len(self.tokens)
        tail = max(0, known - _TAIL)
        if shown is self._shown and shown[tail:known] == self.tokens[tail:]:
            return known
        for start in range(0, known, _BLOCK):
            if shown[start : start + _BLOCK] != self.tokens[start : start + _BLOCK]:
                for i in range(start, min(known, len(shown))):
                    if shown[i] != self.tokens[i]:
                        return i
                return min(known, len(shown))
        return known

    def show(self, shown: list[int]) -> None:
        """Remember that this list was seen; `tokens` must have been brought to it."""
        self._shown = shown


class NgramIndex:
    """Where each n-gram of one text ended last.

    `last` holds an entry for every distinct n-gram, `earlier` what each token's entries replaced: it answers
    "where did this suffix end before?" and takes the newest token out again. Memory is about 1 kB a token
    with n = 1 to 8, less where the text repeats itself; each token in or out costs one entry of `last` per n.

    last:     n-gram -> tokens up to and including its latest occurrence: the index of the token after it
    earlier:  [tokens] for n = shortest, shortest + 1, …: the same for the occurrence before, NEVER = none
    """

    def __init__(self, longest: int, shortest: int) -> None:
        self.longest = longest
        self.shortest = shortest
        self.context = Context()
        self.last: dict[tuple[int, ...], int] = {}
        self.earlier: list[list[int]] = []

    def follow(self, tokens: list[int]) -> None:
        """Bring the index to exactly this text: cut to the common prefix, then index the rest."""
        shared = self.context.shared(tokens)
        while len(self.context.tokens) > shared:
            self._pop()
        for token in tokens[shared:]:
            self._push(token)
        self.context.show(tokens)

    def match(self) -> int:
        """Index of the token that followed the longest suffix that occurred before, at its latest earlier
        occurrence; NEVER where no suffix did."""
        if not self.earlier:
            return NEVER
        return next((end for end in reversed(self.earlier[-1]) if end != NEVER), NEVER)

    def _push(self, token: int) -> None:
        tokens = self.context.tokens
        tokens.append(token)
        end = len(tokens)
        earlier = []
        for n in range(self.shortest, min(self.longest, end) + 1):
            gram = tuple(tokens[end - n :])
            earlier.append(self.last.get(gram, NEVER))
            self.last[gram] = end
        self.earlier.append(earlier)

    def _pop(self) -> None:
        tokens = self.context.tokens
        end = len(tokens)
        for n, before in enumerate(self.earlier.pop(), start=self.shortest):
            gram = tuple(tokens[end - n :])
            if before == NEVER:
                del self.last[gram]
            else:
                self.last[gram] = before
        tokens.pop()


class Ngram:
    """Proposes, as a linear draft, what followed the longest suffix found earlier in the text.

    Suffixes of `longest` down to `shortest` tokens are looked up, the latest earlier occurrence first. The
    copy runs on into itself where it reaches the end of the text, so that periodic text is continued.
    Tokens are one-hot, and the draft ends before an id that is not below `vocab_size`.
    """

    needs = Needs()
    watch = None

    def __init__(self, vocab_size: int, longest: int = 8, shortest: int = 1) -> None:
        self._vocab_size = vocab_size
        self._longest = longest
        self._shortest = shortest

    def propose(self, views: Sequence[View], budgets: Sequence[Budget]) -> list[Draft]:
        """One chain a view, of min(depth, nodes) tokens; empty where no suffix occurred before."""
        return [self._one(view, budget) for view, budget in zip(views, budgets, strict=True)]

    def _one(self, view: View, budget: Budget) -> Draft:
        length = min(budget.depth, budget.nodes)
        if length <= 0:
            return EMPTY
        index = self._index(view)
        index.follow(view.tokens)
        start = index.match()
        if start == NEVER:
            return EMPTY
        period = len(view.tokens) - start
        tokens: list[int] = []
        for i in range(length):
            token = view.tokens[start + i % period]
            if not 0 <= token < self._vocab_size:
                break
            tokens.append(token)
        return Draft.chain(tokens)

    def _index(self, view: View) -> NgramIndex:
        if not isinstance(view.state, NgramIndex):
            view.state = NgramIndex(self._longest, self._shortest)
        return view.state

    def observe(self, views: Sequence[View], reports: Sequence[Report]) -> None:
        """Nothing to do: `propose` reads the committed tokens themselves."""

    def lag(self, view: View) -> int:
        """Tokens not indexed yet."""
        known = view.state.context.shared(view.tokens) if isinstance(view.state, NgramIndex) else 0
        return len(view.tokens) - known

    def forget(self, view: View) -> None:
        """Drop the index."""
        view.state = None


@register("ngram", trees=False, confident=False, looks_up=True, matches=True)
def _ngram(target: Target, options: DrafterOptions) -> Drafter:
    shortest, longest = options.ngram
    return Ngram(target.vocab_size, longest, shortest)
