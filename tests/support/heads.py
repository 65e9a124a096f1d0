"""Random heads for the tiny models: every kind, with weights a test can change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from taslak.drafters.formats import (
    Eagle3Config,
    EagleConfig,
    ExitConfig,
    Head,
    HeadConfig,
    HeadTarget,
    LayerConfig,
    MedusaConfig,
)
from taslak.models.decoder import Decoder

LAYER = LayerConfig(heads=4, kv_heads=2, head_size=8, inner_size=48)

CONFIGS: dict[str, HeadConfig] = {
    "medusa": MedusaConfig(heads=3),
    "eagle": EagleConfig(LAYER),
    "eagle3": Eagle3Config(LAYER, captures=(0, 1, 2)),
    "early-exit": ExitConfig(exit_layer=1, rank=4),
}
"""One of each kind, for `tiny_config()`: 3 layers of 32."""


def random_head(
    config: HeadConfig,
    *,
    seed: int = 0,
    scale: float = 0.25,
    draft_ids: Sequence[int] | None = None,
    own_embedding: bool = False,
    **target: Any,
) -> Head:
    """Gaussian weights, norms near one. `target`: fields of HeadTarget that differ from tiny_config()'s."""
    made_for = HeadTarget(**{"name": "tiny", "hidden_size": 32, "vocab_size": 61, "layers": 3, **target})
    ids = None if draft_ids is None else torch.tensor(draft_ids)
    generator = torch.Generator().manual_seed(seed)
    shapes = config.shapes(made_for.hidden_size, made_for.vocab_size if ids is None else len(ids))
    if own_embedding:
        shapes["embed_tokens.weight"] = (made_for.vocab_size, made_for.hidden_size)
    tensors = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator) * scale
        tensors[name] = 1.0 + 0.1 * noise if "norm" in name else noise
    return Head(made_for, config, tensors, ids)


def head_for(kind: str, target: Decoder, **options: Any) -> Head:
    """A random head of a kind for a tiny target, whatever its number of layers."""
    config = CONFIGS[kind]
    if isinstance(config, Eagle3Config):
        config = replace(config, captures=(0, target.layers // 2, target.layers - 1))
    return random_head(config, vocab_size=target.vocab_size, layers=target.layers, **options)
