"""What a decoder is built from: one data class, read from a Hugging Face config.json.

Knows nothing about weights. What differs between families is data in `taslak.models.families`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from taslak.errors import CheckpointError
from taslak.models.families import family_of
from taslak.models.families.family import activation
from taslak.models.rope_config import RopeConfig, rope_config


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Shape of a decoder; the defaults are a Llama's.

    tied:             the lm_head is the embedding
    norm:             "rms", or "layer": LayerNorm with biases (Ba et al. 2016)
    pre_norm:         norms before attention and before the MLP
    post_norm:        norms behind them, before they are added to the residual
    qk_norm:          RMSNorm of q and k before they are rotated: of each "head", of the "whole" row, or ""
    activation:       "silu", "gelu" or "gelu-tanh", of the gate, or of the MLP's rows where it isn't gated
    parallel:         attention and MLP read the same rows, and both are added to them
    windows:          [layers] how many positions a row sees there, itself included, 0 = all; () = all in all
    local_rope:       of layers with a window, where they rotate differently
    unrotated:        layers that rotate nothing
    positions:        how many learned positions are added to the embeddings; then no layer rotates. 0 = none
    attention_scale:  what scores are multiplied with; None = 1 / √head_size
    attention_cap:    c of c · tanh(score / c), 0 = none; logit_cap: the same of logits
    embedding_scale, residual_scale, logit_scale:  what embeddings, additions to the residual, and logits are
                      multiplied with
    """

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
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    norm: str = "rms"
    pre_norm: bool = True
    post_norm: bool = False
    qk_norm: str = ""
    activation: str = "silu"
    gated: bool = True
    parallel: bool = False
    windows: tuple[int, ...] = ()
    local_rope: RopeConfig | None = None
    unrotated: tuple[int, ...] = ()
    positions: int = 0
    attention_scale: float | None = None
    attention_cap: float = 0.0
    logit_cap: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0

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
        family = family_of(values)
        values = family.settings(values)
        hidden, heads = int(values["hidden_size"]), int(values["num_attention_heads"])
        context = int(values.setdefault("max_position_embeddings", 2048))
        bias = bool(values.get("attention_bias", False))
        own = family.read(values)
        rope: RopeConfig = own.pop("rope", None) or rope_config(values)
        usual: dict[str, Any] = {
            "family": family.model_type,
            "vocab_size": int(values["vocab_size"]),
            "hidden_size": hidden,
            "inner_size": int(values.get("intermediate_size") or 4 * hidden),
            "layers": int(values["num_hidden_layers"]),
            "heads": heads,
            "kv_heads": int(values.get("num_key_value_heads") or heads),
            "head_size": int(values.get("head_dim") or hidden // heads),
            "context": min(context, rope.most or context),
            "norm_eps": float(values.get("rms_norm_eps", 1e-6)),
            "rope": rope,
            "tied": bool(values.get("tie_word_embeddings", False)),
            "qkv_bias": bias,
            "out_bias": bias,
            "mlp_bias": bool(values.get("mlp_bias", False)),
        }
        if "activation" not in own:
            usual["activation"] = activation(values.get("hidden_act", "silu"))
        return cls(**(usual | own))

    @property
    def plain(self) -> bool:
        """Whether its layers are a Llama's or Qwen2's."""
        biases = ("qkv_bias", "out_bias", "mlp_bias")
        optional = [f for f in fields(self) if f.default is not MISSING and f.name not in biases]
        return all(getattr(self, field.name) == field.default for field in optional)

    def window(self, layer: int) -> int:
        """Positions a row sees in a layer, 0 = all."""
        return self.windows[layer] if self.windows else 0

    def rope_of(self, layer: int) -> RopeConfig | None:
        """What a layer rotates by; None = by nothing."""
        if self.positions or layer in self.unrotated:
            return None
        return self.local_rope if self.local_rope is not None and self.window(layer) else self.rope

    @property
    def ropes(self) -> list[RopeConfig]:
        """The ways its layers rotate, each once."""
        ropes = (self.rope_of(layer) for layer in range(self.layers))
        return list(dict.fromkeys(rope for rope in ropes if rope is not None))

    def rotation(self, layer: int) -> int | None:
        """Which of `ropes` a layer rotates by; None = it rotates nothing."""
        rope = self.rope_of(layer)
        return None if rope is None else self.ropes.index(rope)

    @property
    def scale(self) -> float:
        """What scores are multiplied with."""
        return self.head_size**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def products(self) -> tuple[str, ...]:
        """A layer's matrices, in the order they are used."""
        return ("q", "k", "v", "o", *(("gate",) if self.gated else ()), "up", "down")

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every tensor a checkpoint must hold (a tied lm_head is not among them)."""
        h, q, kv = self.hidden_size, self.heads * self.head_size, self.kv_heads * self.head_size
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, h)}
        shapes |= self._norm_shapes([("model.norm", h)], self.norm == "layer")
        if self.positions:
            shapes["model.embed_positions.weight"] = (self.positions, h)
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
        if not self.gated:
            del linears["mlp.gate_proj"]
        norms: list[tuple[str, int]] = []
        if self.pre_norm:
            norms += [("input_layernorm", h), ("post_attention_layernorm", h)]
        if self.post_norm:
            norms += [("self_attn.o_norm", h), ("mlp.down_norm", h)]
        for layer in range(self.layers):
            at = f"model.layers.{layer}."
            for name, (rows, columns, bias) in linears.items():
                shapes[f"{at}{name}.weight"] = (rows, columns)
                if bias:
                    shapes[f"{at}{name}.bias"] = (rows,)
            shapes |= self._norm_shapes([(at + name, size) for name, size in norms], self.norm == "layer")
            if self.qk_norm:
                whole = self.qk_norm == "whole"
                sizes = (q, kv) if whole else (self.head_size, self.head_size)
                shapes |= self._norm_shapes(
                    [(f"{at}self_attn.{x}_norm", n) for x, n in zip("qk", sizes, strict=True)]
                )
        return shapes

    @staticmethod
    def _norm_shapes(norms: list[tuple[str, int]], bias: bool = False) -> dict[str, tuple[int, ...]]:
        kinds = ("weight", "bias") if bias else ("weight",)
        return {f"{name}.{kind}": (size,) for name, size in norms for kind in kinds}
