"""GGUF architectures as data: what each calls its tensors and settings, and what they are called here.

A new architecture is one entry of ARCHITECTURES, as long as it is a decoder of the same build.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TOP_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_TENSORS = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
QKV_BIASES = {f"attn_{part}.bias": f"self_attn.{part}_proj.bias" for part in "qkv"}
# Settings under "<architecture>." in the metadata, by their name in config.json.
SETTINGS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}


@dataclass(frozen=True)
class Architecture:
    """How one GGUF architecture becomes a Hugging Face model.

    `permuted` maps tensors of a layer whose rows the GGUF holds in ggml's rotary order (pairs side by side)
    to the setting that counts their heads; `fixed` are config entries that hold for every such model.
    """

    model_class: str
    model_type: str
    layer_tensors: Mapping[str, str]
    permuted: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(
        model_class="LlamaForCausalLM",
        model_type="llama",
        layer_tensors=LAYER_TENSORS,
        permuted={"attn_q.weight": "num_attention_heads", "attn_k.weight": "num_key_value_heads"},
        fixed={"attention_bias": False, "mlp_bias": False},
    ),
    "qwen2": Architecture(
        model_class="Qwen2ForCausalLM",
        model_type="qwen2",
        layer_tensors=LAYER_TENSORS | QKV_BIASES,
        fixed={"use_sliding_window": False},
    ),
}
