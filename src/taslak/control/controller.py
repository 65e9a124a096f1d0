"""How much to draft, step by step: what drafts are worth against what they cost, jointly over the batch.

A step maximises Σ expected tokens − λ · seconds(pass + drafts), λ = tokens a second as things go. (The best
ratio of a single step is another goal: it drafts too much where text is hard.) The empty draft is always
among the choices, and λ is at least plain decoding's rate, so whatever is drafted is expected to beat that.

Which text comes out never depends on any of this: under coupled verification no token depends on the draft,
under rejection the distribution doesn't.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from itertools import pairwise
from weakref import WeakKeyDictionary

from taslak.control.costs import Costs
from taslak.control.decision import Decision, Own, Shadow, mode_of_sequence
from taslak.control.estimate import DEEPEST, Estimate, Prior, start
from taslak.control.experience import Experience, experience
from taslak.control.history import History
from taslak.control.measure import Calibration
from taslak.drafters import base
from taslak.drafters.base import Drafter
from taslak.engine.language_model import LanguageModel
from taslak.engine.sequence import Sequence
from taslak.engine.turn import Load, Plan, Step, Turn

GAMMA = 8
"""Deepest draft of a drafter that computes."""
LOOKS, SAMPLED = 8, 5
"""Of a request that decodes alone the time of its first so many steps is looked at, then of every so
many-th: a step is like the next, and looking takes time as well. No multiple or part of the steps from one
decision to the next: else all that are looked at would be such that decide, or none."""
LOST = 3
"""Levels of a draft that may be wrong before what was decided is decided anew."""
RECENT = 0.06
"""Weight of a step that is looked at in a request's own tokens a second."""


class Controller:
    """The engine's policy that decides by itself. One for a model; what it learns of a request it forgets
    with it. What it learns of the machine goes into `costs`.

    costs:      what steps cost
    priors:     by drafter, what a request starts from, by `drawn` and `hot` of it where that isn't greedy
    tasks:      by task, what its requests start from instead
    keep:       called whenever a request is over: what `costs` have come to may be kept now
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
        tasks: Mapping[str, Mapping[str, Prior]] | None = None,
        keep: Callable[[], None] | None = None,
    ) -> None:
        self.costs = costs
        self.priors = dict(priors or {})
        self.tasks = dict(tasks or {})
        self.keep = keep
        self._branch = branch
        self._nodes = nodes
        self.floor = stop_below or 0.0
        self.deepest = deepest
        wide = [0, *(self.nodes_at(depth + 1) for depth in range(deepest))]
        self.widths = [after - before for before, after in pairwise(wide)]
        """[deepest] nodes that a draft may have more for one more level."""
        self._own: WeakKeyDictionary[Sequence, Own] = WeakKeyDictionary()

    @property
    def max_nodes(self) -> int:
        return max(DEEPEST, self.nodes_at(self.deepest))

    def nodes_at(self, depth: int) -> int:
        nodes = depth * self._branch
        return nodes if self._nodes is None else max(min(nodes, self._nodes), depth)

    def plans(self, sequences: Seq[Sequence], drafters: Mapping[str, Drafter], load: Load) -> list[Plan]:
        """See Policy."""
        if load.rows == 1:
            own = self.own(sequences[0])
            if own.stands > 0 and own.plan.keys() <= drafters.keys():  # these may have been changed meanwhile
                return [own.again()]
        return Decision(self, sequences, drafters, load).plans()

    def own(self, sequence: Sequence) -> Own:
        """What is known of a request."""
        found = self._own.get(sequence)
        if found is None:
            request = sequence.request
            found = self._own[sequence] = Own(request.sampling.temperature, request.task)
        return found

    def estimate(self, own: Own, name: str) -> Estimate:
        found = own.estimates.get(name)
        if found is None:
            priors = self.tasks.get(own.task, self.priors)
            found = own.estimates[name] = Estimate(start(priors, name, own.temperature))
        return found

    def record(self, step: Step) -> None:
        """See Policy."""
        turns = [turn for turn in step.decided if turn.sequence.request.speculate]
        for turn in turns:
            self._learn(turn)
        if not turns:
            return
        load, weight = step.load, 1
        if load.rows == 1:
            own = self.own(turns[0].sequence)
            own.unseen += 1
            weight = 1 if own.looks < LOOKS else SAMPLED
            if own.unseen < weight:
                return
            own.looks, own.unseen = own.looks + 1, 0
        costs, count = self.costs, len(step.decided)
        modes = [mode_of_sequence(turn.sequence) for turn in step.decided]
        drafted = [turn.by if turn.draft else None for turn in step.decided]
        rows = step.rows
        left = costs.left(drafted, load.rows)
        attended = load.attended + (rows - load.rows) * load.context / len(step.turns)
        passing = left * costs.pass_(rows, load.context, attended, load.prompt)
        levels = {name: max(_depth(turn, name) for turn in turns) for name in step.drafting}
        asked = {name: sum(_depth(turn, name) > 0 for turn in turns) for name in step.drafting}
        drafting = sum(costs.draft(name, levels[name], max(asked[name], 1)) for name in levels)
        rest = sum(
            costs.rest_of(mode, by is not None, turn.visited)
            for mode, by, turn in zip(modes, drafted, step.decided, strict=True)
        )
        expected = passing + drafting + rest
        plain = costs.pass_(load.rows, load.context, load.attended, load.prompt)
        plain += sum(costs.rest_of(mode, False) for mode in modes)
        took = step.passing + step.other + sum(step.drafting.values())
        for turn in turns:
            if turn.take > 1:
                continue  # the time its own prompt takes says nothing of its pace
            own = self.own(turn.sequence)
            known = own.rate or 1.0 / plain
            own.rate = known + RECENT * (turn.visited / expected - known)
            if not load.prompt:
                tally = turn.sequence.tally(turn.by)
                tally.plain += weight * turn.visited * plain / count
                tally.took += weight * took / count
        if left == 1.0:
            costs.saw_pass(rows, passing, step.passing, load.prompt)
        elif count == 1 and drafted[0] is not None and not load.prompt:
            costs.saw_part(drafted[0], passing, step.passing)
        if all(turn.take == 1 for turn in turns):  # else drafters have caught up with a prompt
            for name, seconds in step.drafting.items():
                if levels[name]:
                    costs.saw_draft(name, levels[name], seconds, asked[name])
        if not load.prompt and len(set(modes)) == 1 and (all(drafted) or not any(drafted)):
            visited = sum(turn.visited for turn in step.decided) / count
            costs.saw_rest(modes[0], drafted[0] is not None, step.other / count, visited)

    def _learn(self, turn: Turn) -> None:
        own = self.own(turn.sequence)
        for name, budget in turn.plan.items():
            if turn.draft and name == turn.by:
                accepted = len(turn.path)
                self.estimate(own, name).record(turn.draft, budget.depth, accepted, not turn.bonus)
                if turn.draft.depth - accepted > LOST or name not in own.plan:
                    own.stands = 0
                if accepted:
                    own.idle.pop(name, None)
                if name in own.asleep:
                    own.tried(name, accepted > 0)
            elif not budget.shadow and base.method(name).looks_up:
                self.estimate(own, name).fade()
        tokens = turn.sequence.tokens
        at = len(tokens) - turn.visited
        for name, draft in turn.shadows.items():
            own.shadows.append(Shadow(name, draft, at, turn.plan[name].depth))
        if own.shadows:
            due = [s for s in own.shadows if len(tokens) >= s.at + s.draft.depth]
            own.shadows = [s for s in own.shadows if len(tokens) < s.at + s.draft.depth]
            for shadow in due:
                right = shadow.draft.agreement(tokens[shadow.at :])
                if shadow.draft:
                    self.estimate(own, shadow.name).record(shadow.draft, shadow.allowed, right, False)
                own.tried(shadow.name, right > 0)
                if right:
                    own.stands = 0
                    own.idle.pop(shadow.name, None)

    def forget(self, sequence: Sequence) -> None:
        """See Policy."""
        self._own.pop(sequence, None)
        if self.keep is not None:
            self.keep()


def controller(
    model: LanguageModel,
    known: Calibration,
    stop_below: float | None = None,
    *,
    history: History | None = None,
    keep: Callable[[], None] | None = None,
) -> Controller:
    """For a model, from what was measured of it and what a history says of it, which is read here and never
    again. stop_below, keep: see Controller."""
    past = Experience(known.priors) if history is None else experience(model, known.priors, history)
    return Controller(
        known.costs,
        past.priors,
        branch=model.branch,
        nodes=model.nodes,
        stop_below=stop_below,
        tasks=past.tasks,
        keep=keep,
    )


def _depth(turn: Turn, name: str) -> int:
    """Levels that a drafter drafted for this turn."""
    if turn.by == name and turn.draft:
        return turn.draft.depth
    return turn.shadows[name].depth if name in turn.shadows else 0
