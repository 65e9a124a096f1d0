"""Tiny random models of transformers: architectures that are not among ours, and some that are refused."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from taslak.models.config import DecoderConfig
from tests.support.checkpoint import llama_settings

VOCAB = 61

_IDS = {
    "vocab_size": VOCAB,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
_GROUPED = {**_SIZES, "num_key_value_heads": 2}
_GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}

_SHARING = {
    "num_hidden_layers": 4,
    "head_dim": 8,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 16,
    "vocab_size_per_layer_input": VOCAB,
    "hidden_size_per_layer_input": 8,
}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "biogpt": _SIZES,
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "codegen": {**_GPT, "rotary_dim": 4},
    "cohere": _GROUPED,
    "deepseek_v3": {
        **_SIZES,
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 8,
        "v_head_dim": 6,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 16,
    },
    "falcon": {**_SIZES, "ffn_hidden_size": 48},
    "gemma3n_text": {
        **_GROUPED,
        **_SHARING,
        "intermediate_size": [48] * 4,
        "laurel_rank": 4,
        "activation_sparsity_pattern": [0.0] * 4,
        "altup_num_inputs": 2,
    },
    "gemma4_text": {**_GROUPED, **_SHARING, "global_head_dim": 8},
    "gpt_bigcode": _GPT,
    "gpt_neo": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_layers": 2,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 16,
        "max_position_embeddings": 128,
    },
    "gptj": {**_GPT, "rotary_dim": 4},
    "granitemoe": {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "mixtral": {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 128},
    "olmo": _GROUPED,
    "opt": {
        **{k: v for k, v in _SIZES.items() if k != "intermediate_size"},
        "ffn_dim": 48,
        "word_embed_proj_dim": 32,
    },
    "persimmon": _SIZES,
    "phi": _SIZES,
    "qwen2_moe": {**_GROUPED, **_EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 24},
    "stablelm": _GROUPED,
    "starcoder2": {**_GROUPED, "sliding_window": 24},
    "xglm": {
        "d_model": 32,
        "ffn_dim": 48,
        "num_layers": 2,
        "attention_heads": 4,
        "max_position_embeddings": 128,
    },
}
"""What makes each tiny. Among them learned, rotary, sinusoidal and no positions (biases), one and several K/V
heads, compressed keys and values, layers that share those of others, experts, and windows."""

LINES = ("bloom", "gpt_neo", "mpt")
"""Those that drafts of have to be lines."""


def foreign(kind: str, seed: int = 0, **changes: Any) -> Any:
    """A model of this model_type, in float32; two with one seed are the same."""
    return build(kind, {**ARCHITECTURES[kind], **changes}, seed)


def build(kind: str, settings: dict[str, Any], seed: int = 0) -> Any:
    """Of any model_type. Weights are wide enough that a wrong position or mask changes what comes out."""
    config = CONFIG_MAPPING[kind](**{**_IDS, **settings})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return model


def near(model: Any, noise: float = 0.03, seed: int = 1) -> Any:
    """A copy, a little disturbed: it mostly agrees."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * noise)
    return other


_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_n_groups": 1}
_LINEAR = {
    "num_hidden_layers": 4,
    "head_dim": 8,
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_TWO_EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}

STATEFUL: dict[str, dict[str, Any]] = {
    "bamba": {**_GROUPED, **_MAMBA, "attn_layer_indices": [1]},
    "falcon_h1": {**_GROUPED, **_MAMBA, "mamba_d_ssm": 32, "mamba_n_heads": 4},
    "falcon_mamba": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    "granitemoehybrid": {
        **_GROUPED,
        **_MAMBA,
        **_TWO_EXPERTS,
        "shared_intermediate_size": 16,
        "layer_types": ["mamba", "attention"],
    },
    "jamba": {
        **_GROUPED,
        "num_experts": 2,
        "mamba_d_state": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "use_mamba_kernels": False,
    },
    "lfm2": {**_GROUPED, "full_attn_idxs": [1], "block_auto_adjust_ff_dim": False},
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    "mamba2": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "state_size": 4,
        "num_heads": 8,
        "head_dim": 8,
        "n_groups": 1,
    },
    "minimax": {**_GROUPED, **_TWO_EXPERTS, "head_dim": 8},
    "nemotron_h": {
        **_GROUPED,
        "hybrid_override_pattern": "M*",
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "ssm_state_size": 4,
        "n_groups": 1,
    },
    "olmo_hybrid": {**_GROUPED, "num_hidden_layers": 4},
    "qwen3_5_text": {**_GROUPED, **_LINEAR},
    "qwen3_next": {
        **_GROUPED,
        **_LINEAR,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
    "recurrent_gemma": {**_GROUPED, "num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 32},
    "rwkv": {"hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32, "intermediate_size": 64},
    "xlstm": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_heads": 2,
        "embedding_dim": 32,
        "num_blocks": 2,
    },
    "zamba": {
        **_SIZES,
        "num_hidden_layers": 4,
        "mamba_d_state": 4,
        "n_mamba_heads": 2,
        "use_mamba_kernels": False,
    },
    "zamba2": {
        **_SIZES,
        "num_hidden_layers": 4,
        "mamba_d_state": 4,
        "n_mamba_heads": 8,
        "mamba_ngroups": 1,
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
    },
}
"""Models that carry a running state, tiny."""


def twin(config: DecoderConfig, weights: Mapping[str, torch.Tensor]) -> Any:
    """transformers' llama with the weights of one of ours."""
    made = build("llama", llama_settings(config))
    made.load_state_dict(weights)
    return made
