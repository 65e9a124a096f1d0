"""OLMo 2 and 3: norms behind attention and MLP instead of before, q and k normed over their whole width."""

from __future__ import annotations

from typing import Any

from taslak.models.families.family import (
    COMMON_PARTS,
    FULL,
    QK_NORMS,
    SLIDING,
    Family,
    Gguf,
    Settings,
    every,
    windows,
)
from taslak.models.rope_config import rope_config

_NORMS = {"post_attention_layernorm": "self_attn.o_norm", "post_feedforward_layernorm": "mlp.down_norm"}


def _olmo2(_: Settings) -> dict[str, Any]:
    return {"pre_norm": False, "post_norm": True, "qk_norm": "whole"}


def _olmo3(values: Settings) -> dict[str, Any]:
    # older files stretch the layers that see everything, and no others
    local = {"rope_theta": values.get("rope_theta"), "rope_parameters": values.get("rope_parameters")}
    return _olmo2(values) | {
        "windows": windows(values, every(4)),
        "rope": rope_config(values, FULL),
        "local_rope": rope_config(local, SLIDING),
    }


OLMO2 = Family(
    model_type="olmo2",
    models="OLMo 2",
    about="norms behind attention and MLP only, q and k normed over their whole width",
    read=_olmo2,
    defaults={"rms_norm_eps": 1e-5},
    parts=_NORMS,
    gguf=Gguf(
        "olmo2",
        "Olmo2ForCausalLM",
        parts={
            **{theirs: ours for theirs, ours in COMMON_PARTS.items() if not theirs.endswith("_norm")},
            **QK_NORMS,
            "post_attention_norm": "post_attention_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        },
        fixed={"attention_bias": False},
    ),
)
OLMO3 = Family(
    model_type="olmo3",
    models="OLMo 3",
    about="as OLMo 2; three of four layers slide, YaRN in the others",
    read=_olmo3,
    defaults={"rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "sliding_window": 4096},
    parts=_NORMS,
)
