"""C37: a prompt's beginning came from the cache, no drafter has seen its passes. The text never changes."""

from __future__ import annotations

import pytest

from taslak.core.sampling import Sampling
from taslak.drafters.reader import ReadsAlong
from taslak.engine.policy import FixedGamma
from taslak.engine.scheduler import Scheduler
from taslak.engine.sequence import Answer, Request
from taslak.engine.step import Engine
from taslak.models.prefix import PrefixCache
from tests.support.decoding import Bytes
from tests.support.registry import DRAFT, METHODS, TARGET, drafter


def conversation(method: str | None, sampling: Sampling, verify: str, reuse: bool) -> list[Answer]:
    """Three turns, each beginning as the one before and its answer; one drafter object for all of them."""
    drafters = {} if method is None else {method: drafter(method)}
    prefixes = PrefixCache(TARGET.pool, 1 << 20) if reuse else None
    readers = [each.reader for each in drafters.values() if isinstance(each, ReadsAlong)]
    for reader in readers if reuse else ():
        reader.prefixes = PrefixCache(DRAFT.pool, 1 << 20)
    engine = Engine(TARGET, drafters, FixedGamma(3))
    history = [i * 7 % 50 for i in range(100)]
    made: list[Answer] = []
    for turn in range(3):
        request = Request(list(history), sampling, max_tokens=60, seed=5, verify=verify)
        scheduler = Scheduler(engine, Bytes(), prefixes=prefixes)
        scheduler.add(request)
        made += [event.answer for _, event in scheduler.run() if event.answer is not None]
        history = [*history, *made[-1].ids, turn, turn + 1]
    for cache in (prefixes, *(reader.prefixes for reader in readers)):
        if cache is not None:
            cache.clear()
    return made


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("method", METHODS)
def test_c37_a_reused_beginning_changes_no_text(method: str, temperature: float) -> None:
    sampling = Sampling(temperature=temperature)
    used = [model.pool.pages - model.pool.free_pages for model in (TARGET, DRAFT)]
    cold = conversation(None, sampling, "coupled", reuse=False)
    warm = conversation(method, sampling, "coupled", reuse=True)
    assert [answer.cached_tokens for answer in warm] == [0, 128, 192]
    assert [answer.ids for answer in warm] == [answer.ids for answer in cold]
    assert all(answer.dropped == 0 for answer in warm)
    assert [model.pool.pages - model.pool.free_pages for model in (TARGET, DRAFT)] == used


@pytest.mark.parametrize("method", METHODS)
def test_c37_it_is_used_again_at_once(method: str) -> None:
    """Greedy under rejection too; and whoever drafts without the beginning still drafts."""
    cold = conversation(None, Sampling(), "coupled", reuse=False)
    warm = conversation(method, Sampling(), "rejection", reuse=True)
    assert [answer.ids for answer in warm] == [answer.ids for answer in cold]
    assert warm[-1].counts.drafted > 0
