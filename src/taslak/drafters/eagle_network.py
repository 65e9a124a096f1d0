"""The network of EAGLE, EAGLE-2 (Li et al. 2024) and EAGLE-3 (Li et al. 2025): one decoder layer.

A row at position t reads the token at t + 1 and the feature at t, and gives the feature at t + 1. Knows cache
blocks and positions, not drafts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from taslak.drafters.formats import Eagle3Config, EagleConfig, Head
from taslak.drafters.formats.head import EMBEDDING
from taslak.errors import CheckpointError
from taslak.models.cache import Block, Pool
from taslak.models.config import DecoderConfig
from taslak.models.decoder import FINAL_NORM, layer_feature
from taslak.models.layers import NORMS, PRODUCTS, Ends, norm_name, weight_name
from taslak.models.ops import Share
from taslak.models.target import Target


class EagleNetwork:
    """A head of kind "eagle" or "eagle3" beside its target, in the target's kernels.

    features:  the target's features it reads, in the order `fuse` expects them side by side
    ids:       Int64[Vd], the target id of each logit; None = logit i is id i
    """

    def __init__(self, target: Target, head: Head) -> None:
        config = head.config
        assert isinstance(config, EagleConfig | Eagle3Config)
        self._kernels = kernels = target.kernels
        self._eps = config.layer.norm_eps
        self._fused = isinstance(config, Eagle3Config)
        self.ids = None if head.draft_ids is None else head.draft_ids.to(kernels.device)

        tensors = head.tensors
        vectors = {n: kernels.vector(tensors[n]) for n in tensors if n.endswith(("norm.weight", "bias"))}
        self._beside_norm = self._hidden_norm = None
        self._normed_residual = False
        own = tensors.get(EMBEDDING)
        embedding = target.ends.embedding if own is None else kernels.vector(own[: target.vocab_size])
        norm = vectors.get("norm.weight")
        fc = kernels.pack(tensors["fc.weight"])
        if isinstance(config, Eagle3Config):
            self._fc = fc
            self.features = tuple(map(layer_feature, _captures(config, head, target)))
            unembedding = kernels.pack_unembedding(_cut(tensors["lm_head.weight"], target, self.ids))
            ends = Ends(embedding, norm=norm, head=unembedding)
            self._beside_norm = vectors["layer.input_norm.weight"]
            self._hidden_norm = vectors["layer.hidden_norm.weight"]
            self._normed_residual = config.norm_before_residual
            self._handed = 0  # the layer's output
        else:
            self.features = (FINAL_NORM,)
            ids = self.ids
            ends = Ends(
                embedding,
                fc,
                vectors.get("fc.bias"),
                norm,
                target.ends.head if ids is None else kernels.pack_unembedding(target.unembedding(ids)),
                logit_scale=target.ends.logit_scale if ids is None else 1.0,
            )
            self._handed = 0 if norm is None else 1  # the last norm's, where there is one

        shape = DecoderConfig(
            family="llama",
            vocab_size=target.vocab_size,
            hidden_size=target.hidden_size,
            inner_size=config.layer.inner_size,
            layers=1,
            heads=config.layer.heads,
            kv_heads=config.layer.kv_heads,
            head_size=config.layer.head_size,
            context=target.context,
            norm_eps=config.layer.norm_eps,
            rope=config.layer.rope,
            tied=True,
        )
        self.pool = Pool(1, shape.kv_heads, shape.head_size, target.dtype, target.device)
        self._layers = kernels.layers(shape, self._layer_weights(tensors), ends, self.pool)

    def _layer_weights(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Under the names `Layers` reads. EAGLE-3's layer norms the hidden state where others norm the input,
        and nothing where the residual is normed already."""
        weights = {
            weight_name(0, product, kind): tensors[name]
            for product in PRODUCTS
            for kind in ("weight", "bias")
            if (name := f"layer.{product}.{kind}") in tensors
        }
        norms = {norm: norm for norm in NORMS}
        if self._fused:
            norms["input_norm"] = "hidden_norm"
        if self._normed_residual:
            del norms["input_norm"]
        for norm, name in norms.items():
            if (weight := tensors.get(f"layer.{name}.weight")) is not None:
                weights[norm_name(0, norm)] = weight
        return weights

    def fuse(self, features: Tensor) -> Tensor:
        """The target's features side by side, [R, F], as rows that `run` takes, [R, H]."""
        return self._kernels.linear(features, self._fc) if self._fused else features

    def run(
        self, tokens: Sequence[int], hidden: Tensor, shares: Sequence[Share], wanted: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Rows of several sequences, in the order of `shares`; their nodes must be in the blocks already.

        tokens:  [R] the token each row reads, that after its own position
        hidden:  [R, H] fused features, or what `run` gave for the row before
        wanted:  rows that get logits

        -> [R, H] the next features, to be fed back, and Float32[W, Vd]. K/V of the rows is written.
        """
        if not self._fused:
            ran = self._layers.run(
                0, 1, shares, tokens=tokens, hidden=hidden, capture=(self._handed,), wanted=wanted
            )
        else:
            assert self._beside_norm is not None
            embedded = self._layers.embed(torch.tensor(tokens, device=self._kernels.device))  # [R, H]
            beside = self._kernels.norm(embedded, self._beside_norm, self._eps)
            if self._normed_residual and self._hidden_norm is not None:
                hidden = self._kernels.norm(hidden, self._hidden_norm, self._eps)
            ran = self._layers.run(
                0, 1, shares, hidden=hidden, beside=beside, capture=(self._handed,), wanted=wanted
            )
        assert ran.logits is not None
        return ran.captured[self._handed], ran.logits

    def allocate(self) -> Block:
        """A cache for one sequence; it grows by `reserve`."""
        return self.pool.allocate(0)


def _captures(config: Eagle3Config, head: Head, target: Target) -> tuple[int, ...]:
    """Raises CheckpointError for layers the target doesn't have."""
    captures = config.features_of(target.layers)
    if not 0 <= captures[0] <= captures[1] <= captures[2] < target.layers:
        raise CheckpointError(
            f"the eagle3 head made for {head.target.name} reads the layers {list(captures)}; the target has "
            f"{target.layers} layers. Use a head trained for this target"
        )
    return captures


def _cut(weight: Tensor, target: Target, ids: Tensor | None) -> Tensor:
    """An unembedding of all tokens without padding rows; one of a draft vocabulary as it is."""
    return weight if ids is not None else weight[: target.vocab_size]
