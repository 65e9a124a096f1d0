"""The door: takes a request in, has a replica answer it, and hands on what comes. Computes nothing and
checks nothing: keys, bounds and mistakes are the replica's matter, so that they are the same everywhere."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from ray.exceptions import RayActorError
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from taslak.server.guard import App, Message, PageHeaders, Receive, Scope, Send, error_body, send_json
from taslak.server.ray import merge
from taslak.server.ray.session import session_of
from taslak.server.ray.whole import Whole

log = logging.getLogger(__name__)

KEPT = (
    "type",
    "asgi",
    "http_version",
    "method",
    "scheme",
    "path",
    "raw_path",
    "query_string",
    "root_path",
    "headers",
    "client",
    "server",
)
"""Of a scope, what goes to a replica: the rest belongs to this process."""

TRIES = 3
"""Replicas that may die under a request before it is given up."""

ASK_ALL_SECONDS = 10.0
"""How long a replica may take to say how it is."""


def merged_metrics(answers: list[Whole]) -> bytes:
    """Of all replicas."""
    return merge.metrics({answer.replica: answer.body.decode() for answer in answers})


def merged_dashboard(answers: list[Whole]) -> bytes:
    """Of all replicas."""
    shown = {answer.replica: json.loads(answer.body) for answer in answers}
    return json.dumps(merge.dashboards(shown), ensure_ascii=False).encode()


def first_answer(answers: list[Whole]) -> bytes:
    """One is enough."""
    return answers[0].body


ALL: dict[str, Callable[[list[Whole]], bytes]] = {
    "/metrics": merged_metrics,
    "/api/dashboard": merged_dashboard,
    "/ready": first_answer,
}
"""Paths that every replica is asked for, and how one answer is made of theirs."""


class Ingress:
    """The deployment of a `Proxy`, which takes the same."""

    def __init__(self, replicas: DeploymentHandle[Any], most: int, patience: float | None) -> None:
        self._proxy = Proxy(replicas, most, patience)

    def __serve_build_asgi_app__(self) -> App:
        """What Ray Serve asks for."""
        return self._proxy


class Proxy:
    """The ASGI application.

    replicas: the deployment of `Replica`
    most:     bytes of a body that are read; the replica refuses what is larger
    patience: seconds until a response has begun; None = as long as it likes
    """

    def __init__(self, replicas: DeploymentHandle[Any], most: int, patience: float | None) -> None:
        self._replicas = replicas
        self._most = most
        self._patience = patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})
        elif scope["path"] == "/health" and scope["method"] == "GET":  # this process lives
            await _healthy(scope, receive, send)
        else:
            asked = {key: scope[key] for key in KEPT if key in scope}
            body = await self._read(receive)
            if scope["path"] in ALL:
                await self._ask_all(asked, body, send)
            else:
                await self._ask(asked, body, send)

    async def _read(self, receive: Receive) -> bytes:
        """The body, or as much of a larger one as shows that it is too large."""
        body, more = b"", True
        while more and len(body) <= self._most:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        return body

    async def _ask(self, scope: Scope, body: bytes, send: Send) -> None:
        """Have one replica answer. Whoever dies before its response has begun is replaced by another."""
        session = session_of(body) if scope["method"] == "POST" else ""
        begun = False
        for tries in range(1, TRIES + 1):
            try:
                async with aclosing(self._messages(scope, body, session)) as messages:
                    async for message in messages:
                        begun = True
                        await send(message)
                return
            except RayActorError as error:
                log.warning("a replica has gone while it answered: %s", error)
                if begun:
                    # the status has been sent: the connection breaks off, as when a single server dies
                    raise
            except (DeploymentUnavailableError, asyncio.TimeoutError):
                break
            log.info("asking another replica (%d of %d)", tries, TRIES)
        await _unavailable(scope, _nothing, send)

    async def _messages(self, scope: Scope, body: bytes, session: str) -> AsyncGenerator[Message, None]:
        """Of one replica's response. Closing it ends the request there."""
        asked: Any = self._replicas.options(method_name="answer", stream=True, session_id=session)
        response = asked.remote(scope, body)
        try:
            batch = await asyncio.wait_for(anext(response), self._patience)
            while batch:
                for message in batch:
                    yield message
                batch = await anext(response, None)
        finally:
            response.cancel()  # harmless for one that is over

    async def _ask_all(self, scope: Scope, body: bytes, send: Send) -> None:
        """Have all replicas answer, and make one answer of those that went well, or show one that didn't."""
        try:
            found = await self._replicas.broadcast("whole", scope, body).results_async(
                timeout_s=ASK_ALL_SECONDS, return_exceptions=True
            )
        except (DeploymentUnavailableError, TimeoutError):
            found = []
        answers = [each for each in found if not isinstance(each, BaseException)]
        good = [answer for answer in answers if answer.status == 200]
        if not answers:
            ready = scope["path"] == "/ready"
            await (_not_ready if ready else _unavailable)(scope, _nothing, send)
            return
        shown = (good or answers)[0]
        body = ALL[scope["path"]](good) if good else shown.body
        headers = [pair for pair in shown.headers if pair[0].lower() != b"content-length"]
        headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": shown.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def _live(receive: Receive, send: Send) -> None:
    while True:
        event = (await receive())["type"]
        await send({"type": f"{event}.complete"})
        if event == "lifespan.shutdown":
            return


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


def _saying(status: int, body: dict[str, Any], *headers: tuple[bytes, bytes]) -> App:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        await send_json(send, status, body, headers)

    return PageHeaders(app)


_healthy = _saying(200, {"status": "ok"})
_not_ready = _saying(503, {"status": "not ready"})
_unavailable = _saying(
    503,
    error_body("no replica can answer now; try again", "server_error", "unavailable"),
    (b"retry-after", b"1"),
)
