"""Rotary position embedding (Su et al. 2021), a function of the position alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from taslak.models.config import RopeConfig

_CHUNK = 1024
"""Positions tabulated at once; always the same shape, so that a position's bits don't depend on how far
the table had to reach when it was computed."""


class Rope:
    """Cosines and sines by position, tabulated as far as they are needed.

    rotate(x) = x · cos + swap_halves(x) · sin, with the sign of the rotation already in `sin`.
    """

    def __init__(self, config: RopeConfig, head_size: int, dtype: torch.dtype, device: torch.device) -> None:
        self._inverse = inverse_frequencies(config, head_size).to(device)
        self._dtype = dtype
        self._cos = torch.empty((0, head_size), dtype=dtype, device=device)
        self._sin = torch.empty_like(self._cos)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin, Float[R, 1, d] each (one for all heads). positions: Int64[R]."""
        cos, sin = self.table(int(positions.max()) + 1)
        return cos[positions][:, None], sin[positions][:, None]

    def table(self, positions: int) -> tuple[Tensor, Tensor]:
        """cos and sin of at least the first so many positions, Float[P, d] each; not to be modified."""
        while positions > self._cos.shape[0]:
            start = self._cos.shape[0]
            steps = torch.arange(start, start + _CHUNK, device=self._inverse.device)
            angles = steps[:, None].float() * self._inverse  # [1024, d/2]
            # in float64, then rounded: float32 cosines differ between vector lanes and loop remainders
            cos, sin = angles.double().cos().float(), angles.double().sin().float()
            self._cos = torch.cat((self._cos, torch.cat((cos, cos), dim=-1).to(self._dtype)))
            self._sin = torch.cat((self._sin, torch.cat((-sin, sin), dim=-1).to(self._dtype)))
        return self._cos, self._sin


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x: Float[R, heads, d]; products and one sum, so the bits depend on the values alone."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((x[..., half:], x[..., :half]), dim=-1) * sin  # cat: a quarter of roll's time


def inverse_frequencies(config: RopeConfig, head_size: int) -> Tensor:
    """Float32[d/2], radians a position."""
    exponents = torch.arange(0, head_size, 2, dtype=torch.int64).float() / head_size
    inverse = 1.0 / (config.theta**exponents)
    if config.kind == "linear":
        return inverse / config.factor
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
