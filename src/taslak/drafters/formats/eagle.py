"""EAGLE-1 and EAGLE-2 checkpoints as their authors publish them; the weights of both are the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from taslak.drafters.formats import llama
from taslak.drafters.formats.files import write_checkpoint
from taslak.drafters.formats.head import EagleConfig, Head
from taslak.errors import CheckpointError

_AT = "layers.0"


def read(folder: Path, values: Mapping[str, Any]) -> Head:
    """`values`: config.json. Raises CheckpointError."""
    tensors = llama.tensors_of(folder)
    if "fc.weight" not in tensors:
        raise CheckpointError(
            f"{folder} is no head: a head's tensors have fc.weight among them; and no model: a model has a "
            "tokenizer"
        )
    # SGLang has a bias whatever is said, and reads "bias" as that of the attention
    biased = bool(values.get("bias", True)) or "fc.bias" in tensors
    config = EagleConfig(llama.read_layer(folder, values), fc_bias=biased)
    return llama.read(folder, config, llama.read_target(folder, values), tensors, None, _AT)


def write(folder: Path | str, head: Head, *, context: int = llama.CONTEXT) -> None:
    """Write a head in the authors' layout, which vLLM reads too.

    The layout has no draft vocabulary (its logits are the target's): a head with one may say every token
    there. Raises CheckpointError for what the layout can't hold, DiskError.
    """
    config = _checked(head)
    layer = llama.layer_of(head)
    settings = {**llama.settings_of(head, context), "attention_bias": False, "qkv_bias": layer.qkv_bias}
    named = {"architectures": ["LlamaForCausalLM"], **settings, "bias": config.fc_bias}
    write_checkpoint(folder, llama.written(head, _AT), named)


def write_for_sglang(folder: Path | str, head: Head, *, context: int = llama.CONTEXT) -> None:
    """The same in SGLang's variant: another architecture, always a bias of fc, and the attention's biases as
    a Llama has them. Raises CheckpointError, DiskError."""
    _checked(head)
    tensors = llama.written(head, _AT, bias_of_output=True)
    weight = tensors["fc.weight"]
    tensors.setdefault("fc.bias", torch.zeros(weight.shape[0], dtype=weight.dtype))
    named = {"architectures": ["LlamaForCausalLMEagle"], **llama.settings_of(head, context), "bias": False}
    write_checkpoint(folder, tensors, named)


def _checked(head: Head) -> EagleConfig:
    """Raises CheckpointError for a head the layout can't hold."""
    config = head.config
    if not isinstance(config, EagleConfig):
        raise CheckpointError(f"the head is of kind {head.kind}; the layout of EAGLE-1 holds eagle heads")
    for name in ("input_norm", "final_norm"):
        if getattr(config, name):
            raise CheckpointError(f"the head has {name}, which the layout of EAGLE-1 can't say")
    head.check()
    return config
