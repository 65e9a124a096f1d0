"""A head: a small network that drafts from the target's own hidden states, and the tensors it is made of.

One dataclass tree for every kind: the drafters read it, training fills it. Knows nothing about how a head
computes, nor how it is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar
from zlib import crc32

import torch
from torch import Tensor

from taslak.errors import CheckpointError
from taslak.models.loading import check_tensors
from taslak.models.rope_config import RopeConfig, rope_config

Shapes = dict[str, tuple[int, ...]]

UNEMBEDDINGS = ("own", "shared", "target")

EMBEDDING = "embed_tokens.weight"
"""May be absent: then the target's own is used."""


@dataclass(frozen=True, slots=True)
class HeadTarget:
    """The model a head was made for. `layers` None = the checkpoint doesn't say."""

    name: str
    hidden_size: int
    vocab_size: int
    layers: int | None = None


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """Shape of a head's one decoder layer. `rope_scaling` as a Hugging Face config has it."""

    heads: int
    kv_heads: int
    head_size: int
    inner_size: int
    norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope_scaling: Mapping[str, Any] | None = None
    qkv_bias: bool = False

    @property
    def rope(self) -> RopeConfig:
        return rope_config({"rope_theta": self.rope_theta, "rope_scaling": self.rope_scaling})

    def shapes(self, hidden: int, width: int) -> Shapes:
        """hidden: of the rows; width: of what q, k and v read."""
        q, kv = self.heads * self.head_size, self.kv_heads * self.head_size
        shapes: Shapes = {
            "layer.q.weight": (q, width),
            "layer.k.weight": (kv, width),
            "layer.v.weight": (kv, width),
            "layer.o.weight": (hidden, q),
            "layer.gate.weight": (self.inner_size, hidden),
            "layer.up.weight": (self.inner_size, hidden),
            "layer.down.weight": (hidden, self.inner_size),
            "layer.post_norm.weight": (hidden,),
        }
        if self.qkv_bias:
            shapes |= {"layer.q.bias": (q,), "layer.k.bias": (kv,), "layer.v.bias": (kv,)}
        return shapes


@dataclass(frozen=True, slots=True)
class MedusaConfig:
    """Medusa (Cai et al. 2024): head i guesses the token at t + 2 + i from the hidden state at t.

    heads:        k
    blocks:       residual blocks x + SiLU(W x + b) of each head
    unembedding:  "own" for each head, one "shared", or rows of the "target"'s lm_head
    """

    kind: ClassVar[str] = "medusa"
    heads: int
    blocks: int = 1
    unembedding: str = "own"

    def shapes(self, hidden: int, vocab: int) -> Shapes:
        shapes: Shapes = {}
        for i in range(self.heads):
            for j in range(self.blocks):
                shapes[f"heads.{i}.blocks.{j}.weight"] = (hidden, hidden)
                shapes[f"heads.{i}.blocks.{j}.bias"] = (hidden,)
            if self.unembedding == "own":
                shapes[f"heads.{i}.unembed.weight"] = (vocab, hidden)
        if self.unembedding == "shared":
            shapes["unembed.weight"] = (vocab, hidden)
        return shapes

    def check(self, target: HeadTarget) -> None:
        del target
        _at_least("heads", self.heads, 1)
        _at_least("blocks", self.blocks, 0)
        if self.unembedding not in UNEMBEDDINGS:
            raise ValueError(f"unembedding is {self.unembedding!r}; expected {', '.join(UNEMBEDDINGS)}")


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """EAGLE and EAGLE-2 (Li et al. 2024): fc(embedding of token t + 1, feature t) through one decoder layer
    gives feature t + 1. The feature is the target's hidden state after its last norm.

    input_norm:  whether the layer norms its input
    final_norm:  whether the head norms its output, which then is what is fed back
    """

    kind: ClassVar[str] = "eagle"
    layer: LayerConfig
    input_norm: bool = False
    final_norm: bool = False
    fc_bias: bool = True

    def shapes(self, hidden: int, vocab: int) -> Shapes:
        del vocab  # the logits are the target's lm_head's
        shapes: Shapes = {"fc.weight": (hidden, 2 * hidden)}
        if self.fc_bias:
            shapes["fc.bias"] = (hidden,)
        shapes |= self.layer.shapes(hidden, hidden)
        if self.input_norm:
            shapes["layer.input_norm.weight"] = (hidden,)
        if self.final_norm:
            shapes["norm.weight"] = (hidden,)
        return shapes

    def check(self, target: HeadTarget) -> None:
        del target
        _check_layer(self.layer)


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """EAGLE-3 (Li et al. 2025): the features are three of the target's layers, fused; the logits its own.

    captures:              target layers, 0-based, whose outputs are read, low to high; None = the paper's
    norm_before_residual:  whether the layer's residual starts from the normed feature
    """

    kind: ClassVar[str] = "eagle3"
    layer: LayerConfig
    captures: tuple[int, ...] | None = None
    norm_before_residual: bool = False

    def features_of(self, layers: int) -> tuple[int, ...]:
        """The captured layers in a target of so many; by default its second, a middle and its fourth-last."""
        return self.captures or (1, layers // 2 - 1, layers - 4)

    def shapes(self, hidden: int, vocab: int) -> Shapes:
        return {
            "fc.weight": (hidden, 3 * hidden),
            **self.layer.shapes(hidden, 2 * hidden),
            "layer.hidden_norm.weight": (hidden,),
            "layer.input_norm.weight": (hidden,),
            "norm.weight": (hidden,),
            "lm_head.weight": (vocab, hidden),
        }

    def check(self, target: HeadTarget) -> None:
        _check_layer(self.layer)
        layers = target.layers
        if self.captures is None:
            return
        if len(self.captures) != 3 or list(self.captures) != sorted(self.captures):
            raise ValueError(f"captures is {list(self.captures)}; expected three layers, ascending")
        if self.captures[0] < 0 or (layers is not None and self.captures[-1] >= layers):
            raise ValueError(
                f"captures is {list(self.captures)}; expected layers from 0 to {(layers or 0) - 1}"
            )


@dataclass(frozen=True, slots=True)
class ExitConfig:
    """Early exit: the target's first `exit_layer` layers draft; `rank` of the adapter, 0 = none."""

    kind: ClassVar[str] = "early-exit"
    exit_layer: int
    rank: int = 0

    def shapes(self, hidden: int, vocab: int) -> Shapes:
        del vocab
        shapes: Shapes = {"norm.weight": (hidden,)}
        if self.rank:
            shapes["adapter.down.weight"] = (self.rank, hidden)
            shapes["adapter.up.weight"] = (hidden, self.rank)
        return shapes

    def check(self, target: HeadTarget) -> None:
        _at_least("rank", self.rank, 0)
        last = None if target.layers is None else target.layers - 1
        if self.exit_layer < 1 or (last is not None and self.exit_layer > last):
            raise ValueError(f"exit_layer is {self.exit_layer}; expected 1 to {last}")


HeadConfig = MedusaConfig | EagleConfig | Eagle3Config | ExitConfig

CONFIGS: dict[str, type[HeadConfig]] = {
    config.kind: config for config in (MedusaConfig, EagleConfig, Eagle3Config, ExitConfig)
}
"""Kind -> its configuration; a kind is also the name of the method that drafts with it."""


@dataclass(frozen=True, slots=True)
class Drafting:
    """How a head drafts fastest, measured by whoever made it; see `taslak.load` for what each is."""

    gamma: int
    branch: int = 1
    tree: str | None = None
    nodes: int | None = None
    stop_below: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """A head as read from or about to be written to a folder.

    tensors:    name -> floating tensor, exactly those of `shapes()`; on the CPU, maybe views of a mapped file
    draft_ids:  Int64[Vd], the target ids it can propose, ascending and distinct; None = all of them
    drafting:   None = the file doesn't say
    """

    target: HeadTarget
    config: HeadConfig
    tensors: dict[str, Tensor] = field(repr=False)
    draft_ids: Tensor | None = field(default=None, repr=False)
    drafting: Drafting | None = None

    @property
    def kind(self) -> str:
        return self.config.kind

    @property
    def draft_vocab_size(self) -> int:
        """Tokens it can propose."""
        return self.target.vocab_size if self.draft_ids is None else self.draft_ids.numel()

    @property
    def fingerprint(self) -> str:
        """Of its weights: another training, another fingerprint. Reads them all."""
        found = 0
        for name in sorted(self.tensors):
            found = crc32(self.tensors[name].contiguous().view(torch.uint8).numpy().tobytes(), found)
        return f"{found:08x}"

    def shapes(self) -> Shapes:
        """Name -> shape of every tensor; `embed_tokens.weight` is there only where the head has its own."""
        shapes = self.config.shapes(self.target.hidden_size, self.draft_vocab_size)
        if isinstance(self.config, EagleConfig | Eagle3Config) and EMBEDDING in self.tensors:
            shapes[EMBEDDING] = (self.target.vocab_size, self.target.hidden_size)
        return shapes

    def check_fits(self, hidden_size: int, vocab_size: int, padded_vocab_size: int, layers: int) -> None:
        """Raise CheckpointError, naming what differs, unless it was made for a target of these sizes."""
        made_for = self.target
        spelled = range(vocab_size, padded_vocab_size + 1)
        for what, has, own, fits in (
            ("hidden size", made_for.hidden_size, hidden_size, (hidden_size,)),
            ("vocabulary", made_for.vocab_size, vocab_size, spelled),
            ("layers", made_for.layers, layers, (None, layers)),
        ):
            if has not in fits:
                raise CheckpointError(
                    f"the {self.kind} head was made for {made_for.name}: its {what} is {has}, the target's "
                    f"is {own}; use a head trained for this target"
                )
        if self.draft_ids is not None and int(self.draft_ids[-1]) >= vocab_size:
            raise CheckpointError(
                f"the {self.kind} head drafts token {int(self.draft_ids[-1])}, which the target's vocabulary "
                f"of {vocab_size} lacks; use a head trained for this target"
            )

    def check(self, where: object = "the head") -> None:
        """Raise CheckpointError, naming `where` it was read from, for a setting out of range and any missing,
        unexpected or misshapen tensor."""
        try:
            self.config.check(self.target)
        except ValueError as error:
            raise CheckpointError(f"{where}: {error}") from error
        if self.draft_ids is not None:
            self._check_ids(self.draft_ids, where)
        check_tensors(self.tensors, self.shapes(), file=str(where))
        for name, tensor in self.tensors.items():
            if not tensor.is_floating_point():
                raise CheckpointError(f"{where}: {name} is {tensor.dtype}; expected a floating-point tensor")

    def _check_ids(self, ids: Tensor, where: object) -> None:
        if ids.dtype != torch.int64 or ids.dim() != 1 or not ids.numel():
            raise CheckpointError(f"{where}: draft_ids is {ids.dtype} {list(ids.shape)}; expected int64 [Vd]")
        if not bool((ids[1:] > ids[:-1]).all()) or int(ids[0]) < 0 or int(ids[-1]) >= self.target.vocab_size:
            raise CheckpointError(
                f"{where}: draft_ids must be ascending, distinct and inside the target's vocabulary of "
                f"{self.target.vocab_size}"
            )


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} is {value}; expected at least {least}")


def _check_layer(layer: LayerConfig) -> None:
    for name in ("heads", "kv_heads", "head_size", "inner_size"):
        _at_least(name, getattr(layer, name), 1)
    if layer.heads % layer.kv_heads or layer.head_size % 2:
        raise ValueError(
            f"{layer.heads} heads of {layer.head_size} can't share {layer.kv_heads} K/V heads; expected a "
            "multiple, and an even size"
        )
