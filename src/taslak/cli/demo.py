"""`taslak demo`: the default model on three prompts, plainly and with each way of drafting it comes with."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

import typer

from taslak.cli import rendering
from taslak.cli.options import DEFAULT_MODEL

if TYPE_CHECKING:
    from taslak.engine import Comparison, LanguageModel

    Rounds = list[list[Comparison]]
    """[rounds][models]"""

LOOKUP = "suffix"
"""Of the methods that look up, the one with the longer right drafts on these prompts."""

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
    """Decode three short prompts with the default model, plainly and with speculation, and compare."""
    with rendering.ProgressBar() as progress:
        import taslak
        from taslak.drafters.formats import shipped_head
        from taslak.loading import DEFAULT_KIND

        own = [DEFAULT_KIND] if shipped_head(DEFAULT_MODEL, DEFAULT_KIND) else []
        models = [taslak.load(DEFAULT_MODEL, method=way, progress=progress) for way in (LOOKUP, *own)]
    columns = []
    for name, prompt in PROMPTS.items():
        rendering.heading(name)
        print(prompt, flush=True)
        rendering.note("(decoding it every way …)")
        rounds = _rounds(models, prompt)
        rendering.heading(f"{name}: the answer")
        print(rounds[0][0].plain.text.strip())
        columns.append(_column(rounds, exact=models[0].target.width_invariant))
    print()
    rows = [[figure, *(column[figure] for column in columns)] for figure in columns[0]]
    rendering.table(["", *PROMPTS], rows, right=range(1, len(columns) + 1))
    methods = ", ".join(f"{model.method} with γ {model.gamma or 'as it pays'}" for model in models)
    print(f"{models[0].name}, {methods}, {models[0].verify}, {models[0].dtype}, greedy;")
    print(f"medians of up to {ROUNDS} runs, all ways in turns")
    if any(column["identical"] == DIFFERENT for column in columns):
        raise typer.Exit(1)


def _rounds(models: list[LanguageModel], prompt: str) -> Rounds:
    """The prompt in every way, several times in turns, so that one hiccup of the machine is not a result."""
    until = time.monotonic() + PATIENCE_SECONDS
    rounds: Rounds = []
    while len(rounds) < ROUNDS and (not rounds or time.monotonic() < until):
        rounds.append([model.compare(prompt, max_tokens=MAX_TOKENS) for model in models])
    return rounds


def _column(rounds: Rounds, *, exact: bool) -> dict[str, str]:
    """One prompt's figures by name. exact: no rounding can explain a difference."""
    every = [each for turn in rounds for each in turn]
    plain = median(each.plain.tokens_per_second for each in every)
    column = {"tokens": str(len(every[0].plain.ids)), "plain, tokens/s": f"{plain:.1f}"}
    for turns in zip(*rounds, strict=True):  # of one model
        method, counts = turns[0].method, turns[0].speculative.counts
        rate = median(each.speculative.tokens_per_second for each in turns)
        column |= {
            f"{method}, tokens/s": f"{rate:.1f}",
            f"{method}, speed-up": f"{rate / plain:.2f}",
            f"{method}, tokens a pass": rendering.number(counts.tau),
            f"{method}, acceptance rate": rendering.number(counts.acceptance_rate),
        }
    near_ties = not exact and all(
        each.identical or (each.difference and each.difference.near_tie) for each in every
    )
    same = all(each.identical for each in every)
    return {**column, "identical": "yes" if same else "near-tie" if near_ties else DIFFERENT}
