"""A target whose next token is a permutation of the current one, and heads that know it by construction.

Token v is followed by (v + 2) mod 60. The layers add nothing, so a hidden state is the token's own axis; a
head reads it from the *feature*, and so is wrong everywhere if features are paired with the wrong position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from taslak.drafters.base import Drafter, Report, View
from taslak.drafters.formats import (
    Eagle3Config,
    EagleConfig,
    Head,
    HeadConfig,
    HeadTarget,
    LayerConfig,
    MedusaConfig,
)
from taslak.models.config import DecoderConfig
from taslak.models.decoder import Decoder
from tests.support.tiny import random_weights, tiny_config

TOKENS, WIDTH, STEP = 60, 64, 2
PROMPT = [4, 30, 8, 2]
LAYER = LayerConfig(heads=4, kv_heads=2, head_size=16, inner_size=64)
SHARP = 40.0
"""Makes the right logit so large that a draw at temperature 1 never misses it."""


def axes(steps: int) -> Tensor:
    """[TOKENS, WIDTH]: row (v + steps · STEP) is token v's axis."""
    table = torch.zeros(TOKENS, WIDTH)
    for token in range(TOKENS):
        table[(token + steps * STEP) % TOKENS, token] = 1.0
    return table


def turning() -> Tensor:
    """[WIDTH, WIDTH]: takes each token's axis to that of its successor."""
    square = torch.zeros(WIDTH, WIDTH)
    square[:TOKENS] = axes(1)
    return square


def permuting(head_size: int = 16) -> tuple[DecoderConfig, dict[str, Tensor]]:
    """The target's shape and weights."""
    config = tiny_config(
        vocab_size=TOKENS, hidden_size=WIDTH, inner_size=64, heads=4, kv_heads=2, head_size=head_size
    )
    weights = random_weights(config, 1)
    for name in weights:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name].zero_()
    weights["model.norm.weight"].fill_(1.0)
    weights["model.embed_tokens.weight"] = axes(0)
    weights["lm_head.weight"] = axes(1) * SHARP / WIDTH**0.5
    return config, weights


def permuting_target() -> Decoder:
    return Decoder(*permuting(), exact=False)


def head_oracle(
    kind: str, draft_ids: Sequence[int] | None, heads: int = 5, blocks: int = 1, head_size: int = 16
) -> Head:
    """A head of a kind that drafts what the target will say."""
    ids = None if draft_ids is None else torch.tensor(draft_ids)
    rows = slice(None) if ids is None else ids
    target = HeadTarget("permuting", WIDTH, TOKENS, 3)
    config: HeadConfig
    if kind == "medusa":
        config = MedusaConfig(heads=heads, blocks=blocks)
    elif kind == "eagle":
        config = EagleConfig(replace(LAYER, head_size=head_size), fc_bias=False)
    else:
        config = Eagle3Config(replace(LAYER, head_size=head_size), (0, 1, 2))
    shapes = config.shapes(WIDTH, TOKENS if ids is None else len(ids))
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
    for name in tensors:
        if name.endswith("norm.weight"):
            tensors[name].fill_(1.0)
    if kind == "medusa":
        for i in range(heads):
            tensors[f"heads.{i}.unembed.weight"] = axes(i + 2)[rows] * SHARP / WIDTH**0.5
    elif kind == "eagle":
        tensors["fc.weight"][:, WIDTH:] = turning()  # the feature alone, turned; the layer adds nothing
    else:
        tensors["fc.weight"][:, :WIDTH] = torch.eye(WIDTH)
        # the layer's mlp turns: what it reads is √H along one axis, and what it adds ends at 1 along the next
        level = WIDTH**0.5
        inner = torch.nn.functional.silu(torch.tensor(level)) * level
        tensors["layer.gate.weight"] = torch.eye(WIDTH)
        tensors["layer.up.weight"] = torch.eye(WIDTH)
        tensors["layer.down.weight"] = (turning() - torch.eye(WIDTH)) / inner
        tensors["lm_head.weight"] = axes(1)[rows] * SHARP / level
    return Head(target, config, tensors, ids)


def shifted(drafter: Drafter) -> Drafter:
    """The same drafter, given every report's features one row late."""
    observe = drafter.observe
    last: dict[str, Tensor] = {}

    def late(views: Sequence[View], reports: Sequence[Report]) -> None:
        moved = []
        for report in reports:
            features = {}
            for name, rows in report.features.items():
                before = last.get(name, rows[:1])
                features[name] = torch.cat((before, rows))[:-1]
                last[name] = rows[-1:].clone()
            moved.append(replace(report, features=features))
        observe(views, moved)

    drafter.observe = late  # type: ignore[method-assign]
    return drafter
