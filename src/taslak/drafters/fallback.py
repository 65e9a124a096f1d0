"""Look-up first, the draft model where the look-up finds nothing.

A look-up costs microseconds and is right where the text repeats itself; a draft model costs passes of its
own and is right about the rest. Knows nothing about how either of them drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from taslak.core.draft import Draft
from taslak.drafters.base import Budget, Drafter, DrafterOptions, Needs, Report, View, build, register
from taslak.errors import OptionError
from taslak.models.target import Target

_SHARED = tuple(field.name for field in fields(View) if field.name != "state")


@dataclass(frozen=True, slots=True)
class Parts:
    """What the fallback keeps of one sequence: a view of it for each part, which holds that part's state."""

    lookup: View
    model: View


class Fallback:
    """Proposes what `lookup` finds, and what `model` drafts where that is nothing.

    Who proposes depends on committed tokens alone, never on a drawn one, so a drawn draft's q stays exact.
    """

    def __init__(self, lookup: Drafter, model: Drafter) -> None:
        self.lookup = lookup
        self.model = model
        self.watch = None
        self.needs = Needs(
            features=tuple(dict.fromkeys(lookup.needs.features + model.needs.features)),
            exit_layer=model.needs.exit_layer if lookup.needs.exit_layer is None else lookup.needs.exit_layer,
        )

    def propose(self, views: Sequence[View], budgets: Sequence[Budget]) -> list[Draft]:
        """One draft a view; the model is called at most once, for all the views that need it."""
        parts = [self._parts(view) for view in views]
        drafts = self.lookup.propose([part.lookup for part in parts], budgets)
        rest = [
            i for i, draft in enumerate(drafts) if not draft and min(budgets[i].depth, budgets[i].nodes) > 0
        ]
        if rest:
            drafted = self.model.propose([parts[i].model for i in rest], [budgets[i] for i in rest])
            for i, draft in zip(rest, drafted, strict=True):
                drafts[i] = draft
        return drafts

    def observe(self, views: Sequence[View], reports: Sequence[Report]) -> None:
        """Both parts hear of every pass."""
        parts = [self._parts(view) for view in views]
        self.lookup.observe([part.lookup for part in parts], reports)
        self.model.observe([part.model for part in parts], reports)

    def lag(self, view: View) -> int:
        """The larger of both parts' lags: the model's is due only where the look-up finds nothing."""
        parts = self._parts(view)
        return max(self.lookup.lag(parts.lookup), self.model.lag(parts.model))

    def forget(self, view: View) -> None:
        """Both parts free what they keep."""
        if isinstance(view.state, Parts):
            parts = self._parts(view)
            self.lookup.forget(parts.lookup)
            self.model.forget(parts.model)
        view.state = None

    def _parts(self, view: View) -> Parts:
        """The parts' views, brought in step with the outer one."""
        if not isinstance(view.state, Parts):
            view.state = Parts(lookup=replace(view, state=None), model=replace(view, state=None))
        parts: Parts = view.state
        for part in (parts.lookup, parts.model):
            for name in _SHARED:
                setattr(part, name, getattr(view, name))
        return parts


@register("fallback", needs_draft=True, looks_up=True)
def _fallback(target: Target, options: DrafterOptions) -> Drafter:
    """Raises OptionError without a draft model."""
    if options.draft is None:
        raise OptionError("method 'fallback' needs a draft model and got none; name one with --draft")
    return Fallback(build(options.lookup, target, options), build("draft-model", target, options))
