"""What a family of models is here: data that says how its checkpoints become a decoder of ours.

Knows nothing about tensors' contents, and imports neither torch nor gguf: listing families stays quick.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from taslak.errors import CheckpointError

SLIDING, FULL = "sliding_attention", "full_attention"
"""In `layer_types`."""

Settings = Mapping[str, Any]
"""The keys of a config.json."""

Rows = slice | list[int] | None
"""Which rows of a stored tensor: None = all."""


class GGUFSettings(Protocol):
    """What a GGUF's metadata says; `taslak.models.loading.gguf.GGUFModel`."""

    def setting(self, key: str, default: Any = None) -> Any:
        """The value of "<architecture>.<key>"; raises CheckpointError if it is absent without a default."""
        ...


def _nothing(_: Any) -> dict[str, Any]:
    return {}


COMMON_SETTINGS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
"""Of a GGUF, by their names in config.json."""

COMMON_TOPS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
"""Stems of a GGUF's tensors outside the layers -> in the Hugging Face layout."""

COMMON_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Stems of a layer's tensors."""

WINDOW, ROTATED = "attention.sliding_window", "rope.dimension_count"
"""For `Gguf.understood`."""

QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}

PAIRED = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
"""For `Gguf.paired`."""


@dataclass(frozen=True)
class Gguf:
    """How one GGUF architecture becomes a Hugging Face model.

    architecture:  its name there
    model_class:   the Hugging Face class
    tops, parts:   stems of tensor names, outside the layers and in one -> Hugging Face's
    paired:        stems whose rows the GGUF holds in ggml's rotary order (pairs side by side) -> the setting
                   that counts their heads
    settings:      config.json's name -> the GGUF's
    fixed:         entries of config.json that hold for every such model
    read:          further entries
    understood:    settings that `read` takes care of, which are refused elsewhere
    """

    architecture: str
    model_class: str
    tops: Mapping[str, str] = field(default_factory=lambda: COMMON_TOPS)
    parts: Mapping[str, str] = field(default_factory=lambda: COMMON_PARTS)
    paired: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=lambda: COMMON_SETTINGS)
    fixed: Settings = field(default_factory=dict)
    read: Callable[[GGUFSettings], dict[str, Any]] = _nothing
    understood: tuple[str, ...] = ()


@dataclass(frozen=True)
class Family:
    """One model_type of config.json.

    models:        what goes by it, for people
    about:         what sets its layers apart from Llama's, for people
    read:          config.json -> the fields of DecoderConfig that not all families have the same keys for
    defaults:      what config.json means where it doesn't say
    keys:          the usual key of config.json -> this family's
    layer:         what stands before a layer's number in its tensors' names
    tops, parts:   stems of tensor names outside the layers, and in one -> ours; several of ours: their rows
                   are stacked. What isn't listed has our name already
    by_head:       stacked rows of heads alternate: q, k and v of the first head, then of the second
    turned:        stems of matrices that are stored [in, out]
    norm_offset:   added to a norm's weights, in float32
    """

    model_type: str
    models: str
    about: str
    read: Callable[[Settings], dict[str, Any]] = _nothing
    defaults: Settings = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    layer: str = "model.layers."
    tops: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    by_head: bool = False
    turned: tuple[str, ...] = ()
    norm_offset: float = 0.0
    gguf: Gguf | None = None

    def settings(self, values: Settings) -> dict[str, Any]:
        """A config.json with the usual keys, and what it leaves out; null is left out and has no default."""
        usual = {ours: values[theirs] for ours, theirs in self.keys.items() if theirs in values}
        whole = {**self.defaults, **values, **usual}
        return {key: value for key, value in whole.items() if value is not None}

    def turns(self, name: str, shape: Sequence[int]) -> bool:
        """Whether a tensor is stored [in, out]."""
        return len(shape) == 2 and bool(self.turned) and name.removesuffix(".weight").endswith(self.turned)

    def ours(self, name: str) -> tuple[str, ...]:
        """Our names for a tensor, in the order of its rows."""
        stem, dot, kind = name.rpartition(".")
        for theirs, our in self.tops.items():
            if stem in (theirs, theirs.partition(".")[2]):  # saved without the model's own prefix, too
                return (f"{our}{dot}{kind}",)
        prefix = next(
            (p for p in (self.layer, self.layer.partition(".")[2]) if p and name.startswith(p)), None
        )
        if prefix is None:
            return (name,)
        number, _, part = stem[len(prefix) :].partition(".")
        found = self.parts.get(part, part)
        stems = (found,) if isinstance(found, str) else found
        return tuple(f"model.layers.{number}.{our}{dot}{kind}" for our in stems)


def windows(values: Settings, slides: Callable[[int], bool] = lambda _: True) -> tuple[int, ...]:
    """The field `windows` of DecoderConfig, where config.json has one size for all layers that have a window.

    slides: layer -> whether it has one, where `layer_types` doesn't say. Raises CheckpointError for layers of
    another kind.
    """
    window, layers = int(values.get("sliding_window") or 0), int(values["num_hidden_layers"])
    kinds = values.get("layer_types") or [SLIDING if slides(i) else FULL for i in range(layers)]
    if len(kinds) < layers:
        raise CheckpointError(f"layer_types names {len(kinds)} layers; expected {layers}")
    for kind in kinds[:layers]:
        if kind not in (SLIDING, FULL):
            raise CheckpointError(
                f"a layer of the kind {kind!r} is not supported; expected {FULL} or {SLIDING}"
            )
    if not window or SLIDING not in kinds[:layers]:
        return ()
    return tuple(window if kind == SLIDING else 0 for kind in kinds[:layers])


def every(interval: int) -> Callable[[int], bool]:
    """All layers but each `interval`-th slide."""
    return lambda layer: (layer + 1) % interval != 0


ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
}
"""Hugging Face's names -> ours."""


def activation(name: Any) -> str:
    """Our name of an activation. Raises CheckpointError for one that isn't known."""
    if name not in ACTIVATIONS:
        raise CheckpointError(f"the activation {name!r} is not supported; expected {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]
