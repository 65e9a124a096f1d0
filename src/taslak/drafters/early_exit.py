"""The target's own first layers draft: early exit, or self-speculation.

Draft & Verify (Zhang et al. 2023), LayerSkip (Elhoushi et al. 2024), Kangaroo (Liu et al. 2024). After the
first E layers a small exit (a low-rank adapter and a norm) hands the hidden state to the target's lm_head.
What these layers computed for drafted rows, K/V and hidden states, is work of the verifying pass itself: it
is handed over in `Draft.partial`, and the pass runs only the upper layers of these rows.

Cost of a drafted token: E / L of a pass over one row, and the lm_head, or those rows of it that are the
exit's own vocabulary. No memory of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from taslak.core.draft import EMPTY, Draft, Partial
from taslak.drafters.base import Budget, DrafterOptions, Needs, Report, View, register
from taslak.drafters.comb import Comb
from taslak.drafters.formats import ExitConfig, Head
from taslak.drafters.watch import Watch
from taslak.errors import OptionError
from taslak.models.cache import Block
from taslak.models.decoder import layer_feature
from taslak.models.target import Target, chain_rows


@dataclass(frozen=True, slots=True)
class Exit:
    """What turns the hidden state after the target's first `layer` layers into logits.

    norm:      Float[H], weight of the norm before the lm_head; None = the target's last norm (untrained)
    down, up:  Float[r, H] and Float[H, r]: up(down(h)) is added to the hidden state h; None = nothing is
    ids:       Int64[Vd], the only tokens it can propose, ascending; None = all of them
    """

    layer: int
    norm: Tensor | None = None
    down: Tensor | None = None
    up: Tensor | None = None
    ids: Tensor | None = None

    @classmethod
    def of(cls, head: Head) -> Exit:
        """The exit that a trained head holds. Raises OptionError for a head of another kind."""
        if not isinstance(head.config, ExitConfig):
            raise OptionError(f"the head is for method {head.kind}; early-exit can't draft with it")
        down, up = (head.tensors.get(f"adapter.{name}.weight") for name in ("down", "up"))
        return cls(head.config.exit_layer, head.tensors["norm.weight"], down, up, head.draft_ids)


@dataclass(frozen=True, slots=True)
class _Growing:
    """A draft under construction. `hidden`: Float[H] of the root and of each node expanded so far."""

    comb: Comb
    cache: Block
    hidden: list[Tensor] = field(default_factory=list)

    @property
    def tip(self) -> int:
        """The token to run next."""
        return self.comb.branch[-1] if self.comb.branch else self.comb.view.tokens[-1]


class EarlyExit:
    """Runs its rows in the target's own cache, as nodes behind the committed tokens.

    It can only follow a cache that holds every committed token but the last: while a prompt is being taken in
    it drafts nothing.
    """

    def __init__(self, target: Target, exit_: Exit, branch: int = 1) -> None:
        """Raises OptionError for an exit that has no layer of the target before it, or none behind it."""
        _check_layer(exit_.layer, target.layers)
        self.needs = Needs(exit_layer=exit_.layer)
        self._target = target
        self._layer = exit_.layer
        self._feature = layer_feature(exit_.layer - 1)
        self._branch = branch
        self._norm, self._down, self._up = (
            None if weight is None else weight.to(target.device, target.hidden_dtype)
            for weight in (exit_.norm, exit_.down, exit_.up)
        )
        self._ids = None if exit_.ids is None else exit_.ids.to(target.device)
        self._head = target.head(self._ids)
        self._watch = _watch(exit_, target.layers)

    @torch.inference_mode()
    def propose(self, views: Sequence[View], budgets: Sequence[Budget]) -> list[Draft]:
        growing = [self._start(view, budget) for view, budget in zip(views, budgets, strict=True)]
        active = [g for g in growing if g is not None]
        while active:
            batch = [chain_rows(g.cache, [g.tip], 0) for g in active]
            output = self._target.forward(batch, (0, self._layer), (self._feature,))
            hidden = output.features[self._feature].clone()  # [n, H]; they are handed over after other passes
            for g, h, row in zip(active, hidden, self._logits(hidden), strict=True):
                g.hidden.append(h)
                g.comb.expand(row, self._branch, self._target.vocab_size)
            active = [g for g in active if not g.comb.done]
        return [EMPTY if g is None else self._finish(g) for g in growing]

    def observe(self, views: Sequence[View], reports: Sequence[Report]) -> None:
        """Counts how often it was right; there is nothing to learn from it."""
        for view, report in zip(views, reports, strict=True):
            if view.state:
                self._watch.record(len(report.tokens) > 1)
                view.state = None

    def lag(self, view: View) -> int:  # noqa: ARG002, it drafts in the target's cache or not at all
        return 0

    def forget(self, view: View) -> None:
        view.state = None

    def _start(self, view: View, budget: Budget) -> _Growing | None:
        """None where there is nothing to draft, or no cache to draft in."""
        cache = view.cache
        if cache is None or cache.length != len(view.tokens) - 1 or min(budget.depth, budget.nodes) <= 0:
            return None
        cache.crop(cache.length)  # nodes of a draft that was never verified
        return _Growing(Comb(view, budget), cache)

    def _logits(self, hidden: Tensor) -> Tensor:
        """[n, H] -> Float32[n, V]; −inf for tokens it can't propose."""
        if self._down is not None and self._up is not None:
            hidden = hidden + F.linear(F.linear(hidden, self._down), self._up)
        logits = self._head(self._target.norm(hidden, self._norm))  # [n, V or Vd]
        if self._ids is None:
            return logits
        whole = logits.new_full((logits.shape[0], self._target.vocab_size), -torch.inf)
        return whole.index_copy_(1, self._ids, logits)

    def _finish(self, g: _Growing) -> Draft:
        """The draft, with the work done for the root and the expanded nodes; there is none for the others."""
        g.comb.view.state = bool(g.comb.tokens)  # a draft to be judged
        done = torch.stack(g.hidden)  # [rows, H]
        hidden = F.pad(done, (0, 0, 0, 1 + len(g.comb.tokens) - len(done)))  # [1 + N, H]
        return g.comb.draft_chain_first(Partial(self._layer, hidden, rows=len(done)))


def _check_layer(layer: int, layers: int) -> None:
    if layers < 2:
        raise OptionError("the model has one layer: none could check what it drafts; use another method")
    if not 1 <= layer < layers:
        raise OptionError(
            f"exit_layer is {layer}; expected 1 to {layers - 1}: so many of the model's {layers} layers "
            "draft, and the others check"
        )


def _watch(exit_: Exit, layers: int) -> Watch:
    """A draft's first token costs E / L of a pass and saves at most one: less often right, it can't pay."""
    advice = "Train an exit: without training it is rarely right." if exit_.norm is None else "Exit later."
    return Watch(f"early exit after {exit_.layer} of {layers} layers", exit_.layer / layers, advice)


def default_layer(layers: int) -> int:
    """Where to leave a model of so many layers whose exit was never trained."""
    return max(1, layers * 4 // 5)


@register("early-exit", exits=True)
def _build(target: Target, options: DrafterOptions) -> EarlyExit:
    """Raises OptionError for a head that stops at another layer than `exit_layer` says."""
    layer = options.exit_layer
    if options.head is None:
        return EarlyExit(
            target, Exit(default_layer(target.layers) if layer is None else layer), options.branch
        )
    exit_ = Exit.of(options.head)
    if layer not in (None, exit_.layer):
        raise OptionError(
            f"exit_layer is {layer}, and the head was trained for {exit_.layer}; leave exit_layer out"
        )
    return EarlyExit(target, exit_, options.branch)
