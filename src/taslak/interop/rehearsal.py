"""What a model of transformers can do, found out by trying it when it is wrapped.

A few short passes, each compared with the model's own: can its cache be rolled back (if not it is refused,
for it would be silently wrong), does it keep to a mask, do its hidden states come with the logits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from taslak.errors import CheckpointError
from taslak.interop.paged import Stored
from taslak.interop.transformers_target import TransformersTarget, cache_parameter
from taslak.models.decoder import EMBEDDING, FINAL_NORM, layer_feature
from taslak.models.target import PREFIX, Rows, chain_rows

LENGTH = 12
"""Tokens of the text that is tried."""
KNOWN = 4
"""Of these, what a draft follows."""
FAR = 1024
"""Positions into a text at which rows are tried, besides those beyond a window."""
SIBLINGS = 16
"""Rows before them there."""


@dataclass(frozen=True, slots=True)
class Own:
    """What the model itself gives for a text: logits Float32[LENGTH, V], what its cache keeps, and the names
    of hidden states that come with them."""

    tokens: list[int]
    logits: Tensor
    stored: list[Stored | None]
    features: tuple[str, ...]


def check(model: Any) -> None:
    """Raise CheckpointError, with the reason, for a model that can't be decoded speculatively, as far as its
    configuration says so."""
    name = type(model).__name__
    if not isinstance(model, PreTrainedModel):
        raise CheckpointError(
            f"got a {name}; expected a loaded causal language model of transformers (one that is wrapped, "
            "compiled or adapted: give the model inside)"
        )
    if model.config.is_encoder_decoder:
        raise CheckpointError(
            f"{name} is an encoder-decoder model, which answers one text with another, and taslak continues "
            "texts; use a decoder-only model"
        )
    if not model.can_generate() or model.get_output_embeddings() is None:
        raise CheckpointError(f"{name} has no language-model head; expected a causal language model")
    if getattr(model, "_is_stateful", False):
        raise CheckpointError(_refusal(name, "its layers carry a running state from token to token"))
    if model.training:
        raise CheckpointError(f"{name} is in training mode, in which no two passes agree; call model.eval()")
    cache_parameter(model)


def _refusal(name: str, why: str) -> str:
    return (
        f"{name} can't be decoded speculatively: {why}, which can't be rolled back when a draft is rejected; "
        "use a model whose cache holds keys and values alone"
    )


@torch.inference_mode()
def own_pass(model: Any) -> Own:
    """One pass of the model over a text, with a cache of its own. Raises CheckpointError for a cache that
    can't be rolled back, and for a model that fails."""
    name = type(model).__name__
    vocab = int(model.config.get_text_config(decoder=True).vocab_size)
    tokens = [(vocab // 3 + 7 * i * i) % vocab for i in range(LENGTH)]
    try:
        ids = torch.tensor([tokens], device=model.device)
        output = model(input_ids=ids, use_cache=True, output_hidden_states=True, return_dict=True)
    except Exception as error:
        raise CheckpointError(f"{name} can't run a plain text: {type(error).__name__}: {error}") from error
    cache = output["cache"] if "cache" in output else output.get("past_key_values")
    layers = getattr(cache, "layers", None)
    if layers is None:
        why = "it gives none" if cache is None else f"it is a {type(cache).__name__}"
        raise CheckpointError(_refusal(name, f"its cache is none of keys and values by layer ({why})"))
    try:
        stored = [Stored.of(layer) for layer in layers]
    except ValueError as error:
        raise CheckpointError(_refusal(name, str(error))) from error
    if not any(stored):
        raise CheckpointError(_refusal(name, "what it remembers of a text is not in its cache"))
    features = _features(model, output.hidden_states, output.logits[0])
    return Own(tokens, output.logits[0].float(), stored, features)


def _features(model: Any, hidden: Any, logits: Tensor) -> tuple[str, ...]:
    """Names of the hidden states, if there is one a layer and the last is what the head reads."""
    layers = int(model.config.get_text_config(decoder=True).num_hidden_layers)
    if hidden is None or len(hidden) != layers + 1:
        return ()
    head = model.get_output_embeddings()(hidden[-1][0])
    agree = (
        (head.argmax(dim=-1) == logits.argmax(dim=-1)).float().mean()
    )  # scales and soft caps keep the order
    if agree < 0.75:
        return ()
    return (EMBEDDING, *map(layer_feature, range(layers - 1)), FINAL_NORM)


def rehearse(target: TransformersTarget, name: str, own: Own) -> None:
    """Try the target against the model's own pass, and tell it what it can do.

    Raises CheckpointError where its cache can't be rolled back.
    """
    target.features = own.features
    expected = own.logits[:, : target.vocab_size]
    try:
        error = _error(_rolled_back(target, own.tokens), expected[KNOWN:])
    except Exception as failure:
        why = f"a pass with taslak's cache fails ({type(failure).__name__}: {failure})"
        raise CheckpointError(_refusal(name, why)) from failure
    if not _near(error, target):
        why = f"after wrong tokens were dropped from its cache, logits are off by {error:.2g} of their spread"
        raise CheckpointError(_refusal(name, f"{why}: it remembers them elsewhere"))
    target.packs = True
    try:
        target.why_lines = _packed(target, own.tokens, expected) or _beyond(target)
    except Exception as failure:
        target.why_lines = f"with a mask of its own a pass fails ({type(failure).__name__}: {failure})"
    finally:
        target.clear()
    target.packs = target.why_lines is None


def _rolled_back(target: TransformersTarget, tokens: list[int]) -> Tensor:
    """Logits of the last rows, wrong ones run and dropped before them. -> Float32[LENGTH − KNOWN, V]."""
    cache = target.allocate(2 * LENGTH)
    target.forward([chain_rows(cache, tokens[:KNOWN] + tokens[:KNOWN][::-1], 0)])
    cache.keep(range(KNOWN))
    output = target.forward([chain_rows(cache, tokens[KNOWN:], LENGTH - KNOWN)])
    cache.release()
    return output.logits


def _packed(target: TransformersTarget, tokens: list[int], expected: Tensor) -> str | None:
    """A tree whose two branches lie between each other, and another sequence in the same pass."""
    rest = tokens[KNOWN:]
    wrong = rest[::-1]
    first, second = (target.allocate(3 * LENGTH) for _ in range(2))
    target.forward([chain_rows(first, tokens[:KNOWN], 0)])
    first.keep(range(KNOWN))
    n = len(rest)
    tree = [token for pair in zip(wrong, rest, strict=True) for token in pair]
    parents = [PREFIX, PREFIX, *range(2 * n - 2)]
    logits = target.forward(
        [Rows(first, tree, parents, first=0, wanted=2 * n), chain_rows(second, tokens, LENGTH)]
    ).logits
    first.release()
    second.release()
    if not _near(_error(logits[1 : 2 * n : 2], expected[KNOWN:]), target):
        return "branches of a tree see each other whatever the mask"
    if not _near(_error(logits[2 * n :], expected), target):
        return "sequences in one pass see each other whatever the mask"
    return None


def _beyond(target: TransformersTarget) -> str | None:
    """Far into a text, and beyond each window that layers have: the last rows of a pass see what they see
    alone, though siblings stand before them."""
    last = target.context - LENGTH
    places = {min(FAR, last), *(window for window in target.windows if window < last)}
    if last <= 2 * FAR:  # some have tables by place in the cache, where siblings take places too
        places.add(last)
    for past in sorted(places):
        cache = target.allocate(past + LENGTH + SIBLINGS)
        target.scribble(cache, past)
        line = chain_rows(cache, list(range(LENGTH)), LENGTH)
        plain = target.forward([line]).logits
        cache.crop(past)
        parents = [PREFIX] * (SIBLINGS + 1) + [*range(SIBLINGS, SIBLINGS + LENGTH - 1)]
        tree = Rows(cache, [LENGTH] * SIBLINGS + [*line.tokens], parents, first=0, wanted=LENGTH)
        masked = target.forward([tree]).logits
        cache.release()
        if not _near(_error(masked, plain), target):
            return f"{past} positions into a text rows see something else than a mask says"
    return None


def _error(got: Tensor, expected: Tensor) -> float:
    """By how much most rows differ, in units of the spread of the logits. The median over rows: rounding may
    send single tokens to other experts."""
    spread = expected.std(dim=-1).clamp_min(1e-6)
    return float(((got - expected).abs().amax(dim=-1) / spread).median())


def _near(error: float, target: TransformersTarget) -> bool:
    """Whether rounding explains it. A wrong position or mask moves logits by something like their spread."""
    return error < math.sqrt(torch.finfo(target.dtype).eps)
