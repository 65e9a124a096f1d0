"""A stand-in for the server, as far as the dashboard knows it: the page's files, its figures, one answer."""

from __future__ import annotations

import json
import math
import mimetypes
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

STATIC = Path(__file__).resolve().parents[2] / "src" / "taslak" / "server" / "static"
POLICY = "default-src 'self'"

Json = dict[str, Any]
Pieces = list[tuple[str, bool]]


def history(seconds: int, end: float) -> list[Json]:
    """One point a second up to `end`; for a while in the middle nothing was drafted."""
    points = []
    for i in range(seconds):
        quiet = 0.45 < i / seconds < 0.55
        wave = math.sin(i / 45) + 0.4 * math.sin(i / 7)
        points.append(
            {
                "time": end - seconds + 1 + i,
                "tokens_per_second": 2.0 if quiet else 46 + 9 * wave,
                "acceptance_rate": None if quiet else 0.66 + 0.07 * wave,
                "alpha": None if quiet else 2.4 + 0.35 * wave,
                "break_even": None if quiet else 0.34 + 0.02 * math.sin(i / 60),
                "running": 0 if quiet else 2 + round(wave),
                "waiting": 0 if quiet else max(0, round(wave)),
            }
        )
    return points


def snapshot(**other: Any) -> Json:
    """An answer of api/dashboard: a server that has worked for a while; `other` replaces top-level fields."""
    now = 1_800_000_000.0
    code = {
        "method": "auto",
        "dtype": "int8",
        "verify": "coupled",
        "gamma": None,
        "draft": "qwen2.5-0.5b-instruct",
    }
    talk = {"method": "ngram", "dtype": "float32", "verify": "coupled", "gamma": 5, "draft": None}
    cache = {"bytes": 183_500_800, "limit": 536_870_912, "hit_tokens": 48_211}
    first, second = "qwen2.5-1.5b-instruct", "smollm2-135m-instruct"
    return {
        "version": "0.1.0",
        "time": now,
        "uptime": 11_530.0,
        "price_per_hour": 1.8,
        "models": [
            {
                "name": first,
                **code,
                "speculating": True,
                "cost_per_million_tokens": 11.25,
                "prefix_cache": cache,
            },
            {
                "name": second,
                **talk,
                "speculating": False,
                "cost_per_million_tokens": None,
                "prefix_cache": {"bytes": 0, "limit": 536_870_912, "hit_tokens": 0},
            },
        ],
        "running": [
            {
                "id": "chatcmpl-8f2c41",
                "model": first,
                "task": "code",
                "prompt_tokens": 912,
                "tokens": 188,
                "seconds": 3.9,
                "acceptance_rate": 0.74,
                "alpha": 2.9,
            },
            {
                "id": "chatcmpl-13b0d7",
                "model": second,
                "task": "",
                "prompt_tokens": 48,
                "tokens": 3,
                "seconds": 0.4,
                "acceptance_rate": None,
                "alpha": None,
            },
        ],
        "waiting": 1,
        "history": history(600, now),
        "depths": {
            first: [
                {
                    "depth": d,
                    "drafted": 21_000 - 1500 * d,
                    "accepted": round((21_000 - 1500 * d) * 0.93 * 0.86**d),
                }
                for d in range(1, 9)
            ],
            second: [{"depth": 1, "drafted": 200, "accepted": 50}],
        },
        "events": [
            {
                "id": 1,
                "time": now - 4000,
                "model": first,
                "task": None,
                "kind": "change",
                "message": "acceptance rate of auto is 0.52, it was 0.68",
                "causes": ["temperature: mostly 0 before, mostly 1 now"],
                "ended": now - 3100,
            },
            {
                "id": 2,
                "time": now - 95,
                "model": second,
                "task": "chat",
                "kind": "low",
                "message": "acceptance rate of ngram is 0.21, drafting pays from 0.33 on",
                "causes": ["prompts: half as long as before", "the break-even: 0.27 before, 0.33 now"],
                "ended": None,
            },
        ],
        "totals": {
            "requests": 1284,
            "failed": 3,
            "tokens": 214_903,
            "prompt_tokens": 618_220,
            "cached_prompt_tokens": 233_107,
            "passes": 67_412,
            "drafted": 221_905,
            "accepted": 147_491,
        },
        **other,
    }


EMPTY = {
    "running": [],
    "waiting": 0,
    "history": [],
    "depths": {},
    "events": [],
    "price_per_hour": None,
    "totals": dict.fromkeys(
        (
            "requests",
            "failed",
            "tokens",
            "prompt_tokens",
            "cached_prompt_tokens",
            "passes",
            "drafted",
            "accepted",
        ),
        0,
    ),
}
"""A server that has just started, as fields for `snapshot`."""


@dataclass
class Answer:
    """What chat completions stream.

    chunks:   the text in pieces, with whether they came from an accepted draft; one event a chunk
    error:    sent in the stream after the chunks, instead of an end
    endless:  after the chunks nothing comes any more until the reader goes away
    broken:   after the chunks the connection ends
    """

    chunks: list[Pieces]
    error: str | None = None
    endless: bool = False
    broken: bool = False
    outcome: Json = field(
        default_factory=lambda: {
            "passes": 4,
            "drafted": 12,
            "accepted": 9,
            "acceptance_rate": 0.75,
            "alpha": 2.25,
            "tau": 3.25,
            "method": "ngram",
            "gamma": 3,
            "verify": "coupled",
            "seed": 1234,
            "speedup": 1.9,
            "seconds": {"draft": 0.1, "pass": 0.8, "other": 0.1},
        }
    )
    usage: Json = field(
        default_factory=lambda: {"prompt_tokens": 9, "completion_tokens": 13, "total_tokens": 22}
    )

    def text(self, *, accepted: bool | None = None) -> str:
        """All of it, or the part that came (or did not come) from accepted drafts."""
        return "".join(
            piece for chunk in self.chunks for piece, flag in chunk if accepted is None or flag is accepted
        )


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    authorization: str | None
    body: Json | None


class DashboardServer:
    """Serves under `prefix` on a port of its own; what it answers may be changed at any time.

    data:          api/dashboard's answer
    answer:        of chat completions
    key:           asked for where not None
    refusal:       (status, body) of every request to the API
    asked:         requests so far
    disconnected:  set when a reader left an endless answer
    """

    def __init__(self, prefix: str = "/") -> None:
        self.prefix = prefix
        self.data: Json = snapshot()
        self.answer = Answer([[("Hi.", False)]])
        self.key: str | None = None
        self.refusal: tuple[int, str] | None = None
        self.asked: list[Asked] = []
        self.disconnected = threading.Event()
        self._port = 0
        self._server: ThreadingHTTPServer | None = None

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def url(self) -> str:
        return self.origin + self.prefix

    def start(self) -> None:
        """Listen, on the same port as before where there was one."""
        self._server = ThreadingHTTPServer(
            ("127.0.0.1", self._port), type("Handler", (_Handler,), {"home": self})
        )
        self._server.daemon_threads = True
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """Nobody answers any more. Every answer ends its connection, so none is left open."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def paths(self) -> list[str]:
        return [asked.path for asked in self.asked]

    def questions(self) -> list[Json]:
        """Bodies of the chat completions asked for."""
        return [asked.body for asked in self.asked if asked.body is not None]


class _Handler(BaseHTTPRequestHandler):
    home: DashboardServer

    def do_GET(self) -> None:
        self._note(None)
        path = self.path.removeprefix(self.home.prefix)
        if path == "":
            self._send(200, "text/html; charset=utf-8", (STATIC / "index.html").read_bytes())
        elif path.startswith("static/") and (STATIC / path.removeprefix("static/")).is_file():
            kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
            self._send(200, kind, (STATIC / path.removeprefix("static/")).read_bytes())
        elif path == "api/dashboard":
            if self._allowed():
                self._json(200, self.home.data)
        else:
            self._error(404, f"there is no {self.path}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._note(body)
        if self.path != f"{self.home.prefix}v1/chat/completions":
            self._error(404, f"there is no {self.path}")
        elif self._allowed():
            self._stream(self.home.answer)

    def _allowed(self) -> bool:
        if self.home.key is not None and self.headers["Authorization"] != f"Bearer {self.home.key}":
            self._error(401, "Incorrect API key provided.")
        elif self.home.refusal is not None:
            status, text = self.home.refusal
            self._send(status, "application/json", text.encode())
        else:
            return True
        return False

    def _stream(self, answer: Answer) -> None:
        self._head(200, "text/event-stream")
        first: Json = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
        self._event(first)
        for pieces in answer.chunks:
            delta = {"content": "".join(text for text, _ in pieces)}
            self._event({"choices": [{"index": 0, "delta": delta}], "speculation": {"pieces": pieces}})
        if answer.error is not None:
            self._event(_problem(answer.error))
        elif answer.endless:
            self._wait()
        elif not answer.broken:
            last = {"index": 0, "delta": {}, "finish_reason": "stop"}
            self._event({"choices": [last], "speculation": answer.outcome})
            self._event({"choices": [], "usage": answer.usage})
            self.wfile.write(b"data: [DONE]\n\n")

    def _wait(self) -> None:
        """Comments keep the connection, until it breaks."""
        try:
            while True:
                self.wfile.write(b": still here\n\n")
                time.sleep(0.02)
        except OSError:
            self.home.disconnected.set()

    def _event(self, data: Json) -> None:
        self.wfile.write(f"data: {json.dumps(data, ensure_ascii=False)}\n\n".encode())

    def _json(self, status: int, data: Json) -> None:
        self._send(status, "application/json", json.dumps(data).encode())

    def _error(self, status: int, message: str) -> None:
        self._json(status, _problem(message))

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self._head(status, kind)
        self.wfile.write(body)

    def _head(self, status: int, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("Cache-Control", "no-store")
        self.end_headers()

    def _note(self, body: Json | None) -> None:
        self.home.asked.append(Asked(self.command, self.path, self.headers["Authorization"], body))

    def log_message(self, *args: Any) -> None:
        """Nothing on the test run's screen."""


def _problem(message: str) -> Json:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}
