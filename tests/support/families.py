"""Every family as tiny random transformers models, and what of them our decoder is made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from taslak.models.config import DecoderConfig
from taslak.models.loading.adopt import adopt

WINDOW = 11
"""Of the families that slide: small, so that tests soon run past it; no part of a page."""

_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
_SLIDES = {"sliding_window": WINDOW}
_QWEN_SLIDES = {**_SLIDES, "use_sliding_window": True, "max_window_layers": 1}
_DIVISORS = {"short_factor": [1.0, 1.3, 1.7, 2.5], "long_factor": [2.0, 3.0, 5.0, 9.0]}


@dataclass(frozen=True)
class Tiny:
    """A transformers configuration by the prefix of its classes (`<prefix>Config`, `<prefix>ForCausalLM`).

    model:    the model's class, where it isn't called so
    usual:    whether the configuration takes the usual keys
    settings: beyond those of all
    """

    prefix: str
    settings: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    usual: bool = True


CASES: dict[str, Tiny] = {
    "llama": Tiny("Llama"),
    "llama-tied": Tiny("Llama", {"tie_word_embeddings": True}),
    "llama-bias": Tiny("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-mha": Tiny("Llama", {"num_key_value_heads": 4}),
    "llama-head-size": Tiny("Llama", {"head_dim": 16}),
    "llama-linear": Tiny(
        "Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}}
    ),
    "llama-llama3": Tiny("Llama", {"rope_parameters": _LLAMA3}),
    "llama-yarn": Tiny("Llama", {"rope_parameters": _YARN}),
    "llama-yarn-deepseek": Tiny(
        "Llama",
        {
            "rope_parameters": {
                **_YARN,
                "mscale": 0.7,
                "mscale_all_dim": 1.3,
                "beta_fast": 20,
                "truncate": False,
            }
        },
    ),
    "llama-dynamic": Tiny(
        "Llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}}
    ),
    "mistral": Tiny("Mistral", {"sliding_window": None}),
    "mistral-window": Tiny("Mistral", _SLIDES),
    "qwen2": Tiny("Qwen2"),
    "qwen2-tied": Tiny("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-window": Tiny("Qwen2", _QWEN_SLIDES),
    "qwen3": Tiny("Qwen3", {"head_dim": 16}),
    "qwen3-window": Tiny("Qwen3", {**_QWEN_SLIDES, "head_dim": 8, "attention_bias": True}),
    "gemma": Tiny("Gemma", {"head_dim": 16}),
    "gemma2": Tiny(
        "Gemma2",
        {
            **_SLIDES,
            "head_dim": 16,
            "query_pre_attn_scalar": 12,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 5.0,
        },
    ),
    "gemma3_text": Tiny(
        "Gemma3Text", {**_SLIDES, "head_dim": 16, "sliding_window_pattern": 3}, "Gemma3ForCausalLM"
    ),
    "gemma3_text-linear": Tiny(
        "Gemma3Text",
        {
            **_SLIDES,
            "head_dim": 16,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 50_000.0, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
        },
        "Gemma3ForCausalLM",
    ),
    "phi3": Tiny("Phi3", {"pad_token_id": 0}),
    "phi3-window": Tiny("Phi3", {**_SLIDES, "pad_token_id": 0}),
    "phi3-partial": Tiny(
        "Phi3", {"pad_token_id": 0, "partial_rotary_factor": 0.5, "tie_word_embeddings": True}
    ),
    "phi3-longrope": Tiny(
        "Phi3",
        {
            "pad_token_id": 0,
            "original_max_position_embeddings": 160,
            "rope_parameters": {"rope_type": "longrope", "rope_theta": 10_000.0, **_DIVISORS},
        },
    ),
    "olmo2": Tiny("Olmo2"),
    "olmo3": Tiny(
        "Olmo3",
        {
            **_SLIDES,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": _YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            },
        },
    ),
    "granite": Tiny(
        "Granite",
        {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.4,
            "logits_scaling": 2.5,
        },
    ),
    "smollm3": Tiny("SmolLM3", {"no_rope_layer_interval": 2, "tie_word_embeddings": True}),
    "smollm3-window": Tiny(
        "SmolLM3", {**_SLIDES, "no_rope_layer_interval": 2, "use_sliding_window": True, "pad_token_id": 0}
    ),
    "gpt_neox": Tiny("GPTNeoX"),
    "gpt_neox-serial": Tiny(
        "GPTNeoX", {"use_parallel_residual": False, "rotary_pct": 1.0, "hidden_act": "gelu_new"}
    ),
    "gpt2": Tiny(
        "GPT2", {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 256}, "GPT2LMHeadModel", usual=False
    ),
}
"""By family, and what is special. The first of a family is the form its usual checkpoints have."""

FAMILY_CASES = (
    "llama",
    "mistral-window",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi3-window",
    "olmo2",
    "olmo3",
    "granite",
    "smollm3",
    "gpt_neox",
    "gpt2",
)
"""One of each family: with a window where the family may have one."""


def tiny_transformers(case: str, seed: int = 0, **changes: Any) -> Any:
    """A random model of about 20k weights, in float32, biases and norms as random as the rest: zeros and ones
    would hide a slip."""
    import transformers

    tiny = CASES[case]
    usual: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
    }
    settings = {"vocab_size": 61, **(usual if tiny.usual else {}), **tiny.settings, **changes}
    special = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    config = getattr(transformers, f"{tiny.prefix}Config")(**{**special, **settings})
    torch.manual_seed(seed)
    model = getattr(transformers, tiny.model or f"{tiny.prefix}ForCausalLM")(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return model


def ours(model: Any) -> tuple[DecoderConfig, dict[str, Tensor]]:
    """The configuration and the tensors that a decoder of ours is made from."""
    config = DecoderConfig.from_hf(model.config.to_dict())
    tensors = dict(adopt(config, ((name, weight.detach()) for name, weight in model.state_dict().items())))
    if config.tied:
        tensors.pop("lm_head.weight", None)
    return config, tensors
