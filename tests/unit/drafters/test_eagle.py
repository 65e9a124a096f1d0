"""EAGLE, EAGLE-2, EAGLE-3: against a plain reference, as oracles on targets made by hand, and across gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from taslak import native
from taslak.core.sampling import Sampling
from taslak.drafters.base import Budget, DrafterOptions, Report, View, build
from taslak.drafters.eagle import Eagle
from taslak.drafters.formats import Eagle3Config, EagleConfig, Head, HeadConfig
from taslak.engine.sequence import Answer
from taslak.errors import CheckpointError, OptionError
from taslak.models.decoder import Decoder
from taslak.models.native_ops import pack_weights
from taslak.models.target import chain_rows
from tests.support.decoding import decode, plain, request
from tests.support.heads import LAYER, head_for, random_head
from tests.support.oracles import PROMPT, head_oracle, permuting_target, shifted
from tests.support.tiny import random_weights, tiny_config, tiny_model

CONFIGS: dict[str, HeadConfig] = {
    "eagle": EagleConfig(LAYER),
    "eagle-norms": EagleConfig(LAYER, input_norm=True, final_norm=True, fc_bias=False),
    "eagle3": Eagle3Config(LAYER, (0, 1, 2)),
    "eagle3-normed": Eagle3Config(replace(LAYER, qkv_bias=True), (0, 1, 2), norm_before_residual=True),
}
TEXT = [1, 7, 3, 9, 9, 40, 2, 60, 5, 11, 30, 30, 8]


# -- a straightforward reference: the whole text at once, a causal mask, nothing cached -------------------


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def rotated(x: Tensor, theta: float) -> Tensor:
    """x: [n, heads, d], row t at position t."""
    n, _, d = x.shape
    angles = torch.arange(n)[:, None] / theta ** (torch.arange(0, d, 2) / d)  # [n, d/2]
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def reference(head: Head, embedding: Tensor, tokens: Sequence[int], hidden: Tensor) -> Tensor:
    """The next features, [n, H]. tokens: [n], row t reads token t + 1; hidden: [n, H], fused already."""
    w, config = head.tensors, head.config
    assert isinstance(config, EagleConfig | Eagle3Config)
    layer, eps = config.layer, config.layer.norm_eps
    embedded = w.get("embed_tokens.weight", embedding)[list(tokens)]
    if isinstance(config, Eagle3Config):
        normed = rms(hidden, w["layer.hidden_norm.weight"], eps)
        x = torch.cat((rms(embedded, w["layer.input_norm.weight"], eps), normed), -1)
        residual = normed if config.norm_before_residual else hidden
    else:
        residual = torch.cat((embedded, hidden), -1) @ w["fc.weight"].T + w.get("fc.bias", 0.0)
        x = rms(residual, w["layer.input_norm.weight"], eps) if config.input_norm else residual
    n, d = len(tokens), layer.head_size

    def product(name: str, heads: int) -> Tensor:
        return (x @ w[f"layer.{name}.weight"].T + w.get(f"layer.{name}.bias", 0.0)).view(n, heads, d)

    q = rotated(product("q", layer.heads), layer.rope_theta)
    k = rotated(product("k", layer.kv_heads), layer.rope_theta)
    v = product("v", layer.kv_heads)
    k, v = (t.repeat_interleave(layer.heads // layer.kv_heads, 1) for t in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) / d**0.5
    scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
    mixed = torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).reshape(n, -1)
    x = residual + mixed @ w["layer.o.weight"].T
    h = rms(x, w["layer.post_norm.weight"], eps)
    gated = F.silu(h @ w["layer.gate.weight"].T) * (h @ w["layer.up.weight"].T)
    x = x + gated @ w["layer.down.weight"].T
    if isinstance(config, EagleConfig) and config.final_norm:
        x = rms(x, w["norm.weight"], eps)
    return x


def reference_draft(
    head: Head, weights: dict[str, Tensor], text: Sequence[int], features: Tensor, depth: int
) -> tuple[list[int], list[float]]:
    """A greedy chain after `text` and its joint confidences. features: [len(text) − 1, F]."""
    w = head.tensors
    fused = isinstance(head.config, Eagle3Config)
    hidden = features @ w["fc.weight"].T if fused else features
    ids = torch.arange(61) if head.draft_ids is None else head.draft_ids
    tokens, joint, drafted, confidence = list(text[1:]), 1.0, [], []
    for _ in range(depth):
        out = reference(head, weights["model.embed_tokens.weight"], tokens, hidden)
        last = out[-1]
        if fused:
            last = rms(last, w["norm.weight"], head.config.layer.norm_eps)  # type: ignore[union-attr]
        logits = last @ (w["lm_head.weight"] if fused else weights["lm_head.weight"][ids]).T
        shares = logits.softmax(-1)
        best = int(shares.argmax())
        joint *= float(shares[best])
        drafted.append(int(ids[best]))
        confidence.append(joint)
        tokens.append(drafted[-1])
        hidden = torch.cat((hidden, out[-1:]))
    return drafted, confidence


def rounded(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Values that packing as bfloat16 keeps."""
    return {name: tensor.bfloat16().float() for name, tensor in tensors.items()}


def told(drafter: Eagle, target: Decoder, text: list[int], chunks: Sequence[int]) -> tuple[View, Tensor]:
    """A view of `text` whose features came in reports of these sizes; the features, [len(text) − 1, F]."""
    view = View(tokens=list(text), prompt_length=1, sampling=Sampling(), key=0)
    cache = target.allocate(len(text))
    seen = []
    for n in chunks:
        first = cache.length
        chunk = text[first : first + n]
        output = target.forward([chain_rows(cache, chunk, 0)], capture=drafter.needs.features)
        features = dict(output.features)
        cache.keep(range(len(chunk)))
        drafter.observe([view], [Report(first, chunk, features)])
        seen.append(torch.cat([features[name] for name in drafter.needs.features], -1))
    cache.release()
    return view, torch.cat(seen)


@pytest.mark.parametrize("kernels", ["torch", "native"])
@pytest.mark.parametrize("vocabulary", ["all", "reduced"])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_forward_is_that_of_a_plain_reference(name: str, vocabulary: str, kernels: str) -> None:
    """Chains drafted after features that came in different pieces: tokens and confidences within 1e-4."""
    if kernels == "native" and not native.available():
        pytest.skip("no native kernels here")
    weights = rounded(random_weights(tiny_config(), 1))
    ids = list(range(0, 61, 3)) if vocabulary == "reduced" else None
    own = vocabulary == "reduced"
    head = random_head(CONFIGS[name], seed=4, scale=0.15, draft_ids=ids, own_embedding=own)
    head = Head(head.target, head.config, rounded(head.tensors), head.draft_ids)
    packed: dict[str, Tensor | native.Packed] = {**weights}
    if kernels == "native":
        packed = pack_weights(tiny_config(), weights, "bfloat16")
        packed["model.embed_tokens.weight"] = native.Packed.bfloat16(weights["model.embed_tokens.weight"])
    target = Decoder(tiny_config(), packed)
    for chunks in ((12,), (1,) * 12, (5, 1, 4, 2)):
        drafter = build(head.kind, target, DrafterOptions(head=head))
        assert isinstance(drafter, Eagle)
        view, features = told(drafter, target, TEXT, chunks)
        for _ in range(2):  # the second time without anything new
            draft = drafter.propose([view], [Budget(4, 4)])[0]
            tokens, confidence = reference_draft(head, weights, TEXT, features, 4)
            assert list(draft.tokens) == tokens
            assert draft.confidence == pytest.approx(confidence, abs=1e-4)
        drafter.forget(view)


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
@pytest.mark.parametrize("tree", ["static", "dynamic"])
def test_every_branch_of_a_tree_is_what_a_chain_would_be(kind: str, tree: str) -> None:
    """A node's confidence is the product of what the reference gives along its own branch."""
    weights = random_weights(tiny_config(), 1)
    head = random_head(CONFIGS[kind], seed=4, scale=0.15)
    target = tiny_model(1, exact=False)
    drafter = build(kind, target, DrafterOptions(head=head, branch=3, tree=tree))
    assert isinstance(drafter, Eagle)
    view, features = told(drafter, target, TEXT, (7, 5))
    draft = drafter.propose([view], [Budget(4, 14)])[0]
    assert draft.depth >= 3
    assert draft.confidence is not None
    w = head.tensors
    fused = kind == "eagle3"
    fuse = features @ w["fc.weight"].T if fused else features
    for node in range(len(draft)):
        branch = draft.branch(node)
        hidden, tokens, joint = fuse, list(TEXT[1:]), 1.0
        for token in branch:
            out = reference(head, weights["model.embed_tokens.weight"], tokens, hidden)
            last = rms(out[-1], w["norm.weight"], LAYER.norm_eps) if fused else out[-1]
            logits = last @ (w["lm_head.weight"] if fused else weights["lm_head.weight"]).T
            joint *= float(logits.softmax(-1)[token])
            tokens.append(token)
            hidden = torch.cat((hidden, out[-1:]))
        assert draft.confidence[node] == pytest.approx(joint, abs=1e-4)


# -- oracles: targets whose next token is a permutation of the current one ---------------------------------


def acceptance(answers: Sequence[Answer]) -> float:
    rate = answers[0].counts.acceptance_rate
    assert rate is not None
    return rate


@pytest.mark.parametrize("draft_ids", [None, list(range(0, 60, 2))], ids=["all", "even"])
@pytest.mark.parametrize("tree", ["linear", "static", "dynamic"])
@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_a_perfect_head_is_always_accepted_and_a_shifted_one_is_not(
    kind: str, tree: str, draft_ids: list[int] | None
) -> None:
    """Features and vocabulary are aligned (tokens and positions: see the tests against the reference):
    features one row late are no oracle."""
    target = permuting_target()
    head = head_oracle(kind, draft_ids)
    branch = 1 if tree == "linear" else 3
    options = DrafterOptions(head=head, branch=branch, tree="static" if tree == "linear" else tree)
    for settings in ({}, {"temperature": 1.0}, {"temperature": 1.0, "verify": "rejection"}):
        r = request(PROMPT, max_tokens=40, **settings)
        answers = decode(target, build(kind, target, options), [r], branch=branch)
        assert acceptance(answers) == 1.0
        assert answers[0].counts.alpha > 3.9  # type: ignore[operator]
    late = decode(target, shifted(build(kind, target, options)), [request(PROMPT)], branch=branch)
    assert acceptance(late) < 0.1
    assert late[0].ids == plain(target, [request(PROMPT)])[0].ids


# -- gaps and neighbours ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_c37_after_a_gap_it_starts_afresh_at_true_positions(kind: str) -> None:
    """A prefix out of a cache is never observed: drafts resume at once, from the first features that come,
    as those of a drafter whose rows before the gap never were. The rotation is relative, so a reference that
    begins at the gap gives the same."""
    weights = random_weights(tiny_config(), 1)
    head = random_head(CONFIGS[kind], seed=4, scale=0.15)
    target = tiny_model(1, exact=False)
    drafter = build(kind, target, DrafterOptions(head=head))
    assert isinstance(drafter, Eagle)
    view, features = told(drafter, target, TEXT[:4], (3,))
    assert drafter.propose([view], [Budget(3, 3)])[0]
    assert drafter.lag(view) == 0
    view.tokens += TEXT[4:9]  # another method was active, and this one was not told
    assert not drafter.propose([view], [Budget(3, 3)])[0]
    assert drafter.lag(view) > 0
    view.tokens += TEXT[9:]
    _, features = told(drafter, target, TEXT, (12,))
    late = features[8:]
    sizes = [part.shape[1] for part in [late[:, i : i + 32] for i in range(0, late.shape[1], 32)]]
    named = dict(zip(drafter.needs.features, late.split(sizes, 1), strict=True))
    drafter.observe([view], [Report(8, TEXT[8:12], named)])
    draft = drafter.propose([view], [Budget(3, 3)])[0]
    tokens, confidence = reference_draft(head, weights, TEXT[8:], late, 3)
    assert list(draft.tokens) == tokens
    assert draft.confidence == pytest.approx(confidence, abs=1e-4)
    assert drafter.lag(view) == 0


def test_c37_acceptance_recovers_after_a_gap() -> None:
    target = permuting_target()

    class Interrupted(Eagle):
        """Hears nothing of the passes in the middle."""

        passes = 0

        def observe(self, views: Sequence[View], reports: Sequence[Report]) -> None:
            self.passes += 1
            if self.passes not in (3, 4, 5):
                super().observe(views, reports)

    drafter = build("eagle", target, DrafterOptions(head=head_oracle("eagle", None)))
    drafter.__class__ = Interrupted
    r = request(PROMPT, max_tokens=60)
    answer = decode(target, drafter, [r])[0]
    assert answer.ids == plain(target, [r])[0].ids
    assert answer.counts.acceptance_rate == 1.0, "what it drafted, before and after, was right"
    assert answer.counts.accepted > 40


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_changed_text_is_cut_to_the_common_prefix(kind: str) -> None:
    target = tiny_model(1, exact=False)
    head = head_for(kind, target)
    drafter = build(kind, target, DrafterOptions(head=head))
    assert isinstance(drafter, Eagle)
    view, _ = told(drafter, target, TEXT, (9, 3))
    drafter.propose([view], [Budget(3, 3)])
    other = [*TEXT[:6], 50, 51, 52]
    view.tokens[:] = other
    assert not drafter.propose([view], [Budget(3, 3)])[0], "features of other tokens"
    fresh = build(kind, target, DrafterOptions(head=head))
    assert isinstance(fresh, Eagle)
    expected_view, features = told(fresh, target, other, (8,))
    sizes = [32] * len(drafter.needs.features)
    named = dict(zip(drafter.needs.features, features[5:].split(sizes, 1), strict=True))
    drafter.observe([view], [Report(5, other[5:8], named)])
    mine = drafter.propose([view], [Budget(3, 3)])[0]
    theirs = fresh.propose([expected_view], [Budget(3, 3)])[0]
    assert mine.tokens == theirs.tokens
    assert mine.confidence == pytest.approx(theirs.confidence, abs=1e-5)


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_forgetting_frees_the_cache(kind: str) -> None:
    target = tiny_model(1, exact=False)
    drafter = build(kind, target, DrafterOptions(head=head_for(kind, target), branch=2))
    assert isinstance(drafter, Eagle)
    decode(target, drafter, [request([1, 2, 3], max_tokens=80), request([5], max_tokens=30)], branch=2)
    pool = drafter._network.pool
    assert pool.pages > 0
    assert pool.free_pages == pool.pages


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"hidden_size": 64}, "hidden size is 64"),
        ({"vocab_size": 99}, "vocabulary is 99"),
        ({"layers": 5}, "layers"),
    ],
    ids=["hidden", "vocabulary", "layers"],
)
def test_a_head_made_for_another_target_is_refused(changes: dict[str, int], match: str) -> None:
    head = random_head(EagleConfig(LAYER), **changes)
    with pytest.raises(CheckpointError, match=match):
        build("eagle", tiny_model(1), DrafterOptions(head=head))


def test_missing_and_mistaken_heads() -> None:
    target = tiny_model(1)
    with pytest.raises(OptionError, match="needs a eagle head"):
        build("eagle", target, DrafterOptions())
    with pytest.raises(OptionError, match="kind eagle3"):
        build("eagle", target, DrafterOptions(head=head_for("eagle3", target)))
    with pytest.raises(CheckpointError, match="layers"):  # the paper's layers, in a target of three
        build("eagle3", target, DrafterOptions(head=random_head(Eagle3Config(LAYER))))
