"""Beginnings that are found in the cache: the right ones, within the bound, and with the same text."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taslak.core.sampling import Sampling
from taslak.engine.policy import FixedGamma
from taslak.engine.scheduler import Scheduler
from taslak.engine.sequence import Answer, Request
from taslak.engine.step import Engine
from taslak.errors import MemoryLimitError
from taslak.models.cache import PAGE, Pool
from taslak.models.config import DecoderConfig
from taslak.models.decoder import Decoder
from taslak.models.prefix import PrefixCache
from tests.support.decoding import Bytes
from tests.support.scripted import oracle
from tests.support.tiny import random_weights, tiny_config, tiny_model

PAGE_BYTES = 2 * 2 * 4 * 4 * PAGE  # keys and values, 2 layers, 1 head of 4, float32


def pool(max_pages: int | None = None) -> Pool:
    most = None if max_pages is None else max_pages * PAGE_BYTES
    return Pool(2, 1, 4, torch.float32, torch.device("cpu"), max_bytes=most)


def fill(p: Pool, prefixes: PrefixCache, tokens: list[int]) -> list[int]:
    """A sequence that runs and ends: what it takes over and what it leaves; the pages it shared."""
    shared = prefixes.find(tokens)
    block = p.allocate(len(tokens), shared)
    assert block.length == len(shared) * PAGE
    for position in range(block.length, len(tokens)):
        p.keys[:, block.slot(position)] = float(tokens[position])
        p.values[:, block.slot(position)] = -float(tokens[position])
    block.add(range(-1, len(tokens) - block.length - 1))
    block.keep(range(len(tokens) - block.length))
    prefixes.keep(tokens, block)
    block.release()
    return shared


@settings(max_examples=60)
@given(data=st.data())
def test_what_is_found_holds_these_tokens_and_the_bound_is_kept(data: st.DataObject) -> None:
    """Tokens of few kinds, so that beginnings meet and part at every page; each page's content is told by
    its tokens."""
    p = pool()
    most = data.draw(st.integers(0, 6))
    prefixes = PrefixCache(p, most * PAGE_BYTES)
    kinds = [[kind] * PAGE for kind in (1, 2)]
    for _ in range(data.draw(st.integers(1, 12))):
        chosen = data.draw(st.lists(st.sampled_from([0, 1]), max_size=4))
        tokens = [token for kind in chosen for token in kinds[kind]] + [3] * data.draw(st.integers(1, 70))
        shared = fill(p, prefixes, tokens)
        assert len(shared) * PAGE < len(tokens)
        for i, page in enumerate(shared):
            held = p.keys[0, page * PAGE : (page + 1) * PAGE, 0, 0].tolist()
            assert held == [float(token) for token in tokens[i * PAGE : (i + 1) * PAGE]]
        assert prefixes.nbytes <= most * PAGE_BYTES
        assert p.pages - p.free_pages == prefixes.nbytes // PAGE_BYTES  # nothing else is held
    prefixes.clear()
    assert p.free_pages == p.pages


def test_what_was_used_last_stays() -> None:
    p = pool()
    prefixes = PrefixCache(p, 2 * PAGE_BYTES)
    first, second, third = ([kind] * (PAGE + 1) for kind in (1, 2, 3))
    fill(p, prefixes, first)
    fill(p, prefixes, second)
    fill(p, prefixes, first)
    fill(p, prefixes, third)  # second goes
    assert prefixes.find(first)
    assert prefixes.find(third)
    assert not prefixes.find(second)


def test_a_page_that_is_let_go_stays_with_the_sequence_that_reads_it() -> None:
    p = pool(4)
    prefixes = PrefixCache(p, PAGE_BYTES)
    tokens = [7] * (PAGE + 1)
    fill(p, prefixes, tokens)
    block = p.allocate(2 * PAGE, prefixes.find(tokens))
    page = block.pages[0]
    prefixes.clear()
    others = [p.allocate(PAGE) for _ in range(2)]
    assert all(page not in other.pages for other in others)
    with pytest.raises(MemoryLimitError):
        p.allocate(PAGE)
    block.release()
    block.release()
    assert page in p.allocate(2 * PAGE).pages


def test_a_shared_page_is_never_cut() -> None:
    p = pool()
    prefixes = PrefixCache(p, PAGE_BYTES)
    tokens = [7] * (PAGE + 1)
    fill(p, prefixes, tokens)
    block = p.allocate(2 * PAGE, prefixes.find(tokens))
    block.crop(3)
    assert block.length == PAGE


def answers(
    target: Decoder, requests: list[Request], prefixes: PrefixCache | None, drafter: object
) -> list[Answer]:
    """One after the other, so that each finds what those before it left."""
    given = {} if drafter is None else {"scripted": drafter}
    engine = Engine(target, given, FixedGamma(4))  # type: ignore[arg-type]
    made = []
    for request in requests:
        scheduler = Scheduler(engine, Bytes(), prefixes=prefixes)
        scheduler.add(request)
        made += [event.answer for _, event in scheduler.run() if event.answer is not None]
    return made


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_warm_equals_cold(temperature: float) -> None:
    """Turns of a conversation, each beginning as the one before and its answer; with drafts and without."""
    target = tiny_model(3, vocab_size=64, context=1024)
    sampling = Sampling(temperature=temperature)
    turns: list[Request] = []
    history = [i * 7 % 60 for i in range(150)]
    cold: list[Answer] = []
    for turn in range(4):
        request = Request(prompt=list(history), sampling=sampling, max_tokens=70, seed=5)
        turns.append(request)
        cold += answers(target, [request], None, None)
        history = [*history, *cold[-1].ids, turn, turn + 1]
    for drafter in (
        None,
        oracle([[*turn.prompt, *answer.ids] for turn, answer in zip(turns, cold, strict=True)]),
    ):
        prefixes = PrefixCache(target.pool, 1 << 20)
        warm = answers(target, turns, prefixes, drafter)
        assert [answer.ids for answer in warm] == [answer.ids for answer in cold]
        assert [answer.cached_tokens for answer in warm] == [0, 192, 256, 320]
        assert prefixes.hit_tokens == 192 + 256 + 320
        prefixes.clear()
    assert target.pool.free_pages == target.pool.pages


def test_beginnings_make_room_for_a_request() -> None:
    """Memory that only serves prompts to come is given up before a request waits for it."""
    config: DecoderConfig = tiny_config(vocab_size=64, context=1024)
    bytes_a_page = 2 * config.layers * config.kv_heads * config.head_size * 4 * PAGE
    target = Decoder(config, random_weights(config), cache_bytes=6 * bytes_a_page)
    prefixes = PrefixCache(target.pool, 6 * bytes_a_page)
    for kind in range(4):
        answers(target, [Request(prompt=[kind] * 200, max_tokens=60)], prefixes, None)
    assert 0 < prefixes.nbytes <= 6 * bytes_a_page
    # what is let go of is what is needed, the oldest, and never what the request itself begins with
    held = prefixes.nbytes
    last = answers(target, [Request(prompt=[3] * 200, max_tokens=60)], prefixes, None)[0]
    assert last.cached_tokens == 192
    assert prefixes.nbytes >= held - bytes_a_page


def test_what_others_hold_is_not_let_go_of_for_nothing() -> None:
    """A sequence runs in the pages that are kept too; giving them up would free no memory."""
    p = pool(4)
    prefixes = PrefixCache(p, 4 * PAGE_BYTES)
    tokens = [7] * (2 * PAGE + 1)
    fill(p, prefixes, tokens)
    running = p.allocate(3 * PAGE, prefixes.find(tokens))
    assert prefixes.idle == 0
    with pytest.raises(MemoryLimitError):
        prefixes.allocate(2 * PAGE, [9] * 100)
    assert prefixes.nbytes == 2 * PAGE_BYTES
    running.release()
    assert prefixes.idle == 2
    block = prefixes.allocate(3 * PAGE, [9] * 100)
    assert block.length == 0
    assert prefixes.nbytes == PAGE_BYTES


def test_who_runs_beside_shares_a_prompt_that_is_in() -> None:
    """The second request arrives while the first still answers."""
    target = tiny_model(3, vocab_size=64, context=1024)
    prefixes = PrefixCache(target.pool, 1 << 20)
    scheduler = Scheduler(Engine(target, {}, FixedGamma(4)), Bytes(), prefixes=prefixes)
    request = Request(prompt=[i % 50 for i in range(200)], max_tokens=30)
    scheduler.add(request)
    for _ in range(3):
        scheduler.step()
    scheduler.add(request)
    made = [event.answer for _, event in scheduler.run() if event.answer is not None]
    assert [answer.cached_tokens for answer in made] == [0, 192]
    assert made[0].ids == made[1].ids
