"""The chunked loss and its gradients are those of plain autograd."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from taslak.training import loss as module
from taslak.training.loss import distilled


@pytest.mark.parametrize("chunk", [3, 512])
def test_loss_and_gradients_are_autograds(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(10, 6, generator=generator), torch.randn(9, 6, generator=generator)
    p = torch.softmax(3 * torch.randn(10, 9, generator=generator), dim=-1)
    share = torch.rand(10, generator=generator)
    gradients = []
    for ours in (True, False):
        a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
        if ours:
            value, best = distilled(a, b, p, share)
            assert torch.equal(best, (x @ w.t()).argmax(-1))
        else:
            rows = F.cross_entropy(a @ b.t(), p, reduction="none")
            value = (rows * share).sum()
        (2 * value).backward()
        gradients.append((value.detach(), a.grad, b.grad))
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_a_frozen_unembedding_costs_no_gradient() -> None:
    x = torch.randn(4, 6, requires_grad=True)
    value, _ = distilled(x, torch.randn(9, 6), torch.softmax(torch.randn(4, 9), -1), torch.ones(4) / 4)
    value.backward()
    assert x.grad is not None


def test_products_run_in_the_autocast_dtype() -> None:
    x, w = torch.randn(4, 64), torch.randn(9, 64)
    p = torch.softmax(torch.randn(4, 9), -1)
    exact, _ = distilled(x, w, p, torch.ones(4) / 4)
    with torch.autocast("cpu", torch.bfloat16):
        rounded, _ = distilled(x, w, p, torch.ones(4) / 4)
    assert rounded.dtype == torch.float32
    assert rounded != exact
    torch.testing.assert_close(rounded, exact, rtol=0.02, atol=0.02)
