"""`taslak demo`: the default model on three prompts, each with and without speculation."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

import typer

from taslak.cli import rendering
from taslak.cli.options import DEFAULT_MODEL

if TYPE_CHECKING:
    from taslak.engine import Comparison, LanguageModel

METHOD = "suffix"
"""Needs no second model; of those that don't, the one with the longer right drafts on these prompts."""

MAX_TOKENS = 100

ROUNDS = 3
PATIENCE_SECONDS = 15.0
"""After so long no further round is begun: a busy machine still ends within the three minutes."""

DIFFERENT = "NO"
"""Told apart from plain decoding, and not by rounding: a fault of ours."""

PROMPTS = {
    "code edit": """\
Translate this Python code to JavaScript. Show only the code.

```python
def add(a, b):
    return a + b

def subtract(a, b):
    return a - b

def multiply(a, b):
    return a * b
```""",
    "extraction": """\
List every name with its e-mail address from this text.

Anna Schmidt (anna.schmidt@example.com) met Bruno Costa (bruno.costa@example.com) in Lisbon. \
Later Chen Wei (chen.wei@example.com) and Dana Levi (dana.levi@example.com) joined them.""",
    "story": "Write the first paragraph of a story about an old lighthouse.",
}


def demo() -> None:
    """Decode three short prompts with the default model, with and without speculation, and compare."""
    with rendering.ProgressBar() as progress:
        import taslak

        model = taslak.load(DEFAULT_MODEL, method=METHOD, progress=progress)
    columns = []
    for name, prompt in PROMPTS.items():
        rendering.heading(name)
        print(prompt, flush=True)
        rendering.note("(decoding it both ways …)")
        rounds = _rounds(model, prompt)
        rendering.heading(f"{name}: the answer")
        print(rounds[0].speculative.text.strip())
        columns.append(_column(rounds))
    print()
    rows = [[figure, *(column[figure] for column in columns)] for figure in columns[0]]
    rendering.table(["", *PROMPTS], rows, right=range(1, len(columns) + 1))
    print(f"{model.name}, method {model.method}, γ {model.gamma}, {model.verify}, {model.dtype}, greedy;")
    print(f"medians of up to {ROUNDS} runs, plain and speculative in turns")
    if any(column["identical"] == DIFFERENT for column in columns):
        raise typer.Exit(1)


def _rounds(model: LanguageModel, prompt: str) -> list[Comparison]:
    """The prompt both ways, several times in turns, so that one hiccup of the machine is not a result."""
    until = time.monotonic() + PATIENCE_SECONDS
    rounds = [model.compare(prompt, max_tokens=MAX_TOKENS)]
    while len(rounds) < ROUNDS and time.monotonic() < until:
        rounds.append(model.compare(prompt, max_tokens=MAX_TOKENS))
    return rounds


def _column(rounds: list[Comparison]) -> dict[str, str]:
    """One prompt's figures by name."""
    plain = median(each.plain.tokens_per_second for each in rounds)
    speculative = median(each.speculative.tokens_per_second for each in rounds)
    counts = rounds[0].speculative.counts
    near_ties = all(each.identical or (each.difference and each.difference.near_tie) for each in rounds)
    return {
        "tokens": str(len(rounds[0].speculative.ids)),
        "plain, tokens/s": f"{plain:.1f}",
        "speculative, tokens/s": f"{speculative:.1f}",
        "speed-up": f"{speculative / plain:.2f}",
        "tokens a pass": rendering.number(counts.tau),
        "acceptance rate": rendering.number(counts.acceptance_rate),
        "identical": "yes"
        if all(each.identical for each in rounds)
        else "near-tie"
        if near_ties
        else DIFFERENT,
    }
