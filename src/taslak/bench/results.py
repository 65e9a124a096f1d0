"""What was measured: every call, what passes cost, how far drafter and target agree. JSON in and out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from taslak.bench.grid import Setting, Way
from taslak.core.counts import Counts
from taslak.errors import OptionError

FORMAT = 1
"""Of the file; another one is refused."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """One turn of an answer. emitted: [passes] tokens of each; seconds: of the call it was part of."""

    text: str
    tokens: int
    seconds: float
    emitted: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answered:
    """One prompt's share of a call.

    prompt:      its id
    ids:         [turns][tokens]
    identical:   whether it is plain decoding's answer token by token; None where only the distribution is the
                 same (sampled rejection verification)
    difference:  the first place where they part, see `decoding.difference`
    """

    prompt: str
    task: str
    prompt_tokens: int
    ids: tuple[tuple[int, ...], ...]
    turns: tuple[Spoken, ...]
    identical: bool | None = None
    difference: Mapping[str, Any] | None = None

    @property
    def tokens(self) -> int:
        return sum(turn.tokens for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One call: some prompts answered together in one way.

    series:   number of the round of the grid; plain decoding of the same one is what it is compared with
    round:    which repeat, from 0
    seconds:  wall-clock, encoding and prefill included; first: until every prompt had its first tokens
    draft, passing, other: of the steps
    """

    way: Way
    setting: Setting
    series: int
    round: int
    seconds: float
    first: float
    draft: float
    passing: float
    other: float
    counts: Counts
    answers: tuple[Answered, ...]

    @property
    def tokens(self) -> int:
        return sum(answer.tokens for answer in self.answers)

    @property
    def prompts(self) -> tuple[str, ...]:
        return tuple(answer.prompt for answer in self.answers)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Measurement:
        """Raises KeyError, TypeError or ValueError for anything that `asdict` didn't give."""
        answers = tuple(
            Answered(
                **{
                    **answer,
                    "ids": tuple(tuple(turn) for turn in answer["ids"]),
                    "turns": tuple(
                        Spoken(**{**turn, "emitted": tuple(turn["emitted"])}) for turn in answer["turns"]
                    ),
                }
            )
            for answer in values["answers"]
        )
        return cls(
            **{
                **values,
                "way": Way(**values["way"]),
                "setting": Setting(**values["setting"]),
                "counts": Counts(**values["counts"]),
                "answers": answers,
            }
        )


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far a drafter and the target agree, over `places` of the target's own answers (see `why`).

    overlap:  mean of 1 − TV(p, q), the chance that q's token survives rejection verification; at temperature
              0 how often both choose the same token
    top1:     how often both have the same likeliest token
    kl:       mean KL(p‖q) in nats, None at temperature 0
    outside:  mean share of p that the drafter can't say at all, None at temperature 0
    """

    drafter: str
    task: str
    temperature: float
    places: int
    overlap: float
    top1: float
    kl: float | None
    outside: float | None


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Seconds of a pass over so many rows of one sequence behind `context` tokens: medians."""

    context: int
    rows: tuple[int, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Results:
    """about: model, dtype, verification, machine, versions, date, settings; draft_bytes: by method."""

    about: Mapping[str, Any]
    measurements: tuple[Measurement, ...]
    passes: PassTimes | None = None
    agreements: tuple[Agreement, ...] = ()
    draft_bytes: Mapping[str, int] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        text = json.dumps({"format": FORMAT, **asdict(self)}, ensure_ascii=False, allow_nan=False)
        partial = path.with_name(f"{path.name}.partial")
        partial.write_text(text + "\n", encoding="utf-8")
        partial.replace(path)

    @classmethod
    def read(cls, path: Path) -> Results:
        """Raises OptionError for a file that `write` didn't make."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            if values.pop("format") != FORMAT:
                raise ValueError("another format")
            passes = values["passes"]
            return cls(
                values["about"],
                tuple(Measurement.from_json(each) for each in values["measurements"]),
                None if passes is None else PassTimes(**{k: _frozen(v) for k, v in passes.items()}),
                tuple(Agreement(**each) for each in values["agreements"]),
                values["draft_bytes"],
            )
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise OptionError(f"{path} holds no results of `taslak bench`: {error}") from error


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
