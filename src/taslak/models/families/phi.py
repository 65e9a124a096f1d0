"""Phi-3, 3.5 and 4: q, k and v in one matrix, gate and up in another."""

from __future__ import annotations

from typing import Any

from taslak.models.families.family import ROTATED, WINDOW, Family, Gguf, GGUFSettings, Settings, windows


def _phi3(values: Settings) -> dict[str, Any]:
    return {"windows": windows(values)}


def _gguf(gguf: GGUFSettings) -> dict[str, Any]:
    head = gguf.setting("embedding_length") // gguf.setting("attention.head_count")
    return {
        "partial_rotary_factor": gguf.setting(ROTATED, head) / head,
        "sliding_window": gguf.setting(WINDOW, 0) or None,
        "original_max_position_embeddings": gguf.setting(
            "rope.scaling.original_context_length", gguf.setting("context_length")
        ),
    }


PHI3 = Family(
    model_type="phi3",
    models="Phi-3, Phi-3.5, Phi-4, Phi-4-mini",
    about="fused matrices, part of a head rotated (Phi-4-mini), LongRoPE up to the original context",
    read=_phi3,
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
    parts={
        "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
    },
    gguf=Gguf(
        "phi3",
        "Phi3ForCausalLM",
        parts={
            "attn_norm": "input_layernorm",
            "attn_qkv": "self_attn.qkv_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_norm": "post_attention_layernorm",
            "ffn_up": "mlp.gate_up_proj",
            "ffn_down": "mlp.down_proj",
        },
        read=_gguf,
        understood=(WINDOW, ROTATED),
    ),
)
