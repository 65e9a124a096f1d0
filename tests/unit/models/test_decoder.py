"""The decoder against itself at other widths, and what it serves drafters with."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taslak.models.target import chain_rows
from tests.support.tiny import tiny_model
from tests.support.widths import check_any_company, check_resumed_rows, check_tree

EXACT = {dtype: tiny_model(3, dtype=dtype, layers=2) for dtype in (torch.float32, torch.bfloat16)}


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@settings(max_examples=12)
@given(data=st.data())
def test_exact_rows_are_bit_identical_in_any_company(dtype: torch.dtype, data: st.DataObject) -> None:
    check_any_company(EXACT[dtype], data, torch.get_num_threads, torch.set_num_threads, most=90)


@pytest.mark.parametrize("exact", [False, True], ids=["quick", "exact"])
@settings(max_examples=15)
@given(data=st.data())
def test_tree_rows_equal_the_chain_to_them(exact: bool, data: st.DataObject) -> None:
    def close(a: torch.Tensor, b: torch.Tensor) -> bool:
        return bool((a - b).abs().max() < 1e-4)

    model = EXACT[torch.float32] if exact else tiny_model(3, exact=False, layers=2)
    check_tree(model, data, torch.equal if exact else close, most=70, nodes=12)


@pytest.mark.parametrize("exit_layer", [1, 2])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_rows_resumed_at_a_layer_equal_rows_run_whole(exit_layer: int, data: st.DataObject) -> None:
    check_resumed_rows(tiny_model(5, layers=3), data, exit_layer, most=70, nodes=12)


@pytest.mark.parametrize("exact", [False, True], ids=["quick", "exact"])
@pytest.mark.parametrize("tied", [False, True], ids=["own-head", "tied"])
def test_the_last_norm_and_the_head_serve_drafters(exact: bool, tied: bool) -> None:
    """`norm` and `logits` are what a pass ends with; rows of the unembedding give columns of it."""
    model = tiny_model(2, exact=exact, tied=tied, known=50)
    output = model.forward([chain_rows(model.allocate(4), [1, 2, 3], 3)], capture=["layer.2", "final_norm"])
    normed = model.norm(output.features["layer.2"])
    assert torch.equal(normed, output.features["final_norm"])
    assert torch.equal(model.logits(normed), output.logits)
    ids = torch.tensor([3, 8, 41])
    assert torch.allclose(normed @ model.unembedding(ids).T, output.logits[:, ids], atol=1e-5)
    doubled = model.norm(output.features["layer.2"], torch.full((32,), 2.0))
    assert torch.allclose(doubled, 2 * model.norm(output.features["layer.2"], torch.ones(32)))


def test_c20_padding_rows_of_the_head_are_never_computed() -> None:
    model = tiny_model(0, known=50)
    output = model.forward([chain_rows(model.allocate(4), [1, 2, 3, 4], 4)])
    assert output.logits.shape == (4, 50)
