"""Admission, order, and what is freed when."""

from __future__ import annotations

import pytest

from taslak.engine.policy import FixedGamma
from taslak.engine.scheduler import Scheduler
from taslak.engine.step import Engine
from taslak.errors import MemoryLimitError, OptionError
from taslak.models.decoder import Decoder
from tests.support.decoding import Letters, plain, request
from tests.support.tiny import random_weights, tiny_config, tiny_model


def bounded(positions: int) -> Decoder:
    config = tiny_config()
    each = 2 * config.layers * config.kv_heads * config.head_size * 4
    return Decoder(config, random_weights(config, 1), exact=True, cache_bytes=positions * each)


def scheduler(model: Decoder, most: int = 64) -> Scheduler:
    return Scheduler(Engine(model, {}, FixedGamma(1)), Letters(), most)


def test_requests_wait_for_memory_and_are_all_answered() -> None:
    model = bounded(192)
    s = scheduler(model)
    requests = [request([i], max_tokens=90) for i in range(5)]
    numbers = [s.add(r) for r in requests]
    answers = {n: e.answer for n, e in s.run() if e.answer}
    assert [answers[n].ids for n in numbers] == [a.ids for a in plain(tiny_model(1), requests)]
    assert model.pool.pages <= 3
    assert model.pool.free_pages == model.pool.pages


def test_a_request_that_can_never_fit_is_refused_when_it_is_made() -> None:
    s = scheduler(bounded(128))
    s.add(request([1], max_tokens=20))
    with pytest.raises(MemoryLimitError, match="memory gives 128"):
        s.add(request([1], max_tokens=400))
    assert len([e for _, e in s.run() if e.answer]) == 1


def test_a_bad_request_takes_no_memory() -> None:
    model = tiny_model(1)
    s = scheduler(model)
    for _ in range(3):
        with pytest.raises(OptionError):
            s.add(request([1], seed=-1))
    assert model.pool.pages == 0


def test_nothing_to_do_is_no_step() -> None:
    assert scheduler(tiny_model(1)).step() == []


def test_cancelling_frees_running_and_waiting_requests() -> None:
    model = tiny_model(1)
    s = scheduler(model, most=1)
    first, second, third = (s.add(request([i], max_tokens=30)) for i in range(3))
    s.step()
    s.cancel(first)
    s.cancel(second)
    s.cancel(second)
    assert {n for n, _ in s.run()} == {third}
    assert model.pool.free_pages == model.pool.pages


def test_a_failing_pass_frees_everything() -> None:
    model = tiny_model(1)
    s = scheduler(model)
    s.add(request([1, 2]))

    def broken(*args: object, **options: object) -> None:
        raise RuntimeError("out of memory")

    model.forward = broken  # type: ignore[method-assign, assignment]
    with pytest.raises(RuntimeError, match="out of memory"):
        list(s.run())
    assert model.pool.free_pages == model.pool.pages
