"""Rotary position embedding (Su et al. 2021), a function of the position alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from taslak.models.rope_config import RopeConfig

_CHUNK = 1024
"""Positions tabulated at once; always the same shape, so that a position's bits don't depend on how far
the table had to reach when it was computed."""


class Rope:
    """Cosines and sines by position, tabulated as far as they are needed.

    rotate(x) = x · cos + swap_halves(x) · sin, with the sign of the rotation already in `sin`.
    """

    def __init__(self, config: RopeConfig, head_size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.size = config.size(head_size)
        self._inverse = inverse_frequencies(config, self.size).to(device)
        self._factor = config.attention_factor
        self._dtype = dtype
        self._cos = torch.empty((0, self.size), dtype=dtype, device=device)
        self._sin = torch.empty_like(self._cos)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin, Float[R, 1, r] each (one for all heads). positions: Int64[R]."""
        cos, sin = self.table(int(positions.max()) + 1)
        return cos[positions][:, None], sin[positions][:, None]

    def table(self, positions: int) -> tuple[Tensor, Tensor]:
        """cos and sin of at least the first so many positions, Float[P, r] each; not to be modified."""
        while positions > self._cos.shape[0]:
            start = self._cos.shape[0]
            steps = torch.arange(start, start + _CHUNK, device=self._inverse.device)
            angles = steps[:, None].float() * self._inverse  # [1024, r/2]
            # in float64, then rounded: float32 cosines differ between vector lanes and loop remainders
            cos, sin = (
                wave.float() * self._factor for wave in (angles.double().cos(), angles.double().sin())
            )
            self._cos = torch.cat((self._cos, torch.cat((cos, cos), dim=-1).to(self._dtype)))
            self._sin = torch.cat((self._sin, torch.cat((-sin, sin), dim=-1).to(self._dtype)))
        return self._cos, self._sin


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x: Float[R, heads, d], of which the first r dimensions are rotated; products and one sum, so the bits
    depend on the values alone. cos, sin: Float[R, 1, r]."""
    size = cos.shape[-1]
    half = size // 2
    if size < x.shape[-1]:
        return torch.cat((rotate(x[..., :size], cos, sin), x[..., size:]), dim=-1)
    return x * cos + torch.cat((x[..., half:], x[..., :half]), dim=-1) * sin  # cat: a quarter of roll's time


def inverse_frequencies(config: RopeConfig, size: int) -> Tensor:
    """Float32[r/2], radians a position. size: r, the dimensions that are rotated."""
    exponents = torch.arange(0, size, 2, dtype=torch.int64).float() / size
    inverse = 1.0 / (config.theta**exponents)
    if config.kind == "linear":
        return inverse / config.factor
    if config.kind == "divided":
        return 1.0 / (torch.tensor(config.divisors) * config.theta**exponents)
    if config.kind == "yarn":
        ramp = _yarn_ramp(config, size)
        return inverse / config.factor * ramp + inverse * (1 - ramp)
    if config.kind == "llama3":
        low = config.original_context / config.low_freq_factor
        high = config.original_context / config.high_freq_factor
        wavelength = 2 * math.pi / inverse
        smooth = (config.original_context / wavelength - config.low_freq_factor) / (
            config.high_freq_factor - config.low_freq_factor
        )
        blended = (1 - smooth) * inverse / config.factor + smooth * inverse
        scaled = torch.where(wavelength > low, inverse / config.factor, inverse)
        return torch.where((wavelength <= low) & (wavelength >= high), blended, scaled)
    return inverse


def _yarn_ramp(config: RopeConfig, size: int) -> Tensor:
    """How much of each frequency is divided, 0 … 1: nothing of those that turn often within the original
    context, all of the slow ones. Float32[r/2]."""

    def place(turns: float) -> float:
        """The (fractional) number of the frequency that turns so often."""
        return size * math.log(config.original_context / (turns * 2 * math.pi)) / (2 * math.log(config.theta))

    low, high = place(config.beta_fast), place(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    return ((torch.arange(size // 2).float() - low) / (high - low or 0.001)).clamp(0, 1)
