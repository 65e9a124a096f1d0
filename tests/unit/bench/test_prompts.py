"""What is asked: the suite, Spec-Bench's questions, files of one's own, and what is wrong in them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from taslak.bench.prompts import UNNAMED, as_text, chosen, read, suite
from taslak.errors import OptionError, PromptError

TASKS = {
    "code-completion", "code-edit", "translation", "summarisation", "question-answering", "mathematics",
    "extraction", "dialogue", "creative-writing",
}  # fmt: skip


def words(prompt: Any) -> int:
    text = prompt.opening if isinstance(prompt.opening, str) else as_text(prompt.opening)
    return len(text.split())


def test_the_suite_has_enough_of_every_task() -> None:
    prompts = suite()
    assert len({prompt.id for prompt in prompts}) == len(prompts)
    by_task = Counter(prompt.task for prompt in prompts)
    assert set(by_task) == TASKS
    assert min(by_task.values()) >= 8
    assert all(prompt.id.startswith(f"{prompt.task}/") for prompt in prompts)


def test_some_of_the_suite_is_turkish_with_its_letters() -> None:
    turkish = [prompt for prompt in suite() if prompt.language == "tr"]
    assert 8 <= len(turkish) <= 12
    assert {prompt.task for prompt in turkish} >= TASKS - {"translation"}
    text = "".join(map(str, (prompt.opening for prompt in turkish)))
    assert all(letter in text for letter in "çğıöşüÇĞİÖŞÜ".replace("Ğ", ""))


def test_texts_of_the_suite_have_realistic_lengths() -> None:
    for prompt in suite():
        if prompt.task in ("code-edit", "summarisation", "question-answering", "extraction"):
            assert 100 <= words(prompt) <= 420, prompt.id
        if prompt.task == "dialogue":
            assert len(prompt.opening) >= 5, prompt.id
        assert prompt.raw == (prompt.task == "code-completion"), prompt.id


def test_spec_benchs_questions_are_read_with_their_turns(tmp_path: Path) -> None:
    file = tmp_path / "question.jsonl"
    file.write_text(
        '{"question_id": 81, "category": "writing", "turns": ["Write a letter.", "Now shorter."]}\n'
        '{"question_id": 82, "category": "qa", "turns": ["Who was it?"], "reference": ["nobody"]}\n'
    )
    first, second = read(file)
    assert (first.id, first.task, first.opening, first.turns) == (
        "81", "writing", "Write a letter.", ("Now shorter.",),
    )  # fmt: skip
    assert second.turns == ()
    assert first.messages([]) == "Write a letter."
    assert first.messages(["Dear A"]) == [
        {"role": "user", "content": "Write a letter."},
        {"role": "assistant", "content": "Dear A"},
        {"role": "user", "content": "Now shorter."},
    ]


def test_other_files_are_read_with_their_labels(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text(
        '{"prompt": "def f(", "raw": true, "task": "code", "language": "python", "id": "a"}\n'
        '{"messages": [{"role": "user", "content": "Hi"}], "category": "chat"}\n'
    )
    raw, chat = read(file)
    assert (raw.raw, raw.task, raw.language, raw.id) == (True, "code", "python", "a")
    assert (chat.task, chat.id, chat.opening) == ("chat", "2", ({"role": "user", "content": "Hi"},))
    lines = tmp_path / "lines.txt"
    lines.write_text("One.\n\nTwo.\n")
    assert [(prompt.opening, prompt.task) for prompt in read(lines)] == [("One.", UNNAMED), ("Two.", UNNAMED)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a"}\nnot json\n', "own.jsonl:2: not JSON"),
        ('{"turns": []}\n', 'own.jsonl:1: "turns" is'),
        ('{"turns": ["a", 3]}\n', 'own.jsonl:1: "turns" is'),
        ('{"category": "qa"}\n', "own.jsonl:1: a row with category"),
        ('{"prompt": "a", "task": 7}\n', "own.jsonl:1: the task is 7"),
        ('{"prompt": "a", "id": 1}\n\n{"prompt": "b", "id": "1"}\n', "own.jsonl:3: the id '1' is that of"),
        ("\n", "holds no prompts"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text(text)
    with pytest.raises(PromptError, match=message):
        read(file)


def test_prompts_are_chosen_evenly() -> None:
    prompts = suite()
    every = [prompt for prompt in prompts if prompt.task == "translation"]
    three = chosen(prompts, ["translation"], 3)
    assert three == [every[0], every[4], every[8]]
    assert len(chosen(prompts, (), 1)) == len(TASKS)
    assert chosen(prompts) == prompts
    with pytest.raises(OptionError, match="there is no task 'cooking'"):
        chosen(prompts, ["cooking"])
