"""What the user types, or what is piped in: one message or command after another."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from taslak.chat.past import Past
from taslak.errors import PromptError

PROMPT, GOES_ON = "> ", ". "
QUOTES = '"""'


class Keyboard:
    """Standard input. At a terminal lines can be edited and earlier ones had again, if Python has readline.

    interactive: whether a person types
    """

    def __init__(self, past: Past | None = None, complain: Callable[[str], None] = print) -> None:
        """past: where typed text is kept, None = nowhere; complain: told once when that doesn't work."""
        self.interactive = sys.stdin.isatty()
        self._editor = self._past = None
        self._complain = complain
        if self.interactive and sys.stdout.isatty():
            self._editor = _editor()
        if self.interactive and past is not None:
            self._past = past
            for entry in self._try(past.entries) or ():
                self._remember(entry)

    def read(self) -> str:
        '''One message or command. A line that ends in a backslash goes on in the next; lines between """ are
        one message, whatever they begin with.

        Raises EOFError at the end, KeyboardInterrupt for Ctrl-C, PromptError for what is no text.
        '''
        lines = [self._line(PROMPT)]
        quoted = lines[0].lstrip().startswith(QUOTES)
        try:
            if quoted:
                lines[0] = lines[0].lstrip().removeprefix(QUOTES)
                while not lines[-1].rstrip().endswith(QUOTES):
                    lines.append(self._line(GOES_ON))
                lines[-1] = lines[-1].rstrip().removesuffix(QUOTES)
            else:
                while lines[-1].endswith("\\"):
                    lines[-1] = lines[-1].removesuffix("\\")
                    lines.append(self._line(GOES_ON))
        except EOFError:
            pass  # what there is of it
        text = "\n".join(lines).strip("\n") if quoted else "\n".join(lines)
        if text.strip() and self._past is not None:
            typed, past = f"{QUOTES}{text}{QUOTES}" if quoted else text, self._past
            self._remember(typed)
            self._try(lambda: past.add(typed))
        return f"/{text}" if quoted and text.startswith("/") else text  # two slashes are no command

    def _line(self, prompt: str) -> str:
        try:
            if not self.interactive:
                line = sys.stdin.readline()
            elif self._editor is not None or sys.stdout.isatty():
                return input(prompt)
            else:  # `input` would put the prompt among the replies
                print(prompt, end="", file=sys.stderr, flush=True)
                line = sys.stdin.readline()
        except UnicodeDecodeError as error:
            raise PromptError(f"standard input is not text in {error.encoding}: {error.reason}") from error
        if not line:
            raise EOFError
        return line.removesuffix("\n").removesuffix("\r")

    def _remember(self, entry: str) -> None:
        if self._editor is not None and "\0" not in entry:
            self._editor.add_history(entry)

    def _try(self, use: Callable[[], Any]) -> Any:
        try:
            return use()
        except OSError as error:
            self._complain(f"what is typed can't be kept ({error}): --no-history does without")
            self._past = None
            return None


def _editor() -> Any:
    """Line editing by readline or libedit; None where Python has neither."""
    try:
        editor = importlib.import_module("readline")
    except ImportError:
        return None
    if hasattr(editor, "set_auto_history"):
        editor.set_auto_history(False)  # messages of several lines are one entry
    return editor
