"""The fenced blocks of a Markdown page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ("cli.md", "api.md")
"""Pages written by a script: their blocks are usages and signatures."""

PAGES = [
    "README.md",
    "examples/README.md",
    *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md") if p.name not in GENERATED),
]


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """Its lines without remarks; lines that end in a backslash are one with the next."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [bare for line in lines if (bare := re.sub(r"(^|\s{2,})#.*", "", line).strip())]


def blocks(page: str, *languages: str) -> list[Block]:
    """The blocks of these languages in the order of the page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.finditer(r"^```(?P<language>\w*)\n(?P<text>.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [
        Block(page, text[: each.start()].count("\n") + 2, each["language"], each["text"])
        for each in found
        if each["language"] in languages
    ]
