"""What is typed and piped in, what is kept of it, and what reaches the terminal."""

from __future__ import annotations

import io
import stat
import sys
from pathlib import Path

import pytest

from taslak.chat import past as past_module
from taslak.chat.keyboard import Keyboard
from taslak.chat.past import Past
from taslak.chat.screen import Screen, harmless
from taslak.errors import PromptError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def piped(text: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    keyboard, read = Keyboard(), []
    assert not keyboard.interactive
    try:
        while True:
            read.append(keyboard.read())
    except EOFError:
        return read


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("Hi\nHow are you?\n", ["Hi", "How are you?"]),
        ("Hi\r\nno line end", ["Hi", "no line end"]),
        ("one\\\ntwo\\\nthree\nfour\n", ["one\ntwo\nthree", "four"]),
        ('"""\none\\\n\n /two\n"""\nthree\n', ["one\\\n\n /two", "three"]),
        ('"""one"""\n"""two\nthree"""\n', ["one", "two\nthree"]),
        ('"""/help"""\n/help\n', ["//help", "/help"]),
        ('"""\nnever closed', ["never closed"]),
        ("goes on\\", ["goes on\n"]),
        ('""\n', ['""']),
        ("", []),
    ],
)
def test_messages_of_lines(text: str, messages: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    read = piped(text, monkeypatch)
    assert [message.rstrip("\n") for message in read] == [message.rstrip("\n") for message in messages]


def test_bytes_that_are_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe\n"), encoding="utf-8"))
    with pytest.raises(PromptError, match="not text"):
        Keyboard().read()


def test_what_is_typed_is_kept_for_its_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal('Hi\n"""\ntwo\nlines\n"""\n\n'))
    file = tmp_path / "new" / "typed"
    keyboard = Keyboard(Past(file))
    assert [keyboard.read() for _ in range(3)] == ["Hi", "two\nlines", ""]
    assert Past(file).entries() == ["Hi", '"""two\nlines"""']
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_what_is_piped_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hi\n"))
    Keyboard(Past(tmp_path / "typed")).read()
    assert list(tmp_path.iterdir()) == []


def test_a_kept_file_is_mended_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_module, "KEPT", 3)
    file = tmp_path / "typed"
    file.write_text('"old"\nno json\n7\n')
    file.chmod(0o644)
    past = Past(file)
    assert past.entries() == ["old"]
    for number in range(6):
        past.add(f"entry {number}")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert past.entries() == ["entry 3", "entry 4", "entry 5"]
    assert len(file.read_text().splitlines()) == 3
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_file_that_can_not_be_used_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("Hi\nHi\n"))
    told: list[str] = []
    keyboard = Keyboard(Past(tmp_path), told.append)  # a folder
    assert [keyboard.read(), keyboard.read()] == ["Hi", "Hi"]
    assert len(told) == 1
    assert "--no-history" in told[0]


# -- the screen --------------------------------------------------------------------------------------------


def test_a_model_can_not_drive_the_terminal() -> None:
    shown = harmless("a\x1b]0;title\x07\x1b[2J\x9b1m\x7f\x00\r\n\tb")
    assert shown == "a␛]0;title␇␛[2J\ufffd1m␡␀\n\tb"


def test_no_colour_where_the_output_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    screen = Screen()
    screen.write("a", True)
    screen.end()
    screen.end()
    screen.error("two\nlines \x1b[m")
    captured = capsys.readouterr()
    assert captured.out == "a\n"
    assert captured.err == "error: two lines ␛[m\n"


@pytest.mark.parametrize(
    ("setting", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colours_of_a_terminal(
    setting: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", **setting}.items():
        monkeypatch.setenv(name, value)
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    screen = Screen()
    screen.write("drafted", True)
    screen.write(" own", False)
    assert out.getvalue() == ("\x1b[32mdrafted\x1b[0m own" if coloured else "drafted own")


def test_text_that_the_output_can_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    screen = Screen()
    screen.write("é\ud800!", False)
    assert raw.getvalue() == b"??!"
