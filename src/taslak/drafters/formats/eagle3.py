"""EAGLE-3 checkpoints: of the authors' repository and SpecForge (the same tensors), and of speculators.

They differ in where the layer's tensors are, in what a layer id means, and in what a missing setting means.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from taslak.drafters.formats import llama
from taslak.drafters.formats.files import write_checkpoint
from taslak.drafters.formats.head import EMBEDDING, Eagle3Config, Head
from taslak.errors import CheckpointError

log = logging.getLogger(__name__)

SPECULATORS = "speculators_model_type"
"""The key that makes a config.json one of speculators'."""
SPECULATORS_VERSION = "0.9.0"
"""The release whose layout is written."""
DEPTH = 4
"""Tokens a written head says to draft, where it isn't known what it is used best with."""

MIDLAYER, LAYER = "midlayer", "layers.0"

_IDS = "eagle_aux_hidden_state_layer_ids"
_MAPS = ("d2t", "t2d")
_UNSUPPORTED = ("norm_before_fc", "fc_norm", "use_aux_norm", "norm_output")
_LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "rms_norm_eps": 1e-6,
}
"""transformers' own defaults: speculators leaves out of the layer's config what equals them."""


def is_eagle3(values: Mapping[str, Any]) -> bool:
    """Whether a config.json without speculators' key is an EAGLE-3 head's."""
    return "eagle3" in _architecture(values).lower() or "draft_vocab_size" in values


def read(folder: Path, values: Mapping[str, Any]) -> Head:
    """Of the authors' repository or SpecForge. A layer id is the layer whose output is read; where the
    architecture is named as vLLM names its own, vLLM's count holds. A warning says which was taken.

    Raises CheckpointError.
    """
    inner = values.get("eagle_config") or {}
    _supported(folder, {**values, **inner})
    if not inner.get("use_aux_hidden_state", True):
        raise CheckpointError(f"{folder} sets use_aux_hidden_state to false, which is not supported")
    ids = inner.get(_IDS) or values.get(_IDS)
    captures = None if ids is None else [int(k) for k in ids]
    if captures is not None:
        as_vllm = _architecture(values).startswith("Eagle3")
        captures = _outputs(folder, captures) if as_vllm else captures
        log.warning(
            "%s names layers by ids that are counted in two ways: %s is taken for the outputs of the layers "
            "%s, as %s; if hardly a draft is right, it was trained with the other count",
            *(folder, ids, captures, "vLLM reads it" if as_vllm else "SpecForge and SGLang read it"),
        )
    return _read(folder, values, values, captures, bool(values.get("norm_before_residual", False)))


def read_speculators(folder: Path, values: Mapping[str, Any]) -> Head:
    """Of speculators. Layer id k is Hugging Face's `hidden_states[k]`, the output of layer k − 1.

    Raises CheckpointError.
    """
    kind = values[SPECULATORS]
    if kind != "eagle3":
        raise CheckpointError(f"{folder} is a {kind!r} speculator; of speculators' heads eagle3 is supported")
    _supported(folder, values)
    layer = values.get("transformer_layer_config")
    if not isinstance(layer, Mapping):
        raise CheckpointError(f"{folder / 'config.json'} lacks 'transformer_layer_config'")
    if "sliding_attention" in (layer.get("layer_types") or ()):
        raise CheckpointError(f"{folder} uses sliding-window attention, which is not supported")
    ids = values.get(_IDS)
    captures = None if ids is None else _outputs(folder, ids)
    verifier = (values.get("speculators_config") or {}).get("verifier") or {}
    layer = {**_LLAMA, "_name_or_path": verifier.get("name_or_path"), **layer}
    # missing: as vLLM reads it
    return _read(folder, values, layer, captures, bool(values.get("norm_before_residual", True)))


def write(folder: Path | str, head: Head, *, context: int = llama.CONTEXT) -> None:
    """Write a head in the layout of the authors and SpecForge.

    Raises CheckpointError for what the layout can't hold, DiskError.
    """
    config = _checked(head)
    if config.norm_before_residual:
        raise CheckpointError(
            "the head has norm_before_residual, which the layout of SpecForge doesn't know: its residual is "
            "never normed; write the layout of speculators"
        )
    layer = llama.layer_of(head)
    settings = {**llama.settings_of(head, context), "attention_bias": False, "qkv_bias": layer.qkv_bias}
    inner: dict[str, Any] = {"use_aux_hidden_state": True}
    if config.captures is not None:
        inner[_IDS] = list(config.captures)
    named = {
        "architectures": ["LlamaForCausalLMEagle3"],
        **settings,
        "draft_vocab_size": head.draft_vocab_size,
        "eagle_config": inner,
    }
    write_checkpoint(folder, {**llama.written(head, MIDLAYER), **_maps(head)}, named)


def write_speculators(
    folder: Path | str,
    head: Head,
    *,
    context: int = llama.CONTEXT,
    gamma: int | None = None,
    verifier: str | None = None,
    embedding: Tensor | None = None,
) -> None:
    """Write a head in the layout of speculators.

    gamma:      tokens to draft; None = what the head is used best with
    verifier:   the target's name for whoever loads it; None = the head's own
    embedding:  [V, H], the target's, for a head without one. Left out, vLLM takes the target's; speculators'
                own loader (0.9) would compute with whatever is in memory

    Raises CheckpointError for a head of another kind or an embedding that doesn't fit, DiskError.
    """
    config = _checked(head)
    if embedding is not None and EMBEDDING not in head.tensors:
        head = replace(head, tensors={**head.tensors, EMBEDDING: embedding})
        head.check()
    own = None if head.drafting is None else head.drafting.gamma
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": gamma or own or DEPTH,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    named = {
        "architectures": ["Eagle3Speculator"],
        SPECULATORS: "eagle3",
        "speculators_version": SPECULATORS_VERSION,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": verifier or head.target.name, "architectures": []},
        },
        "transformer_layer_config": llama.settings_of(head, context),
        "draft_vocab_size": head.draft_vocab_size,
        "norm_before_residual": config.norm_before_residual,
        _IDS: None if config.captures is None else [layer + 1 for layer in config.captures],
    }
    tensors = llama.written(head, LAYER, bias_of_output=True)
    write_checkpoint(folder, {**tensors, **_maps(head)}, named)


def _read(
    folder: Path, values: Mapping[str, Any], layer: Mapping[str, Any], captures: Any, normed: bool
) -> Head:
    tensors = llama.tensors_of(folder)
    target = llama.read_target(folder, layer)
    wide = values.get("target_hidden_size")
    if wide not in (None, target.hidden_size):
        raise CheckpointError(
            f"{folder} is {target.hidden_size} wide for a target of {wide}; only equal sizes are supported"
        )
    config = Eagle3Config(llama.read_layer(folder, layer), captures and tuple(captures), normed)
    maps = {name: tensors.pop(name) for name in _MAPS if name in tensors}
    size = values.get("draft_vocab_size")
    size = target.vocab_size if size is None else int(size)
    at = MIDLAYER if any(name.startswith(f"{MIDLAYER}.") for name in tensors) else LAYER
    ids = _draft_ids(folder, maps, size, target.vocab_size)
    return llama.read(folder, config, target, tensors, ids, at)


def _outputs(folder: Path, ids: Any) -> list[int]:
    """From indices of Hugging Face's hidden states to the layers whose outputs they are."""
    layers = [int(k) - 1 for k in ids]
    if -1 in layers:
        raise CheckpointError(f"{folder} reads the embedding as a feature ({_IDS} {ids}): not supported")
    return layers


def _supported(folder: Path, values: Mapping[str, Any]) -> None:
    for name in _UNSUPPORTED:
        if values.get(name):
            raise CheckpointError(f"{folder} sets {name}, which is not supported")


def _architecture(values: Mapping[str, Any]) -> str:
    return str((values.get("architectures") or [""])[0])


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


def _maps(head: Head) -> dict[str, Tensor]:
    """d2t, Int64[Vd] offsets, and t2d, Bool[V]; none where the draft vocabulary is the whole one."""
    ids = head.draft_ids
    if ids is None or ids.numel() == head.target.vocab_size:
        return {}
    mask = torch.zeros(head.target.vocab_size, dtype=torch.bool)
    mask[ids] = True
    return {"d2t": ids - torch.arange(ids.numel()), "t2d": mask}


def _checked(head: Head) -> Eagle3Config:
    config = head.config
    if not isinstance(config, Eagle3Config):
        raise CheckpointError(f"the head is of kind {head.kind}; the layouts of EAGLE-3 hold eagle3 heads")
    head.check()
    return config
