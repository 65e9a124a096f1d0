"""The draft model's own cache: after any acceptance it drafts as one that starts afresh would."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taslak.core.draft import Draft
from taslak.core.noise import Stream, noise_key
from taslak.core.sampling import Sampling
from taslak.drafters.base import Budget, View
from taslak.drafters.draft_model import DraftModel
from taslak.models.cache import PAGE
from taslak.models.prefix import PrefixCache
from tests.support.decoding import decode, plain, request, whole
from tests.support.scripted import oracle
from tests.support.tiny import near_model, poison, tiny_model

MODEL = tiny_model(4, layers=1)


def view(tokens: Sequence[int], temperature: float = 0.0, rejection: bool = False) -> View:
    stream = Stream.DRAFT if rejection else Stream.TOKEN
    return View(
        list(tokens), 1, Sampling(temperature=temperature), noise_key(3), stream=stream, exact_q=rejection
    )


def same(a: Draft, b: Draft) -> bool:
    q_same = (a.q is None and b.q is None) or (a.q is not None and b.q is not None and torch.equal(a.q, b.q))
    return (a.tokens, a.parents, a.q_row) == (b.tokens, b.parents, b.q_row) and q_same


@settings(max_examples=40)
@given(data=st.data())
def test_c37_any_path_through_the_tree_may_be_taken(data: st.DataObject) -> None:
    """Main chain or sibling accepted, then another token, or text cut back: the next draft is a fresh one."""
    temperature = data.draw(st.sampled_from((0.0, 0.9)))
    rejection = data.draw(st.booleans())
    branch = data.draw(st.integers(1, 3))
    old = DraftModel(MODEL, 61, branch)
    v = view(data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=70)), temperature, rejection)
    for _ in range(4):
        budget = Budget(depth=data.draw(st.integers(1, 5)), nodes=15)
        draft = old.propose([v], [budget])[0]
        fresh = view(v.tokens, temperature, rejection)
        assert same(draft, DraftModel(MODEL, 61, branch).propose([fresh], [budget])[0])
        assert draft.depth <= budget.depth
        node = data.draw(st.integers(-1, len(draft) - 1))
        v.tokens += [*draft.branch(node), data.draw(st.integers(0, 60))]
        if data.draw(st.integers(0, 4)) == 0:
            del v.tokens[data.draw(st.integers(1, len(v.tokens))) :]
    old.forget(v)


@settings(max_examples=25)
@given(data=st.data())
def test_beginnings_of_earlier_texts_are_not_read_again(data: st.DataObject) -> None:
    """The same drafts, fewer rows; texts that part after a page, and one that is cut back below it."""
    model = tiny_model(4, layers=1)
    drafter = DraftModel(model, 61)
    drafter.reader.prefixes = PrefixCache(model.pool, 1 << 20)
    budget = Budget(depth=3, nodes=3)
    for _ in range(4):
        begins = [data.draw(st.integers(0, 1))] * (PAGE * data.draw(st.integers(0, 2)))
        v = view([*begins, *data.draw(st.lists(st.integers(2, 60), min_size=1, max_size=10))])
        lag = drafter.lag(v)
        assert len(v.tokens) - lag in (0, PAGE, 2 * PAGE)
        assert same(
            drafter.propose([v], [budget])[0], DraftModel(MODEL, 61).propose([view(v.tokens)], [budget])[0]
        )
        if data.draw(st.booleans()):
            del v.tokens[data.draw(st.integers(1, len(v.tokens))) :]
            again = DraftModel(MODEL, 61).propose([view(v.tokens)], [budget])[0]
            assert same(drafter.propose([v], [budget])[0], again)
        drafter.forget(v)
    second = view([7] * (PAGE + 5))
    drafter.propose([second], [budget])
    drafter.forget(second)
    assert drafter.lag(view([7] * (PAGE + 9))) == 9
    drafter.reader.prefixes.clear()
    assert model.pool.free_pages == model.pool.pages


def test_c36_stopping_early_keeps_every_drawn_sibling() -> None:
    """Under rejection a low confidence ends the draft below a node; it never drops a drawn one."""
    v = view([5, 6, 7], temperature=1.5, rejection=True)
    whole_tree = DraftModel(MODEL, 61, 3).propose([v], [Budget(4, 12)])[0]
    for stop in (0.01, 0.05, 0.2, 0.9):
        short = DraftModel(MODEL, 61, 3).propose(
            [view([5, 6, 7], temperature=1.5, rejection=True)], [Budget(4, 12, stop_below=stop)]
        )[0]
        assert short.tokens == whole_tree.tokens[: len(short)]
        assert len(short) % 3 == 0, "siblings are all kept"


def test_a_sequence_the_model_cannot_serve_leaves_the_others_alone() -> None:
    """C38: one request's draft logits are NaN; its neighbour still accepts everything."""
    target, poisoned = tiny_model(4, layers=1), tiny_model(4, layers=1)
    poison(poisoned, 60, math.nan)
    requests = [request([1, 2, 3], banned=(60,)), request([60, 2])]
    fine, other = decode(target, DraftModel(poisoned, 61), requests)
    assert fine.counts.acceptance_rate == 1.0
    assert fine.dropped == 0
    assert other.ids == plain(target, requests[1:])[0].ids
    assert other.counts.drafted == 0


def test_tokens_the_draft_model_does_not_know() -> None:
    """A smaller draft vocabulary: it drafts where it can, and nothing after a token it lacks."""
    small = near_model(4, layers=1, vocab_size=40)
    drafter = DraftModel(small, 61)
    assert len(drafter.propose([view([1, 2, 3])], [Budget(3, 3)])[0]) == 3
    assert len(drafter.propose([view([1, 50, 3])], [Budget(3, 3)])[0]) == 0
    requests = [request([1, 2, 3], temperature=1.0, logit_bias={55: 2.0}, repetition_penalty=1.2)]
    assert decode(MODEL, drafter, requests)[0].ids == plain(MODEL, requests)[0].ids


def test_the_cache_grows_without_running_anything_again() -> None:
    """700 tokens, far past the first reservation: each token goes through the draft model about once."""
    model = tiny_model(4, layers=1, context=800)
    rows = 0
    forward = model.forward

    def counted(batch, **options):  # type: ignore[no-untyped-def]
        nonlocal rows
        rows += sum(len(r.tokens) for r in batch)
        return forward(batch, **options)

    model.forward = counted  # type: ignore[method-assign]
    target = tiny_model(4, layers=1, context=800)
    answer = decode(target, DraftModel(model, 61), [request([1], max_tokens=700)], gamma=4)[0]
    assert len(answer.ids) == 700
    assert rows < 1.3 * 700


@pytest.mark.parametrize("prompts", [[900], [300, 300], [511, 3, 600]])
def test_long_prompts_are_prefilled_in_chunks(prompts: list[int]) -> None:
    target, draft = tiny_model(4, layers=1, context=1024), tiny_model(4, layers=1, context=1024)
    requests = [request([i % 61 for i in range(n)], max_tokens=12) for n in prompts]
    expected = plain(target, requests)
    got = decode(target, DraftModel(draft, 61), requests)
    assert [a.ids for a in got] == [a.ids for a in expected]
    assert all(a.counts.acceptance_rate == 1.0 for a in got)
    assert [a.ids for a in decode(target, oracle(whole(requests, expected)), requests)] == [
        a.ids for a in expected
    ]
