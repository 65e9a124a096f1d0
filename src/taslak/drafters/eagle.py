"""EAGLE, EAGLE-2 (Li et al. 2024), EAGLE-3 (Li et al. 2025): one layer over the target's features drafts.

The target's passes hand their features over in `observe`; nothing of the target is computed again. A step
costs one call of the layer for the rows accepted since the last draft (which also gives the first level), and
one for each further level, all sequences together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from taslak.core.draft import EMPTY, ROOT, Draft
from taslak.drafters.base import (
    Budget,
    Drafter,
    DrafterOptions,
    Needs,
    Report,
    View,
    common_prefix,
    needed_head,
    register,
)
from taslak.drafters.choice import Chooser
from taslak.drafters.eagle_network import EagleNetwork
from taslak.drafters.tree import Frontier, Tree, grow
from taslak.drafters.watch import head_watch
from taslak.models.cache import Block
from taslak.models.ops import Share
from taslak.models.target import Target

_WAITING = 64
"""Rows that wait for the next draft; more are run at once."""
_PROMPT = 128
"""Of the rows before the first draft, mostly a prompt's, the last so many are run: a feature holds what the
target knows of all that came before, and running a long prompt would cost more than a draft gains."""


@dataclass(slots=True)
class _State:
    """What is known of one sequence.

    cache:    K/V of the rows run, the first of them at position `base`
    tokens:   the committed tokens up to the one the last row reads: row t reads tokens[t + 1]
    waiting:  [n, F] features of rows that haven't been run
    tip:      [1, H] what the last row gave, and its logits [1, Vd]; None where no row was run, or the last
              one was cut off
    """

    cache: Block
    base: int = 0
    tokens: list[int] = field(default_factory=list)
    waiting: list[Tensor] = field(default_factory=list)
    tip: tuple[Tensor, Tensor] | None = None

    @property
    def rows_waiting(self) -> int:
        return sum(features.shape[0] for features in self.waiting)

    @property
    def end(self) -> int:
        """The position of the next row."""
        return self.base + self.cache.length + self.rows_waiting

    def ready(self, shown: list[int]) -> bool:
        """Cut to these committed tokens; whether the row of the last of them is known."""
        self.cut(shown, len(shown) - 1)
        return self.end == len(shown) - 1 and (bool(self.waiting) or self.tip is not None)

    def trim(self) -> None:
        """Leave out the oldest rows where none was run yet and more wait than are run."""
        short = self.rows_waiting - _PROMPT
        if short > 0 and self.cache.length == 0:
            self.waiting = [torch.cat(self.waiting)[short:].clone()]
            self.base += short

    def cut(self, shown: list[int], end: int) -> None:
        """Drop what doesn't belong to these committed tokens, and every row from position `end` on."""
        end = min(end, common_prefix(self.tokens, shown) - 1)
        if end < self.end:
            if end < self.end - self.rows_waiting:
                self.cache.crop(max(end - self.base, 0))
                self.tip = None
                self.waiting = []
            elif end < self.end:
                run = self.base + self.cache.length
                self.waiting = [torch.cat(self.waiting)[: end - run]] if end > run else []
            del self.tokens[self.end + 1 :]


class Eagle:
    """Drafts with an `EagleNetwork`.

    Without the feature of the position before the last committed token (before the first pass, or where it
    didn't observe) it proposes nothing. After a gap it starts afresh at the true positions: what lies before
    the gap is not attended to.
    """

    def __init__(
        self,
        network: EagleNetwork,
        vocab_size: int,
        branch: int = 1,
        tree: str = "dynamic",
        kind: str = "eagle",
    ) -> None:
        """vocab_size: the target's; branch, tree: see DrafterOptions; kind: what users call the method."""
        self.needs = Needs(features=network.features)
        self._network = network
        self._chooser = Chooser(vocab_size, network.ids)
        self._branch = branch
        self._dynamic = tree == "dynamic"
        self.watch = head_watch(kind)

    @torch.inference_mode()
    def propose(self, views: Sequence[View], budgets: Sequence[Budget]) -> list[Draft]:
        states: list[_State] = []
        trees: list[Tree] = []
        drafts: list[Draft | None] = []
        for view, budget in zip(views, budgets, strict=True):
            state: _State | None = view.state
            if state is None or min(budget.depth, budget.nodes) <= 0 or not state.ready(view.tokens):
                drafts.append(EMPTY)
                continue
            drafts.append(None)
            states.append(state)
            trees.append(Tree(view, budget, self._branch, self._dynamic))
        if trees:
            self._run_waiting(states)
            level = _Level(self._network, states, trees)
            try:
                grow(trees, self._chooser, level.expand)
            finally:
                for state in states:
                    state.cache.crop(state.cache.length)  # the draft's own K/V: features come with the pass
        grown = iter(trees)
        return [next(grown).draft() if draft is None else draft for draft in drafts]

    @torch.inference_mode()
    def observe(self, views: Sequence[View], reports: Sequence[Report]) -> None:
        """Take over the features of every kept row whose next token is decided."""
        full = []
        for view, report in zip(views, reports, strict=True):
            usable = min(len(report.tokens), len(view.tokens) - 1 - report.first)
            if usable <= 0:
                continue
            state = view.state
            if state is None:
                state = view.state = _State(self._network.allocate())
            state.cut(view.tokens, report.first)
            if state.end != report.first or not state.tokens:
                state.cache.crop(0)
                state.base, state.waiting, state.tip = report.first, [], None
            state.tokens = view.tokens[: report.first + usable + 1]
            features = [report.features[name][:usable] for name in self._network.features]
            state.waiting.append(features[0].clone() if len(features) == 1 else torch.cat(features, dim=-1))
            if state.cache.length == 0:
                if state.rows_waiting > 2 * _PROMPT:
                    state.trim()
            elif state.rows_waiting > _WAITING:
                full.append(state)
        if full:
            self._run_waiting(full)

    def lag(self, view: View) -> int:
        """Rows that would be run: those that wait, and those whose features never came."""
        if view.state is None:
            return min(len(view.tokens), _PROMPT)
        state: _State = view.state
        shared = common_prefix(state.tokens, view.tokens)
        missing = len(view.tokens) - min(shared, state.base + state.cache.length + 1)
        return missing if state.cache.length else min(missing, _PROMPT)

    def forget(self, view: View) -> None:
        if view.state is not None:
            view.state.cache.release()
            view.state = None

    def _run_waiting(self, states: Sequence[_State]) -> None:
        """Run the waiting rows of all these sequences, and keep them."""
        states = [state for state in states if state.waiting]
        if not states:
            return
        tokens: list[int] = []
        shares = []
        for state in states:
            state.trim()
            n = state.rows_waiting
            first = state.base + state.cache.length
            tokens += state.tokens[first + 1 : first + 1 + n]
            state.cache.crop(state.cache.length)
            state.cache.reserve(state.cache.length + n)
            state.cache.add(range(-1, n - 1))
            shares.append(Share(state.cache, range(n), state.base))
        features = _together([features for state in states for features in state.waiting])  # [R, F]
        hidden = self._network.fuse(features)
        ends = [end - 1 for end in accumulate(len(share.nodes) for share in shares)]
        out, logits = self._network.run(tokens, hidden, shares, ends)
        for number, (state, share, end) in enumerate(zip(states, shares, ends, strict=True)):
            state.cache.keep(share.nodes)
            state.tip = out[end : end + 1].clone(), logits[number : number + 1].clone()  # not all the rows
            state.waiting = []


def _together(tensors: Sequence[Tensor]) -> Tensor:
    """One below the other; a single one as it is, for that is the usual case and a call costs."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tuple(tensors))


class _Level:
    """The levels of some drafts, one after the other: each expanded node is a row behind its parent's."""

    def __init__(self, network: EagleNetwork, states: Sequence[_State], trees: Sequence[Tree]) -> None:
        self._network = network
        self._states = states
        self._trees = trees
        tips = [state.tip for state in states if state.tip is not None]
        self._out, self._logits = (_together(tensors) for tensors in zip(*tips, strict=True))
        """[R, H] what the last level's rows gave, and their logits, [R, Vd]."""
        self._rows: dict[tuple[int, int], int] = {(i, ROOT): i for i in range(len(states))}
        """Row of each expanded node in `_out`."""
        self._nodes: dict[tuple[int, int], int] = {(i, ROOT): -1 for i in range(len(states))}
        """Its node in the cache; the root is the last committed row."""

    def expand(self, frontier: Frontier) -> tuple[Tensor, Sequence[int]]:
        """See `grow`. The frontier is in the order of the trees."""
        if frontier[0][1] != ROOT:
            self._run(frontier)
        return self._logits, [self._rows[key] for key in frontier]

    def _run(self, frontier: Frontier) -> None:
        tokens = []
        above = []
        of_tree: dict[int, list[int]] = {}
        for i, node in frontier:
            tree = self._trees[i]
            parent = tree.parents[node]
            tokens.append(tree.tokens[node])
            above.append(self._rows[i, parent])
            of_tree.setdefault(i, []).append(self._nodes[i, parent])
        shares = []
        for i, parents in of_tree.items():
            cache = self._states[i].cache
            first = cache.nodes
            cache.reserve(cache.length + first + len(parents))
            cache.add(parents)
            shares.append(Share(cache, range(first, first + len(parents)), self._states[i].base))
        at = [node for share in shares for node in share.nodes]
        self._nodes = dict(zip(frontier, at, strict=True))
        self._rows = {key: row for row, key in enumerate(frontier)}
        hidden = self._out if above == [*range(len(self._out))] else self._out[above]
        self._out, self._logits = self._network.run(tokens, hidden, shares, range(len(tokens)))


def _build(kind: str, target: Target, options: DrafterOptions) -> Drafter:
    network = EagleNetwork(target, needed_head(kind, target, options))
    return Eagle(network, target.vocab_size, options.branch, options.tree, kind)


@register("eagle", needs_head=True, shapes=True)
def _eagle(target: Target, options: DrafterOptions) -> Drafter:
    """Raises OptionError without a head of this kind, CheckpointError for one made for another target."""
    return _build("eagle", target, options)


@register("eagle3", needs_head=True, shapes=True)
def _eagle3(target: Target, options: DrafterOptions) -> Drafter:
    """Raises OptionError without a head of this kind, CheckpointError for one made for another target."""
    return _build("eagle3", target, options)
