"""What the heads that come with taslak are trained on: prompts, and what follows from their answers.

    mix="python benchmarks/training/mix.py"
    answer="taslak train eagle --temperature 0 --temperature 0.8 --shard 0/1"
    $mix split training-prompts.jsonl --out FOLDER
    $answer --prompts FOLDER/prompts.jsonl --out FOLDER/first
    $mix follow FOLDER
    $answer --prompts FOLDER/more.jsonl --out FOLDER/second

`split` keeps 75 prompts of each category out for evaluation (held_out.jsonl beside this script, with source
and licence of each) and everything that asks the same out of training. `follow` makes second turns from the
first answers, and texts that are continued without a chat template: openings of answered code, of Python's
own library and of prompts, so that a head isn't tuned to one template.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from taslak.models.loading import DEFAULT_PACK
from taslak.models.pretrained import load_pretrained
from taslak.training.answers import Answers

Row = dict[str, Any]

HELD_OUT = Path(__file__).with_name("held_out.jsonl")
EACH = 75
"""Prompts held out of each category."""

SECOND_TURNS, CODE, LIBRARY, PROSE = 1600, 700, 700, 400
LONGEST_TURN = 200
"""Tokens of a first answer that a second turn follows."""
OPENING = 700
"""Characters of a file of the library that are continued."""

FOLLOW_UPS = {
    "code": (
        "Add error handling to it.",
        "Explain it line by line.",
        "Now write a few tests for it.",
        "Can you do the same in JavaScript?",
        "Rewrite it as a class.",
        "Make it shorter.",
        "Add comments and a docstring.",
        "What is its time complexity, and can it be faster?",
        "Rename the variables to something clearer and show the whole code again.",
        "Show an example of how to call it and what it prints.",
    ),
    "math": (
        "Explain the second step again.",
        "What would the answer be if every number were doubled?",
        "Check the answer another way.",
        "Write it as one equation.",
        "Make up a similar problem and solve it.",
        "Write a Python function that solves this kind of problem.",
    ),
    "chat": (
        "Tell me more about that.",
        "Say the same in two sentences.",
        "Go on.",
        "What happened next?",
        "Write it as a dialogue.",
        "Now from the point of view of somebody else.",
        "Give me five other ideas.",
    ),
    "instruct": (
        "Give another example.",
        "Make it more formal.",
        "Summarise that in one sentence.",
        "Put it in a table.",
        "Why?",
        "Make a list of the main points.",
    ),
}


def split(data: Path, out: Path) -> None:
    rows = [json.loads(line) for line in data.read_text(encoding="utf-8").splitlines() if line.strip()]
    kept: dict[str, list[Row]] = {}
    for row in sorted(rows, key=_lot):
        chosen = kept.setdefault(row["category"], [])
        if len(chosen) < EACH and all(_asked(row) != _asked(other) for other in chosen):
            chosen.append(row)
    evaluation = sorted((row for chosen in kept.values() for row in chosen), key=lambda row: int(row["id"]))
    _write(HELD_OUT, evaluation)
    asked = {_asked(row) for row in evaluation}
    training = [row for row in rows if _asked(row) not in asked]
    random.Random(0).shuffle(training)  # so that any part of the file is a fair sample
    out.mkdir(parents=True, exist_ok=True)
    _write(out / "prompts.jsonl", training)
    same = len(rows) - len(evaluation) - len(training)
    print(f"{len(evaluation)} held out, {same} that ask the same left out")


def follow(out: Path) -> None:
    rows = [json.loads(line) for line in (out / "prompts.jsonl").read_text(encoding="utf-8").splitlines()]
    tokenizer = load_pretrained(DEFAULT_PACK).tokenizer
    answered = [
        (rows[answer.index], tokenizer.decode(answer.answer), answer)
        for file in sorted((out / "first" / "work").glob("answers*.jsonl"))
        for answer in Answers(file).read()
    ]
    turn = random.Random(1)
    turn.shuffle(answered)
    short = [(row, text) for row, text, a in answered if a.finish == "stop" and len(a.answer) <= LONGEST_TURN]
    more = [_second_turn(row, text, turn, rows) for row, text in short[:SECOND_TURNS]]
    blocks = [block for _, text, _ in answered for block in re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)]
    more += [_raw(_first_lines(block, turn)) for block in blocks if block.count("\n") >= 6][:CODE]
    library = list(_library(turn))
    more += [_raw(text) for text in library[:LIBRARY]]
    prose = [row["prompt"] for row in rows if row["category"] in ("chat", "instruct")]
    more += [_raw(text) for text in turn.sample(prose, min(PROSE, len(prose)))]
    turn.shuffle(more)
    _write(out / "more.jsonl", more)
    print(f"{len(more)} prompts, {sum('messages' in row for row in more)} of them second turns")


def _second_turn(row: Row, answer: str, turn: random.Random, rows: list[Row]) -> Row:
    """A question about the answer, or every third time another one of the same category."""
    if turn.random() < 1 / 3:
        others = [other for other in turn.sample(rows, 64) if other["category"] == row["category"]]
        asks = others[0]["prompt"] if others else "Go on."
    else:
        asks = turn.choice(FOLLOW_UPS[row["category"]])
    said = (("user", row["prompt"]), ("assistant", answer.strip() or "…"), ("user", asks))
    return {"messages": [{"role": role, "content": content} for role, content in said]}


def _first_lines(block: str, turn: random.Random) -> str:
    lines = block.splitlines(keepends=True)
    return "".join(lines[: max(2, round(len(lines) * turn.uniform(0.25, 0.6)))])


def _library(turn: random.Random) -> Iterator[str]:
    """Pieces of Python's own modules, each from the beginning of a line on."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    files += sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-z]*/[a-z]*.py"))
    files = [file for file in files if "site-packages" not in file.parts and "test" not in file.parts]
    turn.shuffle(files)
    for file in files:
        text = file.read_text(encoding="utf-8", errors="ignore")
        if len(text) > 2 * OPENING:
            start = text.find("\n", turn.randrange(len(text) - OPENING)) + 1
            if (piece := text[start : start + OPENING]).strip():
                yield piece


def _raw(text: str) -> Row:
    return {"prompt": text, "raw": True}


def _asked(row: Row) -> str:
    """The prompt without what makes two of them differ in nothing but looks."""
    return " ".join(re.findall(r"\w+", row["prompt"].lower()))


def _lot(row: Row) -> str:
    """An order that has nothing to do with that of the file."""
    return hashlib.sha256(f"held out {row['id']}".encode()).hexdigest()


def _write(path: Path, rows: list[Row]) -> None:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(dest="step", required=True)
    first = steps.add_parser("split")
    first.add_argument("data", type=Path)
    first.add_argument("--out", type=Path, required=True)
    second = steps.add_parser("follow")
    second.add_argument("out", type=Path)
    given = parser.parse_args()
    if given.step == "split":
        split(given.data, given.out)
    else:
        follow(given.out)


if __name__ == "__main__":
    main()
