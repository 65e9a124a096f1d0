"""Two tokenizers beside each other: tokens of both by the bytes they spell, and text from one to the other.

Knows nothing about models or drafts.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from functools import lru_cache

import torch

from taslak.errors import UserError
from taslak.models.tokenizer import PADDING, Tokenizer

_CHAT = [{"role": "user", "content": "ping"}, {"role": "assistant", "content": "pong"}]
"""A conversation that shows what stands around messages."""


def read_utf8(data: bytes, errors: str = "replace") -> tuple[str, bytes]:
    """The text, and the bytes at its end that only begin a code point. errors: as for `bytes.decode`, which
    may raise UnicodeDecodeError."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    return decoder.decode(data), decoder.getstate()[0]


class Vocabularies:
    """A target's tokens and those of a draft model with another tokenizer.

    begin:       draft ids that stand before every text
    special:     target ids that no text has -> what stands in their place for the draft model, None = nothing
    common:      target id -> draft id, of all tokens both have
    target_ids:  Int64[S] the same, ascending …
    draft_ids:   Int64[S] … and the draft's id of each
    """

    def __init__(self, target: Tokenizer, draft: Tokenizer, target_size: int, draft_size: int) -> None:
        """target_size, draft_size: ids from there on the models don't have."""
        self._target = target
        self._draft = draft
        self._spelled = target.spellings[:target_size]
        self._drafted = draft.spellings[:draft_size]
        around = draft.encode("", add_special=True)
        self.begin = [id for id in around if id == draft.bos_id]
        same = {id: self._draft_special(token) for id, token in target.special.items()}
        marks = _markers(target, draft)
        self.special = {id: marks.get(id) if other is None else other for id, other in same.items()}
        theirs = _by_text(draft, self._drafted)
        common = {id: theirs[text] for text, id in _by_text(target, self._spelled).items() if text in theirs}
        # a marker that both write alike goes before one that only stands in the same places
        special = {**{b: a for a, b in marks.items()}, **{b: a for a, b in same.items() if b is not None}}
        common |= {id: other for other, id in special.items() if id < target_size and other < draft_size}
        self.common = dict(sorted(common.items()))
        self._back = {other: id for id, other in common.items()}
        self.target_ids = torch.tensor(list(self.common), dtype=torch.int64)
        self.draft_ids = torch.tensor(list(self.common.values()), dtype=torch.int64)

    def spelled(self, id: int) -> bytes:
        """The text that a target's token stands for."""
        return self._spelled[id] if id < len(self._spelled) else b""

    def drafted(self, id: int) -> bytes | None:
        """The text that a draft's token stands for; None for one that no text has."""
        return None if id in self._draft.special or id >= len(self._drafted) else self._drafted[id]

    def counterpart(self, id: int) -> int | None:
        """The target's id of a draft's token, where it has the same."""
        return self._back.get(id)

    def read(self, text: str) -> list[int]:
        """Draft ids of text that the draft model has yet to read. Of a piece from the middle of a text: the
        space it begins with is part of it, whichever tokenizer would have put one there anyway."""
        if self._draft.leads_with_space:
            text = text.removeprefix(" ")
        return self._draft.encode(text, add_special=False) if text else []

    def continued(self, before: bytes, more: bytes) -> list[int] | None:
        """The target's tokens for `more` where `before`, whose tokens are fixed, comes before it: as it would
        cut the two together, up to the last whole code point. None where it would cut elsewhere than between
        the two: then it would not have begun as it did, had it meant to go on like that."""
        for context in (before, b"") if before else (b"",):
            try:
                text, _ = read_utf8(context + more, "strict")
                return self._cut(text, len(context))
            except ValueError:  # what comes before is no UTF-8, or the tokenizer rewrites it
                continue
        return []

    def _cut(self, text: str, start: int) -> list[int] | None:
        """The target's tokens from this byte of the text on, as long as they spell the text; None where none
        begins there. Raises ValueError where those before it spell another text (normal forms of Unicode)."""
        led = self._target.leads_with_space
        wanted = b" " * led + text.removeprefix(" " * led).encode()
        start += len(wanted) - len(text.encode())
        at, found = 0, []
        for id in self._target.encode(text.removeprefix(" " * led), add_special=False):
            spelled = self.spelled(id)
            if not spelled or not wanted.startswith(spelled, at):
                if at < start:
                    raise ValueError("the tokenizer rewrites the text")
                break
            if at < start < at + len(spelled):
                return None
            if at >= start:
                found.append(id)
            at += len(spelled)
        return found

    def _draft_special(self, token: str) -> int | None:
        id = self._draft.token_id(token)
        return id if id in self._draft.special else None


@lru_cache(maxsize=4)
def vocabularies(target: Tokenizer, draft: Tokenizer, target_size: int, draft_size: int) -> Vocabularies:
    """Made once for every pair: it looks at each token of both."""
    return Vocabularies(target, draft, target_size, draft_size)


def _by_text(tokenizer: Tokenizer, spellings: Sequence[bytes]) -> dict[bytes, int]:
    """Ids by what they spell, of all that text may have. Where two spell the same the later one is what text
    is cut into: vocabularies begin with single bytes, which only stand in for what has no token."""
    return {
        spelled: id
        for id, spelled in enumerate(spellings)
        if spelled and id not in tokenizer.special and not _pads(spelled)
    }


def _pads(spelled: bytes) -> bool:
    return spelled[:1] in b"[<" and PADDING.fullmatch(spelled.decode(errors="replace")) is not None


def _markers(target: Tokenizer, draft: Tokenizer) -> dict[int, int]:
    """By the two chat templates, the special tokens that stand right before and right after messages."""
    try:
        ours, theirs = _around(target), _around(draft)
    except UserError:  # no template, or one that wants other conversations
        return {}
    return {a: b for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None}


def _around(tokenizer: Tokenizer) -> list[int | None]:
    """Of each message of a conversation the last special token before it and the first one after it."""
    ids = tokenizer.chat(_CHAT, add_generation_prompt=False)
    text, specials = b"", []
    for id in ids:
        if id in tokenizer.special:
            specials.append((len(text), id))
        else:
            text += tokenizer.token_bytes(id)
    found: list[int | None] = []
    for message in _CHAT:
        at = text.find(message["content"].encode())
        found.append(next((id for place, id in reversed(specials) if place <= at), None))
        found.append(next((id for place, id in specials if place > at >= 0), None))
    return found
