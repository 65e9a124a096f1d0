"""Whole decoders on the native kernels: right against PyTorch, and width-invariant bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from taslak.models.config import DecoderConfig
from taslak.models.decoder import Decoder
from taslak.models.layers import HEAD, PRODUCTS, weight_name
from taslak.models.loading.quantised import width
from taslak.models.native_ops import pack_weights
from taslak.models.target import chain_rows
from taslak.native import Packed, set_threads, threads
from tests.support.tiny import random_weights, tiny_config
from tests.support.widths import check_any_company, check_resumed_rows, check_tree
from tests.unit.native.paths import PATHS, check_every_path, on_path

KINDS = ("bfloat16", "int8", "int8-mixed", "int4")
CACHES = (torch.float32, torch.bfloat16)
CASES = list(product(KINDS, CACHES))
EMBEDDING = "model.embed_tokens.weight"
NAMES = [f"{kind}-{str(cache).removeprefix('torch.')}" for kind, cache in CASES]


def config_of(**changes: object) -> DecoderConfig:
    values: dict[str, object] = {"hidden_size": 64, "inner_size": 96, "head_size": 16, "layers": 2}
    return tiny_config("qwen2", **{**values, **changes})


def packed(config: DecoderConfig, kind: str, seed: int = 3) -> dict[str, Tensor | Packed]:
    weights = random_weights(config, seed)
    if kind == "int8-mixed":  # what an int8 model holds: bfloat16 and 8-bit products side by side
        kinds = {kind: pack_weights(config, weights, kind) for kind in ("bfloat16", "int8")}
        return {name: kinds[width(name, "int8", config.layers)][name] for name in kinds["int8"]}
    if kind != "int4":
        return pack_weights(config, weights, kind)
    matrices = {weight_name(layer, name) for layer in range(config.layers) for name in PRODUCTS}
    matrices |= {HEAD, EMBEDDING}  # the other kinds look up rows of a tensor
    return {name: Packed.int4_rounded(w) if name in matrices else w for name, w in weights.items()}


def native(kind: str, cache: torch.dtype, **changes: object) -> Decoder:
    config = config_of(**changes)
    return Decoder(config, packed(config, kind), cache_dtype=cache)


MODELS = {case: native(*case) for case in CASES}


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
@settings(max_examples=15)
@given(data=st.data())
def test_rows_are_bit_identical_in_any_company(case: tuple[str, torch.dtype], data: st.DataObject) -> None:
    check_any_company(MODELS[case], data, threads, set_threads, most=150)


@pytest.mark.parametrize("case", CASES, ids=NAMES)
@settings(max_examples=20)
@given(data=st.data())
def test_tree_rows_equal_the_chain_to_them(case: tuple[str, torch.dtype], data: st.DataObject) -> None:
    check_tree(MODELS[case], data, torch.equal, most=140, nodes=20)


@pytest.mark.parametrize("kind", KINDS)
def test_the_portable_path_gives_the_same_bits(kind: str) -> None:
    check_every_path(MODELS[kind, torch.bfloat16])


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_norm_and_the_head_serve_drafters(kind: str) -> None:
    """`norm` and `logits` are what a pass ends with; rows of the unembedding give columns of it."""
    model = MODELS[kind, torch.bfloat16]
    output = model.forward([chain_rows(model.allocate(4), [1, 2, 3], 3)], capture=["layer.1", "final_norm"])
    normed = model.norm(output.features["layer.1"])
    assert torch.equal(normed, output.features["final_norm"])
    assert torch.equal(model.logits(normed), output.logits)
    ids = torch.tensor([3, 8, 41])
    columns = model.kernels.linear(normed, model.kernels.pack(model.unembedding(ids)))
    assert (columns - output.logits[:, ids]).norm() < 0.02 * output.logits[:, ids].norm()
    doubled = model.norm(output.features["layer.1"], torch.full((64,), 2.0))
    assert torch.allclose(doubled, 2 * model.norm(output.features["layer.1"], torch.ones(64)))


def test_tokens_past_the_embedding_are_refused() -> None:
    model = MODELS["int4", torch.bfloat16]
    with pytest.raises(IndexError, match="row 61 of a matrix of 61"):
        model.forward([chain_rows(model.allocate(4), [1, 61], 1)])


DEEP = {case: native(*case, layers=3) for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=NAMES)
@pytest.mark.parametrize("exit_layer", [1, 2])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_rows_resumed_at_a_layer_equal_rows_run_whole(
    case: tuple[str, torch.dtype], exit_layer: int, data: st.DataObject
) -> None:
    check_resumed_rows(DEEP[case], data, exit_layer, most=140, nodes=20)


def test_weights_that_do_not_fit_are_refused() -> None:
    config = config_of()
    weights = packed(config, "bfloat16")
    weights[weight_name(1, "down")] = Packed.bfloat16(torch.zeros(64, 32))
    with pytest.raises(ValueError, match="down is 64 x 32; expected 64 x 96"):
        Decoder(config, weights)
    weights[weight_name(1, "down")] = torch.zeros(64, 96)
    with pytest.raises(ValueError, match="expected it packed"):
        Decoder(config, weights)
