"""A scripted backend, a screen on paper, and a server that speaks OpenAI's interface."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from taslak.chat.backend import STOP, End, Messages, Part
from taslak.chat.figures import Figures
from taslak.chat.screen import Screen, harmless
from taslak.chat.settings import Settings
from taslak.core.counts import Counts

FIGURES = Figures(
    seconds=2.0,
    tokens=10,
    counts=Counts(passes=4, drafted=8, accepted=6, bonuses=4),
    speedup=2.0,
    method="ngram",
    gamma=3,
    seed=5,
)


class Paper(Screen):
    """A screen that can be read afterwards."""

    def __init__(self) -> None:
        self.said = ""
        self.notes: list[str] = []

    def write(self, text: str, accepted: bool) -> None:
        text = harmless(text)
        self.said += f"<{text}>" if accepted else text

    def end(self) -> None:
        self.said += "|"

    def note(self, text: str) -> None:
        self.notes.append(text)


Step = str | tuple[str, bool] | BaseException
"""Of a reply: text, text with whether it was drafted, or what is raised."""


class Scripted:
    """Answers from a script, a list of steps a reply; remembers what it was asked."""

    title = "a script"

    def __init__(self, *replies: Sequence[Step], finish: str = STOP) -> None:
        self.replies = list(replies)
        self.finish = finish
        self.asked: list[list[dict[str, str]]] = []
        self.settings: list[Settings] = []
        self.refuses: BaseException | None = None
        self.closed = 0

    def prepare(self, settings: Settings) -> None:
        if self.refuses is not None:
            raise self.refuses

    def stream(self, messages: Messages, settings: Settings) -> Generator[Part, None, None]:
        self.asked.append([dict(message) for message in messages])
        self.settings.append(settings)
        steps = self.replies.pop(0)
        try:
            for step in steps:
                if isinstance(step, BaseException):
                    raise step
                yield Part((step if isinstance(step, tuple) else (step, False),))
            yield Part(end=End(self.finish, FIGURES))
        finally:
            self.closed += 1


def chunk(text: str = "", finish: str | None = None, **more: Any) -> dict[str, Any]:
    """One event of a stream."""
    delta = {"content": text} if text else {}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {
        "id": "1",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": "m",
        "choices": [choice],
        **more,
    }


USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 10, "total_tokens": 13}}
DONE = "[DONE]"
DIES = None
"""In place of an event: the connection is cut."""


class Server:
    """What it was asked, and what it answers: a list of events a reply, or (status, body). An event may be
    called instead of sent: it waits for something.

    models: of /v1/models, None = it has no such page
    """

    def __init__(self) -> None:
        self.models: list[dict[str, Any]] | None = [{"id": "m", "object": "model", "owned_by": "someone"}]
        self.replies: list[Any] = []
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.url = ""


@contextmanager
def serve() -> Iterator[Server]:
    """A server on a free port of this machine."""
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def _json(self, status: int, body: Any) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            server.keys.append(self.headers.get("Authorization"))
            if self.path != "/v1/models" or server.models is None:
                self._json(404, {"error": {"message": f"no page {self.path}"}})
            else:
                self._json(200, {"object": "list", "data": server.models})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path != "/v1/chat/completions":
                self._json(404, {"error": {"message": f"no page {self.path}"}})
                return
            server.asked.append(json.loads(body))
            reply = server.replies.pop(0)
            if isinstance(reply, tuple):
                self._json(*reply)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for event in reply:
                if event is DIES:
                    self.close_connection = True
                    return
                if callable(event):
                    event()
                    continue
                text = event if isinstance(event, str) else json.dumps(event)
                data = f"data: {text}\n\n".encode()
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            """A client that hangs up is none."""

    http = Quiet(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{http.server_address[1]}"
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
