"""A named model, ready to run: its decoder, its tokenizer, and what they were made from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from taslak.errors import MemoryLimitError, OptionError
from taslak.models.config import DecoderConfig
from taslak.models.decoder import Decoder
from taslak.models.loading import Notice, Progress, check_tensors, load_tensors, resolve
from taslak.models.tokenizer import Tokenizer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

_CACHE_SHARE = 0.8
"""Of the memory left beside the weights; the rest is for activations, logits and other programs."""

_DERIVED = ("*.rotary_emb.inv_freq", "*.attn.masked_bias", "*.attn.bias")
"""Buffers that old checkpoints carry along and every loader computes for itself."""


@dataclass(frozen=True, slots=True)
class Pretrained:
    """`name` as it was given; `dtype` of weights and cache."""

    name: str
    decoder: Decoder
    tokenizer: Tokenizer
    dtype: str


def load_pretrained(
    name: str,
    *,
    dtype: str = "float32",
    exact: bool = False,
    device: str | torch.device = "cpu",
    share: float = 1.0,
    taken: int = 0,
    progress: Progress | None = None,
    notice: Notice | None = None,
) -> Pretrained:
    """Find, fetch and convert the model where needed, and map its weights.

    share:  of the memory left beside the weights, how much the K/V cache may grow to
    taken:  bytes that another model will need

    On the CPU weights stored in `dtype` are memory-mapped, not read. Raises ModelNotFound, CheckpointError,
    DownloadError, DiskError, MemoryLimitError, OptionError (dtype, device).
    """
    if dtype not in DTYPES:
        raise OptionError(f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")
    where = _device(device)
    folder = resolve(name, dtype=DTYPES[dtype], progress=progress, notice=notice)
    config = DecoderConfig.from_folder(folder)
    expected = config.tensors()
    needed = sum(torch.Size(shape).numel() for shape in expected.values()) * DTYPES[dtype].itemsize
    left = _memory_left(name, needed + taken, where)
    weights = load_tensors(folder, DTYPES[dtype])
    check_tensors(weights, expected, optional=_optional(config), file=folder)
    tokenizer = Tokenizer.from_folder(folder, name=name)
    decoder = Decoder(
        config,
        {key: weight.to(where) for key, weight in weights.items()},
        vocab_size=tokenizer.vocab_size,
        exact=exact,
        cache_bytes=None if left is None else int(_CACHE_SHARE * share * left),
    )
    return Pretrained(name=name, decoder=decoder, tokenizer=tokenizer, dtype=dtype)


def _optional(config: DecoderConfig) -> tuple[str, ...]:
    return (*_DERIVED, "lm_head.weight") if config.tied else _DERIVED


def _device(device: str | torch.device) -> torch.device:
    try:
        where = torch.device(device)
    except RuntimeError:
        raise OptionError(f"device is {device!r}; expected cpu or cuda") from None
    if where.type not in ("cpu", "cuda"):
        raise OptionError(f"device is {device!r}; expected cpu or cuda")
    if where.type == "cuda" and not torch.cuda.is_available():
        raise OptionError("device is cuda, but PyTorch finds no CUDA device; use cpu")
    return where


def _memory_left(name: str, needed: int, device: torch.device) -> int | None:
    """Bytes free beside the weights, None where the system doesn't say. Raises MemoryLimitError where the
    weights alone can't fit."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else _free_memory()
    if free is not None and needed > free:
        raise MemoryLimitError(
            f"{name} needs {needed / 2**30:.1f} GiB for its weights and {free / 2**30:.1f} GiB are free; "
            "use --dtype bfloat16 or a smaller model"
        )
    return None if free is None else free - needed


def _free_memory() -> int | None:
    """Bytes that can be had without swapping, None where the system doesn't say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None
