"""The target's own first layers draft: early exit, or self-speculation.

Draft & Verify (Zhang et al. 2023), LayerSkip (Elhoushi et al. 2024), Kangaroo (Liu et al. 2024). After the
first E layers a small exit (a low-rank adapter and a norm) hands the hidden state to the target's lm_head.
What these layers computed for drafted rows, K/V and hidden states, is work of the verifying pass itself: it
is handed over in `Draft.partial`, and the pass runs only the upper layers of these rows.

Cost of a level of a draft: E / L of a pass over its expanded nodes, and the lm_head, or those rows of it that
are the exit's own vocabulary. No memory of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from taslak.core.draft import EMPTY, ROOT, Draft, Partial
from taslak.drafters.base import Budget, DrafterOptions, Needs, Report, View, needed_head, register
from taslak.drafters.choice import Chooser
from taslak.drafters.formats import ExitConfig, Head
from taslak.drafters.tree import Frontier, Tree, grow
from taslak.drafters.watch import Watch
from taslak.errors import OptionError
from taslak.models.cache import Block
from taslak.models.decoder import layer_feature
from taslak.models.target import PREFIX, Rows, Target


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
        """The exit that a head of kind "early-exit" holds."""
        assert isinstance(head.config, ExitConfig)
        down, up = (head.tensors.get(f"adapter.{name}.weight") for name in ("down", "up"))
        return cls(head.config.exit_layer, head.tensors["norm.weight"], down, up, head.draft_ids)


@dataclass(frozen=True, slots=True)
class _Growing:
    """A draft under construction in the target's cache.

    ran:     node of the draft -> its node in the cache, and its row in the pass; the root is the first
    hidden:  Float[H] of each of them, in this order
    """

    tree: Tree
    cache: Block
    ran: dict[int, int] = field(default_factory=dict)
    hidden: list[Tensor] = field(default_factory=list)

    def rows(self, expanded: Sequence[int]) -> Rows:
        """The rows to run for the logits below these nodes, all of one level. Earlier siblings come along:
        the rows that were run lead the draft, and siblings stay in their order."""
        tree, first = self.tree, len(self.ran)
        wanted = {tree.parents[node]: node for node in expanded if node != ROOT}  # the last of each parent
        nodes = (
            [ROOT]
            if ROOT in expanded
            else [node for node in range(len(tree.tokens)) if node <= wanted.get(tree.parents[node], ROOT)]
        )
        self.ran.update((node, first + i) for i, node in enumerate(nodes))
        tokens = [tree.view.tokens[-1] if node == ROOT else tree.tokens[node] for node in nodes]
        parents = [PREFIX if node == ROOT else self.ran[tree.parents[node]] for node in nodes]
        return Rows(self.cache, tokens, parents, first=first, wanted=0)

    def draft(self, layer: int) -> Draft:
        """What grew, the nodes that were run first, and their work; the others have none."""
        grown = self.tree.draft()
        order = [node for node in self.ran if node != ROOT]
        order += [node for node in range(len(grown)) if node not in self.ran]
        done = torch.stack(self.hidden)  # [rows, H]
        hidden = F.pad(done, (0, 0, 0, 1 + len(grown) - len(done)))  # [1 + N, H]
        place = {ROOT: ROOT, **{node: i for i, node in enumerate(order)}}
        return replace(
            grown,
            tokens=tuple(grown.tokens[node] for node in order),
            parents=tuple(place[grown.parents[node]] for node in order),
            q_row=tuple(grown.q_row[node] for node in order) if grown.q_row else (),
            confidence=None if grown.confidence is None else tuple(grown.confidence[node] for node in order),
            partial=Partial(layer, hidden, rows=len(done)),
        )


class EarlyExit:
    """Runs its rows in the target's own cache, as nodes behind the committed tokens.

    It can only follow a cache that holds every committed token but the last: while a prompt is being taken in
    it drafts nothing. Its trees are static: a node once run stays in the draft.
    """

    def __init__(self, target: Target, exit_: Exit, branch: int = 1) -> None:
        """Raises OptionError for an exit that has no layer of the target before it, or none behind it."""
        _check_layer(exit_.layer, target.layers)
        kernels = target.kernels
        self.needs = Needs(exit_layer=exit_.layer)
        self._target = target
        self._kernels = kernels
        self._layer = exit_.layer
        self._feature = layer_feature(exit_.layer - 1)
        self._branch = branch
        self._norm = None if exit_.norm is None else kernels.vector(exit_.norm)
        self._down, self._up = (None if w is None else kernels.pack(w) for w in (exit_.down, exit_.up))
        ids = None if exit_.ids is None else exit_.ids.to(target.device)
        self._head = None if ids is None else kernels.pack_unembedding(target.unembedding(ids))
        self._chooser = Chooser(target.vocab_size, ids)
        self.watch = _watch(exit_, target.layers)

    @torch.inference_mode()
    def propose(self, views: Sequence[View], budgets: Sequence[Budget]) -> list[Draft]:
        growing = [self._start(view, budget) for view, budget in zip(views, budgets, strict=True)]
        active = [g for g in growing if g is not None]
        if active:
            grow([g.tree for g in active], self._chooser, lambda frontier: self._expand(active, frontier))
        return [EMPTY if g is None else g.draft(self._layer) for g in growing]

    def observe(self, views: Sequence[View], reports: Sequence[Report]) -> None:
        """Nothing to learn: it reads the target's own cache."""

    def lag(self, view: View) -> int:  # noqa: ARG002, it drafts in the target's cache or not at all
        return 0

    def forget(self, view: View) -> None:
        """Nothing is kept."""

    def _start(self, view: View, budget: Budget) -> _Growing | None:
        """None where there is nothing to draft, or no cache to draft in."""
        cache = view.cache
        if cache is None or cache.length != len(view.tokens) - 1 or min(budget.depth, budget.nodes) <= 0:
            return None
        cache.crop(cache.length)  # nodes of a draft that was never verified
        return _Growing(Tree(view, budget, self._branch, dynamic=False), cache)

    def _expand(self, growing: Sequence[_Growing], frontier: Frontier) -> tuple[Tensor, Sequence[int]]:
        """See `grow`. The frontier is in the order of the trees."""
        batch = [
            growing[i].rows([node for _, node in level]) for i, level in groupby(frontier, lambda at: at[0])
        ]
        output = self._target.forward(batch, (0, self._layer), (self._feature,))
        hidden = output.features[self._feature].clone()  # [R, H]; handed over after other passes
        row = 0
        for i, _ in groupby(frontier, lambda at: at[0]):
            g = growing[i]
            new = len(g.ran) - len(g.hidden)
            g.hidden.extend(hidden[row : row + new])
            row += new
        expanded = torch.stack([growing[i].hidden[growing[i].ran[node]] for i, node in frontier])
        return self._logits(expanded), range(len(frontier))

    def _logits(self, hidden: Tensor) -> Tensor:
        """[n, H] -> Float32[n, V or Vd]."""
        linear = self._kernels.linear
        if self._down is not None and self._up is not None:
            hidden = hidden + linear(linear(hidden, self._down), self._up)
        hidden = self._target.norm(hidden, self._norm)
        return self._target.logits(hidden) if self._head is None else linear(hidden, self._head).float()


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
    """Where to leave a model of so many layers whose exit was never trained: after nine tenths. That loses
    least; below, the last norm and the head can't read the hidden state (docs/early-exit.md)."""
    return layers - max(1, round(layers / 10))


@register("early-exit", exits=True)
def _build(target: Target, options: DrafterOptions) -> EarlyExit:
    """Raises OptionError for a head that stops at another layer than `exit_layer` says."""
    layer = options.exit_layer
    if options.head is None:
        return EarlyExit(
            target, Exit(default_layer(target.layers) if layer is None else layer), options.branch
        )
    exit_ = Exit.of(needed_head("early-exit", target, options))
    if layer not in (None, exit_.layer):
        raise OptionError(
            f"exit_layer is {layer}, and the head was trained for {exit_.layer}; leave exit_layer out"
        )
    return EarlyExit(target, exit_, options.branch)
