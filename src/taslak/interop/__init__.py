"""Beside other projects: what was made there, used here, and the other way round."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taslak.interop.causal_lm import AutoModelForCausalLM, CausalLM
    from taslak.interop.wrap import from_transformers

_HOME = {
    "AutoModelForCausalLM": "taslak.interop.causal_lm",
    "CausalLM": "taslak.interop.causal_lm",
    "from_transformers": "taslak.interop.wrap",
}

__all__ = ["AutoModelForCausalLM", "CausalLM", "from_transformers"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'taslak.interop' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
