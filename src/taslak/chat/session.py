"""A chat as it goes: what is typed is asked or done, until it is over."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any, Protocol

from taslak.chat import commands
from taslak.chat.backend import CONTEXT, LENGTH, STOP, Backend, End
from taslak.chat.conversation import Conversation, Message
from taslak.chat.figures import Figures, Totals
from taslak.chat.screen import Screen
from taslak.chat.settings import Settings
from taslak.errors import ContextFull, TaslakError, UserError

MAKE_ROOM = "/undo takes back the last exchange, /reset begins anew"


class Typing(Protocol):
    """Where messages and commands come from: a Keyboard, or a script."""

    interactive: bool

    def read(self) -> str: ...


class Session:
    """One chat. figures: of the last finished reply; totals: of all of them."""

    def __init__(
        self,
        backend: Backend,
        screen: Screen,
        settings: Settings,
        conversation: Conversation | None = None,
        *,
        interactive: bool = True,
    ) -> None:
        """interactive: whether a person can stop a reply with Ctrl-C and go on; else it ends the chat."""
        self.backend = backend
        self.screen = screen
        self.settings = settings
        self.conversation = conversation or Conversation()
        self.figures: Figures | None = None
        self.totals = Totals()
        self.over = False
        self._interactive = interactive

    def run(self, typing: Typing) -> None:
        """Until there is no more to read, /quit, or Ctrl-C pressed twice at the prompt.

        Raises KeyboardInterrupt and UserError for what ends a chat that nobody types.
        """
        pressed = False
        while not self.over:
            try:
                text = typing.read()
                pressed = False
                self.take(text)
            except EOFError:
                if self._interactive:
                    self.screen.note("")  # the prompt's line ends
                return
            except KeyboardInterrupt:
                if not self._interactive:
                    raise
                self.screen.note("")
                if pressed:
                    return
                pressed = True
                self.screen.note("Ctrl-C once more, or Ctrl-D, ends the chat")
            except UserError as error:  # what was typed is no text
                if not self._interactive:
                    raise
                self.screen.error(str(error))

    def take(self, text: str) -> None:
        """Do a command, or answer a message. What goes wrong is told, not raised."""
        if not text.strip():
            return
        if not commands.is_command(text):
            self.ask(text.removeprefix(commands.SIGN) if text.startswith(commands.SIGN * 2) else text)
            return
        try:
            commands.run(self, text)
        except BrokenPipeError:
            raise
        except TaslakError as error:
            self.screen.error(str(error))
        except Exception as error:  # loading a model for another method
            self.screen.error(f"{type(error).__name__}: {error}")

    def change(self, **settings: Any) -> None:
        """Other settings from now on. Raises UserError for those that can't be; then they stay."""
        changed = replace(self.settings, **settings)
        self.backend.prepare(changed)
        self.settings = changed

    def ask(self, text: str, before: list[Message] | None = None) -> None:
        """Have a message answered and keep both, behind `before` (None = all messages there are).

        A reply that is stopped is kept as far as it was said. One that fails leaves the messages as they
        were.
        """
        said: list[str] = []
        end: End | None = None
        cut, failed = False, ""
        try:
            messages = self.conversation.asking(text, before)
            with closing(self.backend.stream(messages, self.settings)) as parts:
                for part in parts:
                    for piece, accepted in part.pieces:
                        said.append(piece)
                        self.screen.write(piece, accepted)
                    end = part.end or end
        except KeyboardInterrupt:
            if not self._interactive:
                self.screen.end()
                raise
            cut = True
        except BrokenPipeError:  # whoever read the replies has gone
            raise
        except ContextFull as error:
            failed = f"the context is full: {error}. {MAKE_ROOM}"
        except TaslakError as error:
            failed = str(error)
        except Exception as error:
            failed = f"{type(error).__name__}: {error}"
        self.screen.end()
        reply = "".join(said)
        if failed or (cut and not reply):
            if before is None:
                self.conversation.unanswered = text
            if failed:
                self.screen.error(failed)
                self.screen.note("(this exchange is not kept; /retry asks again)")
            else:
                self.screen.note("(stopped before anything was said; /retry asks again)")
            return
        self.conversation.answered(text, reply, cut=cut, before=before)
        if cut:
            self.screen.note("(stopped; what was said is kept)")
        elif end is not None:
            self.figures = end.figures
            self.totals.add(end.figures)
            self._tell(end.finish)

    def _tell(self, finish: str) -> None:
        """Why a reply ended, where that isn't by itself."""
        if finish == LENGTH:
            most = self.settings.max_tokens
            limit = "its most tokens" if most is None else f"its most tokens, {most}"
            self.screen.note(f"(the reply ends at {limit}: --max-tokens, or the end of the context)")
        elif finish == CONTEXT:
            self.screen.note(f"(the context is full: {MAKE_ROOM})")
        elif finish != STOP:
            self.screen.note(f"(the reply ended: {finish})")
