"""The reference mode's own functions, against float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from taslak.models.reference import Reference, steady_erf, steady_exp

OPS = Reference(torch.device("cpu"))
X = torch.cat((torch.linspace(-12, 12, 4001), torch.tensor([0.0, 1e-6, -1e-6, 80.0, -80.0])))


def test_the_exponential_and_the_error_function() -> None:
    wide = X.double()
    assert torch.allclose(steady_exp(X).double(), wide.exp(), rtol=3e-7, atol=1e-37)
    assert (steady_erf(X) - torch.erf(wide)).abs().max() < 4e-7


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu-tanh"])
def test_activations(kind: str) -> None:
    wide = X.double()
    expected = (
        F.silu(wide) if kind == "silu" else F.gelu(wide, approximate="tanh" if "tanh" in kind else "none")
    )
    assert torch.allclose(OPS.activate(kind, X).double(), expected, rtol=3e-6, atol=1e-6)


def test_the_soft_cap() -> None:
    assert (OPS.cap(X, 5.0) - 5.0 * torch.tanh(X.double() / 5.0)).abs().max() < 3e-6
