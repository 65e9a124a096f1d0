"""Tiny GGUF files of every family, written the way llama.cpp's converter does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import torch
from torch import Tensor

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma": gguf.MODEL_ARCH.GEMMA,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "olmo2": gguf.MODEL_ARCH.OLMO2,
    "granite": gguf.MODEL_ARCH.GRANITE,
    "smollm3": gguf.MODEL_ARCH.SMOLLM3,
    "gpt_neox": gguf.MODEL_ARCH.GPTNEOX,
    "gpt2": gguf.MODEL_ARCH.GPT2,
}
PAIRED = ("llama", "granite", "smollm3")
"""Their q and k are in ggml's rotary order."""


def write_family_gguf(path: Path, model: Any, quantisation: str = "F32") -> Path:
    """model: of transformers. Matrices are stored as `quantisation`."""
    config, family = model.config, model.config.model_type
    kind = ARCHITECTURES[family]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[kind])
    _settings(writer, config, family)
    _tokenizer(writer, config.vocab_size)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    stored = gguf.GGMLQuantizationType[quantisation]
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert theirs is not None, name
        values = _converted(family, name, weight.float(), config).contiguous().numpy()
        if values.ndim == 2 and "position" not in theirs:
            writer.add_tensor(theirs, gguf.quants.quantize(values, stored), raw_dtype=stored)
        else:
            writer.add_tensor(theirs, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _settings(writer: gguf.GGUFWriter, config: Any, family: str) -> None:
    hidden, heads = config.hidden_size, config.num_attention_heads
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(getattr(config, "intermediate_size", 4 * hidden))
    writer.add_head_count(heads)
    if family in ("gpt2", "gpt_neox"):
        writer.add_layer_norm_eps(1e-5)
    else:
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        rope = config.rope_parameters
        writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
        head = getattr(config, "head_dim", None) or hidden // heads
        if family != "phi3":
            writer.add_key_length(head)
            writer.add_value_length(head)
    more: dict[str, Callable[[], None]] = {
        "gemma2": lambda: _gemma2(writer, config),
        "gemma3_text": lambda: writer.add_sliding_window(config.sliding_window),
        "phi3": lambda: _phi3(writer, config),
        "granite": lambda: _granite(writer, config),
        "gpt_neox": lambda: _neox(writer, config),
    }
    more.get(family, lambda: None)()


def _gemma2(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_sliding_window(config.sliding_window)


def _phi3(writer: gguf.GGUFWriter, config: Any) -> None:
    rope, head = config.rope_parameters, config.hidden_size // config.num_attention_heads
    writer.add_rope_dimension_count(int(rope["partial_rotary_factor"] * head))
    writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
    writer.add_sliding_window(config.sliding_window or 0)
    for key, name in (("long_factor", "rope_factors_long"), ("short_factor", "rope_factors_short")):
        if key in rope:
            writer.add_tensor(f"{name}.weight", torch.tensor(rope[key]).numpy())


def _granite(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)


def _neox(writer: gguf.GGUFWriter, config: Any) -> None:
    head = config.hidden_size // config.num_attention_heads
    writer.add_rope_dimension_count(int(config.rope_parameters["partial_rotary_factor"] * head))
    writer.add_parallel_residual(config.use_parallel_residual)


def _tokenizer(writer: gguf.GGUFWriter, size: int) -> None:
    """Byte-level, of so many tokens that are never merged."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    tokens = [chr(256 + i) for i in range(size - 1)] + ["<|endoftext|>"]
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (size - 1) + [3])
    writer.add_eos_token_id(size - 1)


def _converted(family: str, name: str, weight: Tensor, config: Any) -> Tensor:
    if family.startswith("gemma") and name.endswith("norm.weight"):
        return weight + 1.0
    if family == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
        return weight.T
    heads = config.num_attention_heads
    if family == "gpt_neox" and "query_key_value" in name:
        return torch.cat([*weight.unflatten(0, (heads, 3, -1)).transpose(0, 1)]).flatten(0, 1)
    if family in PAIRED and name.endswith(("q_proj.weight", "k_proj.weight")):
        count = heads if "q_proj" in name else config.num_key_value_heads
        halves = weight.reshape(count, 2, -1, weight.shape[-1])  # [heads, 2, head_dim / 2, hidden]
        return halves.swapaxes(1, 2).reshape(weight.shape)
    return weight
