"""What was said: messages, taken back and kept in files. Knows nothing about who answers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taslak.errors import OptionError, PromptError
from taslak.models.tokenizer import require_text

SYSTEM, USER, ASSISTANT = "system", "user", "assistant"

EXPECTED = f'expected [{{"role": "{SYSTEM}|{USER}|{ASSISTANT}", "content": text}}, ...]'


@dataclass(frozen=True, slots=True)
class Message:
    """cut: a reply that was stopped; only its beginning was said."""

    role: str
    content: str
    cut: bool = False

    @property
    def sent(self) -> dict[str, str]:
        """As a model is given it."""
        return {"role": self.role, "content": self.content}


@dataclass(slots=True)
class Conversation:
    """messages:   without the system message, the oldest first; ends with a reply, or is empty
    system:     what the model is told beforehand
    unanswered: the last message, where it got no reply; not among the messages, so that sending it again
                doesn't double it
    """

    messages: list[Message] = field(default_factory=list)
    system: str | None = None
    unanswered: str | None = None

    def asking(self, text: str, before: list[Message] | None = None) -> list[dict[str, str]]:
        """What a model is given to answer `text`. before: the messages so far, None = all there are.

        Raises PromptError for text that is no UTF-8.
        """
        system = [] if self.system is None else [Message(SYSTEM, self.system)]
        before = self.messages if before is None else before
        messages = [message.sent for message in (*system, *before, Message(USER, text))]
        for message in messages:
            require_text(message["content"], "a message")
        return messages

    def answered(self, text: str, reply: str, *, cut: bool, before: list[Message] | None = None) -> None:
        """Keep a message and its reply, behind `before`."""
        before = self.messages if before is None else before
        self.messages = [*before, Message(USER, text), Message(ASSISTANT, reply, cut)]
        self.unanswered = None

    def last(self) -> tuple[str, list[Message]] | None:
        """The user's last message and all that was said before it; None where there is none."""
        for at in range(len(self.messages) - 1, -1, -1):
            if self.messages[at].role == USER:
                return self.messages[at].content, self.messages[:at]
        return None

    def reset(self) -> None:
        """Forget all but the system message."""
        self.messages, self.unanswered = [], None

    def save(self, path: Path, *, overwrite: bool = False) -> int:
        """Write the messages as JSON; how many. Raises OptionError for a file that is there, unless it may be
        overwritten, and for one that can't be written."""
        system = [] if self.system is None else [Message(SYSTEM, self.system)]
        rows = [{**m.sent, **({"cut": True} if m.cut else {})} for m in (*system, *self.messages)]
        # a lone surrogate's backslash form is JSON's too
        text = json.dumps(rows, indent=2, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
        try:
            if not overwrite:
                with path.open("xb") as file:
                    file.write(text)
            else:  # as a whole or not at all
                partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
                partial.write_bytes(text)
                os.replace(partial, path)
        except FileExistsError:
            raise OptionError(f"{path} is there already: name another file, or overwrite it") from None
        except OSError as error:
            raise OptionError(f"{path} can't be written: {error.strerror or error}") from None
        return len(rows)

    def load(self, path: Path) -> int:
        """Go on from a file of messages instead; how many. A last message without a reply is unanswered.

        Raises PromptError, naming file and message, for anything else; then everything is as before.
        """
        messages = list(_read(path))
        system = messages.pop(0).content if messages and messages[0].role == SYSTEM else None
        count = len(messages) + (system is not None)
        unanswered = messages.pop().content if messages and messages[-1].role == USER else None
        self.messages, self.system, self.unanswered = messages, system, unanswered
        return count


def _read(path: Path) -> Iterable[Message]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise PromptError(f"{path} can't be read: {error.strerror or error}") from None
    except ValueError as error:
        raise PromptError(f"{path} is not JSON ({error}); {EXPECTED}") from None
    except RecursionError:
        raise PromptError(f"{path} is nested too deeply; {EXPECTED}") from None
    if not isinstance(rows, list):
        raise PromptError(f"{path} holds a JSON {type(rows).__name__}; {EXPECTED}")
    for number, row in enumerate(rows, start=1):
        yield _message(row, f"{path}, message {number}", first=number == 1)


def _message(row: Any, where: str, *, first: bool) -> Message:
    if not isinstance(row, dict) or not isinstance(row.get("content"), str):
        raise PromptError(f"{where}: no text in it; {EXPECTED}")
    role, cut = row.get("role"), row.get("cut", False)
    if role not in (SYSTEM, USER, ASSISTANT) or (role == SYSTEM and not first):
        place = " behind the first message" if role == SYSTEM else ""
        raise PromptError(f"{where}: its role is {role!r}{place}; {EXPECTED}")
    if not isinstance(cut, bool):
        raise PromptError(f'{where}: "cut" is {cut!r}; expected true or false')
    return Message(role, row["content"], cut)
