"""The families of models that the decoder runs, as data: one file a family, one entry here.

A new family is a file with a `Family` in it, as long as its layers are built of what DecoderConfig knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taslak.errors import CheckpointError
from taslak.models.families.family import Family, Gguf
from taslak.models.families.gemma import GEMMA, GEMMA2, GEMMA3
from taslak.models.families.gpt import GPT2, NEOX
from taslak.models.families.granite import GRANITE
from taslak.models.families.llama import LLAMA, MISTRAL
from taslak.models.families.olmo import OLMO2, OLMO3
from taslak.models.families.phi import PHI3
from taslak.models.families.qwen import QWEN2, QWEN3
from taslak.models.families.smollm import SMOLLM3

__all__ = ["ARCHITECTURES", "FAMILIES", "Family", "Gguf", "family_of", "why_not"]

FAMILIES: Mapping[str, Family] = {
    family.model_type: family
    for family in (
        LLAMA,
        MISTRAL,
        QWEN2,
        QWEN3,
        GEMMA,
        GEMMA2,
        GEMMA3,
        PHI3,
        OLMO2,
        OLMO3,
        GRANITE,
        SMOLLM3,
        NEOX,
        GPT2,
    )
}
"""By model_type of config.json."""

ARCHITECTURES: Mapping[str, Family] = {
    family.gguf.architecture: family for family in FAMILIES.values() if family.gguf is not None
}
"""By general.architecture of a GGUF."""

_NO_ROLLBACK = (
    "mamba",
    "rwkv",
    "jamba",
    "zamba",
    "bamba",
    "recurrent",
    "lfm2",
    "xlstm",
    "falcon_h1",
    "hybrid",
    "nemotron_h",
    "plamo2",
    "qwen3_next",
    "qwen3next",
    "qwen3_5",
    "qwen35",
    "kimi_linear",
    "kimi-linear",
    "minimax",
    "falcon-h1",
)
"""Parts of the model_types whose layers carry a running state: rejected tokens can't be taken out of it."""
_STATE = (
    "keeps a running state that can't be rolled back when a draft is rejected, "
    "so it can't be decoded speculatively"
)
_STATEFUL_LAYERS = ("linear_attention", "mamba", "conv", "recurrent", "ssm")
"""The same in `layer_types`."""

_OTHERS = {
    "gemma3": "it reads images too; use a checkpoint of its text part (gemma3_text)",
    "gemma3n": "its layers keep several streams and embeddings of their own, which the decoder doesn't know",
    "phi": "Phi-1 and 2 are not built as Phi-3 (phi3) is",
}


def family_of(values: Mapping[str, Any]) -> Family:
    """The family of a config.json. Raises CheckpointError, with the reason, where there is none."""
    name = str(values.get("model_type", "unknown"))
    kinds = [str(kind) for kind in values.get("layer_types") or ()]
    experts = any("experts" in key for key in values)
    if any(kind in _STATEFUL_LAYERS for kind in kinds) or (name not in FAMILIES and why_not(name) == _STATE):
        raise CheckpointError(f"model_type {name!r} {_STATE}; use an attention-only model")
    if name in FAMILIES:
        return FAMILIES[name]
    if reason := why_not(name, experts):
        raise CheckpointError(f"model_type {name!r} {reason}")
    raise CheckpointError(f"model_type {name!r} is not supported; expected one of {', '.join(FAMILIES)}")


def why_not(name: str, experts: bool = False) -> str | None:
    """What keeps a model_type, or an architecture of GGUFs, from being decoded here; None: nothing is known
    of it. experts: whether its settings speak of experts."""
    if any(part in name for part in _NO_ROLLBACK):
        return _STATE
    if name in _OTHERS:
        return f"is not supported: {_OTHERS[name]}"
    if experts or any(part in name for part in ("moe", "mixtral", "gpt_oss", "gpt-oss", "deepseek", "dbrx")):
        return "is a mixture of experts, which is not supported; use a dense model"
    return None
