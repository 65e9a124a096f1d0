"""Medusa checkpoints as their authors publish them: config.json and `medusa_lm_head.pt` or `.safetensors`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from taslak.drafters.formats.files import read_tensors, write_checkpoint
from taslak.drafters.formats.head import Head, HeadTarget, MedusaConfig
from taslak.errors import CheckpointError
from taslak.models.loading import check_tensors

MARK = "medusa_num_heads"
"""The key that makes a config.json a Medusa head's."""
FILE = "medusa_lm_head.safetensors"


def read(folder: Path, values: Mapping[str, Any]) -> Head:
    """`values`: its config.json. Raises CheckpointError."""
    tensors = read_tensors(folder)
    blocks = int(values.get("medusa_num_layers", 1))
    numbers = [int(name.split(".")[0]) for name in tensors if name.split(".")[0].isdecimal()]
    # published configs say fewer heads than their files hold
    count = max([int(values[MARK]), *(number + 1 for number in numbers)])
    config = MedusaConfig(heads=count, blocks=blocks)
    first = tensors.get(f"0.{blocks}.weight")
    if first is None or first.dim() != 2:
        raise CheckpointError(f"{folder} has no matrix 0.{blocks}.weight, the first head's unembedding")
    vocab, hidden = first.shape
    shapes = config.shapes(hidden, vocab)
    names = {name: _spelled(name, blocks) for name in shapes}
    check_tensors(tensors, {names[name]: shape for name, shape in shapes.items()}, file=folder)
    target = HeadTarget(str(values.get("base_model_name_or_path", "unknown")), hidden, vocab)
    head = Head(target, config, {name: tensors[theirs] for name, theirs in names.items()})
    head.check(folder)
    return head


def write(
    folder: Path | str, head: Head, *, unembedding: Tensor | None = None, base: str | None = None
) -> None:
    """Write heads in the authors' layout, where each has an unembedding of its own over all tokens.

    unembedding:  [V, H], the target's lm_head, for heads that use it; these may say every token then
    base:         the target's name for whoever loads it; None = the head's own

    Raises CheckpointError for what the layout can't hold, DiskError.
    """
    config = head.config
    if not isinstance(config, MedusaConfig):
        raise CheckpointError(f"the head is of kind {head.kind}; the layout of Medusa holds medusa heads")
    head.check()
    if head.draft_ids is not None and config.unembedding != "target":
        raise CheckpointError(
            f"the heads know {head.draft_vocab_size} of {head.target.vocab_size} tokens, which the layout of "
            "Medusa can't say; train them with --draft-vocab 0"
        )
    shared = head.tensors.get("unembed.weight") if config.unembedding == "shared" else unembedding
    shape = (head.target.vocab_size, head.target.hidden_size)
    if config.unembedding != "own" and (shared is None or tuple(shared.shape) != shape):
        found = "none was given" if shared is None else f"one of {list(shared.shape)} was given"
        raise CheckpointError(f"the heads use the target's lm_head, {list(shape)}, and {found}")
    tensors = {
        _spelled(name, config.blocks): tensor
        for name, tensor in head.tensors.items()
        if name.startswith("heads.")
    }
    if shared is not None and config.unembedding != "own":
        dtype = next(iter(tensors.values())).dtype if tensors else shared.dtype
        tensors |= {f"{i}.{config.blocks}.weight": shared.to(dtype) for i in range(config.heads)}
    named = {
        MARK: config.heads,
        "medusa_num_layers": config.blocks,
        "base_model_name_or_path": base or head.target.name,
        "hidden_size": head.target.hidden_size,
        "vocab_size": head.target.vocab_size,
    }
    write_checkpoint(folder, tensors, named, file=FILE)


def _spelled(name: str, blocks: int) -> str:
    """heads.2.blocks.0.bias -> 2.0.linear.bias; heads.2.unembed.weight -> 2.1.weight, with one block"""
    _, i, part, *rest = name.split(".")
    return f"{i}.{rest[0]}.linear.{rest[1]}" if part == "blocks" else f"{i}.{blocks}.{rest[0]}"
