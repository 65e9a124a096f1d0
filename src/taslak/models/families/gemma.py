"""Gemma 1, 2 and 3 (text): scaled embeddings, norms that store w − 1, tanh-GELU, and from 2 on norms behind
attention and MLP too, and sliding windows."""

from __future__ import annotations

from typing import Any

from taslak.models.families.family import (
    COMMON_PARTS,
    FULL,
    QK_NORMS,
    SLIDING,
    WINDOW,
    Family,
    Gguf,
    GGUFSettings,
    Settings,
    activation,
    every,
    windows,
)
from taslak.models.rope_config import rope_config

_DEFAULTS = {
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
_NORMS = {
    "post_attention_layernorm": "self_attn.o_norm",
    "pre_feedforward_layernorm": "post_attention_layernorm",
    "post_feedforward_layernorm": "mlp.down_norm",
}
_GGUF_PARTS = {
    **COMMON_PARTS,
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def _gemma(values: Settings) -> dict[str, Any]:
    return {
        # early releases of Gemma 1 leave it null, say "gelu" in hidden_act and mean this
        "activation": activation(values.get("hidden_activation", "gelu_pytorch_tanh")),
        "embedding_scale": float(values["hidden_size"]) ** 0.5,
    }


def _gemma2(values: Settings) -> dict[str, Any]:
    return _gemma(values) | {
        "post_norm": True,
        "attention_scale": float(values["query_pre_attn_scalar"]) ** -0.5,
        "attention_cap": float(values.get("attn_logit_softcapping") or 0.0),
        "logit_cap": float(values.get("final_logit_softcapping") or 0.0),
        "windows": windows(values, every(2)),
    }


def _gemma3(values: Settings) -> dict[str, Any]:
    pattern = int(values.get("sliding_window_pattern") or values.get("_sliding_window_pattern") or 6)
    local = {
        "rope_theta": values.get("rope_local_base_freq", 10_000.0),
        "rope_parameters": values.get("rope_parameters"),
    }
    return _gemma2(values) | {
        "qk_norm": "head",
        "windows": windows(values, every(pattern)),
        "rope": rope_config(values, FULL),
        "local_rope": rope_config(local, SLIDING),
    }


def _scalar(gguf: GGUFSettings, largest: int) -> dict[str, Any]:
    """What a query is scaled by: the head size, in the 27B of each generation (told by its layers) the hidden
    size a head. A GGUF doesn't say it."""
    hidden, heads = gguf.setting("embedding_length"), gguf.setting("attention.head_count")
    head = gguf.setting("attention.key_length", hidden // heads)
    return {"query_pre_attn_scalar": hidden // heads if gguf.setting("block_count") == largest else head}


def _gguf2(gguf: GGUFSettings) -> dict[str, Any]:
    return _scalar(gguf, 46) | {
        "sliding_window": gguf.setting(WINDOW, 4096),
        "attn_logit_softcapping": gguf.setting("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": gguf.setting("final_logit_softcapping", 30.0),
    }


def _gguf3(gguf: GGUFSettings) -> dict[str, Any]:
    layers = gguf.setting("block_count")
    kinds = [SLIDING if every(6)(layer) else FULL for layer in range(layers)]
    window = gguf.setting(WINDOW, 0)
    return _scalar(gguf, 62) | {
        "sliding_window": window or None,
        "layer_types": kinds if window else [FULL] * layers,
        "rope_theta": gguf.setting("rope.freq_base", 1_000_000.0),
        "rope_local_base_freq": gguf.setting("rope.freq_base_swa", 10_000.0),
        "final_logit_softcapping": gguf.setting("final_logit_softcapping", 0.0) or None,
    }


_FIXED = {
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_act": "gelu_pytorch_tanh",
    "attention_bias": False,
}

GEMMA = Family(
    model_type="gemma",
    models="Gemma 1, CodeGemma",
    about="scaled embeddings, norms times 1 + w, tanh-GELU",
    read=_gemma,
    defaults=_DEFAULTS,
    norm_offset=1.0,
    gguf=Gguf("gemma", "GemmaForCausalLM", fixed=_FIXED),
)
GEMMA2 = Family(
    model_type="gemma2",
    models="Gemma 2",
    about="as Gemma 1; norms behind attention and MLP too, every other layer slides, soft caps",
    read=_gemma2,
    defaults={
        **_DEFAULTS,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    parts=_NORMS,
    norm_offset=1.0,
    gguf=Gguf(
        "gemma2", "Gemma2ForCausalLM", parts=_GGUF_PARTS, fixed=_FIXED, read=_gguf2, understood=(WINDOW,)
    ),
)
GEMMA3 = Family(
    model_type="gemma3_text",
    models="Gemma 3 270M and 1B; from GGUF the text part of all",
    about="as Gemma 2 without caps; q and k normed, five of six layers slide, with a rope of their own",
    read=_gemma3,
    defaults={
        **_DEFAULTS,
        "max_position_embeddings": 131_072,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "rope_theta": 1_000_000.0,
    },
    parts=_NORMS,
    norm_offset=1.0,
    gguf=Gguf(
        "gemma3",
        "Gemma3ForCausalLM",
        parts=_GGUF_PARTS | QK_NORMS,
        fixed=_FIXED,
        read=_gguf3,
        understood=(WINDOW,),
    ),
)
