"""The machine and what models take of it: which weights run, what a token reads of them, and memory."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from taslak.models.pretrained import Pretrained
from taslak.models.target import Target


@dataclass(frozen=True, slots=True)
class Statistics:
    """What the models of a LanguageModel take, target and draft together.

    peak_bytes:      most memory the process has had so far, mapped files included; None = unknown
    weight_bytes:    all weights
    bytes_per_token: weights that a token of the target, decoded alone, reads
    cache_bytes:     K/V caches as far as they have grown
    """

    peak_bytes: int | None
    weight_bytes: int
    bytes_per_token: int
    cache_bytes: int


@dataclass(frozen=True, slots=True)
class Weights:
    """What a model's weights are and cost: `path` is "native", "PyTorch" or "transformers …"; a token decoded
    alone reads `bytes_per_token` of them."""

    dtype: str
    path: str
    bytes_per_token: int


def weights_of(model: Pretrained) -> Weights:
    """Of one model."""
    return Weights(model.dtype, model.path, model.decoder.pass_bytes)


def statistics(decoders: Sequence[Target]) -> Statistics:
    """Of the target and the models that draft for it, in this order."""
    return Statistics(
        peak_bytes=peak_memory(),
        weight_bytes=sum(decoder.weight_bytes for decoder in decoders),
        bytes_per_token=decoders[0].pass_bytes,
        cache_bytes=sum(decoder.pool.nbytes for decoder in decoders),
    )


def processor() -> str:
    """Its name, where the system says it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def peak_memory() -> int | None:
    """Most bytes this process has had in memory at once, None where the system doesn't say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return _peak_by_usage()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def _peak_by_usage() -> int | None:
    if sys.platform == "win32":
        return None
    import resource

    # kilobytes, but for macOS
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
