"""From finished answers to records: what a language model's listener does."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence

from taslak.control.controller import Controller
from taslak.control.record import Record
from taslak.engine.language_model import LanguageModel
from taslak.engine.sequence import Answer, Request

TYPICAL = 4
"""Depth of the draft that a break-even is reckoned for."""


class Recorder:
    """Makes a record of each drafter's part in an answer and hands it on.

        model.listeners.append(Recorder(model, [history.add, monitor.record]))

    Text is in no record.
    """

    def __init__(
        self,
        model: LanguageModel,
        receivers: Sequence[Callable[[Record], object]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """receivers: called in turn with every record. clock: unix seconds."""
        self._model = model
        self._receivers = receivers
        self._clock = clock

    def __call__(self, request: Request, answer: Answer) -> None:
        """Record an answer; one without a single pass leaves none."""
        number, now = uuid.uuid4().hex, self._clock()
        for method, tally in answer.by.items():
            record = Record(
                ended=now,
                model=self._model.name,
                method=method,
                verify=request.verify,
                gamma=self._model.gamma if request.speculate else 0,
                task=request.task,
                temperature=request.sampling.temperature,
                prompt_tokens=answer.prompt_tokens,
                tokens=tally.counts.emitted,
                counts=tally.counts,
                seconds=tally.seconds,
                speedup=tally.speedup,
                draft_bytes=self._model.draft_bytes_of.get(method, 0),
                request=number,
            )
            for receive in self._receivers:
                receive(record)


def break_even(model: LanguageModel) -> Callable[[str, str], float | None]:
    """For a Monitor: the acceptance rate from which on a method pays, by the costs that the model goes by.
    None for another model, and where its depth is fixed: no costs are known then."""

    def rate(name: str, method: str) -> float | None:
        policy = model.policy
        if name != model.name or not isinstance(policy, Controller) or method not in policy.costs.drafters:
            return None
        return policy.costs.break_even(method, TYPICAL, "greedy") / TYPICAL

    return rate
