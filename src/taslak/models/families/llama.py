"""Llama, and Mistral: the same with a sliding window."""

from __future__ import annotations

from typing import Any

from taslak.models.families.family import PAIRED, Family, Gguf, Settings, windows

LLAMA = Family(
    model_type="llama",
    models="Llama 1–3.x, SmolLM2, TinyLlama",
    about="the plain form: RMSNorm, rotary positions, a gated MLP",
    gguf=Gguf("llama", "LlamaForCausalLM", paired=PAIRED, fixed={"attention_bias": False, "mlp_bias": False}),
)


def _mistral(values: Settings) -> dict[str, Any]:
    return {"windows": windows(values)}


MISTRAL = Family(
    model_type="mistral",
    models="Mistral 7B, Mistral NeMo, Codestral",
    about="a sliding window in every layer (older releases)",
    read=_mistral,
)
