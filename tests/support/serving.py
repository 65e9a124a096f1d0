"""A server that answers on a free port of this machine, in this process."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from taslak.engine.language_model import LanguageModel
from taslak.models.pretrained import load_pretrained
from taslak.server.app import Server
from taslak.server.settings import Settings


def tiny_language_model(folder: Path, **options: Any) -> LanguageModel:
    """Of a folder that `write_model` made; width-invariant, so that texts can be compared."""
    target = load_pretrained(str(folder), dtype="float32", exact=True)
    return LanguageModel(target, **{"method": "suffix", "gamma": 4, **options})


@contextmanager
def served(server: Server) -> Iterator[str]:
    """Its address while it runs: "http://127.0.0.1:…"."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
        runner = uvicorn.Server(uvicorn.Config(server.app, log_config=None, timeout_graceful_shutdown=20))
        thread = threading.Thread(target=lambda: asyncio.run(runner.serve(sockets=[bound])), daemon=True)
        thread.start()
        try:
            while not runner.started:
                if not thread.is_alive():
                    raise RuntimeError("the server did not start")
                threading.Event().wait(0.01)
            yield f"http://127.0.0.1:{port}"
        finally:
            runner.should_exit = True
            thread.join(30)
    assert not thread.is_alive()


def make_server(folder: Path, name: str = "tiny", **settings: Any) -> Server:
    """One tiny model behind it."""
    server = Server(Settings(**settings))
    server.catalogue.add(name, tiny_language_model(folder))
    return server
