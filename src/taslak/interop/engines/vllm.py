"""vLLM 0.33: one JSON object says how to draft."""

from __future__ import annotations

import json
from typing import Any

from taslak.drafters.base import NGRAM
from taslak.drafters.formats import EagleConfig, eagle, eagle3
from taslak.drafters.suffix import CONTEXT, FLOOR
from taslak.errors import OptionError
from taslak.interop.engines.engine import (
    EXIT,
    TRAIN_EAGLE3,
    Engine,
    Recipe,
    Wanted,
    checkpoint,
    every_token,
)


def _recipe(wanted: Wanted, settings: dict[str, Any], notes: list[str] | None = None) -> Recipe:
    settings = {**settings, "num_speculative_tokens": wanted.gamma}
    command = ["vllm", "serve", wanted.model, "--speculative-config", json.dumps(settings)]
    return Recipe(settings, command, notes=notes or [])


def _ngram(wanted: Wanted) -> Recipe:
    shortest, longest = NGRAM
    lengths = {"prompt_lookup_min": shortest, "prompt_lookup_max": longest}
    return _recipe(wanted, {"method": "ngram", **lengths})


def _suffix(wanted: Wanted) -> Recipe:
    settings = {
        "method": "suffix",
        "suffix_decoding_max_tree_depth": CONTEXT,
        "suffix_decoding_min_token_prob": FLOOR,
    }
    return _recipe(wanted, settings, ["it needs `pip install arctic-inference` beside vLLM"])


def _draft_model(wanted: Wanted) -> Recipe:
    return _recipe(wanted, {"method": "draft_model", "model": checkpoint(wanted.draft, "vLLM")})


def _eagle(wanted: Wanted) -> Recipe:
    head = wanted.made
    assert isinstance(head.config, EagleConfig)
    if head.config.fc_bias:
        raise OptionError(
            f"vLLM's EAGLE has no bias of fc, and this head has one; use sglang, or {TRAIN_EAGLE3}"
        )
    eagle.write(wanted.folder, head, context=wanted.context)
    return _recipe(wanted, {"method": "eagle", "model": str(wanted.folder)}, every_token(head))


def _eagle3(wanted: Wanted) -> Recipe:
    eagle3.write_speculators(
        wanted.folder, wanted.made, context=wanted.context, gamma=wanted.gamma, verifier=wanted.model
    )
    return _recipe(wanted, {"method": "eagle3", "model": str(wanted.folder)})


ENGINE = Engine(
    "vLLM",
    {"ngram": _ngram, "suffix": _suffix, "draft-model": _draft_model, "eagle": _eagle, "eagle3": _eagle3},
    {"medusa": f"0.33 has no medusa any more; {TRAIN_EAGLE3}, or serve with tgi", "early-exit": EXIT},
)
