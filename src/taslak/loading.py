"""From names to a language model: its target, whatever drafts for it, and who decides how much."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from taslak.control.calibrate import calibrated, keeper
from taslak.control.controller import Controller, controller
from taslak.control.history import History
from taslak.core.verify import VERIFIERS
from taslak.drafters import base
from taslak.drafters.base import FALLBACK, NGRAM, DrafterOptions, drafters_of
from taslak.drafters.cross_vocab import METHODS as CROSSING
from taslak.drafters.formats import CONFIGS, Drafting, Head, find_head, read_head, shipped_head
from taslak.engine.language_model import LanguageModel, check_method
from taslak.engine.policy import FixedGamma
from taslak.errors import OptionError
from taslak.models.loading import DEFAULT_PACK, Notice, Progress
from taslak.models.pretrained import Pretrained, check_dtype, load_pretrained

log = logging.getLogger(__name__)

DEFAULT_KIND = "eagle"
"""Of the heads that come with taslak for a model, the one that drafts where none is named."""

GAMMA = 5

AUTO = "auto"
"""The method of whatever there is: a look-up, and behind it what is named or comes with the model."""
LOOKUP = "suffix"


def load(
    model: str = DEFAULT_PACK,
    *,
    draft: str | Pretrained | None = None,
    method: str | None = None,
    gamma: int | None = None,
    control: bool = True,
    verify: str = "coupled",
    branch: int | None = None,
    tree: str | None = None,
    nodes: int | None = None,
    exit_layer: int | None = None,
    stop_below: float | None = None,
    lookup: str | None = None,
    ngram: tuple[int, int] | None = None,
    cross_vocab: bool | str | None = None,
    dtype: str = "auto",
    draft_dtype: str | None = None,
    exact: bool = False,
    device: str | torch.device = "cpu",
    share: float = 1.0,
    target: Pretrained | None = None,
    history: History | None = None,
    progress: Progress | None = None,
    notice: Notice | None = None,
) -> LanguageModel:
    """Load a target and its drafter.

    model, draft:  a folder of safetensors, a .gguf file, a Hub id or a pack's name; `draft` may be a trained
                   head as well: its folder (docs/heads.md), or the name of one that comes with taslak;
                   or a draft model that is loaded already
    method:        a name of the drafter registry, or several joined by "+" in the order they are asked;
                   "auto" (None) = a look-up and behind it what `draft` or `exit_layer` names, or the head
                   which comes with taslak for the model. A method that needs a head takes that one too
    gamma:         drafted depth of a step, 1 to 16, in every step. None = chosen as answers go for each
                   drafter from what drafts are worth and what they cost, nothing drafted where it doesn't pay
    control:       False: with `gamma` None too the depth is fixed, to the head's own, else 5
    verify:        "coupled" (a seed's text is that of plain decoding) or "rejection" (the same distribution)
    branch:        children an expanded node of the draft (1 = linear); None = the head's own (as for tree and
                   nodes together), 4 where `tree` or `nodes` is given, else 1
    tree:          of a head: "dynamic" (None), grown and re-ranked by joint confidence, or "static", its
                   shape fixed beforehand
    nodes:         most nodes of a draft; None = gamma · branch
    exit_layer:    how many of the target's layers method "early-exit" drafts with; None = what its head was
                   trained for, without a head nine tenths of them
    stop_below:    a draft ends early where the drafter's joint confidence in it falls under this; the text
                   stays the same. None = chosen with the depth; where that is fixed, the head's own, else 0
    lookup:        what methods "auto" ("suffix") and "fallback" ("ngram") try first, "ngram" or "suffix"
    ngram:         shortest and longest end of the text, in tokens, that "ngram" looks for; None = (1, 8)
    cross_vocab:   the draft model may have another tokenizer (docs/cross-vocab.md): "tli", tokens both have;
                   "slem", text; "auto" (True) = whichever is worth more, answer by answer. It drafts by the
                   method of that name then, where "draft-model" would be
    dtype:         of the weights: "float32" (PyTorch), "bfloat16", "int8" or "int4" (native kernels on the
                   CPU; int4 are the 4-bit weights of a GGUF, as they are), "auto" for the checkpoint's own
    draft_dtype:   None = `dtype`
    exact:         in PyTorch the width-invariant reference mode: identical text guaranteed, slower; the
                   native kernels are width-invariant anyway
    share:         of the memory left beside the weights, what the caches may take
    target:        `model`, where it is loaded already: only what drafts for it is loaded
    history:       of past requests, from which new ones then start (where the depth is chosen); read here,
                   once, and only read

    Raises the UserErrors of `taslak.errors`: what was given, what was expected, what to do.
    """
    folder = find_head(draft) if isinstance(draft, str) else None
    named = None if folder is None else read_head(folder)
    if draft_dtype is not None and named is not None:
        raise OptionError(f"{draft} is a head and computes in the target's dtype; leave draft_dtype out")
    if draft_dtype is not None and isinstance(draft, Pretrained):
        raise OptionError(f"{draft.name} is loaded already, in {draft.dtype}; leave draft_dtype out")
    has_draft = draft is not None and named is None
    second = second_model(cross_vocab, has_draft)
    if method is None or method == AUTO:
        names = automatic(second if has_draft else None, _kinds(model, named, exit_layer))
        if lookup is not None:
            names = (drafters_of(FALLBACK, lookup)[0], *names[1:])
    else:
        names = tuple(second if name == "draft-model" else name for name in drafters_of(method, lookup))
        if cross_vocab and not any(base.method(name).crosses for name in names):
            raise OptionError(f"method {method} drafts with no second model; leave cross_vocab out")
    heads = {draft: named} if isinstance(draft, str) and named is not None else {}
    have = [head.kind for head in heads.values()] + ([] if exit_layer is None else ["early-exit"])
    heads |= _shipped(model, names, have)
    own = next((head.drafting for head in heads.values() if head.drafting is not None), Drafting(GAMMA))
    if branch is None and tree is None and nodes is None:
        branch, tree, nodes = own.branch, own.tree, own.nodes
    branch = 4 if branch is None else branch
    kinds = [head.kind for head in heads.values()]
    used = "+".join(names)
    check_method(used, names, has_draft, kinds, branch, stop_below or 0.0, tree, nodes, exit_layer, ngram)
    if verify not in VERIFIERS:
        raise OptionError(f"verify is {verify!r}; expected one of {', '.join(VERIFIERS)}")
    # wrong settings are told before anything is downloaded
    fixed = FixedGamma(
        own.gamma if gamma is None else gamma,
        branch,
        own.stop_below if stop_below is None else stop_below,
        nodes,
    )
    DrafterOptions(branch=branch, tree=tree or "dynamic", exit_layer=exit_layer, ngram=ngram or NGRAM)
    for each in (dtype, draft_dtype or dtype):
        check_dtype(each, device)
    common: dict[str, Any] = {"device": device, "progress": progress, "notice": notice}
    share *= 0.5 if has_draft else 1.0
    if target is None:
        target = load_pretrained(model, dtype=dtype, exact=exact, share=share, **common)
    drafting = draft if isinstance(draft, Pretrained) else None
    if isinstance(draft, str) and has_draft:
        # what the target has to be exact in, its own draws, doesn't depend on a draft's last bits: the draft
        # model takes the quick path in exact mode too
        taken = target.decoder.weight_bytes
        drafting = load_pretrained(draft, dtype=draft_dtype or dtype, share=share, taken=taken, **common)
        if cross_vocab and target.tokenizer.first_difference(drafting.tokenizer) is None:
            both = target.name, drafting.name
            log.warning("%s and %s have one tokenizer: without cross_vocab drafts cost less", *both)
    language_model = LanguageModel(
        target,
        drafting,
        method=used,
        gamma=fixed.gamma,
        verify=verify,
        branch=branch,
        stop_below=fixed.stop_below,
        heads=heads,
        tree=tree,
        nodes=nodes,
        exit_layer=exit_layer,
        ngram=ngram,
    )
    if gamma is None and control:
        control_depth(language_model, stop_below, history, progress)
    return language_model


def control_depth(
    model: LanguageModel,
    stop_below: float | None = None,
    history: History | None = None,
    progress: Progress | None = None,
) -> None:
    """From now on the depth is chosen as answers go, for each drafter. What steps cost is measured where it
    isn't known; where it can't be, the depth stays fixed and a warning says so."""
    try:
        known = calibrated(model, progress=progress)
    except Exception as error:  # a drafter that fails costs its drafts; here it costs the control
        log.warning("what drafting costs can't be measured, so its depth is fixed: %s", error)
    else:
        keep = keeper(model, known.costs)
        model.policy = policy = controller(model, known, stop_below, history=history, keep=keep)
        weakref.finalize(policy, keep.close)  # also when the interpreter ends


def control_as(model: LanguageModel, before: LanguageModel) -> None:
    """Have its depth chosen if that of another model of the same target was: with what that one knows, where
    it knows all these drafters (a head of the same kind costs the same, however it was trained), else
    measured now."""
    policy = before.policy
    if not isinstance(policy, Controller):
        return
    if set(model.engine.drafters) <= set(policy.costs.drafters):
        model.policy = Controller(
            policy.costs,
            policy.priors,
            branch=model.branch,
            nodes=model.nodes,
            stop_below=policy.floor,
            tasks=policy.tasks,
            keep=policy.keep,
        )
    else:
        control_depth(model, policy.floor or None)


def automatic(second: str | None, kinds: Sequence[str]) -> tuple[str, ...]:
    """The drafters of AUTO: a look-up and, behind it, the method of the draft model if there is one, else the
    first of these kinds of head."""
    return LOOKUP, *((second,) if second else kinds[:1])


def second_model(cross_vocab: bool | str | None, has_draft: bool = True) -> str:
    """The method that drafts with a second model, by what `load` is told. Raises OptionError."""
    if not cross_vocab:
        return "draft-model"
    if not has_draft:
        raise OptionError("cross_vocab is for a draft model of another tokenizer; name one, or leave it out")
    way = "auto" if cross_vocab is True else cross_vocab
    if way not in CROSSING:
        raise OptionError(f"cross_vocab is {cross_vocab!r}; expected True or one of {', '.join(CROSSING)}")
    return CROSSING[way]


def _kinds(model: str, head: Head | None, exit_layer: int | None) -> list[str]:
    """What of the target's hidden states could draft: what is named, else what comes with the model."""
    if head is not None:
        return [head.kind]
    if exit_layer is not None:
        return ["early-exit"]
    return [DEFAULT_KIND] if shipped_head(model, DEFAULT_KIND) else []


def whatever_there_is(model: str, draft: str | None, cross_vocab: bool | str | None = None) -> str:
    """The method that has everything: a look-up, and what is named, or all heads that come with the model."""
    if draft is not None:
        folder = find_head(draft)
        return f"{LOOKUP}+{second_model(cross_vocab) if folder is None else read_head(folder).kind}"
    return "+".join([LOOKUP, *(kind for kind in CONFIGS if shipped_head(model, kind))])


def _shipped(model: str, names: tuple[str, ...], have: list[str]) -> dict[str, Head]:
    """The heads that come with taslak for a model, of the kinds that are asked for and not there."""
    wanted = [kind for kind in names if kind not in have]
    found = {kind: shipped_head(model, kind) for kind in wanted}
    return {name: read_head(find_head(name) or Path(name)) for name in found.values() if name is not None}
