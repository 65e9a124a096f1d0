"""Heads beside other projects' own packages, where an environment has them: scripts/check-interop makes one.

TASLAK_SPECULATORS: the folder of a virtual environment with speculators
TASLAK_VLLM:        of one with vLLM
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import interop

pytestmark = pytest.mark.slow


def other(variable: str, option: str) -> Path:
    """The Python of the environment a variable names."""
    if not (folder := os.environ.get(variable)):
        pytest.skip(f"{variable} names no environment; `scripts/check-interop {option} DIR` makes one")
    return Path(folder) / "bin" / "python"


def test_speculators_loads_and_computes_what_we_wrote_and_we_read_what_it_saves(tmp_path: Path) -> None:
    difference, same = interop.beside_speculators(other("TASLAK_SPECULATORS", "--env"), tmp_path)
    assert difference < interop.CLOSE
    assert same


def test_vllm_reads_and_serves_what_is_handed_over(tmp_path: Path) -> None:
    """Its heads know their target's next token, so every draft must be right there."""
    found = interop.beside_vllm(other("TASLAK_VLLM", "--vllm"), tmp_path)
    if "Arctic Inference is required" in found["suffix"].get("error", ""):
        del found["suffix"]  # a package of its own, which vLLM asks for
    for kind, said in found.items():
        assert interop.vllm_agrees(kind, said)
