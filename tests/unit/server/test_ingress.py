"""What the ingress does when replicas are missing or die; with scripted ones, and no cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs the extra [ray]")

from ray.exceptions import RayActorError
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import DeploymentUnavailableError

from taslak.server.ray.ingress import TRIES, Proxy
from taslak.server.ray.whole import Whole

START = {"type": "http.response.start", "status": 200, "headers": []}
PART = {"type": "http.response.body", "body": b"a", "more_body": True}
END = {"type": "http.response.body", "body": b"b"}
NOBODY = DeploymentUnavailableError(DeploymentID("Replica"))

Script = Sequence[list[dict[str, Any]] | Exception | float]
"""Of a call: what comes, batch by batch; an error in its place; seconds that nothing comes."""


class Call:
    """One call of a scripted replica."""

    def __init__(self, script: Script) -> None:
        self.cancelled = False
        self._batches = self._play(script)

    async def _play(self, script: Script) -> AsyncIterator[list[dict[str, Any]]]:
        for each in script:
            if isinstance(each, Exception):
                raise each
            if isinstance(each, float):
                await asyncio.sleep(each)
            else:
                yield each

    def __aiter__(self) -> Call:
        return self

    async def __anext__(self) -> list[dict[str, Any]]:
        return await anext(self._batches)

    def cancel(self) -> None:
        self.cancelled = True


class Handle:
    """Of a deployment whose calls follow these scripts, one after the other."""

    def __init__(self, *scripts: Script, answers: Sequence[Whole | Exception] = ()) -> None:
        self.calls: list[Call] = []
        self.bodies: list[bytes] = []
        self.sessions: list[str] = []
        self._scripts = list(scripts)
        self._answers = answers

    def options(self, *, session_id: str, **_: Any) -> Handle:
        self.sessions.append(session_id)
        return self

    def remote(self, scope: Any, body: bytes) -> Call:
        self.bodies.append(body)
        self.calls.append(Call(self._scripts.pop(0)))
        return self.calls[-1]

    def broadcast(self, method: str, scope: Any, body: bytes) -> Handle:
        return self

    async def results_async(self, **_: Any) -> list[Whole | Exception]:
        if not self._answers:
            raise NOBODY
        return list(self._answers)


def ask(
    handle: Handle,
    path: str = "/v1/completions",
    body: Sequence[bytes] = (b"{}",),
    patience: float | None = None,
) -> list[dict[str, Any]]:
    """The messages sent for a request."""
    sent: list[dict[str, Any]] = []
    coming = iter(
        [{"type": "http.request", "body": p, "more_body": i < len(body)} for i, p in enumerate(body, 1)]
    )

    async def receive() -> Any:
        return next(coming)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "app": object()}
    asyncio.run(Proxy(handle, 10, patience)(scope, receive, send))  # type: ignore[arg-type]
    return sent


def refused(sent: list[dict[str, Any]]) -> Any:
    assert sent[0]["status"] == 503
    return json.loads(sent[1]["body"])


def test_a_response_comes_as_it_is() -> None:
    handle = Handle([[START], [PART, END]])
    assert ask(handle) == [START, PART, END]
    assert handle.bodies == [b"{}"]


def test_who_dies_before_the_response_begins_is_replaced() -> None:
    handle = Handle([RayActorError()], [0.0, RayActorError()], [[START, END]])
    assert ask(handle) == [START, END]
    assert all(call.cancelled for call in handle.calls)
    unlucky = Handle(*[[RayActorError()]] * TRIES)
    assert refused(ask(unlucky))["error"]["code"] == "unavailable"
    assert len(unlucky.calls) == TRIES


def test_a_response_that_breaks_off_is_not_begun_anew() -> None:
    handle = Handle([[START, PART], RayActorError()], [[START, END]])
    with pytest.raises(RayActorError):
        ask(handle)
    assert len(handle.calls) == 1


def test_where_no_replica_is_or_none_answers_in_time_that_is_told() -> None:
    for handle in (Handle([NOBODY]), Handle([30.0, [START, END]])):
        sent = ask(handle, patience=0.01)
        assert refused(sent)["error"]["code"] == "unavailable"
        assert (b"retry-after", b"1") in sent[0]["headers"]
        assert handle.calls[0].cancelled


def test_a_larger_body_is_read_as_far_as_shows_it() -> None:
    handle = Handle([[START, END]])
    ask(handle, body=[b"x" * 6, b"x" * 6, b"x" * 6])
    assert handle.bodies == [b"x" * 12]


def test_sessions_are_those_of_the_bodies() -> None:
    handle = Handle([[START, END]], [[START, END]], [[START, END]])
    for body in (b'{"user":"a"}', b'{"user":"a","n":1}', b"{"):
        ask(handle, body=[body])
    first, again, none = handle.sessions
    assert first == again != ""
    assert none == ""


def test_one_that_is_ready_is_enough() -> None:
    good = Whole("a", 200, [(b"content-length", b"9")], b"ready")
    bad = Whole("b", 503, [], b"not")
    for answers in ([good, bad], [bad, good], [RayActorError(), good]):
        sent = ask(Handle(answers=answers), "/ready")
        assert (sent[0]["status"], sent[1]["body"]) == (200, b"ready")
        assert sent[0]["headers"] == [(b"content-length", b"5")]
    assert ask(Handle(answers=[bad, bad]), "/ready")[0]["status"] == 503
    assert refused(ask(Handle(), "/ready")) == {"status": "not ready"}
    assert refused(ask(Handle(answers=[RayActorError()]), "/metrics"))["error"]["code"] == "unavailable"


def test_a_key_that_is_refused_by_all_is_refused() -> None:
    denied = Whole("a", 401, [(b"www-authenticate", b"Bearer")], b"{}")
    sent = ask(Handle(answers=[denied, denied]), "/metrics")
    assert sent[0]["status"] == 401
    assert (b"www-authenticate", b"Bearer") in sent[0]["headers"]
