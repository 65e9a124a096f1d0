"""Tiny random models: the real architectures at sizes a test can run in milliseconds."""

from __future__ import annotations

from dataclasses import replace

import torch

from taslak.models.config import DecoderConfig
from taslak.models.decoder import Decoder
from taslak.models.rope_config import RopeConfig
from taslak.models.torch_layers import TorchLayers


def tiny_config(family: str = "llama", **changes: object) -> DecoderConfig:
    """A decoder of about 20k weights."""
    values: dict[str, object] = {
        "family": family,
        "vocab_size": 61,
        "hidden_size": 32,
        "inner_size": 48,
        "layers": 3,
        "heads": 4,
        "kv_heads": 2,
        "head_size": 8,
        "context": 512,
        "norm_eps": 1e-5,
        "rope": RopeConfig(),
        "tied": False,
        "qkv_bias": family == "qwen2",
    }
    return DecoderConfig(**{**values, **changes})  # type: ignore[arg-type]


def random_weights(config: DecoderConfig, seed: int = 0, scale: float = 0.25) -> dict[str, torch.Tensor]:
    """Gaussian weights, norms near one. `scale` sets how sharp the distributions are."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in config.tensors().items():
        noise = torch.randn(shape, generator=generator) * scale
        weights[name] = 1.0 + 0.1 * noise if "norm" in name else noise
    return weights


def tiny_model(
    seed: int = 0,
    *,
    exact: bool = True,
    dtype: torch.dtype = torch.float32,
    scale: float = 0.25,
    known: int | None = None,
    **changes: object,
) -> Decoder:
    """A tiny random decoder; two with one seed are the same model. `known`: tokens of its tokenizer, where
    the head has more rows."""
    config = tiny_config(**changes)  # type: ignore[arg-type]
    weights = {name: weight.to(dtype) for name, weight in random_weights(config, seed, scale).items()}
    return Decoder(config, weights, vocab_size=known, exact=exact)


def near_model(seed: int = 0, noise: float = 0.05, *, exact: bool = True, **changes: object) -> Decoder:
    """A model that mostly agrees with tiny_model(seed): the same weights, a little disturbed."""
    config = tiny_config(**changes)  # type: ignore[arg-type]
    weights = random_weights(config, seed)
    other = random_weights(config, seed + 1000)
    mixed = {name: weight + noise * other[name] for name, weight in weights.items()}
    return Decoder(config, mixed, exact=exact)


def poison(model: Decoder, token: int, value: float) -> None:
    """Every number of this token's embedding becomes `value`; the head, tied or not, stays as it is."""
    layers = model._layers
    assert isinstance(layers, TorchLayers)
    embedding = layers._ends.embedding
    assert embedding is not None
    embedding = embedding.clone()
    embedding[token] = value
    layers._ends = replace(layers._ends, embedding=embedding)
