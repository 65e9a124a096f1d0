"""Every family in the native kernels: close to PyTorch, the same bits in any company and on any path."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from taslak.models.config import DecoderConfig
from taslak.models.decoder import Decoder
from taslak.models.native_ops import pack_weights
from taslak.models.target import chain_rows
from taslak.native import Packed, set_threads, threads
from tests.support.families import CASES, FAMILY_CASES, ours, tiny_transformers
from tests.support.widths import check_any_company, check_resumed_rows, check_tree
from tests.unit.native.paths import check_every_path

LENGTH = 150
EMBEDDING = "model.embed_tokens.weight"
WIDE = {"hidden_size": 64, "intermediate_size": 96}
"""Rows have to fall into groups of 32."""


def packed(case: str, kind: str) -> tuple[DecoderConfig, dict[str, Tensor | Packed]]:
    changes = WIDE if CASES[case].usual else {"n_embd": 64}
    config, weights = ours(tiny_transformers(case, **changes))
    return config, pack_weights(config, weights, kind)


@cache
def native(case: str, kind: str) -> Decoder:
    return Decoder(*packed(case, kind), cache_dtype=torch.bfloat16)


CHOICES = list(product(FAMILY_CASES, ("bfloat16", "int8")))
NAMES = [f"{case}-{kind}" for case, kind in CHOICES]


@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
@pytest.mark.parametrize("case", [case for case in CASES if case != "phi3-longrope"])
def test_logits_agree_with_pytorch(case: str, kind: str) -> None:
    """Against the same rounded weights in float32; what is left is the rounding of activations."""
    config, weights = packed(case, kind)
    rounded = {name: w.dequantised() if isinstance(w, Packed) else w for name, w in weights.items()}
    if config.tied:  # the head is packed from it
        weights[EMBEDDING] = rounded[EMBEDDING] = rounded.pop("lm_head.weight")
    model = Decoder(config, weights, cache_dtype=torch.float32)
    reference = Decoder(config, rounded, exact=True)
    ids = torch.randint(0, 61, (LENGTH,), generator=torch.Generator().manual_seed(1)).tolist()
    names = ["embedding", "layer.0", "layer.1", "final_norm"]
    got, wanted = (
        m.forward([chain_rows(m.allocate(LENGTH), ids, LENGTH)], capture=names) for m in (model, reference)
    )
    tolerance = 1e-5 if kind == "bfloat16" else 0.05
    assert (got.logits - wanted.logits).norm() < tolerance * wanted.logits.norm()
    for name in names:
        assert (got.features[name] - wanted.features[name]).norm() < tolerance * wanted.features[name].norm()


@pytest.mark.parametrize("choice", CHOICES, ids=NAMES)
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_rows_have_the_same_bits_in_any_company(choice: tuple[str, str], data: st.DataObject) -> None:
    check_any_company(native(*choice), data, threads, set_threads, most=140)


@pytest.mark.parametrize("choice", CHOICES, ids=NAMES)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_tree_rows_equal_the_chain_to_them(choice: tuple[str, str], data: st.DataObject) -> None:
    check_tree(native(*choice), data, torch.equal, most=140, nodes=20)


@pytest.mark.parametrize("choice", CHOICES, ids=NAMES)
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_rows_resume_at_a_layer(choice: tuple[str, str], data: st.DataObject) -> None:
    check_resumed_rows(native(*choice), data, exit_layer=2, most=80, nodes=12)


@pytest.mark.parametrize("choice", CHOICES, ids=NAMES)
def test_every_path_gives_the_same_bits(choice: tuple[str, str]) -> None:
    check_every_path(native(*choice))


@pytest.mark.parametrize("case", FAMILY_CASES)
def test_the_last_norm_and_the_head_serve_drafters(case: str) -> None:
    """`norm` and `logits` are what a pass ends with, caps and multipliers included."""
    model = native(case, "int8")
    output = model.forward([chain_rows(model.allocate(4), [1, 2, 3], 3)], capture=["layer.2", "final_norm"])
    normed = model.norm(output.features["layer.2"])
    assert torch.equal(normed, output.features["final_norm"])
    assert torch.equal(model.logits(normed), output.logits)
