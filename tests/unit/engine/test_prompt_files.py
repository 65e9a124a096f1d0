"""Prompts from files and folders; each mistake names its file and line."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from taslak.engine.prompts import OPENING, PIECE, held_out, read_prompts
from taslak.errors import PromptError


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_jsonl_of_prompts_and_messages(tmp_path: Path) -> None:
    file = write(
        tmp_path / "p.jsonl",
        '{"id": 0, "category": "code", "prompt": "Hi"}\n\n'
        '{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}\n'
        '{"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "no"}]}\n',
    )
    first, second, third = read_prompts(file)
    assert (first.text, first.where) == ("Hi", f"{file}:1")
    assert second.text == [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert second.where == f"{file}:3"
    assert third.text == [{"role": "user", "content": "u"}], "the target gives its own answer"
    assert not first.raw
    assert not second.raw


def test_a_row_may_ask_to_be_continued_as_it_is(tmp_path: Path) -> None:
    file = write(tmp_path / "p.jsonl", '{"prompt": "def f(", "raw": true}\n{"prompt": "f?", "raw": false}\n')
    assert [(p.text, p.raw) for p in read_prompts(file)] == [("def f(", True), ("f?", False)]


@pytest.mark.parametrize("name", ["p.jsonl", "p.ndjson", "p.json"])
def test_a_byte_order_mark_is_no_text(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / name, '\ufeff{"prompt": "Hi"}\n')
    assert [p.text for p in read_prompts(file)] == ["Hi"]


def test_lines_of_text(tmp_path: Path) -> None:
    file = write(tmp_path / "p.txt", "one\n\n  two  \n")
    assert [(p.text, p.where) for p in read_prompts(file)] == [("one", f"{file}:1"), ("two", f"{file}:3")]


def test_a_folder_of_text_and_code(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path / "a.md", "x\n" * PIECE)
    write(tmp_path / "sub" / "b.py", "print(1)\n")
    write(tmp_path / "c.png", "no text")
    prompts = read_prompts(tmp_path)
    assert [p.where for p in prompts] == [
        f"{tmp_path / 'a.md'}:1",
        f"{tmp_path / 'a.md'}:{PIECE // 2 + 1}",
        f"{tmp_path / 'sub' / 'b.py'}:1",
    ]
    assert all(p.raw for p in prompts)
    assert len(prompts[0].text) == OPENING


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{broken", "not JSON"),
        ("[1]", "a JSON list"),
        ('{"text": "x", "id": 3}', "a row with text, id"),
        ('{"prompt": "  "}', '"prompt" is "  "'),
        ('{"prompt": 5}', '"prompt" is 5'),
        ('{"prompt": "x", "raw": 1}', '"raw" is 1'),
        ('{"messages": [{"role": "user", "content": "x"}], "raw": true}', '"raw" is true'),
        ('{"messages": "x"}', '"messages" is "x"'),
        ('{"messages": [{"role": "user"}]}', '"messages" is'),
        ('{"messages": [{"role": "assistant", "content": "x"}]}', "asks nothing"),
    ],
)
def test_a_bad_row_names_its_file_and_line(tmp_path: Path, line: str, says: str) -> None:
    file = write(tmp_path / "p.jsonl", '{"prompt": "fine"}\n' + line + "\n")
    with pytest.raises(PromptError) as raised:
        read_prompts(file)
    assert f"{file}:2: " in str(raised.value)
    assert says in str(raised.value)
    assert "expected" in str(raised.value)


def test_files_that_are_no_prompts(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="there is no file or folder"):
        read_prompts(tmp_path / "none.jsonl")
    with pytest.raises(PromptError, match="holds no prompts"):
        read_prompts(write(tmp_path / "empty.jsonl", "\n"))
    (tmp_path / "bytes.txt").write_bytes(b"fine\n\xff\xfe\n")
    with pytest.raises(PromptError, match=r"bytes\.txt:2: not UTF-8"):
        read_prompts(tmp_path / "bytes.txt")


@pytest.mark.parametrize(("count", "number"), [(2, 1), (8, 4), (50, 4), (1000, 50), (100_000, 64)])
def test_held_out_prompts_are_spread_and_leave_some(count: int, number: int) -> None:
    chosen = sorted(held_out(count))
    assert len(chosen) == number
    assert 0 <= chosen[0] <= chosen[-1] < count
    gaps = [b - a for a, b in pairwise(chosen)]
    assert not gaps or max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize(("count", "asked"), [(1, None), (5, 5), (5, 0)])
def test_nothing_left_to_train_on_is_an_error(count: int, asked: int | None) -> None:
    with pytest.raises(PromptError, match="held out"):
        held_out(count, asked)
