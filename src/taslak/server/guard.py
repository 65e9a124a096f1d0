"""What stands before the routes: the key, the bound of a body, the headers of a page. Plain ASGI, so that
streams flow through."""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = ("/", "/health", "/ready", "/favicon.ico")
"""Paths that need no key: they tell nothing."""

PAGE_HEADERS = (
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)


def error_body(message: str, kind: str, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    """OpenAI's shape of an error."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


class KeyGuard:
    """Refuses who doesn't show the key, in a time that tells nothing about it."""

    def __init__(self, app: App, key: str) -> None:
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or path in OPEN or path.startswith("/static/") or self._shown(scope):
            await self._app(scope, receive, send)
            return
        body = error_body(
            "this server needs an API key: send it as Authorization: Bearer KEY",
            "invalid_request_error",
            "invalid_api_key",
        )
        await send_json(send, 401, body, ((b"www-authenticate", b"Bearer"),))

    def _shown(self, scope: Scope) -> bool:
        if scope["method"] == "OPTIONS":  # a browser asks without the key whether it may ask with it
            return True
        for name, value in scope["headers"]:
            if name == b"authorization":
                scheme, _, shown = bytes(value).partition(b" ")
                return scheme.lower() == b"bearer" and hmac.compare_digest(shown.strip(), self._key)
        return False


class HostGuard:
    """Refuses requests that came under another name: a page of somebody's whose name was made to point here
    (DNS rebinding) could ask and read as if it were ours."""

    def __init__(self, app: App, hosts: Sequence[str]) -> None:
        self._app = app
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._name(scope) not in self._hosts:
            text = "this server is for its own machine; to be reached by another name it needs an API key"
            await send_json(send, 403, error_body(text, "invalid_request_error", "host_not_allowed"))
            return
        await self._app(scope, receive, send)

    def _name(self, scope: Scope) -> str:
        given = next((bytes(value) for name, value in scope["headers"] if name == b"host"), b"")
        host = given.decode("latin-1")
        return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


class BodyGuard:
    """Refuses bodies beyond a bound, told by their length or counted as they come."""

    def __init__(self, app: App, most: int) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        told = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if not told.isdigit() or int(told) > self._most:
            await self._too_large(send)
            return
        taken, started, over = 0, False, False

        async def counted() -> Message:
            nonlocal taken, over
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._most:
                over = True
                return {"type": "http.disconnect"}
            return message

        async def watched(message: Message) -> None:
            nonlocal started
            if not over:
                started = True
                await send(message)

        try:
            await self._app(scope, counted, watched)
        except Exception:
            if not over:
                raise
        if over and not started:
            await self._too_large(send)

    async def _too_large(self, send: Send) -> None:
        body = error_body(
            f"the body is larger than the {self._most} bytes this server takes", "invalid_request_error"
        )
        await send_json(send, 413, body)


class PageHeaders:
    """Adds the headers that keep a page to itself."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *PAGE_HEADERS]
            await send(message)

        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)


async def send_json(
    send: Send, status: int, body: dict[str, Any], headers: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    """Send a whole response of JSON."""
    raw = json.dumps(body, separators=(",", ":")).encode()  # as the routes write it
    base = ((b"content-type", b"application/json"), (b"content-length", str(len(raw)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": [*base, *headers]})
    await send({"type": "http.response.body", "body": raw})
