"""What a decoder is built from: one data class, read from a Hugging Face config.json.

Knows nothing about weights. A new family is a few lines of data here, not a class of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taslak.errors import CheckpointError

FAMILIES = {"llama": "Llama 1-3.x, SmolLM2, TinyLlama", "mistral": "Mistral", "qwen2": "Qwen2, Qwen2.5"}
"""model_type -> what goes by it."""

_NO_ROLLBACK = ("mamba", "rwkv", "jamba", "zamba", "bamba", "recurrent", "lfm2", "xlstm", "falcon_h1", "next")
"""Parts of the model_types whose layers carry a running state: rejected tokens can't be taken out of it."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding: base frequency and how it is stretched.

    kind "default"; "linear" divides every frequency by `factor`; "llama3" divides the low ones, blends the
    middle ones (Llama 3.1). None of them depends on the length of the text: what a position is rotated by
    never changes under way.
    """

    theta: float = 10_000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Shape of a llama-like decoder."""

    family: str
    vocab_size: int
    hidden_size: int
    inner_size: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    context: int
    norm_eps: float
    rope: RopeConfig
    tied: bool
    """The lm_head is the embedding."""
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False

    @classmethod
    def from_folder(cls, folder: Path) -> DecoderConfig:
        """Read config.json. Raises CheckpointError for a missing or broken file and unsupported models."""
        file = folder / "config.json"
        try:
            values = json.loads(file.read_text())
        except FileNotFoundError:
            raise CheckpointError(
                f"{folder} has no config.json; expected a Hugging Face model folder"
            ) from None
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{file} can't be read as JSON: {error}") from error
        try:
            return cls.from_hf(values)
        except KeyError as error:
            raise CheckpointError(f"{file} lacks {error}") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{file} is not a model's configuration: {error}") from error

    @classmethod
    def from_hf(cls, values: Mapping[str, Any]) -> DecoderConfig:
        """From the keys of config.json. Raises CheckpointError for models this decoder can't run."""
        family = str(values.get("model_type", "unknown"))
        if any(part in family for part in _NO_ROLLBACK):
            raise CheckpointError(
                f"model_type {family!r} keeps a running state that can't be rolled back when a draft is "
                "rejected, so it can't be decoded speculatively; use an attention-only model"
            )
        if family not in FAMILIES:
            raise CheckpointError(
                f"model_type {family!r} is not supported; expected one of {', '.join(FAMILIES)}"
            )
        activation = values.get("hidden_act", "silu")
        if activation != "silu":
            raise CheckpointError(f"hidden_act {activation!r} is not supported in {family}; expected 'silu'")
        hidden, heads = int(values["hidden_size"]), int(values["num_attention_heads"])
        bias = bool(values.get("attention_bias", False))
        return cls(
            family=family,
            vocab_size=int(values["vocab_size"]),
            hidden_size=hidden,
            inner_size=int(values["intermediate_size"]),
            layers=int(values["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(values.get("num_key_value_heads") or heads),
            head_size=int(values.get("head_dim") or hidden // heads),
            context=_context(values),
            norm_eps=float(values.get("rms_norm_eps", 1e-6)),
            rope=rope_config(values),
            tied=bool(values.get("tie_word_embeddings", False)),
            qkv_bias=True if family == "qwen2" else bias,
            out_bias=False if family == "qwen2" else bias,
            mlp_bias=bool(values.get("mlp_bias", False)),
        )

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every tensor a checkpoint must hold (a tied lm_head is not among them)."""
        h, q, kv = self.hidden_size, self.heads * self.head_size, self.kv_heads * self.head_size
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, h),
            "model.norm.weight": (h,),
        }
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocab_size, h)
        linears = {
            "self_attn.q_proj": (q, h, self.qkv_bias),
            "self_attn.k_proj": (kv, h, self.qkv_bias),
            "self_attn.v_proj": (kv, h, self.qkv_bias),
            "self_attn.o_proj": (h, q, self.out_bias),
            "mlp.gate_proj": (self.inner_size, h, self.mlp_bias),
            "mlp.up_proj": (self.inner_size, h, self.mlp_bias),
            "mlp.down_proj": (h, self.inner_size, self.mlp_bias),
        }
        for layer in range(self.layers):
            at = f"model.layers.{layer}."
            for name, (rows, columns, bias) in linears.items():
                shapes[f"{at}{name}.weight"] = (rows, columns)
                if bias:
                    shapes[f"{at}{name}.bias"] = (rows,)
            shapes[f"{at}input_layernorm.weight"] = (h,)
            shapes[f"{at}post_attention_layernorm.weight"] = (h,)
        return shapes


def _context(values: Mapping[str, Any]) -> int:
    """Positions, kept inside the sliding window where the model has one: there it is ordinary attention."""
    context = int(values.get("max_position_embeddings", 2048))
    window = values.get("sliding_window")
    if window and values.get("use_sliding_window", values.get("model_type") == "mistral"):
        return min(context, int(window))
    return context


def rope_config(values: Mapping[str, Any]) -> RopeConfig:
    """From the keys of a Hugging Face config, in both spellings: `rope_parameters` (transformers 5), and
    `rope_theta` + `rope_scaling` (before). Raises CheckpointError for a stretching that isn't known."""
    given = dict(values.get("rope_scaling") or {}) | dict(values.get("rope_parameters") or {})
    theta = float(given.get("rope_theta") or values.get("rope_theta") or 10_000.0)
    kind = str(given.get("rope_type") or given.get("type") or "default")
    if float(given.get("partial_rotary_factor") or values.get("partial_rotary_factor") or 1.0) != 1.0:
        raise CheckpointError("partial rotary embeddings are not supported in this family")
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, kind=kind, factor=float(given["factor"]))
    if kind == "llama3":
        return RopeConfig(
            theta=theta,
            kind=kind,
            factor=float(given["factor"]),
            low_freq_factor=float(given["low_freq_factor"]),
            high_freq_factor=float(given["high_freq_factor"]),
            original_context=int(given["original_max_position_embeddings"]),
        )
    raise CheckpointError(f"rope scaling {kind!r} is not supported; expected default, linear or llama3")
