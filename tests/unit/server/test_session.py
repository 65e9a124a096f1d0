"""Which requests are one session, and where sessions go when replicas come and go."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("pydantic", reason="needs the extra [serve]")
pytest.importorskip("ray", reason="needs the extra [ray]")

from taslak.server.ray.session import by_preference, session_of

SYSTEM = {"role": "system", "content": "Be short."}
HELLO = {"role": "user", "content": "Hello"}
TURNS = [{"role": "assistant", "content": "Hi"}, {"role": "user", "content": "And now?"}]


def of(**body: Any) -> str:
    return session_of(json.dumps({"model": "m", **body}).encode())


def test_all_turns_of_a_conversation_are_one_session() -> None:
    first = of(messages=[SYSTEM, HELLO])
    assert first
    assert of(messages=[SYSTEM, HELLO, *TURNS]) == first
    assert of(messages=[SYSTEM, HELLO, *TURNS], temperature=0, stream=True) == first
    others = [
        of(messages=[SYSTEM, {**HELLO, "content": "Bye"}]),
        of(messages=[HELLO]),
        of(messages=[SYSTEM, HELLO], model="other"),
    ]
    assert len({first, *others}) == 4
    assert of(messages=[SYSTEM]) == of(messages=[SYSTEM])


def test_a_user_is_one_session_whatever_is_asked() -> None:
    asked = of(user="ada", messages=[HELLO])
    assert of(user="ada", prompt="x", model="other") == asked
    assert of(user="bob", messages=[HELLO]) != asked
    assert of(user="", messages=[HELLO]) == of(messages=[HELLO])


def test_prompts_that_begin_alike_are_one_session() -> None:
    long = "a" * 300
    assert of(prompt=long) == of(prompt=long + "b") == of(prompt=[long, "another"])
    assert of(prompt="a") != of(prompt="b")
    ids = list(range(100))
    assert of(prompt=ids) == of(prompt=[*ids, 7]) == of(prompt=[ids, [1]])
    assert of(prompt=ids) != of(prompt=ids[1:])


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff\xfe", b"[]", b'"x"', b"{}", b'{"messages": 3}', b'{"prompt": []}', b"[" * 100_000],
)
def test_a_body_that_shows_no_session_has_none(body: bytes) -> None:
    assert session_of(body) == ""


def test_a_replica_that_goes_moves_only_its_own_sessions() -> None:
    replicas = [f"r{i}" for i in range(5)]
    sessions = [f"s{i}" for i in range(500)]
    before = {session: by_preference(session, replicas) for session in sessions}
    assert all(sorted(order) == replicas for order in before.values())
    counts = [sum(order[0] == replica for order in before.values()) for replica in replicas]
    assert min(counts) > 60  # of 100 each
    for session, order in before.items():
        left = by_preference(session, [each for each in reversed(replicas) if each != "r2"])
        assert left == [each for each in order if each != "r2"]
