"""Every registered drafter, with tiny models and random heads, and the modes each is tested in."""

from __future__ import annotations

import pytest

import taslak.drafters
from taslak.drafters.base import REGISTRY, Drafter, DrafterOptions, build, drafters_of
from taslak.models.decoder import Decoder
from tests.support.heads import head_for
from tests.support.tiny import near_model, tiny_model
from tests.support.tokenizers import letters

assert taslak.drafters

METHODS = sorted(REGISTRY)
MODES = [
    pytest.param(name, branch, tree, id=f"{name}-{'linear' if branch == 1 else tree}")
    for name in METHODS
    for branch, tree in ((1, "dynamic"), (3, "dynamic"), (3, "static"))
    if branch == 1 or (REGISTRY[name].trees and (tree == "dynamic" or REGISTRY[name].shapes))
]
"""Every method, linear and with each tree it knows."""
SEVERAL = [
    pytest.param(name, branch, "dynamic", id=f"{name}-{branch}")
    for name in ("ngram+draft-model", "suffix+early-exit", "suffix+eagle+medusa")
    for branch in (1, 3)
]
"""Drafters behind one another: which one drafts depends on what those before it find."""

TARGET = tiny_model(1)
DRAFT = near_model(1)


def drafter(
    name: str, branch: int = 1, target: Decoder = TARGET, draft: Decoder = DRAFT, tree: str = "dynamic"
) -> Drafter:
    # small weights: a distribution flat enough that something is accepted
    head = head_for(name, target, scale=0.1) if REGISTRY[name].needs_head else None
    both = letters(target.vocab_size, "BC"), letters(draft.vocab_size, "AB")
    tokenizers = both if REGISTRY[name].crosses else None
    options = DrafterOptions(draft=draft, tokenizers=tokenizers, head=head, branch=branch, tree=tree)
    return build(name, target, options)


def drafters(
    name: str, branch: int = 1, target: Decoder = TARGET, draft: Decoder = DRAFT, tree: str = "dynamic"
) -> dict[str, Drafter]:
    return {each: drafter(each, branch, target, draft, tree) for each in drafters_of(name)}
