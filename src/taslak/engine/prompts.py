"""What a head is trained to answer: prompts from a file or a folder.

Knows nothing about models: a prompt is text or chat messages, and where it came from.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taslak.errors import PromptError

EXPECTED = 'expected {"prompt": text} or {"messages": [{"role", "content"}, ...]}'
RAW = 'expected true beside a "prompt" that is to be continued as it is, without a chat template'

PIECE = 4000
"""Characters of a text file from which one prompt is made …"""
OPENING = 1000
"""… of the first this many."""

TEXT_SUFFIXES = frozenset(
    [
        ".txt",
        ".md",
        ".rst",
        ".py",
        ".js",
        ".ts",
        ".java",
        ".c",
        ".h",
        ".cpp",
        ".hpp",
        ".cc",
        ".rs",
        ".go",
        ".rb",
        ".php",
        ".sh",
        ".sql",
        ".html",
        ".css",
        ".json",
        ".yaml",
        ".toml",
        ".tex",
        ".kt",
        ".swift",
        ".scala",
        ".lua",
        ".r",
        ".jl",
    ]
)
"""Files that a folder's prompts are read from."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """text:  plain text, or chat messages of {"role", "content"}
    where: "file:line" of the row, for messages to the user
    raw:   the text is to be continued as it is, without a chat template
    """

    text: str | list[dict[str, str]]
    where: str
    raw: bool = False


def read_prompts(path: str | Path) -> list[Prompt]:
    """Prompts of a JSONL file (`prompt` or `messages` a row, `raw` beside a prompt that is to be continued as
    it is; other keys are ignored), of any other text file (a line each), or of a folder (openings of its text
    and code files, to be continued as they are).

    Raises PromptError, naming file and line, for what isn't one of these.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        prompts = [prompt for file in _text_files(path) for prompt in _openings(file)]
    elif path.is_file():
        prompts = list(_jsonl(path)) if path.suffix in (".jsonl", ".ndjson", ".json") else list(_lines(path))
    else:
        raise PromptError(f"there is no file or folder {path}; expected prompts (JSONL, text, or a folder)")
    if not prompts:
        raise PromptError(f"{path} holds no prompts; {EXPECTED} a line, plain text lines, or text files")
    return prompts


def rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The JSON objects of a JSONL file, each with its "file:line". Raises PromptError for other rows."""
    for where, line in _numbered(path):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise PromptError(f"{where}: not JSON ({error}); {EXPECTED}") from None
        if not isinstance(row, dict):
            raise PromptError(f"{where}: a JSON {type(row).__name__}; {EXPECTED}")
        yield where, row


def prompt_of(row: dict[str, Any], where: str) -> Prompt:
    """The prompt of a row. A last message of the assistant's is left out: the target gives its own."""
    raw = row.get("raw", False)
    if not isinstance(raw, bool) or (raw and "prompt" not in row):
        raise PromptError(f'{where}: "raw" is {_shown(raw)}; {RAW}')
    if "prompt" in row:
        text = row["prompt"]
        if not isinstance(text, str) or not text.strip():
            raise PromptError(f'{where}: "prompt" is {_shown(text)}; expected some text')
        return Prompt(text, where, raw=raw)
    if "messages" not in row:
        keys = ", ".join(map(str, row)) or "no keys"
        raise PromptError(f"{where}: a row with {keys}; {EXPECTED}")
    messages = row["messages"]
    if not isinstance(messages, list) or not all(_is_message(message) for message in messages):
        raise PromptError(f'{where}: "messages" is {_shown(messages)}; expected [{{"role", "content"}}, ...]')
    if messages and messages[-1]["role"] == "assistant":
        messages = messages[:-1]
    if not messages:
        raise PromptError(
            f'{where}: "messages" asks nothing; expected at least one message before the answer'
        )
    return Prompt([{"role": m["role"], "content": m["content"]} for m in messages], where)


def held_out(count: int, asked: int | None = None) -> frozenset[int]:
    """Indices of the prompts kept out of training, evenly spread; `asked` of them, None = 5 %, 4 to 64.

    Raises PromptError where nothing would be left to train on.
    """
    number = min(max(count // 20, 4), 64, max(count // 2, 1)) if asked is None else asked
    if not 1 <= number < count:
        raise PromptError(
            f"{count} prompts with {number} held out; expected at least one to train on and one held out"
        )
    return frozenset(count * (2 * i + 1) // (2 * number) for i in range(number))


def _jsonl(path: Path) -> Iterator[Prompt]:
    for where, row in rows(path):
        yield prompt_of(row, where)


def _lines(path: Path) -> Iterator[Prompt]:
    for where, line in _numbered(path):
        yield Prompt(line.strip(), where)


def _openings(path: Path) -> Iterator[Prompt]:
    text = _text(path)
    for start in range(0, len(text), PIECE):
        opening = text[start : start + OPENING]
        if opening.strip():
            yield Prompt(opening, f"{path}:{text.count(chr(10), 0, start) + 1}", raw=True)


def _text_files(folder: Path) -> Sequence[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix.lower() in TEXT_SUFFIXES)


def _numbered(path: Path) -> Iterator[tuple[str, str]]:
    """Lines that hold something, each with its "file:line"."""
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if line.strip():
            yield f"{path}:{number}", line


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise PromptError(f"{path}:{line}: not UTF-8 text; expected text") from None
    except OSError as error:
        raise PromptError(f"{path} can't be read: {error.strerror}") from None


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and all(isinstance(message.get(k), str) for k in ("role", "content"))


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
