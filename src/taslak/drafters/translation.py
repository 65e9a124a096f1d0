"""Committed tokens of the target as tokens of a draft model with another tokenizer, kept up to date.

What comes out depends on the tokens alone, never on the steps in which they came; a step costs the same
however long the text is.
"""

from __future__ import annotations

from dataclasses import dataclass

from taslak.drafters.ngram import Context
from taslak.drafters.vocabularies import Vocabularies, read_utf8

LONG, LONGEST = 128, 512
"""Bytes of a piece of text: from the first on it ends where a word begins, at the second anywhere."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece of text that is over.

    end:   target tokens up to its end
    seen:  target tokens that say so
    ids:   draft ids up to its end
    """

    end: int
    seen: int
    ids: int


class Translation:
    """Text is cut into pieces, each encoded by itself: where a space follows something else both tokenizers
    begin a new word, so no token reaches across.

    ids:      the draft model's tokens of the text but for `pending`
    pending:  bytes at its end that only begin a code point: nothing that can be read yet
    open:     the bytes since the last piece was over, `pending` included
    """

    def __init__(self, vocabularies: Vocabularies) -> None:
        self.ids: list[int] = []
        self.pending = b""
        self.open = b""
        self._vocabularies = vocabularies
        self._context = Context()
        self._pieces: list[_Piece] = []
        self._over: list[int] = []
        """Draft ids of the pieces that are over."""

    def follow(self, tokens: list[int]) -> None:
        """Bring it to exactly these tokens of the target."""
        shared = self._context.shared(tokens)
        known = self._context.tokens
        if shared == len(tokens) == len(known) and self.ids:
            self._context.show(tokens)
            return
        while self._pieces and self._pieces[-1].seen > shared:
            self._pieces.pop()
        last = self._pieces[-1] if self._pieces else None
        self._over = [*self._vocabularies.begin] if last is None else self._over[: last.ids]
        start = 0 if last is None else last.end
        text = b""
        for i in range(start, len(tokens)):
            token = tokens[i]
            special = token in self._vocabularies.special
            spelled = self._vocabularies.spelled(token)
            if text and (special or _ends(text, spelled)):
                self._end(text, i, i + 1)
                text = b""
            if special:
                self._mark(token, i + 1)
            else:
                text += spelled
        whole, self.pending = read_utf8(text)
        self.open = text
        self.ids = self._over + self._vocabularies.read(whole)
        self._context.show(tokens)  # at the end: what can't be read is not known
        known[shared:] = tokens[shared:]

    def _end(self, text: bytes, end: int, seen: int) -> None:
        self._over += self._vocabularies.read(text.decode(errors="replace"))
        self._pieces.append(_Piece(end, seen, len(self._over)))

    def _mark(self, token: int, end: int) -> None:
        """A special token: what stands in its place, if anything does."""
        id = self._vocabularies.special[token]
        if id is not None and not (end == 1 and [id] == self._vocabularies.begin):  # both begin texts with it
            self._over.append(id)
        self._pieces.append(_Piece(end, end, len(self._over)))


def _ends(text: bytes, following: bytes) -> bool:
    """Whether a piece is over before these bytes."""
    if len(text) < LONG:
        return False
    if following[:1] == b" " and not text[-1:].isspace():
        return True
    return len(text) >= LONGEST and not read_utf8(text)[1]
