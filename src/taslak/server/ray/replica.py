"""One process that loads the models and answers: a `Server` whose requests come through Ray."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

from ray import serve

from taslak.server.guard import Message, Scope
from taslak.server.logs import write_log
from taslak.server.ray.options import Options
from taslak.server.ray.whole import Whole

log = logging.getLogger(__name__)


class Replica:
    """Answers requests of the ingress as `Server.app` does, byte by byte.

    Raises what loading raises.
    """

    async def __init__(self, options: Options) -> None:  # type: ignore[misc]  # Ray Serve awaits it
        # the ingress and whoever deploys read this file too, and need none of these seconds
        import torch

        from taslak import native
        from taslak.control.history import History
        from taslak.server.app import Server

        write_log()
        native.set_threads(options.threads)
        torch.set_num_threads(options.threads)
        self._name = serve.get_replica_context().replica_id.unique_id
        self._calls: set[asyncio.Task[None]] = set()
        self._open = AsyncExitStack()
        history = None
        if options.record:
            history = History()
            self._open.callback(history.close)
        self._server = Server(options.settings, history)
        models = options.models
        # replicas of a machine share its memory as they share its CPUs; an accelerator is theirs alone
        share = min(1.0, options.num_cpus / (os.cpu_count() or 1)) if options.device == "cpu" else 1.0
        for name, model in models.items():
            self._server.load(
                name,
                model,
                options.drafts.get(name),
                options.method,
                gamma=options.gamma,
                verify=options.verify,
                cross_vocab=options.cross_vocab,
                dtype=options.dtype,
                device=options.device,
                exact=options.exact,
                share=share / len(models),
            )
        app = self._server.app
        await self._open.enter_async_context(app.router.lifespan_context(app))

    async def __del__(self) -> None:
        """Ray Serve awaits it once nothing runs any more."""
        await self._open.aclose()

    async def check_health(self) -> None:
        """Raises where an engine has ended: Ray Serve then puts another replica in this one's place."""
        for served in self._server.catalogue:
            if not served.worker.alive:
                raise RuntimeError(f"the engine of {served.name} has ended")

    async def answer(self, scope: Scope, body: bytes) -> AsyncIterator[list[Message]]:
        """The messages of the response, those together that were there together. Closed or cancelled, it ends
        the request as a client does that goes away."""
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        asked = iter([{"type": "http.request", "body": body, "more_body": False}])
        gone = asyncio.Event()

        async def receive() -> Message:
            for message in asked:
                return message
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if gone.is_set():  # what a server says of a connection that is closed
                raise OSError("the client has gone")
            messages.put_nowait(message)

        call = asyncio.create_task(self._call(scope, receive, send))
        self._calls.add(call)  # it ends by itself, and later than this where the client goes
        call.add_done_callback(self._calls.discard)
        call.add_done_callback(lambda _: messages.put_nowait(None))
        try:
            over = False
            while not over:
                batch = [await messages.get()]
                while not messages.empty():
                    batch.append(messages.get_nowait())
                over = batch[-1] is None
                told = [message for message in batch if message is not None]
                if told:
                    yield told
        finally:
            gone.set()

    async def whole(self, scope: Scope, body: bytes) -> Whole:
        """The response at once."""
        status, headers, parts = 500, [], []
        async for batch in self.answer(scope, body):
            for message in batch:
                if message["type"] == "http.response.start":
                    status, headers = message["status"], list(message.get("headers", ()))
                else:
                    parts.append(message.get("body", b""))
        return Whole(self._name, status, headers, b"".join(parts))

    async def _call(self, scope: Scope, receive: Any, send: Any) -> None:
        try:
            await self._server.app(scope, receive, send)
        except Exception:  # the client has gone, or was answered with status 500
            log.debug("a request failed", exc_info=True)
