"""One decision of the controller: how much each sequence of a step drafts, and with what.

Tokens and seconds are expected ones, by what a request's drafts were worth and what steps cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, NamedTuple

from taslak.control.costs import mode_of
from taslak.control.estimate import DEEPEST, Estimate
from taslak.core.draft import Draft
from taslak.drafters import base
from taslak.drafters.base import NOTHING, Budget, Drafter
from taslak.engine.sequence import Sequence
from taslak.engine.turn import Load, Plan

if TYPE_CHECKING:
    from taslak.control.controller import Controller

MARGIN = 0.01
"""Tokens a step and sequence that a draft must be expected to gain: less is within what isn't known."""
PROBE = 0.01
"""Share of a step's time spent on finding out whether a drafter that doesn't pay has begun to."""
RARER = 8
"""Probes that keep failing come up to so many times more rarely."""
CATCH_UP = 16
"""Steps, at least, over which the catching up of a drafter that sat out is reckoned, the prompt's too."""
PROBED = 4
"""Depth of a probe."""
HEARD = 8
"""Passes that a drafter which reads them hears of before it is probed."""
DOUBT = 1.3
"""So much likelier right than its row is worth a found token must be: of this text little is known yet."""
RECKONED = 16
"""Steps from one reckoning of a drafter that is off to the next, if nothing is learnt of it."""
RARELY = 4
"""A look-up that nothing comes of is asked every so many steps at least."""
STANDS = RARELY
"""Steps that a decision stands for, where no draft loses much: deciding costs time too."""
HIGHEST = 0.95
"""Thresholds of confidence stay under this."""
LEAST_KEPT = 0.1
"""Of what a token is worth, at least so much is thought to be left when it has been drawn."""


@dataclass(slots=True)
class Shadow:
    """A draft to be scored once the text has come so far. at: position of its first token."""

    name: str
    draft: Draft
    at: int
    allowed: int


@dataclass(slots=True)
class Own:
    """What is known of one request; nothing of it outlives the request or is seen by another.

    temperature: what it draws at
    task:      its label
    estimates: by drafter
    rate:      tokens a second as things go; 0 at first
    asleep:    steps since a drafter last drafted, where it is off
    pause:     steps from one probe of it to the next
    shadows:   drafts that wait for the text to be scored by
    idle:      drafts in a row that a look-up was asked for and nothing came of
    used:      drafters that have drafted
    news:      drafters that are off and of which something was learnt
    plan:      what the last decision stands for in the steps after it
    stands:    how many these are
    looks:     steps whose time was looked at
    unseen:    steps since then
    """

    temperature: float = 0.0
    task: str = ""
    estimates: dict[str, Estimate] = field(default_factory=dict)
    rate: float = 0.0
    asleep: dict[str, int] = field(default_factory=dict)
    pause: dict[str, int] = field(default_factory=dict)
    shadows: list[Shadow] = field(default_factory=list)
    idle: dict[str, int] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    news: set[str] = field(default_factory=set)
    plan: Plan = field(default_factory=dict)
    stands: int = 0
    looks: int = 0
    unseen: int = 0

    def again(self) -> Plan:
        """For the next of the steps that the last decision stands for."""
        self.stands -= 1
        for name in self.asleep:
            self.asleep[name] += 1
        for name in self.idle:
            self.idle[name] += 1
        return self.plan

    def tried(self, name: str, right: bool) -> None:
        """A drafter that is off was tried: the next time comes sooner, or later (`Decision._due`)."""
        self.pause[name] = 0 if right else 2 * self.pause.get(name, 0)
        self.news.add(name)


class Offer(NamedTuple):
    """What the best drafter of one sequence could add. gains: [d] expected tokens of depth d + 1, less what
    drawing them is worth; reach: [d] how often a draft gets there; rows: [d] rows it adds; value: of the best
    depth, alone; overhead: seconds besides, for catching up."""

    name: str
    gains: list[float]
    reach: list[float]
    rows: list[float]
    value: float
    overhead: float


class Decision:
    """Of these sequences, now. load: what shares the pass with their drafts: with prompts in it their rows
    are some among many, and no longer what a small pass has room for."""

    def __init__(
        self, controller: Controller, sequences: Seq[Sequence], drafters: Mapping[str, Drafter], load: Load
    ) -> None:
        self.controller = controller
        self.costs = costs = controller.costs
        self.sequences = sequences
        self.drafters = drafters
        self.owns = [controller.own(sequence) for sequence in sequences]
        self.count = len(sequences)
        self.load = load
        self.contexts = [sequence.cache.length for sequence in sequences]
        modes = [mode_of_sequence(sequence) for sequence in sequences]
        self.base = self._pass(0.0, 0.0)
        plain = [costs.rest_of(mode, False) for mode in modes]
        self.rest = [costs.rest_of(mode, True) - rest for mode, rest in zip(modes, plain, strict=True)]
        """[sequences] seconds that a draft adds to the rest of the step."""
        self.plain = self.base + sum(plain)
        self.slope = (self._pass(4.0, 4.0 * sum(self.contexts) / self.count) - self.base) / 4
        """Seconds of one more row, thereabouts."""
        pace = sum(own.rate for own in self.owns)
        self.rate = max(pace, load.deciding / self.plain)
        """λ, tokens a second."""
        self.kept = [max(1.0 - self.rate * costs.draw_of(mode), LEAST_KEPT) for mode in modes]
        """[sequences] what a token more is worth, in tokens: drawing it takes time as well."""

    def _pass(self, rows: float, attended: float) -> float:
        """Seconds of the pass with so many drafted rows, and what they attend to."""
        load = self.load
        return self.costs.pass_(load.rows + rows, load.context, load.attended + attended, load.prompt)

    def plans(self) -> list[Plan]:
        lookups = [name for name in self.drafters if base.method(name).looks_up]
        mains = [name for name in self.drafters if name not in lookups]
        offers = [self._offer(i, mains) for i in range(self.count)]
        depths = self._shared(offers)
        found: list[Plan] = []
        for i, (offer, depth) in enumerate(zip(offers, depths, strict=True)):
            drafting = offer if offer is not None and depth else None
            first: dict[str, Budget] = {}
            rest: dict[str, Budget] = {}
            if drafting is not None:
                rest[drafting.name] = self._budget(drafting.name, i, depth)
                self.owns[i].asleep.pop(drafting.name, None)
                self.owns[i].used.add(drafting.name)
            sleeping = [name for name in mains if drafting is None or name != drafting.name]
            for name in sleeping:
                if self._due(i, name, len(sleeping)):
                    # one that has to be verified is asked before all others: else it might never be
                    probe = self._probe(i)
                    (rest if probe.shadow else first)[name] = probe
                elif self._hears(i, name):
                    rest[name] = NOTHING
            worth = 0.0 if drafting is None else max(drafting.value, 0.0)
            looking = {name: self._look_up(i, name, worth) for name in lookups if self._looks(i, name)}
            found.append({**first, **looking, **rest})
            self._stand(i, found[-1], drafting is None, lookups)
        return found

    def _looks(self, i: int, name: str) -> bool:
        """Whether a look-up is asked."""
        own = self.owns[i]
        own.idle[name] = own.idle.get(name, 0) + 1
        return asked(own.idle[name])

    def _stand(self, i: int, plan: Plan, off: bool, lookups: Seq[str]) -> None:
        """How long this is decided for, of a request that is alone in the pass. off: all that computes is.

        Drafting goes on without what is asked now and then. Off, and hearing of nothing, there is nothing to
        learn or decide before the next look-up, or before somebody hears again.
        """
        own = self.owns[i]
        own.stands, own.plan, steps = 0, {}, STANDS
        if self.load.rows > 1:
            return
        rare = [name for name in lookups if off or not always_asked(own.idle[name])]
        if not off:
            probed = [name for name in own.asleep if plan.get(name, NOTHING) is not NOTHING]
            own.plan = {name: budget for name, budget in plan.items() if name not in (*rare, *probed)}
        elif any(name not in lookups for name in plan):
            return
        else:
            steps = min([steps, *(own.pause[name] - own.asleep[name] - HEARD for name in own.asleep)])
        while own.stands < steps - 1 and not any(asked(own.idle[n] + own.stands + 1) for n in rare):
            own.stands += 1

    def _offer(self, i: int, mains: Seq[str]) -> Offer | None:
        """The best of the drafters that compute, for sequence i."""
        own, sequence, controller = self.owns[i], self.sequences[i], self.controller
        most = min(controller.deepest, sequence.left - 1)
        best = None
        if most <= 0:
            return None
        period = STANDS if self.load.rows == 1 else 1  # steps to the next decision
        for name in mains:
            if name in own.asleep and name not in own.news and own.asleep[name] % RECKONED >= period:
                continue  # nothing was learnt of it, and its worth hardly changes with the pace alone
            own.news.discard(name)
            estimate = controller.estimate(own, name)
            gains = [self.kept[i] * gain for gain in accumulate(estimate.yields(most), mul)]
            reach = estimate.reach(most)
            rows = [r * more for r, more in zip(reach, controller.widths, strict=False)]
            overhead = self.rest[i]
            if name in own.asleep or name not in own.used:
                lag = self.drafters[name].lag(sequence.view_of(name))
                overhead += self.costs.catch_up(name, lag) / max(CATCH_UP, sequence.left // 4)
            left = self.costs.left([name])
            fixed = overhead - (1.0 - left) * self.base / self.load.rows
            value, total, added, levels = -math.inf, 0.0, 0.0, 0.0
            for gain, deep, more in zip(gains, reach, rows, strict=True):
                total += gain
                added += more
                levels += deep
                seconds = left * self.slope * added + self.costs.draft(name, levels)
                value = max(value, total - self.rate * (seconds + fixed))
            if best is None or value > best.value:
                best = Offer(name, gains, reach, rows, value, overhead)
        return best

    def _shared(self, offers: Seq[Offer | None]) -> list[int]:
        """The depth of each sequence's draft. Every total of rows is looked at, the likeliest rows first: the
        time over rows is a staircase, which climbing would get stuck on."""
        rising = [
            (-gain, i, d) for i, offer in enumerate(offers) if offer for d, gain in enumerate(offer.gains)
        ]
        rising.sort()
        count, costs = self.count, self.costs
        depths, best_depths, best = [0] * count, [0] * count, MARGIN * count
        total = rows = attended = 0.0
        besides, left = -self.base, 1.0
        by: list[str | None] = [None] * count
        levels = [0.0] * count
        deepest: dict[str, float] = {}
        drafting: dict[str, int] = {}
        for negative, i, d in rising:
            offer = offers[i]
            assert offer is not None
            more, name = offer.rows[d], offer.name
            total -= negative
            rows += more
            attended += more * self.contexts[i]
            levels[i] += offer.reach[d]
            if d == 0:
                besides += offer.overhead
                by[i] = name
                left = costs.left(by, self.load.rows)
                drafting[name] = drafting.get(name, 0) + 1
            depths[i] = d + 1
            # a level of several drafts is one call: the deepest counts
            deepest[name] = max(deepest.get(name, 0.0), levels[i])
            seconds = left * self._pass(rows, attended) + besides
            for each, deep in deepest.items():
                seconds += costs.draft(each, deep, drafting[each])
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
            stop = self.rate * (level + self.slope) / (next_right * estimate.trust * self.kept[i])
        stop = max(min(stop, HIGHEST), controller.floor)
        return Budget(depth, controller.nodes_at(depth), stop)

    def _look_up(self, i: int, name: str, worth: float) -> Budget:
        """worth: tokens that the drafter behind it is expected to gain."""
        own, controller = self.owns[i], self.controller
        if in_the_dark(own.idle.get(name, 0)):
            return Budget(PROBED, PROBED, controller.floor, shadow=True)
        estimate = controller.estimate(own, name)
        row, kept = self.rate * self.slope, self.kept[i]
        deepest = max(DEEPEST // self.count, 2)  # what several find shares the pass
        if base.method(name).confident:
            # looking costs nothing: a token found is drafted where it is likelier right than its row is
            # worth, and a draft goes before the other drafter's where it is expected to gain more
            trust = estimate.trust * kept
            stop = min(DOUBT * row / trust, HIGHEST)
            nodes = min(estimate.size, deepest)
            least = (worth + self.rate * self.rest[i] + row * nodes) / trust if worth else 0.0
            return Budget(deepest, deepest, max(stop, controller.floor), least)
        total, so_far, depth = -self.rate * self.rest[i], 1.0, 0
        best = max(worth, MARGIN)
        for d, each in enumerate(estimate.yields(deepest)):
            so_far *= each
            total += kept * so_far - row
            if total > best:
                best, depth = total, d + 1
        # what stands in the text was not drawn: it is right as often as it agrees with the text to come
        return Budget(depth, depth) if depth else Budget(PROBED, PROBED, shadow=True)

    def _hears(self, i: int, name: str) -> bool:
        """Whether a drafter that is off hears of the pass: of the last ones before its probe."""
        own = self.owns[i]
        return bool(self.drafters[name].needs.features) and own.asleep[name] + HEARD >= own.pause[name]

    def _due(self, i: int, name: str, sleeping: int) -> bool:
        """Whether a drafter that is off is tried in this step: often enough to notice that it would pay by
        now, rarely enough to cost next to nothing, however many are off."""
        own = self.owns[i]
        own.asleep[name] = asleep = own.asleep.get(name, 0) + 1
        cost = (
            self.costs.draft(name, PROBED) + self.costs.catch_up(name, asleep) + self.costs.hear(name, HEARD)
        )
        usual = int(sleeping * cost / (PROBE * self.plain)) + 1
        pause = own.pause[name] = min(max(own.pause.get(name, 0), usual), usual * RARER)
        if asleep < pause or self.sequences[i].left <= usual:
            return False
        own.asleep[name] = 0
        return True

    def _probe(self, i: int) -> Budget:
        """Under coupled verification a draft can be scored against the text to come, which costs no row.
        Drawn drafts agree with it more rarely than they would be accepted: they are verified."""
        request = self.sequences[i].request
        if request.verify == "coupled" or request.sampling.greedy:
            return Budget(PROBED, self.controller.nodes_at(PROBED), shadow=True)
        return Budget(2, 2)


def mode_of_sequence(sequence: Sequence) -> str:
    return mode_of(sequence.request.sampling, sequence.request.verify)


def asked(idle: int) -> bool:
    """Whether a look-up is asked that nothing came of for so many steps: it costs little, and less then."""
    return idle % _pause(idle) == 0


def in_the_dark(idle: int) -> bool:
    """Whether what it finds, however unsure, is only scored by the text to come: every fourth time. One that
    is thought less of than it deserves finds nothing good enough to be verified, and nobody would know."""
    return idle // _pause(idle) % 4 == 2


def _pause(idle: int) -> int:
    return min(1 + idle // 8, RARELY)


def always_asked(idle: int) -> bool:
    """Whether it is asked in every step as yet."""
    return _pause(idle) == 1
