"""The models that answer: one target and whatever drafts for it. No other file of this room makes any."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from taslak.bench.grid import PLAIN, Way
from taslak.control.calibrate import calibrated
from taslak.control.controller import controller
from taslak.drafters import base
from taslak.drafters.base import Drafter
from taslak.drafters.formats import Head, find_head, read_head, shipped_head
from taslak.engine.language_model import LanguageModel
from taslak.engine.policy import FixedGamma, Policy
from taslak.engine.step import Engine
from taslak.errors import OptionError
from taslak.loading import AUTO, LOOKUP, automatic, second_model
from taslak.models.loading import Progress
from taslak.models.pretrained import Pretrained, load_pretrained

_HEADS = ("eagle", "eagle3", "medusa", "early-exit")
"""Kinds that may come with taslak for a model, those that `auto` prefers first."""


@dataclass
class Models:
    """Answers in every way that is compared. All ways share one target.

    drafts:  draft models by name
    heads:   by kind
    crosses: of the draft models, those with another tokenizer
    """

    target: Pretrained
    drafts: Mapping[str, Pretrained] = field(default_factory=dict)
    heads: Mapping[str, Head] = field(default_factory=dict)
    verify: str = "coupled"
    exact: bool = False
    crosses: Collection[str] = ()
    _made: dict[str, LanguageModel] = field(default_factory=dict)
    _controlled: dict[str, Policy] = field(default_factory=dict)

    @property
    def available(self) -> list[str]:
        """Methods that can be compared here: what a user gets, the look-ups, all that was given or comes with
        the model. Several draft models are told apart as "draft-model:NAME"."""
        several = len(self.drafts) > 1
        models = [f"{self._second(name)}:{name}" if several else self._second(name) for name in self.drafts]
        return [AUTO, LOOKUP, "ngram", *self.heads, *models]

    def check(self, methods: Sequence[str]) -> None:
        """Raise OptionError for a method that can't be used here."""
        check_names(methods)
        for method in methods:
            self._model(method)

    def model(self, way: Way) -> LanguageModel:
        """What answers this way, set to its γ; for plain decoding whatever there is."""
        if way.method == PLAIN:
            return self._model(LOOKUP)  # which needs no features of the target's: nothing is carried along
        model = self._model(way.method)
        model.policy = self._control(way.method, model) if way.gamma is None else FixedGamma(way.gamma)
        return model

    def draft_bytes(self, method: str) -> int:
        """Of the weights that drafting needs beside the target's."""
        return self._model(method).draft_bytes

    def drafters(self, method: str, *, untrained: bool = False) -> Mapping[str, Drafter]:
        """The drafters of a method alone. untrained: their heads with random weights; none without a head."""
        if not untrained:
            return self._model(method).engine.drafters
        names, _ = self._parts(method)
        kinds = {name: _random(self.heads[name]) for name in names if name in self.heads}
        return self._build(method, kinds).engine.drafters if kinds else {}

    def _model(self, method: str) -> LanguageModel:
        if method not in self._made:
            self._made[method] = self._build(method, self.heads)
        return self._made[method]

    def _build(self, method: str, heads: Mapping[str, Head]) -> LanguageModel:
        names, draft = self._parts(method)
        used = {kind: heads[kind] for kind in names if kind in heads}
        return LanguageModel(self.target, draft, method="+".join(names), heads=used, verify=self.verify)

    def _parts(self, method: str) -> tuple[tuple[str, ...], Pretrained | None]:
        """Its drafters, in the order they are asked, and its draft model."""
        name, _, wanted = method.partition(":")
        first = next(iter(self.drafts), None)
        second = None if first is None else self._second(first)
        names = automatic(second, self._kinds) if name == AUTO else base.drafters_of(name)
        if not any(base.method(each).needs_draft for each in names):
            return names, None
        if wanted and wanted not in self.drafts:
            known = ", ".join(self.drafts) or "none"
            raise OptionError(f"method {method!r} names no draft model that was given; given: {known}")
        chosen = wanted or first
        if chosen is None:
            return names, None
        names = tuple(self._second(chosen) if each == "draft-model" else each for each in names)
        return names, self.drafts.get(chosen)

    def _second(self, draft: str) -> str:
        """The method that drafts with this model."""
        return second_model(cross_vocab=draft in self.crosses)

    @property
    def _kinds(self) -> list[str]:
        """Of the heads, those that draft in `auto`, the preferred one first."""
        return [kind for kind in _HEADS[:2] if kind in self.heads]

    def _control(self, method: str, model: LanguageModel) -> Policy:
        """Chooses the depth as answers go, from what was measured on this machine."""
        if method not in self._controlled:
            self._controlled[method] = controller(model, calibrated(model))
        return self._controlled[method]


def load(
    model: str,
    drafts: Sequence[str] = (),
    *,
    verify: str = "coupled",
    dtype: str = "auto",
    draft_dtype: str | None = None,
    cross_vocab: bool = False,
    exact: bool = False,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Models:
    """A target with the draft models and heads that are named, and the heads that come with taslak for it.
    cross_vocab: draft models may have other tokenizers.

    Raises what `taslak.load` raises.
    """
    heads: dict[str, Head] = {}
    models = []
    for name in drafts:
        folder = find_head(name)
        if folder is None:
            models.append(name)
            continue
        head = read_head(folder)
        if head.kind in heads:
            raise OptionError(f"two heads of kind {head.kind} are named; compare one of a kind in a run")
        heads[head.kind] = head
    for kind in _HEADS:
        shipped = shipped_head(model, kind)
        if shipped is not None and kind not in heads:
            heads[kind] = read_head(find_head(shipped) or Path(shipped))
    common: dict[str, Any] = {"device": device, "progress": progress}
    share = 1.0 / (1 + len(models))
    second_model(cross_vocab, bool(models))
    target = load_pretrained(model, dtype=dtype, exact=exact, share=share, **common)
    loaded, crosses = {}, []
    taken = target.decoder.weight_bytes
    for name in models:
        draft = load_pretrained(name, dtype=draft_dtype or dtype, share=share, taken=taken, **common)
        if cross_vocab and target.tokenizer.first_difference(draft.tokenizer) is not None:
            crosses.append(name)
        else:
            target.tokenizer.require_same_as(draft.tokenizer)
        loaded[name] = draft
    return Models(target, loaded, heads, verify, exact, crosses)


def check_names(methods: Sequence[str]) -> None:
    """Raise OptionError for what is no method, whatever the model."""
    for method in methods:
        if method == PLAIN:
            raise OptionError("plain decoding is what all methods are compared with; leave it out")
        name, named, draft = method.partition(":")
        names = () if name == AUTO else base.drafters_of(name)
        if named and not any(base.method(each).needs_draft for each in names):
            raise OptionError(f"method {name} drafts with no model, and {draft!r} is named; leave it out")


def plain_engine(model: LanguageModel, drafter: Drafter) -> Engine:
    """An engine in which this drafter is asked for one token in every step."""
    return Engine(model.target, {"asked": drafter}, FixedGamma(1))


def _random(head: Head) -> Head:
    """The same head before it was trained: Gaussian weights, norms of one."""
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.ones_like(tensor)
        if name.endswith("norm.weight")
        else (torch.randn(tensor.shape, generator=generator) * 0.02).to(tensor.dtype)
        for name, tensor in head.tensors.items()
    }
    return replace(head, tensors=tensors)
