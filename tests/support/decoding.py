"""Running the engine in tests: a tokenizer of bytes, and answers from a target and a drafter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from taslak.core.sampling import Sampling
from taslak.drafters.base import Drafter
from taslak.engine.policy import FixedGamma, Policy
from taslak.engine.scheduler import Scheduler
from taslak.engine.sequence import Answer, Request
from taslak.engine.step import Engine
from taslak.models.cache import Block
from taslak.models.target import Target, chain_rows

GAMMAS = (1, 2, 3, 5, 8, 16)


class Letters:
    """One letter a token: id 0 is 'A', and `special` ids have no text."""

    def __init__(self, special: Sequence[int] = ()) -> None:
        self._special = set(special)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return "".join(chr(65 + i) for i in ids if not (skip_special and i in self._special))


class Bytes:
    """One byte a token, decoded as UTF-8: code points of several bytes are split over tokens."""

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return bytes(ids).decode("utf-8", errors="replace")


def request(prompt: Sequence[int], **options: Any) -> Request:
    """A request; sampling settings may be given by name."""
    own = {k: options.pop(k) for k in list(options) if k in Request.__dataclass_fields__}
    return Request(prompt=list(prompt), sampling=Sampling(**options), **{"seed": 7, "max_tokens": 24, **own})


def decode(
    target: Target,
    drafter: Drafter | Mapping[str, Drafter] | None,
    requests: Sequence[Request],
    *,
    gamma: int = 5,
    branch: int = 1,
    tokenizer: Any = None,
    policy: Policy | None = None,
) -> list[Answer]:
    """All answers, in the order of the requests, from one shared batch. Several drafters go by the names of
    their methods; `policy`: None = γ in every step."""
    drafters = drafter if isinstance(drafter, Mapping) else {} if drafter is None else {"it": drafter}
    engine = Engine(target, drafters, policy or FixedGamma(gamma, branch))
    scheduler = Scheduler(engine, tokenizer or Letters())
    numbers = [scheduler.add(r) for r in requests]
    done = {number: event.answer for number, event in scheduler.run() if event.answer}
    return [done[number] for number in numbers]


def plain(target: Target, requests: Sequence[Request], **options: Any) -> list[Answer]:
    """Each request decoded without speculation, alone."""
    return [decode(target, None, [r], **options)[0] for r in requests]


def whole(requests: Sequence[Request], answers: Sequence[Answer]) -> list[list[int]]:
    """Prompt + answer of each."""
    return [[*r.prompt, *a.ids] for r, a in zip(requests, answers, strict=True)]


def cache_of(target: Target, tokens: Sequence[int]) -> Block:
    """The cache of a sequence as the engine has it between passes: all tokens but the last."""
    cache = target.allocate(len(tokens) + 40)
    if len(tokens) > 1:
        target.forward([chain_rows(cache, tokens[:-1], 0)])
        cache.keep(range(len(tokens) - 1))
    return cache
