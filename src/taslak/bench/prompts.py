"""What a benchmark asks: the task suite that comes with taslak, Spec-Bench's questions, a file of one's own.

Knows nothing about models. The suite's text was written for it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from taslak.engine.prompts import prompt_of, read_prompts, rows
from taslak.errors import OptionError, PromptError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SUITE = Path(__file__).parent / "suite"
"""A TOML file a task."""

UNNAMED = "other"
"""The task of a prompt without a label."""

_LABELS = ("task", "category", "label")
_NAMES = ("id", "question_id")


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One conversation.

    id:        unique in a run; what results are kept under
    task:      its label
    language:  as the file has it; "" where it says nothing
    opening:   text, or chat messages of {"role", "content"}, up to the first answer
    turns:     what the user says after each answer of the model's own; empty for a single answer
    raw:       the text is continued as it is, without a chat template
    """

    id: str
    task: str
    language: str
    opening: str | tuple[dict[str, str], ...]
    turns: tuple[str, ...] = ()
    raw: bool = False

    def messages(self, answers: Sequence[str]) -> str | list[dict[str, str]]:
        """What the model is given after so many answers of its own: as `LanguageModel.generate` takes it."""
        if not answers:
            return self.opening if isinstance(self.opening, str) else list(self.opening)
        said = [{"role": "user", "content": self.opening}] if isinstance(self.opening, str) else self.opening
        after = zip(answers, self.turns, strict=False)
        return [*said, *(message for answer, turn in after for message in _exchange(answer, turn))]

    def opening_for(self, chat: bool) -> str | list[dict[str, str]]:
        """What comes before the first answer. chat: whether the model has a template for messages."""
        given = self.messages([])
        return given if chat or self.raw else as_text(given)


def as_text(messages: str | Sequence[Mapping[str, str]]) -> str:
    """Messages as plain text, for models without a chat template."""
    if isinstance(messages, str):
        return messages
    said = "\n".join(f"{message['role'].capitalize()}: {message['content']}" for message in messages)
    return f"{said}\nAssistant:"


def suite() -> list[BenchPrompt]:
    """The tasks that come with taslak, each with all its prompts, in alphabetical order."""
    found = []
    for file in sorted(SUITE.glob("*.toml")):
        for row in tomllib.loads(file.read_text(encoding="utf-8"))["prompt"]:
            given = prompt_of(row, str(file))
            opening = _frozen(given.text)
            if isinstance(opening, str) and not given.raw:
                opening = opening.strip()
            found.append(BenchPrompt(row["id"], file.stem, row["language"], opening, raw=given.raw))
    return found


def read(path: Path) -> list[BenchPrompt]:
    """Prompts of a file: JSONL of `turns` (Spec-Bench's question.jsonl), `prompt` or `messages`, each with an
    id (`id`, `question_id`) and a label (`task`, `category`, `label`) where it has one; else as
    `engine.prompts.read_prompts` reads it, plain lines for instance.

    Raises PromptError, naming file and line, for what isn't one of these and for an id that occurs twice.
    """
    path = path.expanduser()
    if path.is_file() and path.suffix in (".jsonl", ".ndjson", ".json"):
        found = [_labelled(row, where) for where, row in rows(path)]
    else:
        found = [
            (BenchPrompt(str(number), UNNAMED, "", _frozen(given.text), raw=given.raw), given.where)
            for number, given in enumerate(read_prompts(path), start=1)
        ]
    if not found:
        raise PromptError(
            f"{path} holds no prompts; expected a JSON object with prompt, messages or turns a line"
        )
    seen: dict[str, str] = {}
    for prompt, where in found:
        if prompt.id in seen:
            raise PromptError(
                f"{where}: the id {prompt.id!r} is that of {seen[prompt.id]} too; expected another"
            )
        seen[prompt.id] = where
    return [prompt for prompt, _ in found]


def chosen(prompts: Iterable[BenchPrompt], tasks: Sequence[str] = (), each: int = 0) -> list[BenchPrompt]:
    """Of these tasks (empty: all) `each` prompts (0: all), evenly from first to last; a task after the other.

    Raises OptionError for a task there is none of, and for a negative number.
    """
    if each < 0:
        raise OptionError(f"each is {each}; expected the number of prompts of a task, 0 for all")
    groups = by_task(prompts)
    if unknown := [task for task in tasks if task not in groups]:
        raise OptionError(f"there is no task {unknown[0]!r}; expected {', '.join(groups)}")
    return [
        prompt
        for task, group in groups.items()
        if not tasks or task in tasks
        for prompt in _spread(group, each)
    ]


def in_turns(prompts: Iterable[BenchPrompt]) -> list[BenchPrompt]:
    """One of each task in turns: however many of them are taken, no task is left out."""
    groups = by_task(prompts).values()
    return [prompt for turn in zip_longest(*groups) for prompt in turn if prompt is not None]


def by_task(prompts: Iterable[BenchPrompt]) -> dict[str, list[BenchPrompt]]:
    """In the order of their first prompts."""
    groups: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.task, []).append(prompt)
    return groups


def _spread(group: Sequence[BenchPrompt], count: int) -> list[BenchPrompt]:
    if not 0 < count < len(group):
        return list(group)
    last = max(count - 1, 1)
    return [group[round(i * (len(group) - 1) / last)] for i in range(count)]


def _labelled(row: dict[str, Any], where: str) -> tuple[BenchPrompt, str]:
    name = next((row[key] for key in _NAMES if key in row), where.rpartition(":")[2])
    task = next((row[key] for key in _LABELS if key in row), UNNAMED)
    language = row.get("language", "")
    for key, value, kinds in (
        ("id", name, (str, int)),
        ("task", task, (str,)),
        ("language", language, (str,)),
    ):
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise PromptError(f"{where}: the {key} is {value!r}; expected text")
    turns: tuple[str, ...] = ()
    if "turns" in row:
        said = row["turns"]
        if not isinstance(said, list) or not said or not all(isinstance(t, str) and t.strip() for t in said):
            raise PromptError(f'{where}: "turns" is {said!r:.60}; expected a list of what the user says')
        row, turns = {"prompt": said[0]}, tuple(said[1:])
    given = prompt_of(row, where)
    return BenchPrompt(str(name), task, language, _frozen(given.text), turns, given.raw), where


def _exchange(answer: str, turn: str) -> tuple[dict[str, str], dict[str, str]]:
    return {"role": "assistant", "content": answer}, {"role": "user", "content": turn}


def _frozen(text: str | list[dict[str, str]]) -> str | tuple[dict[str, str], ...]:
    return text if isinstance(text, str) else tuple(text)
