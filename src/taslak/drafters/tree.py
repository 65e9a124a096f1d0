"""Growing drafts, chains and trees, level by level, for whatever gives logits for a level's nodes.

Two kinds. *Static*: which child of which node is expanded is fixed beforehand, children are drawn without
replacement, and every drawn child is kept, so that rejection verification may use the rows they were drawn
from. *Dynamic* (EAGLE-2, Li et al. 2024): the nodes of the highest joint confidence are expanded, and of all
that grew the best are kept. What is kept then depends on the nodes' own values: under rejection its children
are chosen, not drawn (one-hot). Knows nothing about models.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from taslak.core.draft import EMPTY, ONE_HOT, ROOT, Draft
from taslak.drafters.base import Budget, View
from taslak.drafters.choice import Children, Chooser, Wish

_FIRST, _NEXT = 0.65, 0.3
"""A static tree's guess at how often the likeliest child is right, and how much less each next one is."""

Shape = tuple[tuple[int, ...], ...]
"""[1 + nodes] the children of the root (0) and of each node, in decision order."""


@lru_cache(maxsize=256)
def static_shape(depth: int, branch: int, nodes: int) -> Shape:
    """The `nodes` paths that are likeliest right if a child's chance depends on its rank alone (Sequoia, Chen
    et al. 2024, with assumed chances), none deeper than `depth`, no node with more than `branch` children."""
    children: list[list[int]] = [[]]
    best = [(-_FIRST, 0, 0, 1)]  # (−chance, parent, rank, depth); parents are numbered before their children
    while best and len(children) <= nodes:
        chance, parent, rank, at = heapq.heappop(best)
        node = len(children)
        children.append([])
        children[parent].append(node)
        if rank + 1 < branch:
            heapq.heappush(best, (chance * _NEXT, parent, rank + 1, at))
        if at < depth:
            heapq.heappush(best, (chance * _FIRST, node, 0, at + 1))
    return tuple(tuple(own) for own in children)


class Tree:
    """One sequence's draft under construction."""

    def __init__(self, view: View, budget: Budget, branch: int, dynamic: bool) -> None:
        """budget: at least one level and one node."""
        self.view = view
        self._budget = budget
        self._branch = min(branch, budget.nodes)
        self.dynamic = dynamic and branch > 1
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self._joint: list[float] = []
        self._q: list[Tensor] = []
        self._q_row: list[int] = []
        self._level: list[int] = []
        """Nodes of the last level."""
        self._shape = () if self.dynamic else static_shape(budget.depth, self._branch, budget.nodes)
        self._place: dict[int, int] = {ROOT: 0}
        """Static: a node's number in the shape."""

    @property
    def depth(self) -> int:
        """Most levels it may grow."""
        return self._budget.depth

    def wish(self, node: int) -> Wish:
        """What to choose below a node that is expanded."""
        return Wish(
            view=self.view,
            branch=self._path(node),
            width=self._branch if self.dynamic else len(self._shape[self._place[node]]),
            drawn=not self.dynamic and not self.view.sampling.greedy,
        )

    def add(self, node: int, children: Children) -> None:
        """Hang them below `node`."""
        joint = 1.0 if node == ROOT else self._joint[node]
        depth = 1 if node == ROOT else self.depths[node] + 1
        drawn = children.q is not None
        if children.q is not None:
            self._q.append(children.q)
        for rank, (token, share) in enumerate(zip(children.tokens, children.shares, strict=True)):
            child = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(node)
            self.depths.append(depth)
            self._joint.append(joint * min(share, 1.0))
            self._q_row.append(len(self._q) - 1 if drawn else ONE_HOT)
            self._level.append(child)
            if not self.dynamic:
                self._place[child] = self._shape[self._place[node]][rank]

    def frontier(self) -> list[int]:
        """The nodes of the last level to expand; a new level begins."""
        level, self._level = self._level, []
        if not level or self.depths[level[0]] >= self._budget.depth:
            return []
        level = [node for node in level if self._joint[node] >= self._budget.stop_below]
        if not self.dynamic:
            return [node for node in level if self._shape[self._place[node]]]
        if len(self.tokens) >= self._budget.nodes:  # below what would not be kept nothing would be either
            worst = heapq.nlargest(self._budget.nodes, self._joint)[-1]
            level = [node for node in level if self._joint[node] > worst]
        return sorted(heapq.nlargest(self._branch, level, key=lambda node: self._joint[node]))

    def draft(self) -> Draft:
        """What grew, within the budget."""
        if len(self.tokens) > self._budget.nodes:
            self._keep_best(self._budget.nodes)
        if not self.tokens:
            return EMPTY
        return Draft(
            tokens=tuple(self.tokens),
            parents=tuple(self.parents),
            q=torch.stack(self._q) if self._q else None,
            q_row=tuple(self._q_row) if self._q else (),
            confidence=tuple(self._joint),
        )

    def _keep_best(self, nodes: int) -> None:
        """Re-rank by joint confidence. A parent's is never under its child's, and it comes first: the best
        are a tree. Only dynamic trees grow past their budget, and their nodes are one-hot."""
        order = sorted(range(len(self.tokens)), key=lambda node: (-self._joint[node], node))
        kept = sorted(order[:nodes])
        number = {ROOT: ROOT, **{node: i for i, node in enumerate(kept)}}
        self.tokens = [self.tokens[node] for node in kept]
        self.parents = [number[self.parents[node]] for node in kept]
        self._joint = [self._joint[node] for node in kept]
        self._q_row = [self._q_row[node] for node in kept]

    def _path(self, node: int) -> list[int]:
        tokens = []
        while node != ROOT:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]


Frontier = list[tuple[int, int]]
"""(which tree, node) to expand."""


def grow(
    trees: Sequence[Tree],
    chooser: Chooser,
    expand: Callable[[Frontier], tuple[Tensor, Sequence[int]]],
) -> None:
    """Grow all trees together, a call of `expand` a level.

    expand: -> Float32[U, Vd] logits, and for each node of the frontier its row in them
    """
    frontier: Frontier = [(i, ROOT) for i in range(len(trees))]
    while frontier:
        logits, rows = expand(frontier)
        wishes = [trees[i].wish(node) for i, node in frontier]
        for (i, node), children in zip(frontier, chooser.choose(logits, rows, wishes), strict=True):
            trees[i].add(node, children)
        frontier = [(i, node) for i, tree in enumerate(trees) for node in tree.frontier()]
