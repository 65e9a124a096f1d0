"""Runs a server until it is told to stop. SIGTERM, Ctrl-C: what runs may end. SIGHUP: drafters load anew."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from taslak.server.address import bind, open_to_others, shown
from taslak.server.app import Server
from taslak.server.logs import write_log

log = logging.getLogger(__name__)

DRAIN_SECONDS = 120
"""How long answers that run may take to end after SIGTERM."""


def run(server: Server, host: str, port: int) -> None:
    """Serve until a signal. Raises OptionError for an address that can't be had."""
    bound = bind(host, port)
    bound.listen(2048)
    address, port = bound.getsockname()[:2]
    if server.settings.api_key is None and open_to_others(address):
        log.warning("%s is open to everybody who reaches it; set an API key (--api-key)", shown(address))
    config = uvicorn.Config(
        server.app,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        server_header=False,
        h11_max_incomplete_event_size=64 << 10,
    )
    names = ", ".join(each.name for each in server.catalogue)
    write_log()
    _Runner(config, server, f"taslak serves {names} on http://{shown(address)}:{port}").run(sockets=[bound])


class _Runner(uvicorn.Server):
    """announcement: written once requests and signals are heeded."""

    def __init__(self, config: uvicorn.Config, server: Server, announcement: str) -> None:
        super().__init__(config)
        self._server = server
        self._announcement = announcement
        self._reloading: asyncio.Task[None] | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's own, but for its end: there it raises the signal again, and what ended as it was told
        to would end by a signal, not with 0."""
        before = {
            number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if hasattr(signal, "SIGHUP"):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload)
        await super().startup(sockets)
        print(self._announcement, file=sys.stderr, flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._server.ready = False
        await super().shutdown(sockets)

    def _reload(self) -> None:
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.get_running_loop().create_task(self._load_again())

    async def _load_again(self) -> None:
        for served in self._server.catalogue:
            if served.loads is None:
                continue
            try:
                await asyncio.to_thread(self._server.catalogue.reload, served)
            except Exception as error:  # the old one goes on
                log.error(
                    "the drafter of %s could not be loaded anew, the old one stays: %s", served.name, error
                )
            else:
                log.info("the drafter of %s was loaded anew", served.name)
