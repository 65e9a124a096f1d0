"""`taslak chat` as it is used: piped, over a server, and at a terminal where Ctrl-C stops a reply."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.e2e.conftest import Taslak
from tests.support.chat import DONE, chunk, serve

SHORT = ("--max-tokens", "8")
PATIENCE_SECONDS = 120.0
"""Longer than the slowest machine takes to load a model: only a program that hangs waits so long."""


# -- piped -------------------------------------------------------------------------------------------------


def test_a_message_a_line_replies_to_stdout(taslak: Taslak, model: str, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    result = taslak("chat", model, *SHORT, stdin=f"ab\n/stats\nab\n/hlep\n/save {file}\n")
    assert result.code == 0, result.err
    for word in ("tokens/s", "passes", "τ", "acceptance rate", "α", "did you mean /help?", "4 messages"):
        assert word in result.err
    messages = json.loads(file.read_text(encoding="utf-8"))
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2
    assert "\x1b" not in result.out
    replies = [message["content"] for message in messages[1::2]]
    if all(reply.isprintable() for reply in replies):
        assert result.out == "".join(f"{reply}\n" for reply in replies)


def test_speculation_changes_no_reply(taslak: Taslak, model: str) -> None:
    stdin = "abcabc\nabc\n"
    drafted = taslak("chat", "--model", model, "--exact", "--gamma", "4", *SHORT, stdin=stdin)
    plain = taslak("chat", model, "--exact", "--plain", *SHORT, stdin=stdin)
    assert drafted.code == plain.code == 0
    assert drafted.out == plain.out != ""


def test_a_full_context_says_what_to_do(taslak: Taslak, model: str) -> None:
    result = taslak("chat", model, *SHORT, stdin="x" * 500 + "\nab\n")
    assert result.code == 0
    assert "error: the context is full" in result.err
    assert "/reset" in result.err
    assert result.out != ""


def test_figures_are_kept_unless_told_otherwise(
    taslak: Taslak, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASLAK_HOME", str(tmp_path))
    taslak("chat", model, "--no-record", *SHORT, stdin="ab\n")
    assert not (tmp_path / "history.sqlite").exists()
    taslak("chat", model, *SHORT, stdin="ab\n")
    assert "chat" in taslak("stats", "--by", "task").out
    assert not (tmp_path / "chat-history.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["one", "--model", "two"], ["one", "two"]),
        (["one", "--url", "http://localhost:1"], ["one", "--url"]),
        (["--url", "localhost"], ["--url", "localhost"]),
        (["--api-key", "k"], ["--api-key", "--url"]),
        (["--url", "http://localhost:1", "--dtype", "int8"], ["--dtype", "--url"]),
        (["--url", "http://localhost:1", "--exit-layer", "2"], ["--exit-layer", "--url"]),
        (["--url", "http://localhost:1", "--no-record"], ["--no-record", "--url"]),
        (["--draft-dtype", "int8"], ["--draft-dtype", "--draft"]),
        (["--gamma", "0"], ["0", "1 to 16"]),
        (["--temperature", "-1"], ["temperature", "-1"]),
        (["--method", "guess"], ["guess", "ngram"]),
        (["--max-tokens", "0"], ["max_tokens", "0"]),
        (["no-such-model"], ["no-such-model"]),
    ],
    ids=" ".join,
)
def test_a_mistake_is_told_before_anything_is_loaded(
    taslak: Taslak, arguments: Sequence[str], words: Sequence[str]
) -> None:
    result = taslak("chat", *arguments)
    assert (result.code, result.out) == (2, "")
    assert len(result.error_lines) == 1, result.err
    assert all(word in result.err for word in words), result.err


# -- over a server -----------------------------------------------------------------------------------------


def test_over_a_server(taslak: Taslak) -> None:
    with serve() as server:
        server.replies = [
            [chunk("Hel\x1b[2J"), chunk("lo", finish="stop"), DONE],
            (400, {"error": {"message": "not today"}}),
            [chunk("Fine", finish="stop"), DONE],
        ]
        asked = ("chat", "--url", server.url, "--system", "Be brief.")
        result = taslak(*asked, stdin="Hi\nWhy?\n/gamma 3\nHow?\n/stats\n")
    assert result.code == 0
    assert result.out == "Hel␛[2Jlo\nFine\n"
    assert "error: " + server.url + "/v1 refuses (400): not today" in result.err
    assert "is not taslak's server" in result.err
    assert "session, 2 replies" in result.err
    assert [message["content"] for message in server.asked[-1]["messages"]] == [
        "Be brief.",
        "Hi",
        "Hel\x1b[2Jlo",
        "How?",
    ]


def test_a_server_that_is_not_there(taslak: Taslak) -> None:
    result = taslak("chat", "--url", "http://127.0.0.1:1", stdin="Hi\n")
    assert result.code == 2
    assert result.err.startswith("error: cannot reach http://127.0.0.1:1/v1")


# -- at a terminal -----------------------------------------------------------------------------------------


PROGRAM = """\
import fcntl, termios
from taslak.cli import main

fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # from now on its Ctrl-C is a signal to this process
main()
"""


class Terminal:
    """The program at a pseudo-terminal, which sees all that it prints."""

    def __init__(self, arguments: Sequence[str], **environment: str) -> None:
        import pty

        kept = {name: value for name, value in os.environ.items() if not name.endswith("_COLOR")}
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**kept, "TERM": "xterm", **environment},
            start_new_session=True,
        )
        os.close(slave)
        self.seen = ""
        self._at = 0

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def interrupt(self) -> None:
        """Ctrl-C once the program waits. One that comes between Python's last look at signals and the wait is
        told to nobody before the next key; a person presses again."""
        until = time.monotonic() + PATIENCE_SECONDS
        looks = 0
        while looks < 3:
            assert time.monotonic() < until, f"it never waits; printed: {self.seen[self._at :]!r}"
            time.sleep(0.05)
            looks = looks + 1 if self._waits() else 0
        self.type(CTRL_C)

    def _waits(self) -> bool:
        state = Path(f"/proc/{self._process.pid}/stat")  # where there is none, the pauses have to do
        return not state.exists() or state.read_text().rpartition(") ")[2].startswith("S")

    def wait_for(self, text: str) -> None:
        """Until it is printed, behind what was waited for before."""
        until = time.monotonic() + PATIENCE_SECONDS
        while (found := self.seen.find(text, self._at)) < 0:
            assert time.monotonic() < until, f"no {text!r} after {self.seen[self._at :]!r}"
            self._read()
        self._at = found + len(text)

    def end(self) -> int:
        """The exit code, once it has ended by itself."""
        code = None
        until = time.monotonic() + PATIENCE_SECONDS
        while (code := self._process.poll()) is None and time.monotonic() < until:
            self._read()
        assert code is not None, self.seen
        return code

    def close(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._master)

    def _read(self) -> None:
        if select.select([self._master], [], [], 0.1)[0]:
            try:
                self.seen += os.read(self._master, 65536).decode(errors="replace")
            except OSError:  # the other side is closed
                return


needs_a_terminal = pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
CTRL_C, CTRL_D, UP = "\x03", "\x04", "\x1b[A"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[list[Terminal]]:
    running: list[Terminal] = []
    yield running
    for terminal in running:
        terminal.close()


@needs_a_terminal
def test_ctrl_c_stops_a_reply_and_the_program_lives_on(
    start: list[Terminal], model: str, tmp_path: Path
) -> None:
    file = tmp_path / "chat.json"
    over = threading.Event()  # a reply that only Ctrl-C ends
    with serve() as server:
        server.replies = [
            [chunk("Once upon"), over.wait],
            [chunk("Fine", "stop"), DONE],
        ]
        terminal = Terminal(["chat", "--url", server.url], TASLAK_HOME=str(tmp_path), COLUMNS="200")
        start.append(terminal)
        terminal.wait_for("> ")
        terminal.type("Tell a story\n")
        terminal.wait_for("Once upon")
        terminal.interrupt()
        terminal.wait_for("(stopped; what was said is kept)")
        terminal.wait_for("> ")
        terminal.type("And now?\n")
        terminal.wait_for("Fine")
        terminal.wait_for("> ")
        terminal.type(f"/save {file}\n")
        terminal.wait_for("4 messages")
        terminal.wait_for("> ")
        terminal.type("half a li")
        terminal.wait_for("half a li")
        terminal.interrupt()
        terminal.wait_for("ends the chat")
        terminal.wait_for("> ")
        terminal.interrupt()
        assert terminal.end() == 0
        over.set()
    messages = json.loads(file.read_text(encoding="utf-8"))
    assert messages[1]["cut"] is True
    assert messages[1]["content"] == "Once upon"
    assert messages[2] == {"role": "user", "content": "And now?"}
    assert len(server.asked) == 2


@needs_a_terminal
def test_earlier_lines_are_had_again(start: list[Terminal], tmp_path: Path) -> None:
    pytest.importorskip("readline")
    with serve() as server:
        server.replies = [[chunk(word, "stop"), DONE] for word in ("first", "second")]
        for keys, word in (("Hi there\n", "first"), (UP + "\n", "second")):
            terminal = Terminal(["chat", "--url", server.url], TASLAK_HOME=str(tmp_path))
            start.append(terminal)
            terminal.wait_for("> ")
            terminal.type(keys)
            terminal.wait_for(word)
            terminal.wait_for("> ")
            terminal.type(CTRL_D)
            assert terminal.end() == 0
    assert server.asked[1]["messages"] == [{"role": "user", "content": "Hi there"}]
    assert (tmp_path / "chat-history.jsonl").stat().st_mode & 0o777 == 0o600


# -- the default model -------------------------------------------------------------------------------------


@pytest.mark.integration
def test_chat_with_the_default_model(taslak: Taslak) -> None:
    stdin = "Name three rivers of Europe.\n/stats\n/retry\n/method ngram\n/retry\n"
    result = taslak("chat", "--no-record", "--max-tokens", "24", stdin=stdin)
    assert result.code == 0
    replies = result.out.count("Danube")
    assert replies >= 3
    assert "suffix+eagle" in result.err
    assert "method: ngram" in result.err


@pytest.mark.integration
@needs_a_terminal
def test_ctrl_c_stops_the_default_models_reply(start: list[Terminal]) -> None:
    terminal = Terminal(["chat", "--no-record", "--no-history", "--max-tokens", "2000"])
    start.append(terminal)
    terminal.wait_for("> ")
    terminal.type("Write a long story about an old lighthouse.\n")
    terminal.wait_for("\x1b[32m")  # an accepted token
    terminal.type(CTRL_C)
    terminal.wait_for("(stopped; what was said is kept)")
    terminal.wait_for("> ")
    terminal.type("/undo\n")
    terminal.wait_for("took back")
    terminal.type("Name three rivers of Europe.\n")
    terminal.wait_for("Danube")
    terminal.type(CTRL_C)
    terminal.wait_for("> ")
    terminal.type(CTRL_D)
    assert terminal.end() == 0
