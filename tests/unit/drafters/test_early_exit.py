"""Early exit: what is drafted, what is reused, and that neither can be seen in the text."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from taslak.core.draft import Draft
from taslak.core.noise import Stream, noise_key
from taslak.core.sampling import Distribution, Sampling
from taslak.drafters import watch
from taslak.drafters.base import NOTHING, Budget, Drafter, DrafterOptions, View, build
from taslak.drafters.early_exit import EarlyExit, Exit
from taslak.drafters.formats import ExitConfig
from taslak.errors import OptionError
from taslak.models.decoder import Decoder
from taslak.models.layers import weight_name
from taslak.models.ops import Share
from taslak.models.target import Rows, Target
from tests.support.decoding import GAMMAS, cache_of, decode, plain, request
from tests.support.heads import random_head
from tests.support.tiny import random_weights, tiny_config, tiny_model

LAYERS = 4
MODEL = tiny_model(6, layers=LAYERS)
PROMPTS = ([1, 2, 3, 4, 5], [7], [5, 6, 5, 6, 9], list(range(40)) * 2)


def idle_above(exit_layer: int) -> Decoder:
    """A model whose layers from `exit_layer` on hand on what they are given."""
    config = tiny_config(layers=LAYERS)
    weights = random_weights(config, 6)
    _silence(weights, range(exit_layer, LAYERS))
    return Decoder(config, weights, exact=True)


def _silence(weights: dict[str, Tensor], layers: Iterable[int]) -> None:
    for layer in layers:
        weights[weight_name(layer, "o")].zero_()
        weights[weight_name(layer, "down")].zero_()


def low_rank_model(rank: int) -> tuple[Decoder, Exit]:
    """A model whose third layer adds U (D h) to the hidden state, the others nothing; the exit that knows.

    Its embeddings have a root mean square of 1, so that the layer's norm leaves them alone, and a gate that
    is 10 for every input makes the MLP linear.
    """
    config = tiny_config(layers=LAYERS, mlp_bias=True)
    weights = random_weights(config, 6)
    _silence(weights, range(LAYERS))
    for name, weight in weights.items():
        if name.endswith("bias"):
            weight.zero_()
    embedding = weights["model.embed_tokens.weight"]
    embedding /= embedding.square().mean(-1, keepdim=True).sqrt()
    weights["model.layers.2.post_attention_layernorm.weight"].fill_(1.0)
    generator = torch.Generator().manual_seed(0)
    down = torch.randn((rank, config.hidden_size), generator=generator)
    up = torch.randn((config.hidden_size, rank), generator=generator)
    weights[weight_name(2, "gate")].zero_()
    weights[weight_name(2, "gate", "bias")].fill_(10.0)
    weights[weight_name(2, "up")][:rank] = down
    weights[weight_name(2, "up")][rank:] = 0.0
    weights[weight_name(2, "down")][:, :rank] = up / torch.nn.functional.silu(torch.tensor(10.0))
    return Decoder(config, weights, exact=True), Exit(1, weights["model.norm.weight"].clone(), down, up)


def view(target: Target, tokens: Sequence[int], temperature: float = 0.0, rejection: bool = False) -> View:
    return View(
        list(tokens),
        1,
        Sampling(temperature=temperature),
        noise_key(3),
        stream=Stream.DRAFT if rejection else Stream.TOKEN,
        exact_q=rejection,
        cache=cache_of(target, tokens),
    )


# -- what is drafted ----------------------------------------------------------------------------------


@pytest.mark.parametrize("verify", ["coupled", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("exit_layer", range(1, LAYERS))
def test_an_exit_above_which_nothing_happens_is_always_right(
    exit_layer: int, temperature: float, verify: str
) -> None:
    target = idle_above(exit_layer)
    requests = [request(p, temperature=temperature, verify=verify, max_tokens=40) for p in PROMPTS]
    for gamma in (1, 5):
        answers = decode(target, EarlyExit(target, Exit(exit_layer)), requests, gamma=gamma)
        assert all(answer.counts.acceptance_rate == 1.0 for answer in answers)
        assert all(answer.counts.drafted >= 19 and answer.dropped == 0 for answer in answers)
        if verify == "coupled":
            assert [a.ids for a in answers] == [a.ids for a in plain(target, requests)]


def test_c33_the_adapter_and_the_norm_are_applied() -> None:
    """Layers add U (D h); an exit before them that does the same is always right, others aren't."""
    target, exit_ = low_rank_model(rank=4)
    assert exit_.norm is not None
    requests = [request(p, max_tokens=40) for p in PROMPTS]
    for right in (exit_, replace(exit_, norm=None)):
        answers = decode(target, EarlyExit(target, right), requests)
        assert all(answer.counts.acceptance_rate == 1.0 for answer in answers)
    for wrong in (Exit(1), Exit(1, exit_.norm), replace(exit_, norm=-exit_.norm)):
        answers = decode(target, EarlyExit(target, wrong), requests)
        assert all(answer.counts.acceptance_rate < 0.5 for answer in answers)  # type: ignore[operator]
        assert [a.ids for a in answers] == [a.ids for a in plain(target, requests)]


@pytest.mark.parametrize("verify", ["coupled", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_draft_vocabulary_is_never_left(temperature: float, verify: str) -> None:
    target, ids = idle_above(2), list(range(0, 61, 2))
    requests = [request(p, temperature=temperature, verify=verify, max_tokens=40) for p in PROMPTS]
    drafter = EarlyExit(target, Exit(2, ids=torch.tensor(ids)), branch=2)
    v = view(target, [1, 2, 3], temperature, verify == "rejection")
    draft = drafter.propose([v], [Budget(8, 16)])[0]
    assert len(draft) == 16
    assert set(draft.tokens) <= set(ids)
    draft.check(61)
    answers = decode(target, drafter, requests, branch=2)
    assert all(answer.dropped == 0 and answer.counts.accepted > 0 for answer in answers)
    everything = EarlyExit(target, Exit(2, ids=torch.arange(61)))
    assert all(a.counts.acceptance_rate == 1.0 for a in decode(target, everything, requests))
    if verify == "coupled":
        assert [a.ids for a in answers] == [a.ids for a in plain(target, requests)]


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_siblings_stay_in_the_order_they_were_drawn(data: st.DataObject) -> None:
    """Nodes with work done lead the draft; among siblings the order, which q is for, stays."""
    tokens = data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=9))
    v = view(MODEL, tokens, temperature=1.5, rejection=True)
    budget = Budget(data.draw(st.integers(1, 6)), 24, stop_below=data.draw(st.sampled_from((0.0, 0.02, 0.1))))
    draft = EarlyExit(MODEL, Exit(2), branch=3).propose([v], [budget])[0]
    assert draft.q is not None
    for node in range(-1, len(draft)):
        children = draft.children(node)
        if children:
            base = Distribution.of_weights(draft.q[draft.q_row[children[0]]].double())
            position = v.position + len(draft.branch(node))
            drawn = base.top(len(children), v.draft_key, v.stream, position)[0]
            assert [draft.tokens[child] for child in children] == drawn


def test_budgets_are_honoured() -> None:
    for branch, depth, nodes, stop_below in itertools.product((1, 3), (1, 4), (2, 5, 40), (0.0, 0.05, 2.0)):
        v = view(MODEL, [5, 6, 7])
        drafter = EarlyExit(MODEL, Exit(2), branch)
        draft = drafter.propose([v], [Budget(depth, nodes, stop_below)])[0]
        assert 1 <= draft.depth <= depth
        assert len(draft) <= nodes
        assert draft.depth == 1 or stop_below < 1, "sure of nothing, it stops after the first token"
    assert not drafter.propose([v], [NOTHING])[0]


def test_without_the_cache_it_needs_it_drafts_nothing() -> None:
    drafter, budget = EarlyExit(MODEL, Exit(2)), Budget(3, 3)
    v = view(MODEL, [5, 6, 7])
    v.tokens.append(8)  # not in the cache, and neither is the token before it
    without = View([5, 6, 7], 1, Sampling(), noise_key(3))
    assert [len(draft) for draft in drafter.propose([v, without], [budget, budget])] == [0, 0]


# -- what is reused -----------------------------------------------------------------------------------


def test_every_row_runs_through_every_layer_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafting and the pass together cost as many rows in each layer as the pass alone would without."""
    target = tiny_model(6, layers=LAYERS)
    rows = [0] * LAYERS
    resumed = 0
    run = target._layers.run

    def counted(first: int, last: int, shares: Sequence[Share], **options: Any) -> Any:
        nonlocal resumed
        count = sum(len(share.nodes) for share in shares)
        resumed += count if first > 0 else 0
        for layer in range(first, last):
            rows[layer] += count
        return run(first, last, shares, **options)

    monkeypatch.setattr(target._layers, "run", counted)
    for exit_layer, branch in itertools.product(range(1, LAYERS), (1, 3)):
        rows[:], resumed = [0] * LAYERS, 0
        drafter = Noting(EarlyExit(target, Exit(exit_layer), branch))
        answer = decode(target, drafter, [request(PROMPTS[0])], gamma=4, branch=branch)[0]
        first, *others = drafter.drafts
        assert answer.dropped == 0
        assert not first, "the prompt isn't in the cache yet"
        passes = answer.counts.passes - 1  # the last one may have nothing left to draft
        assert rows == [len(PROMPTS[0]) + passes + sum(map(len, others))] * LAYERS
        assert resumed == sum(1 + len(draft) for draft in others if draft), "only upper layers see them all"
        assert resumed > 20


class Noting:
    """A drafter, and every draft it made."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.drafts: list[Draft] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def propose(self, views: Sequence[View], budgets: Sequence[Budget]) -> list[Draft]:
        drafts = self._drafter.propose(views, budgets)
        self.drafts += drafts
        return drafts


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_what_is_handed_over_changes_no_bit(data: st.DataObject) -> None:
    """A pass that resumes a draft gives the logits of one that runs the same rows from layer 0."""
    exit_layer, branch = data.draw(st.integers(1, LAYERS - 1)), data.draw(st.integers(1, 3))
    drafter = EarlyExit(MODEL, Exit(exit_layer), branch)
    tokens = data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=70))
    v = view(MODEL, tokens, data.draw(st.sampled_from((0.0, 0.9))), data.draw(st.booleans()))
    assert v.cache is not None
    draft = drafter.propose([v], [Budget(data.draw(st.integers(1, 5)), data.draw(st.integers(1, 12)))])[0]
    partial = draft.partial
    assert partial is not None
    assert partial.rows == v.cache.nodes, "what was run leads"
    assert branch > 1 or partial.rows == len(draft), "the root, and all of the chain but its end"
    whole = cache_of(MODEL, tokens)
    rows = [tokens[-1], *draft.tokens], [-1, *(1 + parent for parent in draft.parents)]
    total = len(rows[0])
    resumed = Rows(v.cache, *rows, 0, total, starts=partial.starts(total), hidden=partial.hidden)
    assert torch.equal(MODEL.forward([resumed]).logits, MODEL.forward([Rows(whole, *rows, 0, total)]).logits)
    v.cache.release()
    whole.release()


# -- edges, and what the user is told -----------------------------------------------------------------


@pytest.mark.parametrize("exit_layer", [-1, 0, LAYERS, LAYERS + 1])
def test_c33_layers_outside_the_model_are_refused(exit_layer: int) -> None:
    with pytest.raises(OptionError, match=f"exit_layer is {exit_layer}; expected"):
        build("early-exit", MODEL, DrafterOptions(exit_layer=exit_layer))


@pytest.mark.parametrize("branch", [1, 3])
@pytest.mark.parametrize("exit_layer", [1, LAYERS - 1])
def test_c33_the_first_and_the_last_possible_layer_change_no_text(exit_layer: int, branch: int) -> None:
    options = DrafterOptions(exit_layer=exit_layer, branch=branch)
    requests = [request(p, temperature=0.9 * (i % 2)) for i, p in enumerate(PROMPTS)]
    expected = [a.ids for a in plain(MODEL, requests)]
    for gamma in GAMMAS:
        answers = decode(MODEL, build("early-exit", MODEL, options), requests, gamma=gamma, branch=branch)
        assert [a.ids for a in answers] == expected
        assert all(a.dropped == 0 for a in answers)


def test_a_model_of_one_layer_has_no_exit() -> None:
    with pytest.raises(OptionError, match="one layer"):
        build("early-exit", tiny_model(6, layers=1), DrafterOptions())


def test_a_trained_exit_says_where_it_is() -> None:
    head = random_head(ExitConfig(exit_layer=2, rank=4), layers=LAYERS, draft_ids=range(40))
    drafter = build("early-exit", MODEL, DrafterOptions(head=head))
    assert drafter.needs.exit_layer == 2
    build("early-exit", MODEL, DrafterOptions(head=head, exit_layer=2))
    with pytest.raises(OptionError, match="exit_layer is 3, and the head was trained for 2"):
        build("early-exit", MODEL, DrafterOptions(head=head, exit_layer=3))


def test_a_bad_exit_is_told_of_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, exit_ = low_rank_model(rank=4)
    monkeypatch.setattr(watch, "ENOUGH", 20)
    long = [request([i], max_tokens=60) for i in range(3)]
    with caplog.at_level(logging.WARNING):
        decode(target, EarlyExit(target, exit_), long)
        decode(target, EarlyExit(target, Exit(1)), [request([1], max_tokens=19)])
    assert not caplog.records, "a good exit, and too few drafts to judge by"
    with caplog.at_level(logging.WARNING):
        decode(target, EarlyExit(target, Exit(1)), long)
    (record,) = caplog.records
    assert "early exit after 1 of 4 layers drafts badly" in record.getMessage()
    assert "without training it is rarely right" in record.getMessage()
    with caplog.at_level(logging.WARNING):
        decode(target, EarlyExit(target, replace(exit_, up=None)), long)
    assert "Exit later" in caplog.records[-1].getMessage()
