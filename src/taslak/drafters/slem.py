"""String-level exact match: a draft of the text that another vocabulary's model would write, in the target's
tokens.

Nothing is drawn: the text is the likeliest, token by token, and what it is cut into is one-hot.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from torch import Tensor

from taslak.core.draft import Draft
from taslak.drafters.base import View, common_prefix
from taslak.drafters.reader import Reading
from taslak.drafters.vocabularies import Vocabularies

TRIES = 16
"""Tokens of the draft model tried under a constraint, the likeliest first."""


@dataclass(slots=True)
class Rewritten:
    """Grows such a draft (see reader.Growing).

    size:       of the draft's vocabulary
    before, pending: `open` and `pending` of the Translation. The text begins with what is pending, or it
                doesn't go on from where the committed tokens end
    depth:      tokens of the target that are enough
    most:       tokens of the draft model
    stop_below: as in Budget
    said:       tokens of the draft model, which spell `text`
    ends:       bytes of the text after each of them, and how likely the text is until there
    tokens:     of the target
    """

    view: View
    reading: Reading
    words: Vocabularies
    size: int
    before: bytes
    pending: bytes
    depth: int
    most: int
    stop_below: float
    said: list[int] = field(default_factory=list)
    text: bytes = b""
    ends: list[tuple[int, float]] = field(default_factory=lambda: [(0, 1.0)])
    tokens: list[int] = field(default_factory=list)
    over: bool = False

    @property
    def next(self) -> int:
        return self.said[-1]

    @property
    def passes(self) -> int:
        """Of the draft model."""
        return max(len(self.said), 1)

    @property
    def done(self) -> bool:
        return (
            self.over
            or len(self.tokens) >= self.depth
            or len(self.said) >= self.most
            or self.ends[-1][1] < self.stop_below
        )

    def expand(self, logits: Tensor) -> None:
        """See reader.Growing."""
        row = logits[: self.size]
        # where a constraint forbids the likeliest the next ones are tried
        tries = 1 if self.view.matcher is None else min(TRIES, self.size)
        best = row.topk(tries)
        shares = (best.values - row.logsumexp(-1)).exp()
        for token, share in zip(best.indices.tolist(), shares.tolist(), strict=True):
            if share > 0.0 and self._said(token, self.ends[-1][1] * share):  # or NaN
                return
        self.over = True

    def _said(self, token: int, joint: float) -> bool:
        """Take a token of the draft model; whether that left anything to draft, or may yet."""
        spelled = self.words.drafted(token)
        if not spelled:
            return self._close(token, joint)
        text, pending = self.text + spelled, self.pending
        if not text.startswith(pending[: len(text)]):
            return False
        tokens = self.words.continued(self.before, text[len(pending) :])
        if tokens is None and text.strip():
            # no more text would bring a token's end to where the committed tokens end: they mean another one
            self.tokens = []
            return False
        if not self._admitted(tokens or []):
            return False
        self.tokens = tokens or []
        self.text = text
        self.said.append(token)
        self.ends.append((len(text), joint))
        return True

    def _close(self, special: int, joint: float) -> bool:
        """The draft model says what is no text, such as that the text is over."""
        other = self.words.counterpart(special)
        length = len(self.pending) + sum(len(self.words.spelled(token)) for token in self.tokens)
        if other is None or length != len(self.text) or not self._admitted([*self.tokens, other]):
            return False
        self.over = True
        self.tokens.append(other)
        self.ends.append((len(self.text), joint))
        return True

    def _admitted(self, tokens: list[int]) -> bool:
        """Whether the request's constraint lets all of them come."""
        known = common_prefix(self.tokens, tokens)  # these were admitted before
        return all(self.view.admits(tokens[: end + 1]) for end in range(known, len(tokens)))

    def draft(self) -> Draft:
        confidence, end = [], len(self.pending)
        for token in self.tokens:
            end += len(self.words.spelled(token))
            confidence.append(self.ends[min(bisect_left(self.ends, (end,)), len(self.ends) - 1)][1])
        return Draft.chain(self.tokens[: self.depth], confidence=confidence[: self.depth])
