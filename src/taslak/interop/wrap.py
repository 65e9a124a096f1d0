"""Any causal language model of transformers, decoded by taslak."""

from __future__ import annotations

import inspect
import logging
from typing import Any

from taslak.engine.language_model import LanguageModel
from taslak.errors import OptionError
from taslak.interop.rehearsal import check, own_pass, rehearse
from taslak.interop.tokenizer import WrappedTokenizer
from taslak.interop.transformers_target import TransformersTarget
from taslak.loading import control_depth, load
from taslak.models.pretrained import Pretrained, cache_bytes, free_memory

log = logging.getLogger(__name__)

DRAFTING = tuple(
    name
    for name in inspect.signature(load).parameters
    if name not in ("model", "draft", "dtype", "exact", "device", "share", "target")
)
"""Parameters of `load` that say how a loaded model drafts, the draft itself left out."""


def from_transformers(
    model: Any,
    tokenizer: Any | None = None,
    *,
    draft: Any | None = None,
    draft_tokenizer: Any | None = None,
    name: str | None = None,
    context: int | None = None,
    **options: Any,
) -> LanguageModel:
    """Wrap a loaded causal language model of transformers; it computes as it is, on its device, in its dtype.

    model:            any decoder-only architecture whose cache holds keys and values alone
    tokenizer:        its tokenizer; None = prompts are token ids, and answers have no text
    draft:            another such model, or whatever `draft` of `taslak.load` may name. Heads draft where the
                      model gives its hidden states
    draft_tokenizer:  of a draft model that is given loaded; None = the target's
    name:             what messages and statistics call it; None = where it was loaded from
    context:          most positions of a text; None = what its configuration says
    options:          those of `taslak.load` that say how to draft: method, gamma, control, verify, branch, …

    A few passes of a dozen tokens find out what the model can do. Where it doesn't keep to a mask of its own
    (position biases, for the most part) drafts are lines and each sequence has a pass of its own; a warning
    says so if a tree is asked for. `early-exit` is refused: the model runs as a whole. Texts end with the ids
    that the model's generation_config names, else the tokenizer's; nothing else of it is read.

    Raises CheckpointError, with the reason, for models that can't be rolled back when a draft is rejected,
    OptionError for options, and what `taslak.load` raises.
    """
    if unknown := sorted(options.keys() - {*DRAFTING}):
        raise OptionError(f"no option {', '.join(unknown)}; known: {', '.join(DRAFTING)}")
    share = 1.0 if draft is None else 0.5
    target = pretrained(model, tokenizer, name=name, context=context, share=share)
    if draft is not None and not isinstance(draft, str):
        draft = drafting(draft, draft_tokenizer, target, share)
    elif draft_tokenizer is not None:
        raise OptionError("draft_tokenizer belongs to a draft model that is given loaded; leave it out")
    return speculating(target, draft, **options)


def speculating(
    target: Pretrained, draft: str | Pretrained | None = None, *, control: bool = True, **options: Any
) -> LanguageModel:
    """A loaded model with what drafts for it; options as for `load`. Raises what that does, and OptionError
    for a drafter that needs more of the target than it gives."""
    made = load(
        target.name,
        draft=draft,
        control=False,
        target=target,
        device=target.decoder.device,
        **_shaped(target, options),
    )
    _require(made)
    if control and options.get("gamma") is None:
        chosen = {key: options.get(key) for key in ("stop_below", "history", "progress")}
        control_depth(made, **chosen)
    return made


def pretrained(
    model: Any,
    tokenizer: Any | None = None,
    *,
    name: str | None = None,
    context: int | None = None,
    share: float = 1.0,
) -> Pretrained:
    """The model as a target or a draft model. Raises CheckpointError for one that can't be either.
    share: of the free memory, what its cache may take."""
    check(model)
    name = name or model.config.name_or_path or type(model).__name__
    config = model.config.get_text_config(decoder=True)
    ends = model.generation_config.eos_token_id
    if ends is None and tokenizer is not None:
        ends = tokenizer.eos_token_id
    words = WrappedTokenizer(
        tokenizer,
        name=name,
        eos_ids=() if ends is None else [ends] if isinstance(ends, int) else ends,
        rows=int(config.vocab_size),
    )
    own = own_pass(model)
    target = TransformersTarget(
        model,
        own.stored,
        vocab_size=words.vocab_size,
        context=context,
        cache_bytes=cache_bytes(free_memory(model.device), share),
    )
    rehearse(target, name, own)
    attention = getattr(config, "_attn_implementation", None)
    return Pretrained(
        name=name,
        decoder=target,
        tokenizer=words,
        dtype=str(model.dtype).removeprefix("torch."),
        path="transformers" if attention is None else f"transformers ({attention})",
    )


def drafting(draft: Any, tokenizer: Any | None, target: Pretrained, share: float = 1.0) -> Pretrained:
    """A model of transformers as the draft model of a target. Without a tokenizer of its own it is taken to
    have the target's, if it has as many tokens. Raises OptionError if not, and what `pretrained` raises."""
    made = pretrained(draft, tokenizer, share=share)
    mine, theirs = target.decoder.padded_vocab_size, made.decoder.padded_vocab_size
    if tokenizer is None and mine != theirs:
        raise OptionError(
            f"{target.name} has {mine} tokens and {made.name} {theirs}; give the draft model's tokenizer too "
            "(draft_tokenizer), so that they can be compared"
        )
    if tokenizer is None or not target.tokenizer.has_text:
        return Pretrained(made.name, made.decoder, target.tokenizer, made.dtype, made.path)
    return made


def _shaped(target: Pretrained, options: dict[str, Any]) -> dict[str, Any]:
    """The options, without what makes a draft a tree where the target can't verify one."""
    decoder = target.decoder
    if not isinstance(decoder, TransformersTarget) or decoder.packs:
        return options
    shape = {key: options.get(key) for key in ("branch", "tree", "nodes")}
    if any(shape.values()) and shape["branch"] != 1:
        log.warning("drafts of %s are cut to lines: %s", target.name, decoder.why_lines)
    return {**options, "branch": 1, "tree": None, "nodes": None}


def _require(model: LanguageModel) -> None:
    """Raise OptionError for a drafter that needs more of the target than it gives."""
    target = model.target
    if not isinstance(target, TransformersTarget):
        return
    for name, drafter in model.engine.drafters.items():
        if drafter.needs.exit_layer is not None:
            raise OptionError(
                f"{model.name} runs as a whole in transformers: its first layers can't draft alone. Use "
                "another method; taslak.load has early exits for the families it runs itself"
            )
        if missing := [each for each in drafter.needs.features if each not in target.features]:
            raise OptionError(
                f"method {name} reads {', '.join(missing)} of {model.name}, which gives "
                f"{', '.join(target.features) or 'no hidden states'}; use another method"
            )
