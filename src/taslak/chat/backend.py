"""Who answers: the protocol between a conversation and a model, here or elsewhere."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

from taslak.chat.figures import Figures
from taslak.chat.settings import Settings

Messages = Seq[Mapping[str, str]]
"""{"role", "content"} each, the oldest first."""

STOP, LENGTH, CONTEXT = "stop", "length", "context"
"""Why a reply ended: it was complete, it had its most tokens, the context is full."""


@dataclass(frozen=True, slots=True)
class End:
    """How a reply ended. finish: STOP, LENGTH, CONTEXT, or a server's own word."""

    finish: str
    figures: Figures


@dataclass(frozen=True, slots=True)
class Part:
    """What has just been decided of a reply.

    pieces: text, each with whether it came from an accepted draft (False where that isn't known)
    end:    on the last part, else None
    """

    pieces: tuple[tuple[str, bool], ...] = ()
    end: End | None = None


class Backend(Protocol):
    """Answers messages. It remembers none of them."""

    @property
    def title(self) -> str:
        """Who answers, and how, for a person."""
        ...

    def prepare(self, settings: Settings) -> None:
        """Get ready to answer with these settings. Raises UserError for what it can't do; then everything is
        as before."""
        ...

    def stream(self, messages: Messages, settings: Settings) -> Generator[Part, None, None]:
        """One reply; the last part has an end. Closing the iterator stops it.

        Raises ContextFull for messages that leave no room for a reply, and other TaslakErrors for a reply
        that can't be given, or not to its end.
        """
        ...
