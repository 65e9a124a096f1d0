"""Heads as other projects publish them, tiny and random: config.json and tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

H, V, VD = 32, 61, 20
LLAMA = {
    "hidden_size": H,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 1,
    "vocab_size": V,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "model_type": "llama",
}
IDS = list(range(1, 61, 3))
"""The target ids of the draft vocabulary."""

SCALE = 0.12
"""Of weights: what comes out of a layer is about as large as what goes in."""

Checkpoint = tuple[dict[str, Any], dict[str, Tensor]]


def weight(*shape: int) -> Tensor:
    return torch.randn(shape) * SCALE


def norm() -> Tensor:
    return 1.0 + 0.1 * torch.randn(H)


def layer(at: str, width: int) -> dict[str, Tensor]:
    shapes = {
        "self_attn.q_proj": (32, width),
        "self_attn.k_proj": (16, width),
        "self_attn.v_proj": (16, width),
        "self_attn.o_proj": (H, 32),
        "mlp.gate_proj": (48, H),
        "mlp.up_proj": (48, H),
        "mlp.down_proj": (H, 48),
    }
    tensors = {f"{at}.{name}.weight": weight(*shape) for name, shape in shapes.items()}
    return {**tensors, f"{at}.post_attention_layernorm.weight": norm()}


def eagle1() -> Checkpoint:
    tensors = {
        "embed_tokens.weight": weight(V, H),
        "fc.weight": weight(H, 2 * H),
        "fc.bias": weight(H),
        **layer("layers.0", H),
    }
    return {**LLAMA, "architectures": ["LlamaForCausalLM"], "bias": True}, tensors


def eagle3(at: str = "midlayer") -> Checkpoint:
    tensors = {
        "fc.weight": weight(H, 3 * H),
        **layer(at, 2 * H),
        f"{at}.hidden_norm.weight": norm(),
        f"{at}.input_layernorm.weight": norm(),
        "norm.weight": norm(),
        "lm_head.weight": weight(VD, H),
        "d2t": torch.tensor(IDS) - torch.arange(VD),
        "t2d": torch.zeros(V, dtype=torch.bool).index_fill_(0, torch.tensor(IDS), True),
    }
    return {**LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": VD}, tensors


def specforge() -> Checkpoint:
    """With SpecForge's place for layer ids, which count outputs."""
    config, tensors = eagle3()
    inner = {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    return {**config, "eagle_config": inner}, tensors


def speculators(**settings: Any) -> Checkpoint:
    _, tensors = eagle3("layers.0")
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "org/target"}},
        "transformer_layer_config": LLAMA,
        "draft_vocab_size": VD,
        **settings,
    }
    return config, {**tensors, "embed_tokens.weight": weight(V, H)}


def medusa(heads: int = 3, layers: int = 1) -> Checkpoint:
    tensors = {}
    for i in range(heads):
        for j in range(layers):
            tensors[f"{i}.{j}.linear.weight"] = weight(H, H)
            tensors[f"{i}.{j}.linear.bias"] = weight(H)
        tensors[f"{i}.{layers}.weight"] = weight(V, H)
    config = {"medusa_num_heads": heads, "medusa_num_layers": layers, "base_model_name_or_path": "org/target"}
    return config, tensors


def stored(
    folder: Path, config: dict[str, Any], tensors: dict[str, Tensor], file: str = "model.safetensors"
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if file.endswith(".safetensors"):
        save_file(tensors, folder / file)
    else:
        torch.save(tensors, folder / file)
    return folder
