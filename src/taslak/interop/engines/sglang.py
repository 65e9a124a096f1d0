"""SGLang 0.5.23: flags say how to draft. The last token is counted among the drafted ones."""

from __future__ import annotations

from typing import Any

import torch

from taslak.drafters.base import NGRAM
from taslak.drafters.formats import eagle
from taslak.interop.engines.engine import (
    EXIT,
    TRAIN_EAGLE3,
    Engine,
    Recipe,
    Wanted,
    checkpoint,
    flags,
    write_specforge,
)


def _recipe(wanted: Wanted, algorithm: str, settings: dict[str, Any]) -> Recipe:
    settings = {"speculative_algorithm": algorithm, **settings}
    command = ["python", "-m", "sglang.launch_server", "--model-path", wanted.model, *flags(settings)]
    return Recipe(settings, command)


def _with_model(wanted: Wanted, algorithm: str, path: str, **more: Any) -> Recipe:
    """A line, or the tree that the head is used best with."""
    branch, nodes = 1, wanted.gamma
    own = None if wanted.head is None else wanted.head.drafting
    if own is not None and own.tree == "dynamic" and own.branch > 1:
        branch, nodes = own.branch, own.nodes or wanted.gamma * own.branch
    settings = {
        "speculative_draft_model_path": path,
        "speculative_num_steps": wanted.gamma,
        "speculative_eagle_topk": branch,
        "speculative_num_draft_tokens": nodes + 1,
    }
    return _recipe(wanted, algorithm, {**settings, **more})


def _ngram(wanted: Wanted) -> Recipe:
    settings = {
        "speculative_num_draft_tokens": wanted.gamma + 1,
        # one continuation, as here; the tree holds what is looked up and what follows
        "speculative_ngram_max_bfs_breadth": 1,
        "speculative_ngram_max_trie_depth": NGRAM[1] + wanted.gamma,
    }
    return _recipe(wanted, "NGRAM", settings)


def _draft_model(wanted: Wanted) -> Recipe:
    return _with_model(wanted, "STANDALONE", checkpoint(wanted.draft, "SGLang"))


def _eagle(wanted: Wanted) -> Recipe:
    head = wanted.made
    eagle.write_for_sglang(wanted.folder, head, context=wanted.context)
    more = {}
    if head.draft_ids is not None:
        tokens = wanted.folder / "token_map.pt"
        torch.save(head.draft_ids.tolist(), tokens)
        more["speculative_token_map"] = str(tokens)
    return _with_model(wanted, "EAGLE", str(wanted.folder), **more)


def _eagle3(wanted: Wanted) -> Recipe:
    write_specforge(wanted, "SGLang")
    return _with_model(wanted, "EAGLE3", str(wanted.folder))


ENGINE = Engine(
    "SGLang",
    {"ngram": _ngram, "draft-model": _draft_model, "eagle": _eagle, "eagle3": _eagle3},
    {
        "suffix": "use ngram, which looks for the longest match in a tree of all requests there",
        "medusa": f"it has none; {TRAIN_EAGLE3}, or serve with tgi",
        "early-exit": EXIT,
    },
)
