"""Qwen2 and 2.5 (q, k and v have biases), Qwen3 (q and k are normed)."""

from __future__ import annotations

from typing import Any

from taslak.models.families.family import COMMON_PARTS, QK_NORMS, Family, Gguf, Settings, windows


def _windows(values: Settings) -> tuple[int, ...]:
    """The lower layers see everything; those from `max_window_layers` on slide, where any do."""
    if not values.get("use_sliding_window"):
        return ()
    return windows(values, lambda layer: layer >= int(values["max_window_layers"]))


def _qwen2(values: Settings) -> dict[str, Any]:
    return {"qkv_bias": True, "out_bias": False, "windows": _windows(values)}


def _qwen3(values: Settings) -> dict[str, Any]:
    return {"qk_norm": "head", "windows": _windows(values)}


QWEN2 = Family(
    model_type="qwen2",
    models="Qwen2, Qwen2.5, Qwen2.5-Coder",
    about="q, k and v have biases",
    read=_qwen2,
    defaults={"max_window_layers": 28},
    gguf=Gguf("qwen2", "Qwen2ForCausalLM", fixed={"use_sliding_window": False}),
)
QWEN3 = Family(
    model_type="qwen3",
    models="Qwen3 (dense)",
    about="q and k normed head by head",
    read=_qwen3,
    defaults={"max_window_layers": 28, "head_dim": 128},
    gguf=Gguf(
        "qwen3",
        "Qwen3ForCausalLM",
        parts=COMMON_PARTS | QK_NORMS,
        fixed={"attention_bias": False, "use_sliding_window": False},
    ),
)
