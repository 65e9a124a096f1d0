"""What positions are rotated by: one data class, read from the keys of a Hugging Face config.

Nothing here depends on the length of the text: what a position is rotated by never changes under way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from taslak.errors import CheckpointError

KINDS = ("default", "linear", "llama3", "yarn", "longrope", "dynamic")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding: base frequency, how it is stretched, and how much of a head is rotated.

    kind "default"; "linear" divides every frequency by `factor`; "llama3" divides the low ones, blends the
    middle ones (Llama 3.1); "yarn" does so by how often a frequency turns within the original context
    (Peng et al. 2023), between `beta_fast` and `beta_slow` times; "divided" divides each by its own divisor.

    share:             of a head's dimensions, from its start
    attention_factor:  what cosines and sines are multiplied with
    most:              positions this holds for, where there is a bound
    """

    theta: float = 10_000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    share: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    divisors: tuple[float, ...] = ()
    attention_factor: float = 1.0
    most: int | None = None

    def size(self, head_size: int) -> int:
        """Dimensions of a head that are rotated."""
        return int(head_size * self.share)


def rope_config(values: Mapping[str, Any], kind: str | None = None) -> RopeConfig:
    """From the keys of a Hugging Face config, in both spellings: `rope_parameters` (transformers 5), and
    `rope_theta` + `rope_scaling` (before). kind: of layers, where `rope_parameters` has an entry for each.
    Raises CheckpointError for a stretching that isn't known."""
    parameters = values.get("rope_parameters") or {}
    if kind is not None and kind in parameters:
        parameters = parameters[kind] or {}
    given = {**(values.get("rope_scaling") or {}), **parameters}
    stretch = str(given.get("rope_type") or given.get("type") or "default")
    stretch = {"su": "longrope"}.get(stretch, stretch)
    rope = RopeConfig(
        theta=float(given.get("rope_theta") or values.get("rope_theta") or 10_000.0),
        share=float(given.get("partial_rotary_factor") or values.get("partial_rotary_factor") or 1.0),
    )
    if stretch == "default":
        return rope
    if stretch == "linear":
        return replace(rope, kind=stretch, factor=float(given["factor"]))
    if stretch == "llama3":
        return replace(
            rope,
            kind=stretch,
            factor=float(given["factor"]),
            low_freq_factor=float(given["low_freq_factor"]),
            high_freq_factor=float(given["high_freq_factor"]),
            original_context=int(given["original_max_position_embeddings"]),
        )
    longest = int(values.get("max_position_embeddings", 2048))
    original = int(
        given.get("original_max_position_embeddings")
        or values.get("original_max_position_embeddings")
        or longest
    )
    if stretch == "yarn":
        return _yarn(rope, given, original, longest)
    if stretch == "longrope":
        # two sets of divisors, and the text's length decides: fixed here to those of the original context
        return replace(
            rope,
            kind="divided",
            divisors=tuple(float(divisor) for divisor in given["short_factor"]),
            original_context=original,
            attention_factor=_longrope_attention(given, original, longest),
            most=original,
        )
    if stretch == "dynamic":  # up to the original context it changes nothing
        return replace(rope, most=original)
    raise CheckpointError(f"rope scaling {stretch!r} is not supported; expected one of {', '.join(KINDS)}")


def _yarn(rope: RopeConfig, given: Mapping[str, Any], original: int, longest: int) -> RopeConfig:
    factor = float(given.get("factor") or longest / original)
    attention = given.get("attention_factor")
    if attention is None:
        mscale, whole = given.get("mscale"), given.get("mscale_all_dim")
        both = bool(mscale and whole)
        attention = _magnitude(factor, mscale if both else 1.0) / (_magnitude(factor, whole) if both else 1.0)
    return replace(
        rope,
        kind="yarn",
        factor=factor,
        original_context=original,
        beta_fast=float(given.get("beta_fast") or 32),
        beta_slow=float(given.get("beta_slow") or 1),
        truncate=bool(given.get("truncate", True)),
        attention_factor=float(attention),
    )


def _magnitude(factor: float, scale: Any) -> float:
    """YaRN's section 3.4, as DeepSeek generalised it."""
    return 1.0 if factor <= 1.0 else 0.1 * float(scale) * math.log(factor) + 1.0


def _longrope_attention(given: Mapping[str, Any], original: int, longest: int) -> float:
    """Ding et al. 2024, LongRoPE: what the released models multiply with, at any length."""
    if (attention := given.get("attention_factor")) is not None:
        return float(attention)
    factor = float(given.get("factor") or longest / original)
    return 1.0 if factor <= 1.0 else math.sqrt(1.0 + math.log(factor) / math.log(original))
