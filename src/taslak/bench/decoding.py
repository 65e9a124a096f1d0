"""One timed call: some prompts answered together, in one way, from the text to the last token of the last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any
from zlib import crc32

from taslak.bench.grid import Setting
from taslak.bench.padding import Given, padded
from taslak.bench.prompts import BenchPrompt, as_text
from taslak.core.counts import Counts
from taslak.engine.compare import first_difference
from taslak.engine.language_model import LanguageModel
from taslak.engine.scheduler import Scheduler
from taslak.engine.sequence import Answer, Request, Seconds

Clock = Callable[[], float]
"""Seconds."""


@dataclass
class Said:
    """One turn of one answer. emitted: [passes] tokens of each pass; seconds: of the call it was part of."""

    answer: Answer
    seconds: float
    emitted: list[int]


@dataclass
class Call:
    """What one call came to; several turns are added up.

    seconds: wall-clock, encoding and prefill included
    first:   of these, until every prompt had its first tokens
    parts:   seconds of drafting, passes and the rest of steps
    said:    [prompts][turns]
    """

    seconds: float = 0.0
    first: float = 0.0
    parts: Seconds = field(default_factory=Seconds)
    said: list[list[Said]] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(len(turn.answer.ids) for turns in self.said for turn in turns)

    @property
    def counts(self) -> Counts:
        return Counts.total(turn.answer.counts for turns in self.said for turn in turns)

    def ids(self, prompt: int) -> list[list[int]]:
        """[turns] token ids of one answer."""
        return [list(turn.answer.ids) for turn in self.said[prompt]]


class Asked:
    """Prompts as one model is given them: padded, and as plain text where it has no chat template."""

    def __init__(self, model: LanguageModel, prompts: Sequence[BenchPrompt], setting: Setting) -> None:
        self._model = model
        self._prompts = prompts
        self._setting = setting
        self._openings = [self._padded(prompt) for prompt in prompts]

    def _padded(self, prompt: BenchPrompt) -> Given:
        opening = self._given(prompt, prompt.messages([]))
        context = self._setting.context
        if not context:
            return opening
        return padded(opening, context, lambda given: len(self._model.encode(given, prompt.raw)))

    def _given(self, prompt: BenchPrompt, given: Given) -> Given:
        return given if prompt.raw or self._model.tokenizer.has_chat_template else as_text(given)

    def requests(
        self, model: LanguageModel, answers: Sequence[Sequence[str]], speculate: bool
    ) -> list[tuple[int, Request]]:
        """The next turn of every prompt that has one, with its number. answers: [prompts][turns so far]."""
        options: dict[str, Any] = {
            "max_tokens": self._setting.max_tokens,
            "temperature": self._setting.temperature,
            "speculate": speculate,
        }
        found = []
        for number, (prompt, opening, said) in enumerate(
            zip(self._prompts, self._openings, answers, strict=True)
        ):
            if len(said) > len(prompt.turns):
                continue
            given = opening
            if said:
                first = opening if isinstance(opening, str) else tuple(dict(m) for m in opening)
                given = self._given(prompt, replace(prompt, opening=first).messages(said))
            seed = crc32(f"{prompt.id}/{len(said)}".encode())
            (request,) = model.requests(given, raw=prompt.raw, seed=seed, **options)
            found.append((number, request))
        return found


def first_requests(model: LanguageModel, prompts: Sequence[BenchPrompt], **options: Any) -> list[Request]:
    """Each prompt's first answer, seeded by its place. options: as for `generate`."""
    chat = model.tokenizer.has_chat_template
    return [
        request
        for seed, prompt in enumerate(prompts)
        for request in model.requests(
            prompt.opening_for(chat), raw=prompt.raw, seed=seed, task=prompt.task, **options
        )
    ]


def decode(
    model: LanguageModel,
    asked: Asked,
    count: int,
    *,
    speculate: bool,
    clock: Clock = perf_counter,
) -> Call:
    """Answer `count` prompts together, turn after turn."""
    call = Call(said=[[] for _ in range(count)])
    while True:
        began = clock()
        texts = [[turn.answer.text for turn in turns] for turns in call.said]
        requests = asked.requests(model, texts, speculate)
        if not requests:
            return call
        scheduler = Scheduler(model.engine, model.tokenizer)
        numbers = {scheduler.add(request): number for number, request in requests}
        emitted: dict[int, list[int]] = {each: [] for each in numbers}
        answers: dict[int, Answer] = {}
        first = 0.0
        with closing(scheduler.run()) as events:
            for each, event in events:
                if not emitted[each]:
                    first = clock() - began
                if event.tokens:
                    emitted[each].append(len(event.tokens))
                if event.answer is not None:
                    answers[each] = event.answer
        took = clock() - began
        call.seconds += took
        call.first += first
        # a step's seconds are counted for each of its sequences: the one that ran longest has seen them all
        longest = max((answer.seconds for answer in answers.values()), key=lambda seconds: seconds.total)
        call.parts.add(longest)
        for each, number in numbers.items():
            call.said[number].append(Said(answers[each], took, emitted[each]))


def difference(
    model: LanguageModel, asked: Asked, call: Call, prompt: int, plain: Sequence[Sequence[int]]
) -> dict[str, Any] | None:
    """The first place where an answer and plain decoding's part; None where they don't. plain: [turns] ids.

    turn, position: where; plain, speculative: token ids, None where that answer had ended; near_tie: whether
    rounding explains it.
    """
    for turn, (said, ids) in enumerate(zip(call.said[prompt], plain, strict=True)):
        if list(said.answer.ids) == list(ids):
            continue
        before = [[s.answer.text for s in turns[:turn]] for turns in call.said]
        request = dict(asked.requests(model, before, True))[prompt]
        alone = replace(said.answer, ids=tuple(ids))
        found = first_difference(model.target, request, alone, said.answer)
        assert found is not None
        return {
            "turn": turn,
            "position": found.position,
            "plain": found.plain,
            "speculative": found.speculative,
            "near_tie": found.near_tie,
        }
    return None
