"""GPT-NeoX (Pythia) and GPT-2: LayerNorm, biases everywhere, an MLP without a gate."""

from __future__ import annotations

from typing import Any

from taslak.errors import CheckpointError
from taslak.models.families.family import COMMON_SETTINGS, ROTATED, Family, Gguf, GGUFSettings, Settings
from taslak.models.rope_config import rope_config

_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_LAYER_NORM = {"norm": "layer", "gated": False, "qkv_bias": True, "out_bias": True, "mlp_bias": True}


def _neox(values: Settings) -> dict[str, Any]:
    bias = bool(values["attention_bias"])
    rope = {
        **values,
        "rope_theta": values["rotary_emb_base"],
        "partial_rotary_factor": values["rotary_pct"],
    }
    return {
        **_LAYER_NORM,
        "kv_heads": int(values["num_attention_heads"]),
        "norm_eps": float(values["layer_norm_eps"]),
        "parallel": bool(values["use_parallel_residual"]),
        "qkv_bias": bias,
        "out_bias": bias,
        "rope": rope_config(rope),
    }


def _neox_gguf(gguf: GGUFSettings) -> dict[str, Any]:
    head = gguf.setting("embedding_length") // gguf.setting("attention.head_count")
    return {
        "hidden_act": "gelu",
        "rotary_pct": gguf.setting(ROTATED, head) / head,
        "rotary_emb_base": gguf.setting("rope.freq_base", 10_000.0),
        "use_parallel_residual": gguf.setting("use_parallel_residual", True),
    }


def _gpt2(values: Settings) -> dict[str, Any]:
    for key, usual in (("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False)):
        if bool(values.get(key, usual)) is not usual:
            raise CheckpointError(f"{key} {values[key]!r} is not supported in gpt2; expected {usual}")
    return {
        **_LAYER_NORM,
        "kv_heads": int(values["num_attention_heads"]),
        "norm_eps": float(values["layer_norm_epsilon"]),
        "positions": int(values["max_position_embeddings"]),
    }


def _gpt2_gguf(_: GGUFSettings) -> dict[str, Any]:
    return {"activation_function": "gelu_new"}


def _settings(usual: dict[str, str], eps: str, keys: dict[str, str]) -> dict[str, str]:
    """A GGUF's settings under this family's keys, its norm's eps among them."""
    settings = {**usual, eps: "attention.layer_norm_epsilon"}
    del settings["rms_norm_eps"]
    return {keys.get(name, name): key for name, key in settings.items()}


_FFN = {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
_GPT2_KEYS = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "hidden_act": "activation_function",
}

NEOX = Family(
    model_type="gpt_neox",
    models="Pythia, GPT-NeoX",
    about="LayerNorm with biases, attention and MLP side by side, a quarter of a head rotated, no gate",
    read=_neox,
    defaults={
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "attention_bias": True,
        "use_parallel_residual": True,
        "rotary_emb_base": 10_000.0,
        "rotary_pct": 0.25,
    },
    layer="gpt_neox.layers.",
    tops={
        "gpt_neox.embed_in": "model.embed_tokens",
        "gpt_neox.final_layer_norm": "model.norm",
        "embed_out": "lm_head",
    },
    parts={
        "attention.query_key_value": _QKV,
        "attention.dense": "self_attn.o_proj",
        "mlp.dense_h_to_4h": "mlp.up_proj",
        "mlp.dense_4h_to_h": "mlp.down_proj",
    },
    by_head=True,
    gguf=Gguf(
        "gptneox",
        "GPTNeoXForCausalLM",
        tops={
            "token_embd": "gpt_neox.embed_in",
            "output_norm": "gpt_neox.final_layer_norm",
            "output": "lm_head",
        },
        parts={
            "attn_norm": "input_layernorm",
            "attn_qkv": "attention.query_key_value",
            "attn_output": "attention.dense",
            "ffn_norm": "post_attention_layernorm",
            "ffn_up": "mlp.dense_h_to_4h",
            "ffn_down": "mlp.dense_4h_to_h",
        },
        settings=_settings(COMMON_SETTINGS, "layer_norm_eps", {}),
        read=_neox_gguf,
        understood=(ROTATED,),
    ),
)
GPT2 = Family(
    model_type="gpt2",
    models="GPT-2, DistilGPT-2",
    about="LayerNorm with biases, learned positions, no gate",
    read=_gpt2,
    defaults={
        "hidden_act": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
    },
    keys=_GPT2_KEYS,
    layer="transformer.h.",
    tops={
        "transformer.wte": "model.embed_tokens",
        "transformer.wpe": "model.embed_positions",
        "transformer.ln_f": "model.norm",
    },
    parts={
        "ln_1": "input_layernorm",
        "attn.c_attn": _QKV,
        "attn.c_proj": "self_attn.o_proj",
        "ln_2": "post_attention_layernorm",
        "mlp.c_fc": "mlp.up_proj",
        "mlp.c_proj": "mlp.down_proj",
    },
    turned=("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"),
    gguf=Gguf(
        "gpt2",
        "GPT2LMHeadModel",
        tops={
            "token_embd": "transformer.wte",
            "position_embd": "transformer.wpe",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
        },
        parts={
            "attn_norm": "ln_1",
            "attn_qkv": "attn.c_attn",
            "attn_output": "attn.c_proj",
            "ffn_norm": "ln_2",
            **_FFN,
        },
        settings=_settings(COMMON_SETTINGS, "layer_norm_epsilon", _GPT2_KEYS),
        read=_gpt2_gguf,
    ),
)
