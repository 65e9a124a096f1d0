"""A response in one piece."""

from __future__ import annotations

from typing import NamedTuple


class Whole(NamedTuple):
    """replica: who gave it"""

    replica: str
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
