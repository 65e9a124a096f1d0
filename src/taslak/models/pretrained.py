"""A named model, ready to run: its decoder, its tokenizer, and what they were made from."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from taslak import native
from taslak.errors import MemoryLimitError, OptionError
from taslak.models.config import DecoderConfig
from taslak.models.decoder import Decoder
from taslak.models.layers import HEAD
from taslak.models.loading import (
    Notice,
    Progress,
    adopt,
    check_tensors,
    load_packed,
    load_tensors,
    own_dtype,
    packed_bytes,
    resolve,
    resolve_packed,
)
from taslak.models.target import Target
from taslak.models.tokenizer import Tokenizer
from taslak.native import Packed

DTYPES = ("auto", "float32", "bfloat16", "int8", "int4")
TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

_CACHE_SHARE = 0.8
"""Of the memory left beside the weights; the rest is for activations, logits and other programs."""


@dataclass(frozen=True, slots=True)
class Pretrained:
    """`name` as it was given; `dtype` of the weights, never "auto"; `path` that computes with them."""

    name: str
    decoder: Target
    tokenizer: Tokenizer
    dtype: str
    path: str = "PyTorch"


def load_pretrained(
    name: str,
    *,
    dtype: str = "auto",
    exact: bool = False,
    device: str | torch.device = "cpu",
    share: float = 1.0,
    taken: int = 0,
    progress: Progress | None = None,
    notice: Notice | None = None,
) -> Pretrained:
    """Find, fetch and convert or pack the model where needed, and load its weights.

    dtype:  float32 runs in PyTorch. On the CPU the others run in the native kernels, width-invariant whether
            `exact` or not: bfloat16, int8, int4 (a GGUF's 4-bit weights as they are). auto: the checkpoint's
            own width. Without the kernels, and on CUDA, bfloat16 runs in PyTorch, int8 and int4 are refused
            and auto is bfloat16
    share:  of the memory left beside the weights, how much the K/V cache may grow to
    taken:  bytes that another model will need

    Raises ModelNotFound, CheckpointError, DownloadError, DiskError, MemoryLimitError, OptionError.
    """
    where = check_dtype(dtype, device)
    kernels = where.type == "cpu" and native.available()
    if dtype == "auto":
        dtype = own_dtype(name) if kernels else "bfloat16"
    kernels = kernels and dtype != "float32"
    weights: dict[str, Tensor | Packed]
    if kernels:
        folder, packed = resolve_packed(name, dtype=dtype, progress=progress, notice=notice)
        config = DecoderConfig.from_folder(folder)
        left = _memory_left(name, packed_bytes(packed) + taken, where)
        tokenizer = Tokenizer.from_folder(folder, name=name)
        with ThreadPoolExecutor(1) as reader:  # where weights are read, that takes as long as the tokenizer
            reading = reader.submit(load_packed, packed)
            _ = tokenizer.vocab_size
        weights = reading.result()
    else:
        folder = resolve(name, dtype=TORCH_DTYPES[dtype], progress=progress, notice=notice)
        config = DecoderConfig.from_folder(folder)
        numbers = sum(torch.Size(shape).numel() for shape in config.tensors().values())
        left = _memory_left(name, numbers * TORCH_DTYPES[dtype].itemsize + taken, where)
        stored = load_tensors(folder, TORCH_DTYPES[dtype]).items()
        weights = {key: weight.to(where) for key, weight in adopt(config, stored)}
        tokenizer = Tokenizer.from_folder(folder, name=name)
    check_tensors(weights, config.tensors(), optional=(HEAD,) if config.tied else (), file=folder)
    if config.tied:
        weights.pop(HEAD, None)
    decoder = Decoder(
        config,
        weights,
        vocab_size=tokenizer.vocab_size,
        exact=exact,
        cache_dtype=torch.bfloat16 if kernels else None,
        cache_bytes=cache_bytes(left, share),
    )
    return Pretrained(name, decoder, tokenizer, dtype, "native" if kernels else "PyTorch")


def check_dtype(dtype: str, device: str | torch.device) -> torch.device:
    """The device, once both are known to be possible here. Raises OptionError."""
    if dtype not in DTYPES:
        raise OptionError(f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")
    where = _device(device)
    if dtype in ("int8", "int4"):
        if where.type != "cpu":
            raise OptionError(f"dtype {dtype} runs on the CPU alone; use bfloat16 on {where.type}")
        if not native.available():
            raise OptionError(
                f"dtype {dtype} needs the native kernels, and what runs here is {native.describe()}; "
                "use bfloat16 or float32"
            )
    return where


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
    free = free_memory(device)
    if free is not None and needed > free:
        raise MemoryLimitError(
            f"{name} needs {needed / 2**30:.1f} GiB for its weights and {free / 2**30:.1f} GiB are free; "
            "use a narrower dtype or a smaller model"
        )
    return None if free is None else free - needed


def cache_bytes(left: int | None, share: float = 1.0) -> int | None:
    """What a K/V cache may grow to, where so many bytes are left; None = no bound."""
    return None if left is None else int(_CACHE_SHARE * share * left)


def free_memory(device: torch.device) -> int | None:
    """Bytes that can be had without swapping, None where the system doesn't say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None
