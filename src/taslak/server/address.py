"""Where a server listens."""

from __future__ import annotations

import socket

from taslak.errors import OptionError


def bind(host: str, port: int) -> socket.socket:
    """A socket bound there; port 0 = a free one. Raises OptionError for an address that can't be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.socket(family)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise OptionError(f"can't listen on {host}:{port}: {why}; choose another --host or --port") from None
    return bound


def shown(address: str) -> str:
    """As it stands in a URL."""
    return f"[{address}]" if ":" in address else address


def open_to_others(address: str) -> bool:
    """Whether other machines reach it."""
    return not (address == "::1" or address.startswith("127."))
