"""A draft model with another tokenizer than the target's (Timor et al. 2025, "Accelerating LLM Inference with
Lossless Speculative Decoding Algorithms for Heterogeneous Vocabularies").

It reads the committed text in its own tokens; what it says becomes tokens of the target in one of two ways,
`tli` and `slem`. Costs a pass of the draft model for each token of its own, and a few hundred bytes to be cut
into tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from taslak.core.draft import EMPTY, Draft
from taslak.drafters.base import Budget, Drafter, DrafterOptions, View, register
from taslak.drafters.choice import Chooser
from taslak.drafters.draft_model import Comb
from taslak.drafters.reader import Reading, ReadsAlong, grow
from taslak.drafters.slem import Rewritten
from taslak.drafters.tli import Shared
from taslak.drafters.translation import Translation
from taslak.drafters.vocabularies import Vocabularies, vocabularies
from taslak.errors import OptionError
from taslak.models.target import Target

TLI, SLEM = "tli", "slem"
METHODS = {"auto": "cross-vocab", TLI: TLI, SLEM: SLEM}
"""The registered method of each way; "auto" goes by what either was worth in this answer."""

SHORTER = 2
"""Tokens of the draft model that one of the target's may take."""

PRIORS = {SLEM: (1.6, 5.0), TLI: (1.1, 5.0)}
"""Of a draft, before an answer has shown any: right tokens, and passes of the draft model. Seen with five
tokens a draft, SmolLM2 135M for Qwen2.5-Coder 1.5B: code, an edit, prose, JSON and a translation, greedy and
at temperature 0.8. At 1.2 the second is the better one in prose."""
WEIGHT, MEMORY = 2.0, 16.0
"""Drafts that this counts for; drafts after which a draft counts for a third."""
PROBE = 16
"""Every so many-th draft is made in the way that seems the worse."""


@dataclass(slots=True)
class _Worth:
    """What drafts in one way were worth in one answer. right: tokens; passes: of the draft model."""

    right: float
    passes: float
    drafts: float = WEIGHT

    def record(self, right: int, passes: int) -> None:
        keep = 1.0 - 1.0 / MEMORY
        self.right = keep * self.right + right
        self.passes = keep * self.passes + passes
        self.drafts = keep * self.drafts + 1.0

    def rate(self, price: float) -> float:
        """Tokens for the time they take, where a pass of the target takes `price` of the draft model's."""
        return (self.right + self.drafts) / (self.passes + price * self.drafts)


@dataclass(slots=True)
class _Tried:
    """A draft that the text to come will judge. at: the position of its first token."""

    way: str
    draft: Draft
    passes: int
    at: int


@dataclass(slots=True)
class _State:
    """Of one sequence; nothing of it is seen by another."""

    translation: Translation
    reading: Reading = field(default_factory=Reading)
    worth: dict[str, _Worth] = field(default_factory=dict)
    last: _Tried | None = None
    drafts: int = 0

    def judge(self, tokens: Sequence[int]) -> None:
        """Score the last draft by what was committed since, once that says all of it."""
        last = self.last
        if last is None:
            return
        text = tokens[last.at : last.at + last.draft.depth]
        right = last.draft.agreement(text)
        if right < len(text) or len(text) >= last.draft.depth:
            self.worth[last.way].record(right, last.passes)
            self.last = None

    def way(self, ways: Sequence[str], price: float) -> str:
        """The one to draft in now. price: see _Worth.rate"""
        for each in ways:
            if each not in self.worth:
                right, passes = PRIORS[each]
                self.worth[each] = _Worth(WEIGHT * right, WEIGHT * passes)
        best, *others = sorted(ways, key=lambda each: -self.worth[each].rate(price))
        self.drafts += 1
        return others[0] if others and self.drafts % PROBE == 0 else best


class CrossVocab(ReadsAlong):
    """Drafts with a model that reads the target's text, not its tokens."""

    def __init__(
        self,
        draft: Target,
        vocab_size: int,
        words: Vocabularies,
        branch: int = 1,
        ways: Sequence[str] = (SLEM, TLI),
        price: float = 8.0,
    ) -> None:
        """vocab_size: the target's; ids from there on are never drafted. words: of both models. branch: of
        drafts by TLI; those by SLEM are lines. price: of the target's pass in passes of the draft model,
        about."""
        super().__init__(draft)
        self._price = price
        self._words = words
        self._size = draft.vocab_size
        self._branch = branch
        self._ways = ways
        self._ids = words.draft_ids.to(draft.device)
        self._chooser = Chooser(vocab_size, words.target_ids.to(draft.device))

    def propose(self, views: Sequence[View], budgets: Sequence[Budget]) -> list[Draft]:
        started = [self._start(view, budget) for view, budget in zip(views, budgets, strict=True)]
        grow(self.reader, [growing for growing in started if growing is not None])
        drafts = []
        for view, growing in zip(views, started, strict=True):
            drafts.append(EMPTY if growing is None else growing.draft())
            if growing is not None:
                way = TLI if isinstance(growing, Shared) else SLEM
                view.state.last = _Tried(way, drafts[-1], growing.passes, view.position)
        return drafts

    def lag(self, view: View) -> int:
        return self.reader.lag(self._state(view).reading)

    def forget(self, view: View) -> None:
        if view.state is not None:
            self.reader.forget(view.state.reading)
            view.state = None

    def _start(self, view: View, budget: Budget) -> Shared | Rewritten | None:
        """None where it can't serve: nothing to draft, its context or the memory is full, or what it would
        have to go on from is half a code point."""
        state = self._state(view)
        state.judge(view.tokens)
        room = self.reader.room(state.reading.text)
        depth = min(budget.depth, budget.nodes, room)
        # tokens of one vocabulary end at bytes within a code point that those of another don't end at
        ways = [way for way in self._ways if way != TLI or not state.translation.pending]
        if depth <= 0 or not ways:
            return None
        way = state.way(ways, self._price)
        most = depth if way == TLI else min(SHORTER * depth, room)
        if not self.reader.ready(state.reading, most):
            return None
        if way == TLI:
            comb = Comb(view, replace(budget, depth=depth))
            return Shared(state.reading, comb, self._branch, self._words, self._chooser, self._ids)
        return Rewritten(
            view,
            state.reading,
            self._words,
            self._size,
            state.translation.open,
            state.translation.pending,
            depth,
            most,
            budget.stop_below,
        )

    def _state(self, view: View) -> _State:
        """What is remembered of a sequence, brought to its tokens."""
        if view.state is None:
            view.state = _State(Translation(self._words))
        state: _State = view.state
        state.translation.follow(view.tokens)
        state.reading.text = state.translation.ids
        return state


def _built(target: Target, options: DrafterOptions, ways: Sequence[str]) -> Drafter:
    draft, tokenizers = options.draft, options.tokenizers
    if draft is None or tokenizers is None:
        raise OptionError("drafting across vocabularies needs a draft model and both models' tokenizers")
    words = vocabularies(*tokenizers, target.vocab_size, draft.vocab_size)
    price = target.pass_bytes / draft.pass_bytes
    return CrossVocab(draft, target.vocab_size, words, options.branch, ways, price)


@register("cross-vocab", needs_draft=True, crosses=True)
def _auto(target: Target, options: DrafterOptions) -> Drafter:
    return _built(target, options, (SLEM, TLI))


@register("slem", needs_draft=True, crosses=True, trees=False)
def _slem(target: Target, options: DrafterOptions) -> Drafter:
    return _built(target, options, (SLEM,))


@register("tli", needs_draft=True, crosses=True)
def _tli(target: Target, options: DrafterOptions) -> Drafter:
    return _built(target, options, (TLI,))
