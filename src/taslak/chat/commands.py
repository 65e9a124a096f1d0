"""What can be typed that is no message: a table of commands by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from taslak.chat.settings import AUTO
from taslak.errors import OptionError

if TYPE_CHECKING:
    from taslak.chat.session import Session

SIGN = "/"
OVERWRITE = "--overwrite"
ON, OFF = "on", "off"
_T = TypeVar("_T")
Run = Callable[["Session", str], None]


@dataclass(frozen=True, slots=True)
class Command:
    """argument: how it is shown in the help, "" where it takes none."""

    name: str
    argument: str
    help: str
    run: Run

    @property
    def usage(self) -> str:
        return f"{SIGN}{self.name} {self.argument}".rstrip()


COMMANDS: dict[str, Command] = {}


def is_command(text: str) -> bool:
    """Whether it is none of the messages; one that begins with a slash is typed with two."""
    return text.startswith(SIGN) and not text.startswith(SIGN * 2)


def run(session: Session, text: str) -> None:
    """Do what was typed. Raises UserError for what can't be done."""
    name, _, argument = text.strip().removeprefix(SIGN).partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
        hint = f"did you mean {SIGN}{near[0]}? " if near else ""
        raise OptionError(
            f"there is no command {SIGN}{name}; {hint}{SIGN}help lists them; a message that begins with "
            f"{SIGN} is typed with {SIGN * 2}"
        )
    argument = argument.strip()
    if argument and not command.argument:
        raise OptionError(f"{SIGN}{name} takes nothing behind it; got {argument!r}")
    command.run(session, argument)


def _command(name: str, argument: str, help: str) -> Callable[[Run], Run]:
    def enter(run: Run) -> Run:
        COMMANDS[name] = Command(name, argument, help, run)
        return run

    return enter


@_command("help", "", "what can be typed")
def _help(session: Session, _: str) -> None:
    width = max(len(command.usage) for command in COMMANDS.values())
    lines = [f"{command.usage:<{width}}  {command.help}" for command in COMMANDS.values()]
    session.screen.note("\n".join(lines))
    session.screen.note(
        'a line that ends in \\ goes on in the next; """ … """ holds a message of several lines; '
        f"{SIGN * 2} begins a message with {SIGN}"
    )


@_command("stats", "", "what the last reply took, and the session")
def _stats(session: Session, _: str) -> None:
    if session.figures is None:
        raise OptionError("there is no finished reply yet")
    replies = f"{session.totals.replies} repl{'y' if session.totals.replies == 1 else 'ies'}"
    session.screen.note(f"last reply: {session.figures}")
    session.screen.note(f"session, {replies}: {session.totals}")


@_command("method", f"NAME|{AUTO}", "how to draft")
def _method(session: Session, argument: str) -> None:
    _set(session, "method", argument, str, unset=AUTO)


@_command("gamma", f"N|{AUTO}", "drafted depth of every pass")
def _gamma(session: Session, argument: str) -> None:
    _set(session, "gamma", argument, int, unset=AUTO)


@_command("temperature", "T", "divides the logits; 0 is greedy")
def _temperature(session: Session, argument: str) -> None:
    _set(session, "temperature", argument, float, unset=AUTO)


@_command("seed", f"N|{OFF}", "makes sampled replies repeatable")
def _seed(session: Session, argument: str) -> None:
    _set(session, "seed", argument, int, unset=OFF)


@_command("system", f"TEXT|{OFF}", "what the model is told beforehand")
def _system(session: Session, argument: str) -> None:
    conversation = session.conversation
    if argument:
        conversation.system = None if argument == OFF else argument
    session.screen.note(f"system: {OFF if conversation.system is None else conversation.system}")


@_command("speculation", f"{ON}|{OFF}", "draft, or decode plainly: the same text")
def _speculation(session: Session, argument: str) -> None:
    if argument:
        if argument not in (ON, OFF):
            raise OptionError(f"{SIGN}speculation takes {ON} or {OFF}; got {argument!r}")
        session.change(speculation=argument == ON)
    session.screen.note(f"speculation: {ON if session.settings.speculation else OFF}")


@_command("reset", "", "forget all that was said, but for the system message")
def _reset(session: Session, _: str) -> None:
    session.conversation.reset()
    session.screen.note("a new conversation")


@_command("undo", "", "take back the last message and its reply")
def _undo(session: Session, _: str) -> None:
    conversation = session.conversation
    last = conversation.last()
    if last is None:
        raise OptionError("there is nothing to take back")
    text, conversation.messages = last
    session.screen.note(f"took back: {_short(text)}")


@_command("retry", "", "ask again for the last reply, or for one that failed")
def _retry(session: Session, _: str) -> None:
    conversation = session.conversation
    last = conversation.last()
    if conversation.unanswered is not None:
        session.ask(conversation.unanswered)
    elif last is None:
        raise OptionError("there is nothing to ask again")
    else:
        session.ask(last[0], last[1])


@_command("save", f"[{OVERWRITE}] FILE", "write the messages as JSON")
def _save(session: Session, argument: str) -> None:
    first, _, rest = argument.partition(" ")
    overwrite = first == OVERWRITE
    path = _path("save", rest.strip() if overwrite else argument)
    if not overwrite and path.exists():
        raise OptionError(f"{path} is there already; {SIGN}save {OVERWRITE} {path} writes over it")
    count = session.conversation.save(path, overwrite=overwrite)
    session.screen.note(f"{count} messages in {path}")


@_command("load", "FILE", "go on from messages in a file instead")
def _load(session: Session, argument: str) -> None:
    path = _path("load", argument)
    count = session.conversation.load(path)
    open_question = session.conversation.unanswered is not None
    rest = f"; the last has no reply, {SIGN}retry asks for it" if open_question else ""
    session.screen.note(f"{count} messages from {path}{rest}")


@_command("quit", "", "end the chat, as Ctrl-D does")
def _quit(session: Session, _: str) -> None:
    session.over = True


def _set(session: Session, name: str, argument: str, kind: Callable[[str], _T], *, unset: str) -> None:
    """Change a setting where something is given, and show it."""
    if argument:
        value: Any = None
        if argument != unset:
            try:
                value = kind(argument)
            except ValueError:
                raise OptionError(f"{SIGN}{name} takes {COMMANDS[name].argument}; got {argument!r}") from None
        session.change(**{name: value})
    value = getattr(session.settings, name)
    session.screen.note(f"{name}: {unset if value is None else value}")


def _path(name: str, argument: str) -> Path:
    if not argument:
        raise OptionError(f"{SIGN}{name} needs a file: {COMMANDS[name].usage}")
    try:
        return Path(argument).expanduser()
    except RuntimeError as error:  # no such user
        raise OptionError(f"{argument}: {error}") from None


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:59] + "…"
