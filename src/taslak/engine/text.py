"""From tokens to text that is safe to show: whole code points, nothing a stop string may still swallow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Decodes(Protocol):
    """The part of a tokenizer this file needs."""

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str: ...


class TextStream:
    """One answer's text, grown token by token.

    `push` returns what became safe to show; `text` is all of it so far. Concatenated pieces and the final
    text are the same string because nothing else ever produces text.
    """

    def __init__(self, tokenizer: Decodes, stops: Sequence[str] = (), before: Sequence[int] = ()) -> None:
        """`before`: the prompt's last token, so that tokenizers which strip a leading space keep this one."""
        self._tokenizer = tokenizer
        self._stops = [stop for stop in stops if stop]
        self._ids = list(before[-1:])
        self._start = 0  # ids before it no longer influence what is decoded
        self._read = len(self._ids)  # ids before it end on a whole code point
        self._done = self._length()  # characters of decode(ids[start:]) that have been released
        self._held = ""  # text that may be the beginning of a stop string
        self.text = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """Take one more token. Sets `stopped` when a stop string is complete; text then ends before it."""
        self._ids.append(token)
        decoded = self._tokenizer.decode(self._ids[self._start :])
        # trailing replacement characters are a code point whose other bytes are still to come
        whole = decoded.rstrip(_REPLACEMENT)
        new = whole[self._done :]
        self._done = max(self._done, len(whole))
        if len(whole) == len(decoded):
            self._start, self._read = self._read, len(self._ids)
            self._done = self._length()
        return self._release(new)

    def finish(self) -> str:
        """No more tokens will come: give up waiting and return what was held back."""
        if self.stopped:
            return ""
        rest = self._tokenizer.decode(self._ids[self._start :])[self._done :]
        self._done += len(rest)
        shown = self._release(rest)
        if not self.stopped:
            shown += self._held
            self.text += self._held
            self._held = ""
        return shown

    def _length(self) -> int:
        return len(self._tokenizer.decode(self._ids[self._start :]))

    def _release(self, new: str) -> str:
        buffer = self._held + new
        hits = [at for stop in self._stops if (at := buffer.find(stop)) >= 0]
        if hits:
            self.stopped = True
            shown, self._held = buffer[: min(hits)], ""
        else:
            keep = max((_overlap(buffer, stop) for stop in self._stops), default=0)
            shown, self._held = buffer[: len(buffer) - keep], buffer[len(buffer) - keep :]
        self.text += shown
        return shown


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
