"""Whole decoders on the native kernels: right against PyTorch, and width-invariant bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from taslak.models.cache import Block
from taslak.models.config import DecoderConfig
from taslak.models.decoder import Decoder
from taslak.models.layers import HEAD, PRODUCTS, weight_name
from taslak.models.native_ops import pack_weights
from taslak.models.target import Rows, chain_rows
from taslak.native import Packed, set_threads, threads
from tests.support.tiny import random_weights, tiny_config
from tests.unit.native.paths import PATHS, on_path

KINDS = ("bfloat16", "int8", "int4")
CACHES = (torch.float32, torch.bfloat16)
CASES = list(product(KINDS, CACHES))
NAMES = [f"{kind}-{str(cache).removeprefix('torch.')}" for kind, cache in CASES]


def config_of(**changes: object) -> DecoderConfig:
    values: dict[str, object] = {"hidden_size": 64, "inner_size": 96, "head_size": 16, "layers": 2}
    return tiny_config("qwen2", **{**values, **changes})


def int4(weight: Tensor) -> Packed:
    """Any 4-bit matrix of about this size: what it rounds to doesn't matter here."""
    groups = weight.unflatten(1, (-1, 32))
    low, high = groups.amin(-1), groups.amax(-1)
    scales, minima = ((high - low) / 15).half(), low.half()
    codes = ((groups - minima.float()[..., None]) / scales.float()[..., None]).round().clamp(0, 15)
    return Packed.int4(codes.to(torch.uint8).flatten(1), scales, minima)


def packed(config: DecoderConfig, kind: str, seed: int = 3) -> dict[str, Tensor | Packed]:
    weights = random_weights(config, seed)
    if kind != "int4":
        return pack_weights(config, weights, kind)
    products = [weight_name(layer, name) for layer in range(config.layers) for name in PRODUCTS]
    return {name: int4(w) if name in products or name == HEAD else w for name, w in weights.items()}


def native(kind: str, cache: torch.dtype, **changes: object) -> Decoder:
    config = config_of(**changes)
    return Decoder(config, packed(config, kind), cache_dtype=cache)


MODELS = {case: native(*case) for case in CASES}


def plain_logits(model: Decoder, tokens: list[int]) -> tuple[Tensor, Block]:
    """Logits of every position, one row a pass."""
    cache = model.allocate(len(tokens) + 40)
    rows = []
    for token in tokens:
        rows.append(model.forward([chain_rows(cache, [token], 1)]).logits)
        cache.keep([0])
    return torch.cat(rows), cache


def cache_bits(model: Decoder, cache: Block) -> Tensor:
    where = torch.tensor([cache.slot(position) for position in range(cache.length)])
    return torch.stack((model.pool.keys[:, where], model.pool.values[:, where]))


def dequantised(weights: Mapping[str, Tensor | Packed]) -> dict[str, Tensor]:
    return {name: w.dequantised() if isinstance(w, Packed) else w for name, w in weights.items()}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "changes",
    [{}, {"heads": 3, "kv_heads": 1, "head_size": 24}, {"out_bias": True, "mlp_bias": True}],
    ids=["plain", "one-kv-head", "biases"],
)
def test_logits_agree_with_pytorch(path: str, kind: str, changes: dict[str, object]) -> None:
    """Against the same rounded weights in float32; what is left is the rounding of activations."""
    config = config_of(**changes)
    if kind != "bfloat16" and (config.heads * config.head_size) % 32:
        config = config_of(**{**changes, "head_size": 32})
    weights = packed(config, kind)
    reference = Decoder(config, dequantised(weights), exact=True)
    model = Decoder(config, weights, cache_dtype=torch.float32)
    ids = torch.randint(0, 61, (150,), generator=torch.Generator().manual_seed(1)).tolist()
    capture = ["embedding", "layer.0", "layer.1", "final_norm"]
    with on_path(path):
        outputs = [
            m.forward([chain_rows(m.allocate(150), ids, 150)], capture=capture) for m in (model, reference)
        ]
    tolerance = 1e-5 if kind == "bfloat16" else 0.05
    for got, wanted in [
        (outputs[0].logits, outputs[1].logits),
        *((outputs[0].features[name], outputs[1].features[name]) for name in capture),
    ]:
        assert (got - wanted).norm() < tolerance * wanted.norm()


@pytest.mark.parametrize("case", CASES, ids=NAMES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_rows_are_bit_identical_in_any_company(case: tuple[str, torch.dtype], data: st.DataObject) -> None:
    """Any prefill chunks, neighbours, slot placement, thread count: logits and cache bytes equal."""
    model = MODELS[case]
    tokens = data.draw(st.lists(st.integers(0, 60), min_size=2, max_size=150))
    expected, plain_cache = plain_logits(model, tokens)
    before = threads()
    set_threads(data.draw(st.sampled_from((1, 2, 3))))
    other = model.allocate(300)
    first, hole = model.allocate(64), model.allocate(64)
    if data.draw(st.booleans()):  # a hole in the pool, so that this sequence's pages don't lie in a row
        first.release()
    cache = model.allocate(len(tokens) + 64)
    try:
        got = []
        done = 0
        while done < len(tokens):
            chunk = tokens[done : done + data.draw(st.integers(1, 17))]
            neighbour = data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=9))
            batch = [chain_rows(cache, chunk, len(chunk)), chain_rows(other, neighbour, 0)]
            turned = data.draw(st.booleans())
            got.append(model.forward(batch[::-1] if turned else batch).logits)
            cache.keep(range(len(chunk)))
            other.keep(range(len(neighbour)) if other.length < 200 else [])
            done += len(chunk)
        assert torch.equal(torch.cat(got), expected)
        assert torch.equal(cache_bits(model, cache), cache_bits(model, plain_cache))
    finally:
        set_threads(before)
        for block in (plain_cache, other, cache, first, hole):
            block.release()


@pytest.mark.parametrize("case", CASES, ids=NAMES)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_tree_rows_equal_the_chain_to_them(case: tuple[str, torch.dtype], data: st.DataObject) -> None:
    """A node's logits, and the cache after keeping its path, equal plain decoding of prefix + branch."""
    model = MODELS[case]
    prefix = data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=140))
    n = data.draw(st.integers(1, 20))
    tokens = data.draw(st.lists(st.integers(0, 60), min_size=n, max_size=n))
    parents = [-1, *(data.draw(st.integers(-1, i)) for i in range(n - 1))]
    cache = model.allocate(len(prefix) + n)
    model.forward([chain_rows(cache, prefix, 0)])
    cache.keep(range(len(prefix)))
    output = model.forward([Rows(cache, tokens, parents, first=0, wanted=n)])
    node = data.draw(st.integers(0, n - 1))
    path = cache.ancestors(node)
    expected, plain_cache = plain_logits(model, prefix + [tokens[i] for i in path])
    cache.keep(path)
    try:
        assert torch.equal(output.logits[node], expected[-1])
        assert torch.equal(cache_bits(model, cache), cache_bits(model, plain_cache))
    finally:
        cache.release()
        plain_cache.release()


@pytest.mark.parametrize("kind", KINDS)
def test_the_portable_path_gives_the_same_bits(kind: str) -> None:
    model = MODELS[kind, torch.bfloat16]
    tokens = torch.randint(0, 61, (90,), generator=torch.Generator().manual_seed(2)).tolist()
    bits = []
    for path in PATHS:
        cache = model.allocate(90)
        with on_path(path):
            logits = model.forward([chain_rows(cache, tokens, 90)]).logits
        cache.keep(range(90))
        bits.append((logits, cache_bits(model, cache)))
        cache.release()
    assert all(torch.equal(a, b) for other in bits for a, b in zip(bits[0], other, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("exit_layer", [1, 2])
def test_rows_resumed_at_a_layer_equal_rows_run_whole(kind: str, exit_layer: int) -> None:
    """Early exit: lower layers run first by themselves, some rows only; the rest joins from layer 0."""
    model = native(kind, torch.float32, layers=3)
    prefix, tokens, parents = [1, 2, 3], [4, 5, 6, 7, 8], [-1, 0, 0, 1, 2]
    whole_cache, cache = model.allocate(64), model.allocate(64)
    for block in (whole_cache, cache):
        model.forward([chain_rows(block, prefix, 0)])
        block.keep(range(3))
    whole = model.forward([Rows(whole_cache, tokens, parents, 0, 5)], capture=["layer.0", "layer.2"])
    name = f"layer.{exit_layer - 1}"
    lower = model.forward([Rows(cache, tokens[:3], parents[:3], 0, 0)], (0, exit_layer), capture=[name])
    hidden = torch.zeros(5, 64)
    hidden[:3] = lower.features[name]
    resumed = model.forward(
        [Rows(cache, tokens, parents, 0, 5, starts=[exit_layer] * 3 + [0] * 2, hidden=hidden)],
        capture=["layer.2"],
    )
    assert torch.equal(resumed.logits, whole.logits)
    assert torch.equal(resumed.features["layer.2"], whole.features["layer.2"])
    for block in (whole_cache, cache):
        block.keep([0, 1, 3])
    assert torch.equal(cache_bits(model, cache), cache_bits(model, whole_cache))


def test_weights_that_do_not_fit_are_refused() -> None:
    config = config_of()
    weights = packed(config, "bfloat16")
    weights[weight_name(1, "down")] = Packed.bfloat16(torch.zeros(64, 32))
    with pytest.raises(ValueError, match="down is 64 x 32; expected 64 x 96"):
        Decoder(config, weights)
    weights[weight_name(1, "down")] = torch.zeros(64, 96)
    with pytest.raises(ValueError, match="expected it packed"):
        Decoder(config, weights)
