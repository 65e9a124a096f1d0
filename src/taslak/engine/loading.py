"""From names to a language model: its target, and whatever drafts for it."""

from __future__ import annotations

from typing import Any

import torch

from taslak.core.verify import VERIFIERS
from taslak.drafters.base import DrafterOptions
from taslak.drafters.formats import Drafting, find_head, read_head, shipped_head
from taslak.engine.language_model import LanguageModel, check_method
from taslak.engine.step import FixedGamma
from taslak.errors import OptionError
from taslak.models.loading import DEFAULT_PACK, Notice, Progress
from taslak.models.pretrained import check_dtype, load_pretrained

DEFAULT_KIND = "eagle"
"""Of the heads that come with taslak for a model, the one that drafts where no method is named."""

GAMMA = 5


def load(
    model: str = DEFAULT_PACK,
    *,
    draft: str | None = None,
    method: str | None = None,
    gamma: int | None = None,
    verify: str = "coupled",
    branch: int | None = None,
    tree: str | None = None,
    nodes: int | None = None,
    exit_layer: int | None = None,
    stop_below: float | None = None,
    lookup: str | None = None,
    dtype: str = "auto",
    draft_dtype: str | None = None,
    exact: bool = False,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
    notice: Notice | None = None,
) -> LanguageModel:
    """Load a target and its drafter.

    model, draft:  a folder of safetensors, a .gguf file, a Hub id or a pack's name; `draft` may be a trained
                   head as well: its folder (docs/heads.md), or the name of one that comes with taslak
    method:        a name of the drafter registry; None = what the head is, "draft-model" where a draft model
                   is named, "early-exit" where an exit layer is, else that of the head which comes with
                   taslak for the model, else "ngram". A method that needs a head takes that one too
    gamma:         drafted depth of a step, 1 to 16; None = the head's own (as for stop_below, and for branch,
                   tree and nodes together), else 5
    verify:        "coupled" (a seed's text is that of plain decoding) or "rejection" (the same distribution)
    branch:        children an expanded node of the draft (1 = linear); None = 4 where `tree` or `nodes` is
                   given, else 1
    tree:          of a head: "dynamic" (None), grown and re-ranked by joint confidence, or "static", its
                   shape fixed beforehand
    nodes:         most nodes of a draft; None = gamma · branch
    exit_layer:    how many of the target's layers method "early-exit" drafts with; None = what its head was
                   trained for, without a head nine tenths of them
    stop_below:    a draft ends early where the drafter's joint confidence in it falls under this; the text
                   stays the same (None = the head's own, else 0: always draft γ tokens)
    lookup:        what method "fallback" tries first, "ngram" (None) or "suffix"
    dtype:         of the weights: "float32" (PyTorch), "bfloat16", "int8" or "int4" (native kernels on the
                   CPU; int4 are the 4-bit weights of a GGUF, as they are), "auto" for the checkpoint's own
    draft_dtype:   None = `dtype`
    exact:         in PyTorch the width-invariant reference mode: identical text guaranteed, slower; the
                   native kernels are width-invariant anyway

    Raises the UserErrors of `taslak.errors`: what was given, what was expected, what to do.
    """
    if draft is None and exit_layer is None:
        draft = shipped_head(model, method or DEFAULT_KIND)
    folder = None if draft is None else find_head(draft)
    head = None if folder is None else read_head(folder)
    if draft is not None and head is not None and draft_dtype is not None:
        raise OptionError(f"{draft} is a head and computes in the target's dtype; leave draft_dtype out")
    own = Drafting(GAMMA) if head is None or head.drafting is None else head.drafting
    if branch is None and tree is None and nodes is None:
        branch, tree, nodes = own.branch, own.tree, own.nodes
    branch = 4 if branch is None else branch
    gamma = own.gamma if gamma is None else gamma
    stop_below = own.stop_below if stop_below is None else stop_below
    has_draft, kind = draft is not None and head is None, None if head is None else head.kind
    method = method or kind or ("draft-model" if draft else "ngram" if exit_layer is None else "early-exit")
    check_method(method, has_draft, kind, branch, stop_below, lookup, tree, nodes, exit_layer)
    if verify not in VERIFIERS:
        raise OptionError(f"verify is {verify!r}; expected one of {', '.join(VERIFIERS)}")
    # wrong settings are told before anything is downloaded
    FixedGamma(gamma, branch, stop_below, nodes)
    DrafterOptions(branch=branch, tree=tree or "dynamic", lookup=lookup or "ngram", exit_layer=exit_layer)
    for each in (dtype, draft_dtype or dtype):
        check_dtype(each, device)
    common: dict[str, Any] = {"device": device, "progress": progress, "notice": notice}
    share = 0.5 if has_draft else 1.0
    target = load_pretrained(model, dtype=dtype, exact=exact, share=share, **common)
    drafting = None
    if draft is not None and head is None:
        # what the target has to be exact in, its own draws, doesn't depend on a draft's last bits: the draft
        # model takes the quick path in exact mode too
        taken = target.decoder.weight_bytes
        drafting = load_pretrained(draft, dtype=draft_dtype or dtype, share=share, taken=taken, **common)
    return LanguageModel(
        target,
        drafting,
        method=method,
        gamma=gamma,
        verify=verify,
        branch=branch,
        stop_below=stop_below,
        lookup=lookup,
        head=head,
        head_name=draft,
        tree=tree,
        nodes=nodes,
        exit_layer=exit_layer,
    )
