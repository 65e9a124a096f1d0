"""What the EAGLE layouts share: a Llama's names for the layer's tensors and for its settings, both ways."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from taslak.drafters.formats.files import read_tensors
from taslak.drafters.formats.head import EMBEDDING, Eagle3Config, EagleConfig, Head, HeadTarget, LayerConfig
from taslak.errors import CheckpointError
from taslak.models.layers import PRODUCTS
from taslak.models.loading import check_tensors

CONTEXT = 32_768
"""Positions that a written head says it knows, where nothing better is known. A rotary table that reaches
further than needed changes no number of it."""

_NORMS = {
    "hidden_norm": "hidden_norm",
    "input_norm": "input_layernorm",
    "post_norm": "post_attention_layernorm",
}


_OUTPUT_BIAS = "self_attn.o_proj.bias"
"""Llamas whose attention has biases have this one too, a head's layer never."""


def tensors_of(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder, without a bias of the attention's output that is zero, and so none."""
    return {
        name: tensor
        for name, tensor in read_tensors(folder).items()
        if not name.endswith(_OUTPUT_BIAS) or bool(tensor.any())
    }


def read(
    folder: Path,
    config: EagleConfig | Eagle3Config,
    target: HeadTarget,
    tensors: Mapping[str, Tensor],
    ids: Tensor | None,
    at: str,
) -> Head:
    """The head of these tensors: checked under their names, given under ours.

    ids: Int64[Vd], the target ids of the lm_head's rows, in their order; None = all
    Raises CheckpointError, naming whatever is missing, unexpected or misshapen.
    """
    shapes = config.shapes(target.hidden_size, target.vocab_size if ids is None else ids.numel())
    shapes[EMBEDDING] = (target.vocab_size, target.hidden_size)
    names = {spelled(name, at): name for name in shapes}
    expected = {theirs: shapes[name] for theirs, name in names.items()}
    check_tensors(tensors, expected, optional=(EMBEDDING, "*.rotary_emb.inv_freq"), file=folder)
    ours = {name: tensors[theirs] for theirs, name in names.items() if theirs in tensors}
    if ids is not None and not bool((ids[1:] > ids[:-1]).all()):
        ids, order = ids.sort()
        ours["lm_head.weight"] = ours["lm_head.weight"][order]
    head = Head(target, config, ours, ids)
    head.check(folder)
    return head


def written(head: Head, at: str, *, bias_of_output: bool = False) -> dict[str, Tensor]:
    """The tensors of a head under their names; the same objects.

    bias_of_output: where the layer has q, k and v biases, give its output one of zeros: the layout can't have
                    the ones without the other
    """
    tensors = {spelled(name, at): tensor for name, tensor in head.tensors.items()}
    if bias_of_output and layer_of(head).qkv_bias:
        weight = head.tensors["layer.o.weight"]
        tensors[f"{at}.{_OUTPUT_BIAS}"] = torch.zeros(weight.shape[0], dtype=weight.dtype)
    return tensors


def spelled(name: str, at: str) -> str:
    """layer.q.weight -> midlayer.self_attn.q_proj.weight, for `at` midlayer"""
    scope, _, rest = name.partition(".")
    if scope != "layer":
        return name
    part, kind = rest.split(".")
    if part in _NORMS:
        return f"{at}.{_NORMS[part]}.{kind}"
    return f"{at}.{PRODUCTS[part]}.{part}_proj.{kind}"


def layer_of(head: Head) -> LayerConfig:
    """The layer of an EAGLE head."""
    assert isinstance(head.config, EagleConfig | Eagle3Config)
    return head.config.layer


def read_layer(folder: Path, values: Mapping[str, Any]) -> LayerConfig:
    """From the keys of a Llama config. Raises CheckpointError."""
    activation = values.get("hidden_act") or "silu"
    if activation != "silu":
        raise CheckpointError(f"{folder} has the hidden_act {activation!r}; only 'silu' is supported")
    try:
        heads = int(values["num_attention_heads"])
        scaling = dict(values.get("rope_parameters") or values.get("rope_scaling") or {})
        theta = scaling.pop("rope_theta", None) or values.get("rope_theta") or 10_000.0
        plain = set(scaling) <= {"type", "rope_type"} and set(scaling.values()) <= {"default"}
        return LayerConfig(
            heads=heads,
            kv_heads=int(values.get("num_key_value_heads") or heads),
            head_size=int(values.get("head_dim") or int(values["hidden_size"]) // heads),
            inner_size=int(values["intermediate_size"]),
            norm_eps=float(values.get("rms_norm_eps", 1e-6)),
            rope_theta=float(theta),
            rope_scaling=None if plain else scaling,
            qkv_bias=bool(values.get("qkv_bias", values.get("attention_bias", False))),
        )
    except KeyError as error:
        raise CheckpointError(f"{folder / 'config.json'} lacks {error}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{folder / 'config.json'} is not a head's configuration: {error}") from error


def read_target(folder: Path, values: Mapping[str, Any]) -> HeadTarget:
    """Raises CheckpointError."""
    try:
        name = str(values.get("_name_or_path") or "its target")
        return HeadTarget(name, int(values["hidden_size"]), int(values["vocab_size"]))
    except KeyError as error:
        raise CheckpointError(f"{folder / 'config.json'} lacks {error}") from error


def settings_of(head: Head, context: int) -> dict[str, Any]:
    """The keys of a Llama config of one layer, as every reader of them knows them."""
    layer = layer_of(head)
    return {
        "model_type": "llama",
        "hidden_size": head.target.hidden_size,
        "intermediate_size": layer.inner_size,
        "num_hidden_layers": 1,
        "num_attention_heads": layer.heads,
        "num_key_value_heads": layer.kv_heads,
        "head_dim": layer.head_size,
        "vocab_size": head.target.vocab_size,
        "max_position_embeddings": context,
        "rms_norm_eps": layer.norm_eps,
        "rope_theta": layer.rope_theta,
        "rope_scaling": None if layer.rope_scaling is None else dict(layer.rope_scaling),
        "attention_bias": layer.qkv_bias,
        "mlp_bias": False,
        "hidden_act": "silu",
        "pretraining_tp": 1,
        "tie_word_embeddings": False,
        "torch_dtype": str(head.tensors["fc.weight"].dtype).removeprefix("torch."),
    }
