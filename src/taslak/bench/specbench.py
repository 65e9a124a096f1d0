"""Spec-Bench's answer format (Xia et al. 2024): one JSON line a question, as its evaluation scripts read it.

    question_id, category, answer_id, model_id, tstamp
    choices: [{index, turns, decoding_steps, new_tokens, wall_time, accept_lengths}]

`turns` are the answers' texts; `decoding_steps`, `new_tokens` and `wall_time` (seconds) have an entry a turn;
`accept_lengths` lists the tokens of every pass, bonus included, of all turns one after the other.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from taslak.bench.grid import Way
from taslak.bench.log import digest
from taslak.bench.results import Answered, Results
from taslak.errors import OptionError


def write(results: Results, path: Path, way: Way) -> int:
    """Answers of one way under the base setting, first repeat. -> how many.

    Raises OptionError where the prompts were answered in batches, whose wall-clock is nobody's own, and where
    this way was not run.
    """
    answers = _answers(results, way)
    model = f"{results.about['model']}-{way.name}"
    now = time.time()
    lines = [json.dumps(answer_row(answer, model, now), ensure_ascii=False) for answer in answers]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return len(lines)


def answer_row(answer: Answered, model_id: str, tstamp: float) -> dict[str, Any]:
    """One line. A question's number stays a number."""
    return {
        "question_id": int(answer.prompt) if answer.prompt.isdecimal() else answer.prompt,
        "category": answer.task,
        "answer_id": digest(answer.prompt, model_id, answer.ids)[:22],
        "model_id": model_id,
        "choices": [
            {
                "index": 0,
                "turns": [turn.text for turn in answer.turns],
                "decoding_steps": [len(turn.emitted) for turn in answer.turns],
                "new_tokens": [turn.tokens for turn in answer.turns],
                "wall_time": [turn.seconds for turn in answer.turns],
                "accept_lengths": [count for turn in answer.turns for count in turn.emitted],
            }
        ],
        "tstamp": tstamp,
    }


def tokens_per_second(rows: Sequence[Mapping[str, Any]]) -> float:
    """As Spec-Bench reckons it: the mean over questions of new tokens over wall time."""
    choices = [row["choices"][0] for row in rows]
    return float(mean(sum(choice["new_tokens"]) / sum(choice["wall_time"]) for choice in choices))


def _answers(results: Results, way: Way) -> list[Answered]:
    first = results.measurements[0]
    if first.setting.batch != 1:
        raise OptionError(
            f"Spec-Bench's format needs a wall-clock for each question, and batch is {first.setting.batch}; "
            "let --batch begin with 1"
        )
    found = [
        made.answers[0]
        for made in results.measurements
        if (made.way, made.setting, made.series, made.round) == (way, first.setting, first.series, 0)
    ]
    if not found:
        ways = dict.fromkeys(made.way.name for made in results.measurements if made.series == first.series)
        raise OptionError(f"{way.name} was not run over every prompt; expected one of {', '.join(ways)}")
    return found
