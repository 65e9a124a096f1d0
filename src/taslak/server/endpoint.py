"""From a body to a response: what chat and completion do alike, whole or as a stream."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, Response, StreamingResponse

from taslak.engine.sequence import Answer, Event, Request
from taslak.errors import TaslakError
from taslak.server.catalogue import Served
from taslak.server.form import Form
from taslak.server.guard import Receive, Scope, Send, error_body
from taslak.server.worker import Broken, Busy, Closed, Job, TimedOut, on_loop

log = logging.getLogger("taslak.requests")

Done = Callable[[int, Sequence[Answer]], None]
"""Told once of every call that got as far as a worker: its HTTP status and the answers there are."""


class Failed(TaslakError):
    """An answer ended with an error of its own."""


class Unanswerable(TaslakError):
    """The request's own settings leave nothing to say."""


class Gone(TaslakError):
    """Whoever asked has gone."""


GONE = 499
"""Nobody reads this status; the log and the metrics do."""

STATUS: dict[type[TaslakError], tuple[int, str, str | None]] = {
    Busy: (429, "rate_limit_error", "queue_full"),
    Closed: (503, "server_error", "shutting_down"),
    TimedOut: (504, "server_error", "timeout"),
    Unanswerable: (400, "invalid_request_error", None),
    Broken: (503, "server_error", "broken"),
    Failed: (500, "server_error", None),
    Gone: (GONE, "server_error", None),
}
"""HTTP status, OpenAI's type and code of what can go wrong once a body is right."""


async def respond(
    http: HttpRequest, served: Served, requests: Sequence[Request], form: Form, stream: bool, done: Done
) -> Response:
    """Queue the requests and answer with what comes. Raises Busy, Closed, TimedOut, Failed."""
    queue: asyncio.Queue[Event | TaslakError] = asyncio.Queue()
    job = served.worker.submit(requests, on_loop(asyncio.get_running_loop(), queue.put_nowait))
    call = _Call(served, job, queue, form, done)
    return _Stream(call) if stream else await call.whole(http)


class _Stream(StreamingResponse):
    """A call's events. However it ends, also while a reader is waited for, the call is over then."""

    def __init__(self, call: _Call) -> None:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(call.stream(), media_type="text/event-stream", headers=headers)
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._call.over(GONE)


class _Call:
    """One call: its job, and the events that come of it."""

    def __init__(
        self,
        served: Served,
        job: Job,
        queue: asyncio.Queue[Event | TaslakError],
        form: Form,
        done: Done,
    ) -> None:
        self._served = served
        self._job = job
        self._queue = queue
        self._form = form
        self._done = done
        self._answers: dict[int, Answer] = {}
        self._ended = False

    async def whole(self, http: HttpRequest) -> Response:
        """All answers in one object; given up when the client goes."""
        status = 200
        going = asyncio.create_task(_gone(http))
        coming = asyncio.create_task(self._collect())
        try:
            await asyncio.wait((going, coming), return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                raise Gone("the client has gone")
            await coming
            return JSONResponse(self._form.whole(self._ordered))
        except BaseException as error:
            status, _, _ = told_as(error)
            raise
        finally:
            for task in (going, coming):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task
            self.over(status)

    async def stream(self) -> AsyncIterator[bytes]:
        """Server-sent events as they come. An error in the middle is one too: the status has been sent."""
        status = GONE  # unless it comes to its end
        try:
            for chunk in self._form.opening():
                yield _event(chunk)
            async for event in self._events():
                made = self._form.chunk(event)
                if made is not None:
                    yield _event(made)
            for chunk in self._form.closing(self._ordered):
                yield _event(chunk)
            yield b"data: [DONE]\n\n"
            status = 200
        except TaslakError as error:
            status, kind, code = told_as(error)
            yield _event(error_body(str(error), kind, code))
        finally:
            self.over(status)

    async def _collect(self) -> None:
        async for _ in self._events():
            pass

    async def _events(self) -> AsyncIterator[Event]:
        """Until every answer is there."""
        while len(self._answers) < len(self._job.requests):
            what = await self._queue.get()
            if isinstance(what, TaslakError):
                raise what
            if what.answer is not None:
                if what.answer.error is not None:
                    raise (Unanswerable if what.answer.mistaken else Failed)(what.answer.error)
                self._answers[what.index] = what.answer
            yield what

    @property
    def _ordered(self) -> list[Answer]:
        return [self._answers[index] for index in sorted(self._answers)]

    def over(self, status: int) -> None:
        """Nothing more is waited for: what still runs is cancelled. Only the first call counts."""
        if self._ended:
            return
        self._ended = True
        if len(self._answers) < len(self._job.requests):
            self._served.worker.cancel(self._job)
        self._done(status, self._ordered)


def told_as(error: BaseException) -> tuple[int, str, str | None]:
    """The HTTP status, type and code an error becomes."""
    return next(
        (told for kind, told in STATUS.items() if isinstance(error, kind)), (500, "server_error", None)
    )


def describe(job_started: float, answers: Sequence[Answer]) -> dict[str, Any]:
    """What the log says of a call, without any text."""
    drafted = sum(answer.counts.drafted for answer in answers)
    accepted = sum(answer.counts.accepted for answer in answers)
    return {
        "seconds": round(monotonic() - job_started, 4),
        "prompt_tokens": answers[0].prompt_tokens if answers else None,
        "tokens": sum(len(answer.ids) for answer in answers),
        "acceptance_rate": round(accepted / drafted, 4) if drafted else None,
    }


async def _gone(http: HttpRequest) -> None:
    """Returns when the client has closed its connection."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False).encode() + b"\n\n"
