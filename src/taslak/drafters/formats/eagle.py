"""EAGLE and EAGLE-3 checkpoints as other projects publish them.

EAGLE-1, -2 and -3 of the authors' repository, EAGLE-3 of SpecForge (the same tensors) and of speculators.
They differ in where the layer's tensors are, in what a layer id means, and in what a missing setting means.
"""

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

SPECULATORS = "speculators_model_type"
"""The key that makes a config.json one of speculators'."""

_IDS = "eagle_aux_hidden_state_layer_ids"
_MAPS = ("d2t", "t2d")
_UNSUPPORTED = ("norm_before_fc", "fc_norm", "norm_output")
_LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "rms_norm_eps": 1e-6,
}
"""transformers' own defaults: speculators leaves out of the layer's config what equals them."""
_NORMS = {
    "hidden_norm": "hidden_norm",
    "input_norm": "input_layernorm",
    "post_norm": "post_attention_layernorm",
}


def is_eagle3(values: Mapping[str, Any]) -> bool:
    """Whether a config.json without speculators' key is an EAGLE-3 head's."""
    names = values.get("architectures") or [""]
    return "eagle3" in str(names[0]).lower() or "draft_vocab_size" in values


def read(folder: Path, values: Mapping[str, Any]) -> Head:
    """EAGLE-1 and EAGLE-2, whose weights are the same. `values`: config.json. Raises CheckpointError."""
    tensors = read_tensors(folder)
    if "fc.weight" not in tensors:
        raise CheckpointError(
            f"{folder} is no head: a head's tensors have fc.weight among them; and no model: a model has a "
            "tokenizer"
        )
    config = EagleConfig(_layer(folder, values), fc_bias=bool(values.get("bias", True)))
    return _made(folder, config, _target(folder, values), tensors, None, "layers.0")


def read_eagle3(folder: Path, values: Mapping[str, Any]) -> Head:
    """EAGLE-3 of the authors' repository or SpecForge. A layer id is the layer whose output is read."""
    ids = values.get(_IDS) or (values.get("eagle_config") or {}).get(_IDS)
    return _eagle3(folder, values, values, ids, bool(values.get("norm_before_residual", False)))


def read_speculators(folder: Path, values: Mapping[str, Any]) -> Head:
    """EAGLE-3 of speculators. Layer id k is Hugging Face's `hidden_states[k]`, the output of layer k − 1."""
    kind = values[SPECULATORS]
    if kind != "eagle3":
        raise CheckpointError(f"{folder} is a {kind!r} speculator; of speculators' heads eagle3 is supported")
    for name in _UNSUPPORTED:
        if values.get(name):
            raise CheckpointError(f"{folder} sets {name}, which is not supported")
    ids = values.get(_IDS)
    if ids is not None and 0 in ids:
        raise CheckpointError(f"{folder} reads the embedding as a feature ({_IDS} {ids}): not supported")
    layer = values.get("transformer_layer_config")
    if not isinstance(layer, Mapping):
        raise CheckpointError(f"{folder / 'config.json'} lacks 'transformer_layer_config'")
    if "sliding_attention" in (layer.get("layer_types") or ()):
        raise CheckpointError(f"{folder} uses sliding-window attention, which is not supported")
    captures = None if ids is None else [int(k) - 1 for k in ids]
    verifier = (values.get("speculators_config") or {}).get("verifier") or {}
    layer = {**_LLAMA, "_name_or_path": verifier.get("name_or_path"), **layer}
    # missing: as vLLM reads it
    return _eagle3(folder, values, layer, captures, bool(values.get("norm_before_residual", True)))


def _eagle3(
    folder: Path, values: Mapping[str, Any], layer: Mapping[str, Any], captures: Any, normed: bool
) -> Head:
    tensors = read_tensors(folder)
    target = _target(folder, layer)
    wide = values.get("target_hidden_size")
    if wide not in (None, target.hidden_size):
        raise CheckpointError(
            f"{folder} is {target.hidden_size} wide for a target of {wide}; only equal sizes are supported"
        )
    config = Eagle3Config(_layer(folder, layer), captures and tuple(int(k) for k in captures), normed)
    maps = {name: tensors.pop(name) for name in _MAPS if name in tensors}
    size = values.get("draft_vocab_size")
    size = target.vocab_size if size is None else int(size)
    at = "midlayer" if any(name.startswith("midlayer.") for name in tensors) else "layers.0"
    ids = _draft_ids(folder, maps, size, target.vocab_size)
    return _made(folder, config, target, tensors, ids, at)


def _draft_ids(folder: Path, maps: Mapping[str, Tensor], size: int, vocab_size: int) -> Tensor | None:
    """From d2t, which holds offsets: draft token i is target token i + d2t[i]. None = the identity.

    Raises CheckpointError for a draft vocabulary without a map: which tokens it is can't be guessed.
    """
    offsets = maps.get("d2t")
    if offsets is None or not bool(offsets.any()):
        if size == vocab_size:
            return None
        found = "no d2t" if offsets is None else "a d2t of zeros"
        raise CheckpointError(
            f"{folder} has a draft vocabulary of {size} in one of {vocab_size} and {found}: which target "
            "tokens it is can't be known"
        )
    if list(offsets.shape) != [size]:
        raise CheckpointError(f"{folder}: d2t has the shape {list(offsets.shape)} where [{size}] is expected")
    ids = torch.arange(size) + offsets.to(torch.int64)
    mask = maps.get("t2d")
    if mask is not None and not torch.equal(mask.bool().nonzero()[:, 0], ids.sort().values):
        raise CheckpointError(f"{folder}: t2d and d2t name different tokens; one of them is broken")
    return ids


def _made(
    folder: Path,
    config: EagleConfig | Eagle3Config,
    target: HeadTarget,
    tensors: dict[str, Tensor],
    ids: Tensor | None,
    at: str,
) -> Head:
    """Checked under their names, returned under ours. `at`: what the layer's tensors begin with."""
    shapes = config.shapes(target.hidden_size, target.vocab_size if ids is None else ids.numel())
    shapes[EMBEDDING] = (target.vocab_size, target.hidden_size)
    names = {_theirs(name, at): name for name in shapes}
    expected = {theirs: shapes[name] for theirs, name in names.items()}
    check_tensors(tensors, expected, optional=(EMBEDDING, "*.rotary_emb.inv_freq"), file=folder)
    ours = {name: tensors[theirs] for theirs, name in names.items() if theirs in tensors}
    if ids is not None and not bool((ids[1:] > ids[:-1]).all()):
        ids, order = ids.sort()
        ours["lm_head.weight"] = ours["lm_head.weight"][order]
    head = Head(target, config, ours, ids)
    head.check(folder)
    return head


def _theirs(name: str, at: str) -> str:
    """layer.q.weight -> midlayer.self_attn.q_proj.weight"""
    scope, _, rest = name.partition(".")
    if scope != "layer":
        return name
    part, kind = rest.split(".")
    if part in _NORMS:
        return f"{at}.{_NORMS[part]}.{kind}"
    return f"{at}.{PRODUCTS[part]}.{part}_proj.{kind}"


def _layer(folder: Path, values: Mapping[str, Any]) -> LayerConfig:
    """From the keys of a Llama config. Raises CheckpointError."""
    try:
        heads = int(values["num_attention_heads"])
        given = values.get("rope_parameters") or {}
        return LayerConfig(
            heads=heads,
            kv_heads=int(values.get("num_key_value_heads") or heads),
            head_size=int(values.get("head_dim") or int(values["hidden_size"]) // heads),
            inner_size=int(values["intermediate_size"]),
            norm_eps=float(values.get("rms_norm_eps", 1e-6)),
            rope_theta=float(given.get("rope_theta") or values.get("rope_theta") or 10_000.0),
            rope_scaling=given or values.get("rope_scaling") or None,
            qkv_bias=bool(values.get("qkv_bias", values.get("attention_bias", False))),
        )
    except KeyError as error:
        raise CheckpointError(f"{folder / 'config.json'} lacks {error}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{folder / 'config.json'} is not a head's configuration: {error}") from error


def _target(folder: Path, values: Mapping[str, Any]) -> HeadTarget:
    try:
        name = str(values.get("_name_or_path") or "its target")
        return HeadTarget(name, int(values["hidden_size"]), int(values["vocab_size"]))
    except KeyError as error:
        raise CheckpointError(f"{folder / 'config.json'} lacks {error}") from error
