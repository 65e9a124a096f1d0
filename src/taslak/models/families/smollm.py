"""SmolLM3: Llama with layers that know no positions. (SmolLM and SmolLM2 are plain Llamas.)"""

from __future__ import annotations

from typing import Any

from taslak.models.families.family import PAIRED, Family, Gguf, Settings, every, windows


def _unrotated(values: Settings) -> tuple[int, ...]:
    layers, interval = int(values["num_hidden_layers"]), int(values["no_rope_layer_interval"])
    rotated = values.get("no_rope_layers") or [every(interval)(layer) for layer in range(layers)]
    return tuple(layer for layer in range(layers) if not rotated[layer])


def _smollm3(values: Settings) -> dict[str, Any]:
    unrotated = _unrotated(values)
    slides = windows(values, lambda layer: layer in unrotated) if values.get("use_sliding_window") else ()
    return {"unrotated": unrotated, "windows": slides}


SMOLLM3 = Family(
    model_type="smollm3",
    models="SmolLM3",
    about="every fourth layer without positions",
    read=_smollm3,
    defaults={
        "no_rope_layer_interval": 4,
        "num_key_value_heads": 4,
        "rope_theta": 2_000_000.0,
        "tie_word_embeddings": True,
    },
    gguf=Gguf(
        "smollm3",
        "SmolLM3ForCausalLM",
        paired=PAIRED,
        fixed={"attention_bias": False, "mlp_bias": False, "no_rope_layer_interval": 4},
    ),
)
