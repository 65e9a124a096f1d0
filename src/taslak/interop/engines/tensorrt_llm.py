"""TensorRT-LLM 1.x, its PyTorch backend: a YAML file says how to draft."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from taslak.drafters.base import NGRAM
from taslak.interop.engines.engine import (
    EXIT,
    TRAIN_EAGLE3,
    Engine,
    Recipe,
    Wanted,
    checkpoint,
    write_specforge,
)
from taslak.models.loading.storage import make_folder


def _recipe(wanted: Wanted, decoding: str, settings: dict[str, Any], *, overlapped: bool = True) -> Recipe:
    """overlapped: whether the method goes together with the overlap scheduler, which is on by default."""
    speculative = {"decoding_type": decoding, "max_draft_len": wanted.gamma, **settings}
    config: dict[str, Any] = {"speculative_config": speculative}
    if not overlapped:
        config["disable_overlap_scheduler"] = True
    file = make_folder(wanted.folder) / "config.yaml"
    file.write_text(_yaml(config), encoding="utf-8")
    return Recipe(config, ["trtllm-serve", wanted.model, "--config", str(file)])


def _ngram(wanted: Wanted) -> Recipe:
    return _recipe(wanted, "NGram", {"max_matching_ngram_size": NGRAM[1]}, overlapped=False)


def _suffix(wanted: Wanted) -> Recipe:
    return _recipe(wanted, "SA", {})


def _draft_model(wanted: Wanted) -> Recipe:
    model = {"speculative_model": checkpoint(wanted.draft, "TensorRT-LLM")}
    return _recipe(wanted, "DraftTarget", model, overlapped=False)


def _eagle3(wanted: Wanted) -> Recipe:
    config = write_specforge(wanted, "TensorRT-LLM")
    settings: dict[str, Any] = {"speculative_model": str(wanted.folder)}
    if config.captures is not None:
        settings["eagle3_layers_to_capture"] = list(config.captures)
    return _recipe(wanted, "Eagle3", settings)


def _yaml(values: Mapping[str, Any], indent: str = "") -> str:
    """Of mappings, and of values that JSON spells as YAML does."""
    lines = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            lines.append(f"{indent}{name}:\n{_yaml(value, indent + '  ')}")
        else:
            lines.append(f"{indent}{name}: {json.dumps(value)}\n")
    return "".join(lines)


ENGINE = Engine(
    "TensorRT-LLM",
    {"ngram": _ngram, "suffix": _suffix, "draft-model": _draft_model, "eagle3": _eagle3},
    {
        "medusa": f"its PyTorch backend has none; {TRAIN_EAGLE3}",
        "eagle": f"of EAGLE its PyTorch backend reads the third alone; {TRAIN_EAGLE3}",
        "early-exit": EXIT,
    },
)
