"""What a trained head is worth: real decoding of the held-out prompts, with it and without.

Two kinds of figures. Those of decoding count the places where a pass began. The accuracy at *every* place of
the target's own text is what training sees too: the two must agree, or the head reads other features than it
was trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from taslak.core.counts import Counts
from taslak.core.draft import Draft
from taslak.drafters.aside import Aside
from taslak.drafters.base import Drafter, View
from taslak.engine import LanguageModel
from taslak.engine.policy import FixedGamma
from taslak.engine.scheduler import Scheduler
from taslak.engine.sequence import Answer, Request
from taslak.engine.step import Engine
from taslak.models.loading import Progress

NEAR_ZERO = 0.05
"""An acceptance at depth 1 that no trained head should have."""

APART = 0.05
"""Accuracies in training and in decoding further apart than this come from different features."""


@dataclass
class Evaluation:
    """Over `prompts` answers of `tokens` tokens, greedy.

    hazards:    a_d of decoding, d = 1, 2, …
    everywhere: the same over every place of the texts
    training:   depth-1 accuracy over the held-out texts, from the stored features
    identical:  answers that equal plain decoding's
    """

    method: str
    gamma: int
    prompts: int
    tokens: int
    tau: float | None
    acceptance_rate: float | None
    hazards: list[float]
    everywhere: list[float]
    training: float | None
    plain_tokens_per_second: float
    tokens_per_second: float
    identical: int
    warnings: list[str] = field(default_factory=list)

    @property
    def speedup(self) -> float:
        return self.tokens_per_second / self.plain_tokens_per_second

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "speedup": self.speedup}


class Shadow(Aside):
    """Each draft is compared with what the target, decoding plainly, then says."""

    def __init__(self, drafter: Drafter, depth: int) -> None:
        super().__init__(drafter, depth)
        self._drafts: list[tuple[list[int], int, Draft]] = []

    def made(self, view: View, draft: Draft) -> None:
        if len(view.tokens) > view.prompt_length:  # as in training, see Batch.answered
            self._drafts.append((view.tokens, len(view.tokens), draft))

    def hazards(self) -> list[float]:
        """By depth: how often the token was right, the ones before it being right. Places past the text's end
        are in no count."""
        right, asked = [0] * self._depth, [0] * self._depth
        for tokens, at, draft in self._drafts:
            for depth, token in enumerate(draft.tokens[: len(tokens) - at]):
                asked[depth] += 1
                if token != tokens[at + depth]:
                    break
                right[depth] += 1
        return [r / a for r, a in zip(right, asked, strict=True) if a]


def evaluate(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int = 128,
    training: float | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Decode each prompt with speculation, without, and with the drafts compared only; one at a time.

    model:    with one drafter, of fixed depth
    training: depth-1 accuracy that the features gave, compared with the accuracy everywhere
    """
    ((name, drafter),) = model.engine.drafters.items()
    gamma = model.gamma
    assert gamma is not None
    shadow = Shadow(drafter, gamma)
    watching = Engine(model.target, {name: shadow}, FixedGamma(gamma))
    counts = Counts()
    seconds = {True: 0.0, False: 0.0}
    tokens = {True: 0, False: 0}
    identical = 0
    for number, prompt in enumerate(prompts):
        if progress is not None:
            progress("decoding held-out prompts", number, len(prompts))
        answers = {how: _decode(model, model.engine, prompt, max_tokens, how) for how in (True, False)}
        _decode(model, watching, prompt, max_tokens, True)
        for how, answer in answers.items():
            seconds[how] += answer.seconds.total
            tokens[how] += len(answer.ids)
        counts.add(answers[True].counts)
        identical += answers[True].ids == answers[False].ids
    result = Evaluation(
        method=model.method,
        gamma=gamma,
        prompts=len(prompts),
        tokens=tokens[True],
        tau=counts.tau,
        acceptance_rate=counts.acceptance_rate,
        hazards=counts.hazards,
        everywhere=shadow.hazards(),
        training=training,
        plain_tokens_per_second=tokens[False] / seconds[False],
        tokens_per_second=tokens[True] / seconds[True],
        identical=identical,
    )
    result.warnings = warnings_of(result)
    if progress is not None:
        progress("decoding held-out prompts", len(prompts), len(prompts))
    return result


def warnings_of(result: Evaluation) -> list[str]:
    """What in the figures says that something is wrong, not merely weak."""
    found = []
    first = result.everywhere[0] if result.everywhere else 0.0
    if first < NEAR_ZERO:
        found.append(
            f"almost no draft is right: {first:.3f} of the first drafted tokens; the head is hardly trained, "
            "or made for another target"
        )
    if result.training is not None and abs(result.training - first) > APART:
        found.append(
            f"depth-1 accuracy is {result.training:.3f} over stored features and {first:.3f} in decoding: "
            "the head reads other features than it was trained on (layer ids, another model or dtype?)"
        )
    return found


def _decode(
    model: LanguageModel, engine: Engine, prompt: Sequence[int], max_tokens: int, speculate: bool
) -> Answer:
    eos = [token for token in model.tokenizer.eos_ids if token < model.target.vocab_size]
    scheduler = Scheduler(engine, model.tokenizer)
    scheduler.add(Request(prompt, max_tokens=max_tokens, eos=eos, seed=0, speculate=speculate))
    answer = None
    for _, event in scheduler.run():
        answer = event.answer
    assert answer is not None
    return answer
