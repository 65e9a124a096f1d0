"""What past requests say of a drafter, for new ones to start from: hazards out of the history, by task.

A request still learns for itself and forgets what it started from (`estimate`). What a history teaches is
read once, before the first request: no request of a run changes what another one of it starts from.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from taslak.control.estimate import DEEPEST, WARM, Prior, drawn, start
from taslak.control.history import History
from taslak.control.record import Record
from taslak.core.sampling import GREEDY_BELOW
from taslak.engine.language_model import LanguageModel
from taslak.errors import UserError

log = logging.getLogger(__name__)

DAY = 86400.0
HALF_LIFE = 14 * DAY
"""A record so old counts for half of one of now."""
OLDEST = 90 * DAY
LEAST = 4.0
"""Requests, as they count, of which something is believed."""
WEIGHT = 64.0
"""Drafts that what was thought before counts for."""
MOST = 32.0
"""A request's drafts are alike: however many, they say no more than so many of as many requests would."""


@dataclass(frozen=True, slots=True)
class Experience:
    """What requests start from, as `Controller.priors`: by task where there is enough of it, else all."""

    priors: Mapping[str, Prior] = field(default_factory=dict)
    tasks: Mapping[str, Mapping[str, Prior]] = field(default_factory=dict)


@dataclass(slots=True)
class _Seen:
    """requests: as they count; offered, accepted: [depth] drafts, as they count"""

    requests: float = 0.0
    offered: list[float] = field(default_factory=lambda: [0.0] * DEEPEST)
    accepted: list[float] = field(default_factory=lambda: [0.0] * DEEPEST)

    def add(self, record: Record, weight: float) -> None:
        offered, accepted = record.counts.offered_at, record.counts.accepted_at
        self.requests += weight * record.requests
        weight *= min(MOST * record.requests / offered[0], 1.0)
        for depth, (asked, got) in enumerate(zip(offered[:DEEPEST], accepted, strict=False)):
            self.offered[depth] += weight * asked
            self.accepted[depth] += weight * got

    def moves(self, prior: Prior) -> Prior:
        """The prior with hazards between its own and these, by how many there are. Counts don't tell whether
        a draft that was no deeper ended or had to: drafts are thought to go as deep as the prior says, or
        deeper where they have."""
        if self.requests < LEAST:
            return prior
        known = max((d + 1 for d, asked in enumerate(self.offered) if asked), default=0)
        yields: list[float] = []
        reach: list[float] = []
        for d in range(max(known, len(prior.yields), len(prior.reach))):
            own, goes = _at(prior.yields, d), 1.0
            if d:
                before = _at(prior.reach, d - 1)
                goes = min(_at(prior.reach, d) / before, 1.0) if before > 0.0 else 0.0
            hazard = min(own / goes, 1.0) if goes > 0.0 else own
            hazard = (self.accepted[d] + WEIGHT * hazard) / (self.offered[d] + WEIGHT)
            if d:
                went = (self.offered[d] + WEIGHT * goes) / (self.accepted[d - 1] + WEIGHT)
                goes = min(max(goes, went), 1.0)
            yields.append(hazard * goes)
            reach.append(goes * reach[-1] if reach else _at(prior.reach, 0))
        return Prior(tuple(yields), tuple(reach), prior.trust)


def learnt(
    records: Iterable[Record],
    priors: Mapping[str, Prior],
    *,
    verify: str,
    draft_bytes: Mapping[str, int],
    now: float,
) -> Experience:
    """priors: what a calibration says; all that the records don't tell stays so.

    verify:      a drawn draft's acceptance depends on the rule: those of another one say nothing
    draft_bytes: by drafter of the model, what it needs beside the target. Records of another size are of
                 another drafter
    now:         unix seconds
    """
    seen: dict[tuple[str | None, str, bool], _Seen] = {}
    for record in records:
        greedy = record.temperature < GREEDY_BELOW
        if record.method not in draft_bytes or record.draft_bytes != draft_bytes[record.method]:
            continue
        if not record.counts.offered_at or not (greedy or record.verify == verify):
            continue
        weight = 0.5 ** (max(now - record.ended, 0.0) / HALF_LIFE)
        for task in {None, record.task or None}:
            seen.setdefault((task, record.method, greedy), _Seen()).add(record, weight)
    found = dict(priors)
    for (task, name, greedy), each in seen.items():
        if task is None:
            found[name if greedy else drawn(name)] = each.moves(start(priors, name, 0.0 if greedy else WARM))
    tasks: dict[str, dict[str, Prior]] = {}
    for (task, name, greedy), each in seen.items():
        if task is not None and each.requests >= LEAST:
            own = tasks.setdefault(task, dict(found))
            own[name if greedy else drawn(name)] = each.moves(start(found, name, 0.0 if greedy else WARM))
    return Experience(found, tasks)


def experience(
    model: LanguageModel, priors: Mapping[str, Prior], history: History, now: float | None = None
) -> Experience:
    """What a history says of a model's drafters. Never raises: where it can't be read, that is told in a
    warning and the priors are what they were. now: unix seconds, None = by the clock."""
    now = time.time() if now is None else now
    bytes_of = {name: model.draft_bytes_of.get(name, 0) for name in model.engine.drafters}
    try:
        records = history.select(now - OLDEST, model=model.name)
    except UserError as error:
        log.warning("requests start from what was measured alone: %s", error)
        records = []
    return learnt(records, priors, verify=model.verify, draft_bytes=bytes_of, now=now)


def _at(values: Sequence[float], depth: int) -> float:
    return values[min(depth, len(values) - 1)]
