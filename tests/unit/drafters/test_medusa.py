"""Medusa: against its formula, as an oracle on a target made by hand, with one, two, three heads and more."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from taslak import native
from taslak.core.sampling import Sampling
from taslak.drafters.base import Budget, DrafterOptions, Report, View, build
from taslak.drafters.formats import Head, MedusaConfig
from taslak.models.decoder import FINAL_NORM, Decoder
from taslak.models.native_ops import pack_weights
from taslak.models.target import chain_rows
from tests.support.decoding import decode, plain, request
from tests.support.heads import random_head
from tests.support.oracles import PROMPT, head_oracle, permuting_target, shifted
from tests.support.tiny import random_weights, tiny_config, tiny_model

TEXT = [1, 7, 3, 9, 9, 40, 2]


def reference(head: Head, weights: dict[str, Tensor], feature: Tensor) -> list[Tensor]:
    """The logits of each head over the draft vocabulary."""
    assert isinstance(head.config, MedusaConfig)
    w, ids = head.tensors, torch.arange(61) if head.draft_ids is None else head.draft_ids
    logits = []
    for i in range(head.config.heads):
        x = feature
        for j in range(head.config.blocks):
            at = f"heads.{i}.blocks.{j}"
            x = x + F.silu(x @ w[f"{at}.weight"].T + w[f"{at}.bias"])
        own = w.get(f"heads.{i}.unembed.weight", w.get("unembed.weight"))
        logits.append(x @ (weights["lm_head.weight"][ids] if own is None else own).T)
    return logits


@pytest.mark.parametrize("kernels", ["torch", "native"])
@pytest.mark.parametrize("vocabulary", ["all", "reduced"])
@pytest.mark.parametrize("unembedding", ["own", "shared", "target"])
@pytest.mark.parametrize("blocks", [0, 1, 2])
def test_the_forward_is_the_formula(blocks: int, unembedding: str, vocabulary: str, kernels: str) -> None:
    if kernels == "native" and not native.available():
        pytest.skip("no native kernels here")
    ids = list(range(0, 61, 3)) if vocabulary == "reduced" else None
    head = random_head(MedusaConfig(3, blocks, unembedding), scale=0.2, draft_ids=ids)
    tensors = {name: tensor.bfloat16().float() for name, tensor in head.tensors.items()}
    head = Head(head.target, head.config, tensors, head.draft_ids)
    weights = {n: w.bfloat16().float() for n, w in random_weights(tiny_config(), 1).items()}
    packed = pack_weights(tiny_config(), weights, "bfloat16") if kernels == "native" else weights
    target = Decoder(tiny_config(), packed)
    drafter = build("medusa", target, DrafterOptions(head=head))
    view = View(tokens=list(TEXT), prompt_length=1, sampling=Sampling(), key=0)
    cache = target.allocate(64)
    rows = TEXT[:-1]
    features = dict(target.forward([chain_rows(cache, rows, 0)], capture=(FINAL_NORM,)).features)
    drafter.observe([view], [Report(0, rows, features)])
    draft = drafter.propose([view], [Budget(5, 5)])[0]
    expected = reference(head, weights, features[FINAL_NORM][-1])
    assert len(draft) == 3, "no deeper than there are heads"
    joint = 1.0
    table = torch.arange(61) if head.draft_ids is None else head.draft_ids
    assert draft.confidence is not None
    for token, share, logits in zip(draft.tokens, draft.confidence, expected, strict=True):
        joint *= float(logits.softmax(-1).max())
        assert token == int(table[logits.argmax()])
        assert share == pytest.approx(joint, abs=1e-4)


@pytest.mark.parametrize("draft_ids", [None, list(range(0, 60, 2))], ids=["all", "even"])
@pytest.mark.parametrize("tree", ["linear", "static", "dynamic"])
def test_a_perfect_head_is_always_accepted_and_a_shifted_one_is_not(
    tree: str, draft_ids: list[int] | None
) -> None:
    target = permuting_target()
    branch = 1 if tree == "linear" else 3
    options = DrafterOptions(
        head=head_oracle("medusa", draft_ids), branch=branch, tree="static" if tree == "linear" else tree
    )
    for settings in ({}, {"temperature": 1.0}, {"temperature": 1.0, "verify": "rejection"}):
        r = request(PROMPT, max_tokens=40, **settings)
        counts = decode(target, build("medusa", target, options), [r], branch=branch)[0].counts
        assert counts.acceptance_rate == 1.0
        assert counts.alpha is not None
        assert counts.alpha > 3.9
    late = decode(target, shifted(build("medusa", target, options)), [request(PROMPT)], branch=branch)[0]
    assert late.counts.acceptance_rate is not None
    assert late.counts.acceptance_rate < 0.2  # a sibling may be right by chance
    assert late.ids == plain(target, [request(PROMPT)])[0].ids


@pytest.mark.parametrize("heads", [1, 2, 3, 5])
@pytest.mark.parametrize("tree", ["static", "dynamic"])
def test_c33_any_number_of_heads_with_the_default_tree(heads: int, tree: str) -> None:
    """EQ inside: the text is plain text at every γ; the draft is as deep as there are heads."""
    target = tiny_model(1)
    head = random_head(MedusaConfig(heads))
    requests = [request([1, 2, 3, 1, 2]), request([7], temperature=0.9)]
    expected = plain(target, requests)
    oracle = permuting_target()
    for gamma in (1, 2, 5):
        drafter = build("medusa", target, DrafterOptions(head=head, branch=4, tree=tree))
        got = decode(target, drafter, requests, gamma=gamma, branch=4)
        assert [a.ids for a in got] == [a.ids for a in expected]
        assert all(a.dropped == 0 for a in got)
        perfect = build(
            "medusa", oracle, DrafterOptions(head=head_oracle("medusa", None, heads), branch=4, tree=tree)
        )
        counts = decode(oracle, perfect, [request(PROMPT)], gamma=gamma, branch=4)[0].counts
        assert len(counts.offered_at) == min(heads, gamma)
        assert counts.acceptance_rate == 1.0


def test_c37_it_drafts_again_as_soon_as_it_hears_of_a_pass() -> None:
    target = permuting_target()
    drafter = build("medusa", target, DrafterOptions(head=head_oracle("medusa", None)))
    view = View(tokens=[4, 6, 8], prompt_length=1, sampling=Sampling(), key=0)

    def feature(token: int) -> dict[str, Tensor]:
        return {FINAL_NORM: 8.0 * torch.eye(64)[token : token + 1]}

    assert drafter.lag(view) == 3
    drafter.observe([view], [Report(1, [6], feature(6))])
    assert drafter.lag(view) == 0
    assert drafter.propose([view], [Budget(3, 3)])[0].tokens == (10, 12, 14)
    view.tokens += [10, 12, 14]
    assert drafter.lag(view) == 3
    assert not drafter.propose([view], [Budget(3, 3)])[0]
    drafter.observe([view], [Report(4, [12], feature(12))])
    assert drafter.propose([view], [Budget(3, 3)])[0].tokens == (16, 18, 20)
    view.tokens[:] = [4, 6, 9]
    assert drafter.lag(view) == 3
    assert not drafter.propose([view], [Budget(3, 3)])[0]


def test_rows_after_the_end_of_an_answer_are_not_used() -> None:
    """A pass that ends on an accepted token leaves a row whose next token was never decided."""
    target = permuting_target()
    drafter = build("medusa", target, DrafterOptions(head=head_oracle("medusa", None)))
    view = View(tokens=[4, 6], prompt_length=1, sampling=Sampling(), key=0)
    rows: Sequence[int] = [4, 6]
    drafter.observe([view], [Report(0, rows, {FINAL_NORM: 8.0 * torch.eye(64)[[4, 6]]})])
    assert drafter.lag(view) == 0
    assert drafter.propose([view], [Budget(2, 2)])[0].tokens == (8, 10)
