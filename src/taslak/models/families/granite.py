"""Granite 3 (dense): Llama with multipliers on embedding, attention, residuals and logits."""

from __future__ import annotations

from typing import Any

from taslak.models.families.family import PAIRED, Family, Gguf, GGUFSettings, Settings


def _granite(values: Settings) -> dict[str, Any]:
    return {
        "embedding_scale": float(values["embedding_multiplier"]),
        "attention_scale": float(values["attention_multiplier"]),
        "residual_scale": float(values["residual_multiplier"]),
        "logit_scale": 1.0 / float(values["logits_scaling"]),
    }


def _gguf(gguf: GGUFSettings) -> dict[str, Any]:
    return {
        "embedding_multiplier": gguf.setting("embedding_scale", 1.0),
        "attention_multiplier": gguf.setting("attention.scale", 1.0),
        "residual_multiplier": gguf.setting("residual_scale", 1.0),
        "logits_scaling": gguf.setting("logit_scale", 1.0),
    }


GRANITE = Family(
    model_type="granite",
    models="Granite 3.x (dense)",
    about="multipliers on embedding, attention, residuals and logits",
    read=_granite,
    defaults={
        "embedding_multiplier": 1.0,
        "attention_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
    },
    gguf=Gguf(
        "granite",
        "GraniteForCausalLM",
        paired=PAIRED,
        fixed={"attention_bias": False, "mlp_bias": False},
        read=_gguf,
    ),
)
