"""A chat with a scripted model: what is kept, what is told, every command, and Ctrl-C."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from taslak.chat.backend import CONTEXT, LENGTH
from taslak.chat.commands import COMMANDS
from taslak.chat.conversation import Conversation, Message
from taslak.chat.session import Session
from taslak.chat.settings import Settings
from taslak.errors import ContextFull, OptionError, PromptError, ServerError
from tests.support.chat import Paper, Scripted


def chat(backend: Scripted, *, interactive: bool = True) -> tuple[Session, Paper]:
    screen = Paper()
    return Session(backend, screen, Settings(), interactive=interactive), screen


def said(session: Session) -> list[tuple[str, str, bool]]:
    return [(m.role, m.content, m.cut) for m in session.conversation.messages]


HI = [("user", "Hi", False), ("assistant", "Hello", False)]


class Typed:
    """What is typed, one after another; an exception is raised."""

    def __init__(self, *texts: str | BaseException, interactive: bool = True) -> None:
        self.texts: list[str | BaseException] = [*texts, EOFError()]
        self.interactive = interactive

    def read(self) -> str:
        text = self.texts.pop(0)
        if isinstance(text, BaseException):
            raise text
        return text


# -- messages ----------------------------------------------------------------------------------------------


def test_the_whole_history_is_asked_and_drafted_pieces_are_told_apart() -> None:
    backend = Scripted(["Hel", ("lo", True)], ["Fine"])
    session, screen = chat(backend)
    session.take("/system Be brief.")
    session.take("Hi")
    session.take("How are you?")
    assert screen.said == "Hel<lo>|Fine|"
    assert backend.asked[1] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "How are you?"},
    ]
    session.take("   ")
    assert len(backend.asked) == 2


def test_a_stopped_reply_is_kept_and_marked_as_cut() -> None:
    backend = Scripted(["Hel", KeyboardInterrupt()], ["Fine"])
    session, screen = chat(backend)
    session.take("Hi")
    assert said(session) == [("user", "Hi", False), ("assistant", "Hel", True)]
    assert screen.notes == ["(stopped; what was said is kept)"]
    assert session.figures is None
    assert backend.closed == 1
    session.take("Go on")
    assert backend.asked[1][1] == {"role": "assistant", "content": "Hel"}


def test_a_reply_stopped_before_it_began_leaves_nothing() -> None:
    session, screen = chat(Scripted([KeyboardInterrupt()], ["Hello"]))
    session.take("Hi")
    assert said(session) == []
    assert "stopped before" in screen.notes[0]
    session.take("/retry")
    assert said(session) == HI


def test_ctrl_c_ends_a_chat_that_nobody_types() -> None:
    session, _ = chat(Scripted(["Hel", KeyboardInterrupt()]), interactive=False)
    with pytest.raises(KeyboardInterrupt):
        session.run(Typed("Hi", interactive=False))


@pytest.mark.parametrize(
    "error", [ServerError("it is gone"), RuntimeError("it is gone"), ConnectionError("it is gone")]
)
@pytest.mark.parametrize("begun", [[], ["Hel"]], ids=["at once", "midway"])
def test_a_failed_reply_is_one_line_and_its_message_is_not_doubled(
    error: Exception, begun: list[str]
) -> None:
    backend = Scripted(["Hello"], [*begun, error], [error], ["Fine"])
    session, screen = chat(backend)
    session.take("Hi")
    session.take("How are you?")
    errors = [note for note in screen.notes if note.startswith("error: ")]
    assert len(errors) == 1
    assert "it is gone" in errors[0]
    assert said(session) == HI
    session.take("How are you?")
    assert said(session) == HI
    session.take("/retry")
    assert [m["content"] for m in backend.asked[-1]] == ["Hi", "Hello", "How are you?"]
    assert said(session) == [*HI, ("user", "How are you?", False), ("assistant", "Fine", False)]


def test_a_full_context_says_what_to_do() -> None:
    session, screen = chat(Scripted([ContextFull("9 tokens; the model's context is 8")]))
    session.take("Hi")
    assert "context is full" in screen.notes[0]
    assert "/undo" in screen.notes[0]
    assert "/reset" in screen.notes[0]
    assert said(session) == []


@pytest.mark.parametrize(
    ("finish", "words"),
    [(CONTEXT, ["/undo", "/reset"]), (LENGTH, ["most tokens"]), ("content_filter", ["content_filter"])],
)
def test_an_unusual_end_is_told(finish: str, words: list[str]) -> None:
    session, screen = chat(Scripted(["Hello"], finish=finish))
    session.take("Hi")
    assert said(session) == HI
    assert all(word in screen.notes[0] for word in words)


def test_text_that_is_no_utf8_is_refused_before_it_is_sent() -> None:
    backend = Scripted()
    session, screen = chat(backend)
    session.take("ab\udcff")
    assert "UTF-8" in screen.notes[0]
    assert backend.asked == []


def test_a_gone_reader_ends_the_chat() -> None:
    session, _ = chat(Scripted([BrokenPipeError()]))
    with pytest.raises(BrokenPipeError):
        session.take("Hi")


# -- the prompt --------------------------------------------------------------------------------------------


def test_ctrl_c_twice_at_the_prompt_ends_the_chat() -> None:
    session, _ = chat(Scripted(["Hello"]))
    typed = Typed(KeyboardInterrupt(), "Hi", KeyboardInterrupt(), KeyboardInterrupt(), "never read")
    session.run(typed)
    assert said(session) == HI
    assert typed.texts[0] == "never read"


def test_the_end_and_quit_end_the_chat() -> None:
    typed = Typed("/quit", "Hi")
    session, _ = chat(Scripted())
    session.run(typed)
    assert typed.texts[0] == "Hi"
    chat(Scripted())[0].run(Typed())


def test_what_is_no_text_goes_on_for_a_person_and_ends_a_script() -> None:
    session, screen = chat(Scripted(["Hello"]))
    session.run(Typed(PromptError("no text"), "Hi"))
    assert "error: no text" in screen.notes
    assert said(session) == HI
    session, _ = chat(Scripted(["Hello"]), interactive=False)
    with pytest.raises(PromptError):
        session.run(Typed(PromptError("no text"), "Hi", interactive=False))


# -- commands ----------------------------------------------------------------------------------------------


def test_help_lists_every_command() -> None:
    session, screen = chat(Scripted())
    session.take("/help")
    assert all(command.usage in screen.notes[0] for command in COMMANDS.values())


def test_an_unknown_command_suggests_the_nearest() -> None:
    session, screen = chat(Scripted(["ok"]))
    for typed, hint in {"/temprature 1": "/temperature", "/exit-now": "/help", "/sped off": "/s"}.items():
        session.take(typed)
        assert screen.notes[-1].startswith("error: there is no command")
        assert hint in screen.notes[-1]
    assert "did you mean /temperature?" in screen.notes[0]
    session.take("//etc/passwd holds what?")
    assert said(session)[0][1] == "/etc/passwd holds what?"


def test_settings_change_what_is_asked_for() -> None:
    backend = Scripted(["a"], ["b"])
    session, screen = chat(backend)
    changes = ["temperature 0.5", "seed 3", "gamma 4", "method suffix", "speculation off"]
    for change in changes:
        session.take(f"/{change}")
    assert screen.notes == [change.replace(" ", ": ") for change in changes]
    session.take("Hi")
    assert backend.settings[0] == Settings(
        temperature=0.5, seed=3, gamma=4, method="suffix", speculation=False
    )
    for change in ("seed off", "gamma auto", "method auto", "speculation on", "temperature auto"):
        session.take(f"/{change}")
    session.take("Hi")
    assert backend.settings[1] == Settings()
    session.take("/gamma")
    assert screen.notes[-1] == "gamma: auto"


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("/temperature hot", ["T", "hot"]),
        ("/temperature -1", ["temperature", "-1"]),
        ("/temperature nan", ["temperature", "nan"]),
        ("/gamma 0", ["0", "1 to 16"]),
        ("/gamma many", ["N|auto", "many"]),
        ("/seed -1", ["seed", "-1"]),
        ("/method guess", ["guess", "ngram"]),
        ("/speculation maybe", ["on", "off", "maybe"]),
        ("/undo", ["nothing"]),
        ("/retry", ["nothing"]),
        ("/stats", ["no finished reply"]),
        ("/save", ["/save", "FILE"]),
        ("/load", ["/load", "FILE"]),
        ("/reset now", ["/reset", "now"]),
    ],
)
def test_a_mistake_is_one_line_and_changes_nothing(typed: str, words: Sequence[str]) -> None:
    session, screen = chat(Scripted())
    session.take(typed)
    assert len(screen.notes) == 1
    assert screen.notes[0].startswith("error: ")
    assert all(word in screen.notes[0] for word in words), screen.notes
    assert session.settings == Settings()


def test_what_the_backend_refuses_is_not_set() -> None:
    backend = Scripted()
    backend.refuses = OptionError("no such head")
    session, screen = chat(backend)
    session.take("/method medusa")
    assert screen.notes == ["error: no such head"]
    assert session.settings.method is None


def test_undo_and_reset() -> None:
    session, _ = chat(Scripted(["Hello"], ["Fine"]))
    session.take("/system Be brief.")
    session.take("Hi")
    session.take("How are you?")
    session.take("/undo")
    assert said(session) == HI
    session.take("/reset")
    assert said(session) == []
    assert session.conversation.system == "Be brief."
    session.take("/system off")
    assert session.conversation.system is None


def test_a_message_that_did_not_fit_can_be_sent_again_after_undo() -> None:
    backend = Scripted(["Hello"], [ContextFull("full")], ["Fine"])
    session, _ = chat(backend)
    for typed in ("Hi", "How are you?", "/undo", "/retry"):
        session.take(typed)
    assert [m["content"] for m in backend.asked[-1]] == ["How are you?"]
    assert said(session) == [("user", "How are you?", False), ("assistant", "Fine", False)]


def test_retry_replaces_the_reply_only_once_there_is_another() -> None:
    backend = Scripted(["Hello"], [ServerError("gone")], [KeyboardInterrupt()], ["Good day"])
    session, _ = chat(backend)
    session.take("Hi")
    session.take("/retry")
    session.take("/retry")
    assert said(session) == HI
    session.take("/retry")
    assert said(session) == [HI[0], ("assistant", "Good day", False)]
    assert backend.asked[-1] == [{"role": "user", "content": "Hi"}]


def test_stats_of_the_last_reply_and_the_session() -> None:
    session, screen = chat(Scripted(["a"], ["b"]))
    session.take("Hi")
    session.take("Hi")
    session.take("/stats")
    last, total = screen.notes
    assert last == (
        "last reply: 10 tokens · 5.0 tokens/s · 4 passes · τ 2.50 · acceptance rate 0.75 · α 1.50 · "
        "estimated speed-up 2.00 · ngram · γ 3 · seed 5"
    )
    assert total == (
        "session, 2 replies: 20 tokens · 5.0 tokens/s · 8 passes · τ 2.50 · acceptance rate 0.75 · α 1.50 · "
        "estimated speed-up 2.00"
    )


# -- files -------------------------------------------------------------------------------------------------


def test_save_and_load(tmp_path: Path) -> None:
    file = tmp_path / "a chat.json"
    session, _ = chat(Scripted(["Hel", KeyboardInterrupt()]))
    session.take("/system Be brief.")
    session.take("Hi Ωμέγα")
    session.take(f"/save {file}")
    assert json.loads(file.read_text(encoding="utf-8")) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi Ωμέγα"},
        {"role": "assistant", "content": "Hel", "cut": True},
    ]
    other, _ = chat(Scripted())
    other.take(f"/load {file}")
    assert other.conversation == session.conversation


def test_save_overwrites_only_when_told(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    file.write_text("precious")
    session, screen = chat(Scripted(["Hello"]))
    session.take("Hi")
    session.take(f"/save {file}")
    assert file.read_text() == "precious"
    assert "--overwrite" in screen.notes[-1]
    session.take(f"/save --overwrite {file}")
    assert len(json.loads(file.read_text())) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["chat.json"]
    session.take(f"/save {tmp_path / 'none' / 'chat.json'}")
    assert "can't be written" in screen.notes[-1]


def test_a_question_without_a_reply_is_loaded_as_unanswered(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    file.write_text('[{"role": "user", "content": "Hi"}]')
    session, screen = chat(Scripted(["Hello"]))
    session.take(f"/load {file}")
    assert said(session) == []
    assert "/retry" in screen.notes[0]
    session.take("/retry")
    assert said(session) == HI


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{", "JSON"),
        ("{}", "dict"),
        ('[{"role": "user"}]', "message 1"),
        ('["Hi"]', "message 1"),
        ('[{"role": "oracle", "content": "Hi"}]', "oracle"),
        ('[{"role": "user", "content": "Hi"}, {"role": "system", "content": "x"}]', "message 2"),
        ('[{"role": "user", "content": "Hi", "cut": 1}]', "cut"),
        ("[" * 100_000, "JSON"),
        (None, "can't be read"),
    ],
)
def test_a_file_of_another_kind_changes_nothing(tmp_path: Path, text: str | None, word: str) -> None:
    file = tmp_path / "chat.json"
    if text is not None:
        file.write_text(text)
    session, screen = chat(Scripted(["Hello"]))
    session.take("Hi")
    session.take(f"/load {file}")
    assert screen.notes[-1].startswith(f"error: {file}")
    assert word in screen.notes[-1] or "nested" in screen.notes[-1]
    assert said(session) == HI


def test_lone_surrogates_survive_a_file(tmp_path: Path) -> None:
    before = Conversation([Message("user", "Hi"), Message("assistant", "\ud800 and \udcff")])
    before.save(tmp_path / "chat.json")
    after = Conversation()
    after.load(tmp_path / "chat.json")
    assert after == before
