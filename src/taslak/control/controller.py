"""How much to draft, step by step: what drafts are worth against what they cost, jointly over the batch.

A step maximises Σ expected tokens − λ · seconds(pass + drafts), λ = tokens a second as things go. (The best
ratio of a single step is another goal: it drafts too much where text is hard.) The empty draft is always
among the choices, and λ is at least plain decoding's rate, so whatever is drafted is expected to beat that.

Which text comes out never depends on any of this: under coupled verification no token depends on the draft,
under rejection the distribution doesn't.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import NamedTuple

from taslak.control.costs import Costs, mode_of
from taslak.control.estimate import DEEPEST, Estimate, Prior
from taslak.core.draft import ROOT, Draft
from taslak.drafters import base
from taslak.drafters.base import Budget, Drafter
from taslak.engine.sequence import Sequence
from taslak.engine.turn import Plan, Step, Turn

GAMMA = 8
"""Deepest draft of a drafter that computes."""
MARGIN = 0.01
"""Tokens a step and sequence that a draft must be expected to gain: less is within what isn't known."""
RECENT = 0.06
"""Weight of the last step in a request's own tokens a second."""
PROBE = 0.01
"""Share of a step's time spent on finding out whether a drafter that doesn't pay has begun to."""
RARER = 8
"""Probes that keep failing come up to so many times more rarely."""
CATCH_UP = 16
"""Steps over which the catching up of a drafter that sat out is reckoned."""
HIGHEST = 0.95
"""Thresholds of confidence stay under this."""


@dataclass(slots=True)
class _Shadow:
    """A draft to be scored once the text has come so far. at: position of its first token."""

    name: str
    draft: Draft
    at: int
    allowed: int


@dataclass(slots=True)
class _Own:
    """What is known of one request; nothing of it outlives the request or is seen by another (C35).

    estimates: by drafter
    rate:      tokens a second as things go; 0 at first
    asleep:    steps since a drafter last drafted, where it is off
    pause:     steps from one probe of it to the next
    plain, took: seconds of the steps so far, had they been plain, and as they were
    """

    estimates: dict[str, Estimate] = field(default_factory=dict)
    rate: float = 0.0
    asleep: dict[str, int] = field(default_factory=dict)
    pause: dict[str, int] = field(default_factory=dict)
    shadows: list[_Shadow] = field(default_factory=list)
    plain: float = 0.0
    took: float = 0.0


class _Offer(NamedTuple):
    """What the best drafter of one sequence could add. gains: [d] expected tokens of depth d + 1; rows: [d]
    rows it adds; value: of the best depth, alone; overhead: seconds besides, for catching up."""

    name: str
    gains: list[float]
    rows: list[float]
    value: float
    overhead: float


class Controller:
    """The engine's policy that decides by itself. One for a model; what it learns of a request it forgets
    with it. What it learns of the machine goes into `costs`.

    costs:      what steps cost
    priors:     by drafter, what a request starts from
    branch, nodes: of trees, as for FixedGamma
    stop_below: never draft below less joint confidence than this
    """

    def __init__(
        self,
        costs: Costs,
        priors: Mapping[str, Prior] | None = None,
        *,
        branch: int = 1,
        nodes: int | None = None,
        stop_below: float | None = None,
        deepest: int = GAMMA,
    ) -> None:
        self.costs = costs
        self.priors = dict(priors or {})
        self._branch = branch
        self._nodes = nodes
        self._floor = stop_below or 0.0
        self._deepest = deepest
        self._own: dict[int, _Own] = {}

    @property
    def max_nodes(self) -> int:
        return max(DEEPEST, self._nodes_at(self._deepest))

    def _nodes_at(self, depth: int) -> int:
        nodes = depth * self._branch
        return nodes if self._nodes is None else max(min(nodes, self._nodes), depth)

    def plans(self, sequences: Seq[Sequence], drafters: Mapping[str, Drafter]) -> list[Plan]:
        """See Policy."""
        step = _Moment(self, sequences, drafters)
        return step.plans()

    def own(self, sequence: Sequence) -> _Own:
        """What is known of a request."""
        found = self._own.get(id(sequence))
        if found is None:
            found = self._own[id(sequence)] = _Own()
        return found

    def estimate(self, own: _Own, name: str) -> Estimate:
        found = own.estimates.get(name)
        if found is None:
            found = own.estimates[name] = Estimate(self.priors.get(name, Prior()))
        return found

    def record(self, step: Step) -> None:
        """See Policy."""
        turns = [turn for turn in step.decided if turn.plan]
        for turn in turns:
            self._learn(turn)
        if not turns or len(turns) < len(step.turns) or any(turn.take > 1 for turn in step.turns):
            return  # prompts are taken in: no step that says what decoding costs
        costs, count, context = self.costs, len(turns), step.context
        mode = mode_of(turns[0].sequence.request.sampling, turns[0].sequence.request.verify)
        drafted = any(turn.draft for turn in turns)
        rows = step.rows
        left = costs.left([turn.by if turn.draft else None for turn in turns])
        passing = left * costs.pass_(rows, context, rows * context / count)
        levels = {name: max(_depth(turn, name) for turn in turns) for name in step.drafting}
        drafting = sum(costs.draft(name, depth) for name, depth in levels.items())
        expected = passing + drafting + costs.rest_of(mode, drafted)
        plain = costs.pass_(count, context, context) + costs.rest_of(mode, False)
        took = step.passing + step.other + sum(step.drafting.values())
        for turn in turns:
            own = self.own(turn.sequence)
            emitted = len(turn.path) + turn.bonus
            rate = emitted / expected
            own.rate += (RECENT if own.rate else 1.0) * (rate - own.rate)
            own.plain += emitted * plain / count
            own.took += took / count
            turn.sequence.speedup = own.plain / own.took
        costs.saw_pass(rows, passing, step.passing, left == 1.0)
        for name, seconds in step.drafting.items():
            if levels[name]:
                costs.saw_draft(name, levels[name], seconds)
        costs.saw_rest(mode, drafted, step.other)

    def _learn(self, turn: Turn) -> None:
        own = self.own(turn.sequence)
        if turn.draft and turn.by is not None:
            self.estimate(own, turn.by).record(
                turn.draft, turn.plan[turn.by].depth, len(turn.path), censored=not turn.bonus
            )
        elif turn.by is not None:
            self.estimate(own, turn.by).fade()
        tokens = turn.sequence.tokens
        if turn.shadows:
            at = len(tokens) - len(turn.path) - turn.bonus
            own.shadows += [
                _Shadow(name, draft, at, turn.plan[name].depth) for name, draft in turn.shadows.items()
            ]
        if own.shadows:
            due = [s for s in own.shadows if len(tokens) >= s.at + s.draft.depth]
            own.shadows = [s for s in own.shadows if len(tokens) < s.at + s.draft.depth]
            for shadow in due:
                right = _right(shadow.draft, tokens[shadow.at :])
                if shadow.draft:
                    self.estimate(own, shadow.name).record(shadow.draft, shadow.allowed, right, False)
                pause = own.pause.get(shadow.name, 1)
                own.pause[shadow.name] = max(pause // 4, 2) if right else pause * 2

    def forget(self, sequence: Sequence) -> None:
        """See Policy."""
        self._own.pop(id(sequence), None)


class _Moment:
    """One decision: of these sequences, now."""

    def __init__(
        self, controller: Controller, sequences: Seq[Sequence], drafters: Mapping[str, Drafter]
    ) -> None:
        self.controller = controller
        self.costs = costs = controller.costs
        self.sequences = sequences
        self.drafters = drafters
        self.owns = [controller.own(sequence) for sequence in sequences]
        self.count = len(sequences)
        self.contexts = [sequence.cache.length for sequence in sequences]
        self.context = sum(self.contexts)
        request = sequences[0].request
        mode = mode_of(request.sampling, request.verify)
        self.base = costs.pass_(self.count, self.context, self.context)
        self.rest = costs.rest_of(mode, True) - costs.rest_of(mode, False)
        self.plain = self.base + costs.rest_of(mode, False)
        self.slope = (
            costs.pass_(self.count + 4, self.context, self.context * (1 + 4 / self.count)) - self.base
        ) / 4
        """Seconds of one more row, thereabouts."""
        pace = sum(own.rate for own in self.owns)
        self.rate = max(pace, self.count / self.plain)
        """λ, tokens a second."""

    def plans(self) -> list[Plan]:
        lookups = [name for name in self.drafters if base.method(name).looks_up]
        mains = [name for name in self.drafters if name not in lookups]
        offers = [self._offer(i, mains) for i in range(self.count)]
        depths = self._shared(offers)
        found: list[Plan] = []
        for i, (offer, depth) in enumerate(zip(offers, depths, strict=True)):
            worth = offer.value if offer is not None and depth else 0.0
            plan = {name: self._look_up(i, name, worth) for name in lookups}
            if offer is not None and depth:
                plan[offer.name] = self._budget(offer.name, i, depth)
                self.owns[i].asleep.pop(offer.name, None)
            for name in mains:
                if not (depth and offer is not None and name == offer.name) and self._due(i, name):
                    plan[name] = self._probe(i)
            found.append(plan)
        return found

    def _offer(self, i: int, mains: Seq[str]) -> _Offer | None:
        """The best of the drafters that compute, for sequence i."""
        own, sequence = self.owns[i], self.sequences[i]
        most = min(self.controller._deepest, sequence.left - 1)
        best = None
        if most <= 0:
            return None
        for name in mains:
            estimate = self.controller.estimate(own, name)
            gains, so_far = [], 1.0
            for each in estimate.yields(most):
                so_far *= each
                gains.append(so_far)
            rows = estimate.reach(most)
            if self.controller._branch > 1:
                wide = [self.controller._nodes_at(d + 1) for d in range(most)]
                rows = [r * (wide[d] - (wide[d - 1] if d else 0)) for d, r in enumerate(rows)]
            overhead = 0.0
            if name in own.asleep:
                lag = self.drafters[name].lag(sequence.view_of(name))
                overhead = self.costs.catch_up(name, lag) / CATCH_UP
            value, total, added = -1e9, 0.0, 0.0
            left = self.costs.left([name])
            fixed = self.rest + overhead - (1.0 - left) * self.base / self.count
            for gain, more in zip(gains, rows, strict=True):
                total += gain
                added += more
                seconds = left * self.slope * added + self.costs.draft(name, added / self.controller._branch)
                value = max(value, total - self.rate * (seconds + fixed))
            if best is None or value > best.value:
                best = _Offer(name, gains, rows, value, overhead)
        return best

    def _shared(self, offers: Seq[_Offer | None]) -> list[int]:
        """The depth of each sequence's draft. Every total of rows is looked at, the likeliest rows first: the
        time over rows is a staircase, which climbing would get stuck on."""
        rising = [
            (-gain, i, d) for i, offer in enumerate(offers) if offer for d, gain in enumerate(offer.gains)
        ]
        rising.sort()
        count, costs, branch = len(offers), self.costs, self.controller._branch
        depths, best_depths, best = [0] * count, [0] * count, MARGIN * count
        total, rows, attended = 0.0, float(count), float(self.context)
        besides, left = self.rest - self.base, 1.0
        by: list[str | None] = [None] * count
        reached = [0.0] * count
        drafting: dict[str, float] = {}
        for negative, i, d in rising:
            offer = offers[i]
            assert offer is not None
            more = offer.rows[d]
            total -= negative
            rows += more
            attended += more * self.contexts[i]
            reached[i] += more / branch
            if d == 0:
                besides += offer.overhead
                by[i] = offer.name
                left = costs.left(by)
            depths[i] = d + 1
            # a level of several drafts is one call: the deepest counts
            seconds = costs.draft(offer.name, reached[i])
            if seconds > drafting.get(offer.name, 0.0):
                drafting[offer.name] = seconds
            seconds = left * costs.pass_(rows, self.context, attended) + besides + sum(drafting.values())
            value = total - self.rate * seconds
            if value > best:
                best, best_depths = value, depths.copy()
        return best_depths

    def _budget(self, name: str, i: int, depth: int) -> Budget:
        """One more level is worth drafting where it is likelier right than its time is worth."""
        controller = self.controller
        estimate = controller.estimate(self.owns[i], name)
        stop = 0.0
        if base.method(name).confident:
            cost = self.costs.drafters.get(name)
            level = 0.0 if cost is None else self.costs.scale * cost.level
            next_right = max(estimate.yields(1)[0], 0.3)
            stop = self.rate * (level + self.slope) / (next_right * estimate.trust)
        stop = max(min(stop, HIGHEST), controller._floor)
        return Budget(depth, controller._nodes_at(depth), stop)

    def _look_up(self, i: int, name: str, worth: float) -> Budget:
        """worth: tokens that the drafter behind it is expected to gain."""
        own, controller = self.owns[i], self.controller
        estimate = controller.estimate(own, name)
        row = self.rate * self.slope
        if base.method(name).confident:
            # looking costs nothing: a token found is drafted where it is likelier right than its row is
            # worth, and a draft goes before the other drafter's where it is expected to gain more
            stop = min(row / estimate.trust, HIGHEST)
            least = (worth + row * estimate.size) / estimate.trust if worth else 0.0
            return Budget(DEEPEST, DEEPEST, max(stop, controller._floor), least)
        total, so_far, best, depth = 0.0, 1.0, max(worth, MARGIN), 0
        for d, each in enumerate(estimate.yields(DEEPEST)):
            so_far *= each
            total += so_far - row
            if total > best:
                best, depth = total, d + 1
        return Budget(depth, depth) if depth else self._probe(i)

    def _due(self, i: int, name: str) -> bool:
        """Whether a drafter that is off is tried in this step: often enough to notice that it would pay by
        now, rarely enough to cost next to nothing."""
        own = self.owns[i]
        own.asleep[name] = asleep = own.asleep.get(name, 0) + 1
        cost = self.costs.draft(name, 4) + self.costs.catch_up(name, asleep)
        usual = int(cost / (PROBE * self.plain)) + 1
        pause = own.pause[name] = min(max(own.pause.get(name, usual), 2), usual * RARER)
        if asleep < pause or self.sequences[i].left <= usual:
            return False
        own.asleep[name] = 0
        return True

    def _probe(self, i: int) -> Budget:
        """Under coupled verification a draft can be scored against the text to come, which costs no row.
        Drawn drafts agree with it more rarely than they would be accepted: they are verified."""
        request = self.sequences[i].request
        if request.verify == "coupled" or request.sampling.greedy:
            return Budget(4, self.controller._nodes_at(4), shadow=True)
        return Budget(2, 2)


def _depth(turn: Turn, name: str) -> int:
    """Levels that a drafter drafted for this turn."""
    if turn.by == name and turn.draft:
        return turn.draft.depth
    return turn.shadows[name].depth if name in turn.shadows else 0


def _right(draft: Draft, text: Seq[int]) -> int:
    """Depth to which a draft holds the text."""
    node, depth = ROOT, 0
    for token in text:
        node = next((child for child in draft.children(node) if draft.tokens[child] == token), ROOT)
        if node == ROOT:
            break
        depth += 1
    return depth
