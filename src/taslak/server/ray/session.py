"""Which conversation a request belongs to, and which replica answers it. Knows nothing of Ray."""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

CHARACTERS = 256
"""Of a prompt that is text: what begins with the same ones is one session."""

TOKENS = 64
"""Of a prompt of token ids: what the prefix cache finds at least."""


def session_of(body: bytes) -> str:
    """The key of a request's session: of its `user`, else of its model and how its conversation begins, up to
    the first message of the user, so that all turns have the same one. "" where the body shows none."""
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):  # the replica says what is wrong with it
        return ""
    if not isinstance(asked, dict):
        return ""
    user = asked.get("user")
    if isinstance(user, str) and user:
        return _hash(["user", user])
    beginning = _beginning(asked)
    return _hash([asked.get("model"), beginning]) if beginning else ""


def by_preference(session: str, replicas: Iterable[str]) -> list[str]:
    """The replicas, best first: each session has an order of its own (rendezvous hashing), so that one which
    comes or goes moves only the sessions that prefer it."""
    return sorted(replicas, key=lambda replica: _hash([session, replica]), reverse=True)


def _beginning(asked: dict[str, Any]) -> Any:
    messages = asked.get("messages")
    if isinstance(messages, list):
        users = (i for i, m in enumerate(messages) if isinstance(m, dict) and m.get("role") == "user")
        return messages[: next(users, len(messages)) + 1]
    prompt = asked.get("prompt")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt[:CHARACTERS]
    return prompt[:TOKENS] if isinstance(prompt, list) else None


def _hash(what: Any) -> str:
    return blake2b(json.dumps(what, sort_keys=True).encode(), digest_size=8).hexdigest()
