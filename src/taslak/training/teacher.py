"""What a head learns from: the target's weights as dense tensors, and the distribution they give."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from taslak.drafters.formats import LayerConfig
from taslak.models.config import DecoderConfig
from taslak.models.decoder import FINAL_NORM
from taslak.models.layers import HEAD
from taslak.models.loading import adopt
from taslak.models.loading.huggingface import stored_tensors
from taslak.models.ops import soft_cap
from taslak.models.rope import Rope
from taslak.training.batch import Batch
from taslak.training.loss import CHUNK, compute_dtype


@dataclass
class Teacher:
    """Float32 tensors of a checkpoint folder, read when they are asked for.

    name:        what the target is called
    folder:      in Hugging Face layout
    vocab_size:  token ids that may be drawn; the lm_head's rows from there on are padding
    draft_ids:   Int64[Vd], ascending: the draft vocabulary; None = the whole vocabulary
    """

    name: str
    folder: Path
    vocab_size: int
    draft_ids: Tensor | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @cached_property
    def config(self) -> DecoderConfig:
        return DecoderConfig.from_folder(self.folder)

    @cached_property
    def _stored(self) -> dict[str, Tensor]:
        return dict(adopt(self.config, stored_tensors(self.folder)))

    def weight(self, name: str) -> Tensor:
        """By our name of it."""
        return self._stored[name].float()

    def has(self, name: str) -> bool:
        return name in self._stored

    @cached_property
    def embedding(self) -> Tensor:
        """[V, H]."""
        return self.weight("model.embed_tokens.weight").to(self.device)

    @cached_property
    def head(self) -> Tensor:
        """The lm_head's rows of the draft vocabulary, with what logits are multiplied with. [Vd, H]."""
        stored = self._stored["model.embed_tokens.weight" if self.config.tied else HEAD][: self.vocab_size]
        rows = (stored if self.draft_ids is None else stored[self.draft_ids]).float().to(self.device)
        return rows if self.config.logit_scale == 1.0 else rows * self.config.logit_scale

    @property
    def draft_vocab_size(self) -> int:
        return self.vocab_size if self.draft_ids is None else int(self.draft_ids.numel())

    @cached_property
    def _place(self) -> Tensor:
        """Token id -> its place in the draft vocabulary, -1 = not in it. Int64[V]."""
        place = torch.full((self.config.vocab_size,), -1)
        ids = torch.arange(self.vocab_size) if self.draft_ids is None else self.draft_ids
        place[ids] = torch.arange(ids.numel())
        return place.to(self.device)

    def places(self, tokens: Tensor) -> Tensor:
        return self._place[tokens]

    @cached_property
    def layer(self) -> LayerConfig:
        """A layer of the target's shape."""
        c = self.config
        values = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
        scaling = values.get("rope_scaling") or values.get("rope_parameters") or {}
        scaling = scaling.get("full_attention", scaling)  # where each kind of layer has its own
        stretched = c.rope.kind in ("linear", "llama3")
        return LayerConfig(
            heads=c.heads,
            kv_heads=c.kv_heads,
            head_size=c.head_size,
            inner_size=c.inner_size,
            norm_eps=c.norm_eps,
            rope_theta=c.rope.theta,
            rope_scaling=scaling if stretched else None,
            qkv_bias=c.qkv_bias,
        )

    @cached_property
    def rope(self) -> Rope:
        """Of that layer."""
        return Rope(self.layer.rope, self.layer.head_size, torch.float32, self.device)

    @torch.no_grad()
    def distributions(self, batch: Batch) -> Tensor:
        """The target's distribution after each row over the draft vocabulary, renormalised. -> Float[T, Vd].

        Rows that no answer's token follows stay empty: they bear no loss.
        """
        rows = batch.ahead(1)
        dtype = compute_dtype(self.device)
        weight = self.head.to(dtype).t()
        p = torch.zeros((len(batch), self.draft_vocab_size), device=self.device)
        for chunk in torch.split(rows, CHUNK):
            hidden = batch.features[FINAL_NORM][chunk].to(dtype)
            logits = (hidden @ weight).float()
            if cap := self.config.logit_cap:
                logits = soft_cap(logits, cap)
            p[chunk] = torch.softmax(logits, dim=-1)
        return p


def frequent(counts: Tensor, size: int) -> Tensor:
    """The `size` most frequent token ids, ascending; ties go to the lower id. counts: Int64[V]."""
    order = torch.argsort(counts, descending=True, stable=True)
    return order[:size].sort().values
