"""Servers of both kinds, honest and not: what they are asked, what is made of their answers."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from taslak.chat.backend import End
from taslak.chat.over_url import OverUrl
from taslak.chat.session import Session
from taslak.chat.settings import Settings
from taslak.errors import ContextFull, OptionError, ServerError
from tests.support.chat import DIES, DONE, USAGE, Paper, Server, chunk, serve

HI = [{"role": "user", "content": "Hi"}]
OURS = [{"id": "tiny", "object": "model", "owned_by": "taslak"}]
FIGURES: dict[str, Any] = {
    "passes": 4,
    "drafted": 8,
    "accepted": 6,
    "acceptance_rate": 0.75,
    "alpha": 1.5,
    "tau": 2.5,
    "method": "ngram",
    "gamma": 3,
    "verify": "coupled",
    "seed": 5,
    "speedup": 2.0,
    "seconds": {"draft": 0.1, "pass": 0.8, "other": 0.1},
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("TASLAK_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serve() as running:
        yield running


def answer(backend: OverUrl, settings: Settings | None = None) -> tuple[list[tuple[str, bool]], End]:
    parts = list(backend.stream(HI, settings or Settings()))
    assert parts[-1].end is not None
    return [piece for part in parts for piece in part.pieces], parts[-1].end


def test_another_server_answers_without_colours_and_figures(server: Server) -> None:
    server.replies = [[chunk("Hel"), chunk("lo"), chunk(finish="stop"), DONE]]
    backend = OverUrl(server.url)
    pieces, end = answer(backend)
    assert (pieces, end.finish) == ([("Hel", False), ("lo", False)], "stop")
    assert (end.figures.tokens, end.figures.counts, end.figures.speedup) == (None, None, None)
    assert server.asked == [
        {
            "model": "m",
            "messages": HI,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]
    with pytest.raises(OptionError, match="not taslak's server"):
        backend.prepare(Settings(gamma=3))
    backend.prepare(Settings(temperature=1.0))


def test_our_server_tells_drafted_text_apart_and_gives_figures(server: Server) -> None:
    server.models = OURS
    server.replies = [
        [
            chunk("Hello", speculation={"pieces": [["Hel", False], ["lo", True]]}),
            chunk(finish="stop", speculation=FIGURES),
            {**chunk(), **USAGE},
            DONE,
        ]
    ]
    backend = OverUrl(server.url + "/v1/")
    wanted = Settings(temperature=0.5, top_k=9, seed=5, max_tokens=7, stop=("!",), method="ngram", gamma=3)
    backend.prepare(wanted)
    pieces, end = answer(backend, wanted)
    assert pieces == [("Hel", False), ("lo", True)]
    figures = end.figures
    assert figures.counts is not None
    assert (figures.tokens, figures.counts.tau, figures.counts.acceptance_rate) == (10, 2.5, 0.75)
    assert (figures.counts.alpha, figures.speedup, figures.method, figures.gamma) == (1.5, 2.0, "ngram", 3)
    asked = server.asked[0]
    assert asked["speculation"] == {"off": False, "method": "ngram", "gamma": 3, "flags": True}
    assert (asked["model"], asked["temperature"], asked["top_k"], asked["seed"]) == ("tiny", 0.5, 9, 5)
    assert (asked["max_tokens"], asked["stop"]) == (7, ["!"])


def test_speculation_off_is_asked_for(server: Server) -> None:
    server.models = OURS
    server.replies = [[chunk("a", finish="stop"), DONE]]
    answer(OverUrl(server.url), Settings(speculation=False))
    assert server.asked[0]["speculation"] == {"off": True, "flags": True}


@pytest.mark.parametrize(
    "told",
    [
        "nonsense",
        {"pieces": [["other text", True]]},
        {"pieces": [["Hello"]]},
        {"pieces": 3},
        {**FIGURES, "passes": "many", "tau": float("nan"), "speedup": [], "method": 1, "seed": -1},
        {**FIGURES, "tau": float("inf"), "gamma": True},
    ],
)
def test_figures_that_make_no_sense_cost_no_reply(server: Server, told: Any) -> None:
    server.models = OURS
    server.replies = [[chunk("Hello", finish="stop", speculation=told), DONE]]
    pieces, end = answer(OverUrl(server.url))
    assert pieces == [("Hello", False)]
    assert str(end.figures)


def test_a_lone_surrogate_becomes_harmless(server: Server) -> None:
    server.replies = [[chunk("a\ud800b", finish="stop"), DONE]]
    assert answer(OverUrl(server.url))[0] == [("a\ufffdb", False)]


# -- what goes wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [DIES, DONE], ids=["cut", "without an end"])
def test_a_server_that_dies_midway(server: Server, last: str | None) -> None:
    server.replies = [[chunk("Hel"), last], [chunk("Hello", finish="stop"), DONE]]
    screen = Paper()
    session = Session(OverUrl(server.url), screen, Settings())
    session.take("Hi")
    assert screen.said == "Hel|"
    assert screen.notes[0].startswith("error: ")
    assert "broke off" in screen.notes[0]
    assert session.conversation.messages == []
    session.take("/retry")
    assert [m.content for m in session.conversation.messages] == ["Hi", "Hello"]


def test_a_server_that_is_gone(server: Server) -> None:
    backend = OverUrl(server.url)
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(ServerError, match=f"cannot reach {gone}"):
        OverUrl(gone)
    server.replies = [(500, {"error": {"message": "out of\nluck"}})]
    with pytest.raises(ServerError, match=r"refuses \(500\): out of luck"):
        answer(backend)


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (400, {"error": {"message": "no", "code": "context_length_exceeded"}}, ContextFull, "no"),
        (400, {"error": {"message": "the context length is 8"}}, ContextFull, "context length"),
        (400, {"error": {"message": "gamma is 99"}}, ServerError, r"\(400\): gamma is 99"),
        (401, {"error": {"message": "who?"}}, ServerError, "TASLAK_API_KEY"),
        (404, {"error": {"message": "no model m"}}, ServerError, "no model m"),
        (422, {"detail": "wrong"}, ServerError, "wrong"),
        (429, {"error": {"message": "later"}}, ServerError, "later"),
        (503, "x" * 1000, ServerError, "…"),
    ],
)
def test_a_refusal_is_one_short_line(
    server: Server, status: int, body: Any, kind: type[Exception], words: str
) -> None:
    server.replies = [(status, body)]
    with pytest.raises(kind, match=words) as raised:
        answer(OverUrl(server.url))
    assert len(str(raised.value)) < 450
    assert len(server.asked) == 1  # not tried again behind the user's back


@pytest.mark.parametrize(
    "event",
    [
        "{",
        "3",
        '"text"',
        '{"error": {"message": "broken"}}',
        '{"choices": [{"delta": null}]}',
        '{"choices": 1}',
    ],
)
def test_events_that_make_no_sense(server: Server, event: str) -> None:
    server.replies = [[chunk("Hel"), event, DONE]]
    with pytest.raises(ServerError):
        answer(OverUrl(server.url))


def test_an_older_server_that_knows_no_stream_options(server: Server) -> None:
    refusal = (400, {"error": {"message": "unknown field stream_options"}})
    replies = [[chunk(word, finish="stop"), DONE] for word in ("one", "two")]
    server.replies = [refusal, *replies]
    backend = OverUrl(server.url)
    assert answer(backend)[0] == [("one", False)]
    assert answer(backend)[0] == [("two", False)]
    assert ["stream_options" in asked for asked in server.asked] == [True, False, False]


def test_closing_the_reply_closes_the_connection(server: Server) -> None:
    server.replies = [[chunk("Hel"), chunk("lo"), DIES], [chunk("next", finish="stop"), DONE]]
    backend = OverUrl(server.url)
    with closing(backend.stream(HI, Settings())) as parts:
        assert next(parts).pieces == (("Hel", False),)
    assert answer(backend)[0] == [("next", False)]


# -- starting up ---------------------------------------------------------------------------------------------


def test_which_model(server: Server) -> None:
    assert OverUrl(server.url).model == "m"
    assert OverUrl(server.url, "other").model == "other"
    server.models = []
    with pytest.raises(ServerError, match="--model"):
        OverUrl(server.url)
    server.models = None
    with pytest.raises(ServerError, match="404"):
        OverUrl(server.url)
    named = OverUrl(server.url, "other")
    assert (named.model, named.ours) == ("other", False)


def test_which_key(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    OverUrl(server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "second")
    OverUrl(server.url)
    monkeypatch.setenv("TASLAK_API_KEY", "first")
    OverUrl(server.url)
    OverUrl(server.url, key="given")
    assert server.keys == ["Bearer none", "Bearer second", "Bearer first", "Bearer given"]
    with pytest.raises(OptionError, match="key"):
        OverUrl(server.url, key="schlüssel")


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x/v1", "http://", "http://x:port", ""])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(OptionError, match="--url"):
        OverUrl(url)


def test_without_the_client_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(OptionError, match=r"taslak\[serve\]"):
        OverUrl("http://localhost:1")
