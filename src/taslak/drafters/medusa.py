"""Medusa (Cai et al. 2024): small heads on the target's last hidden state, one for each position ahead.

The heads don't see each other's tokens: all levels of a draft come from one call. Their paper's typical
acceptance is lossy and not here; drafts are verified like all others. A step costs `blocks` products of H x H
and one unembedding a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from taslak.core.draft import EMPTY, ROOT, Draft
from taslak.drafters.base import (
    Budget,
    Drafter,
    DrafterOptions,
    Needs,
    Report,
    View,
    common_prefix,
    needed_head,
    register,
)
from taslak.drafters.choice import Chooser
from taslak.drafters.formats import Head, MedusaConfig
from taslak.drafters.tree import Frontier, Tree, grow
from taslak.drafters.watch import head_watch
from taslak.models.decoder import FINAL_NORM
from taslak.models.target import Target


class MedusaHeads:
    """A head of kind "medusa" beside its target, in the target's kernels.

    ids:  Int64[Vd], the target id of each logit; None = logit i is id i
    """

    def __init__(self, target: Target, head: Head) -> None:
        assert isinstance(head.config, MedusaConfig)
        kernels = target.kernels
        self._target = target
        self._kernels = kernels
        self.count = head.config.heads
        self.ids = None if head.draft_ids is None else head.draft_ids.to(kernels.device)
        tensors = head.tensors
        self._blocks = [
            [
                (kernels.pack(tensors[f"{name}.weight"]), kernels.vector(tensors[f"{name}.bias"]))
                for name in (f"heads.{i}.blocks.{j}" for j in range(head.config.blocks))
            ]
            for i in range(self.count)
        ]
        rows = slice(None) if self.ids is not None else slice(target.vocab_size)  # without padding
        if head.config.unembedding == "own":
            self._unembed = [
                kernels.pack_unembedding(tensors[f"heads.{i}.unembed.weight"][rows])
                for i in range(self.count)
            ]
        elif head.config.unembedding == "shared":
            self._unembed = [kernels.pack_unembedding(tensors["unembed.weight"][rows])]
        else:
            self._unembed = (
                [] if self.ids is None else [kernels.pack_unembedding(target.unembedding(self.ids))]
            )

    def logits(self, features: Tensor, depth: int) -> Tensor:
        """What the first `depth` heads say. features: [R, H] -> Float32[depth, R, Vd]."""
        kernels = self._kernels
        outs = []
        for blocks in self._blocks[:depth]:
            x = features
            for weight, bias in blocks:
                x = x + F.silu(kernels.linear(x, weight, bias))
            outs.append(x)
        if len(self._unembed) > 1:
            logits = [kernels.linear(x, w) for x, w in zip(outs, self._unembed, strict=False)]
            return torch.stack(logits).float()
        x = torch.cat(outs)  # [depth · R, H]
        wide = kernels.linear(x, self._unembed[0]).float() if self._unembed else self._target.logits(x)
        return wide.view(len(outs), features.shape[0], -1)


@dataclass(slots=True)
class _State:
    """The last feature, [H], and the committed tokens up to the one after it."""

    tokens: list[int]
    feature: Tensor


class Medusa:
    """Drafts with `MedusaHeads`, no deeper than there are heads. Proposes nothing where the feature of the
    position before the last committed token is unknown: before the first pass, or where it didn't observe."""

    needs = Needs(features=(FINAL_NORM,))

    def __init__(self, heads: MedusaHeads, vocab_size: int, branch: int = 1, tree: str = "dynamic") -> None:
        self._heads = heads
        self._chooser = Chooser(vocab_size, heads.ids)
        self._branch = branch
        self._dynamic = tree == "dynamic"
        self.watch = head_watch("medusa")

    @torch.inference_mode()
    def propose(self, views: Sequence[View], budgets: Sequence[Budget]) -> list[Draft]:
        trees: list[Tree] = []
        features = []
        drafts: list[Draft | None] = []
        for view, budget in zip(views, budgets, strict=True):
            depth = min(budget.depth, self._heads.count)
            if min(depth, budget.nodes) <= 0 or self.lag(view):
                drafts.append(EMPTY)
                continue
            drafts.append(None)
            features.append(view.state.feature)
            trees.append(Tree(view, replace(budget, depth=depth), self._branch, self._dynamic))
        if trees:
            depth = max(tree.depth for tree in trees)
            logits = self._heads.logits(torch.stack(features), depth)  # [depth, R, Vd]

            def expand(frontier: Frontier) -> tuple[Tensor, Sequence[int]]:
                i, node = frontier[0]
                level = 0 if node == ROOT else trees[i].depths[node]
                return logits[level], [i for i, _ in frontier]

            grow(trees, self._chooser, expand)
        grown = iter(trees)
        return [next(grown).draft() if draft is None else draft for draft in drafts]

    @torch.inference_mode()
    def observe(self, views: Sequence[View], reports: Sequence[Report]) -> None:
        """Keep the feature of the last row whose next token is decided."""
        for view, report in zip(views, reports, strict=True):
            usable = min(len(report.tokens), len(view.tokens) - 1 - report.first)
            if usable > 0:
                feature = report.features[FINAL_NORM][usable - 1].clone()
                view.state = _State(view.tokens[: report.first + usable + 1], feature)

    def lag(self, view: View) -> int:
        """Tokens committed since the feature it knows; all of them where it knows none of this text."""
        state = view.state
        if state is None or common_prefix(state.tokens, view.tokens) < len(state.tokens):
            return len(view.tokens)
        return len(view.tokens) - len(state.tokens)

    def forget(self, view: View) -> None:
        view.state = None


@register("medusa", needs_head=True, shapes=True)
def _medusa(target: Target, options: DrafterOptions) -> Drafter:
    """Raises OptionError without a head of this kind, CheckpointError for one made for another target."""
    heads = MedusaHeads(target, needed_head("medusa", target, options))
    return Medusa(heads, target.vocab_size, options.branch, options.tree)
