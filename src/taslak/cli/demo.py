"""`taslak demo`: the default model on three prompts, each with and without speculation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taslak.cli import rendering
from taslak.cli.options import DEFAULT_MODEL

if TYPE_CHECKING:
    from taslak.engine import Comparison

METHOD = "suffix"
"""Needs no second model; of those that don't, the one with the longer right drafts on these prompts."""

MAX_TOKENS = 100

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
        comparison = model.compare(prompt, max_tokens=MAX_TOKENS)
        rendering.heading(f"{name}: the answer")
        print(comparison.speculative.text.strip())
        columns.append(_column(comparison))
    print()
    rows = [[figure, *(column[figure] for column in columns)] for figure in columns[0]]
    rendering.table(["", *PROMPTS], rows, right=range(1, len(columns) + 1))
    print(f"{model.name}, method {model.method}, γ {model.gamma}, {model.verify}, {model.dtype}, greedy")


def _column(comparison: Comparison) -> dict[str, str]:
    """One prompt's figures by name."""
    plain, speculative = comparison.plain, comparison.speculative
    near_tie = comparison.difference is not None and comparison.difference.near_tie
    return {
        "tokens": str(len(speculative.ids)),
        "plain, tokens/s": f"{plain.tokens_per_second:.1f}",
        "speculative, tokens/s": f"{speculative.tokens_per_second:.1f}",
        "speed-up": f"{comparison.speedup:.2f}",
        "tokens a pass": rendering.number(speculative.counts.tau),
        "acceptance rate": rendering.number(speculative.counts.acceptance_rate),
        "identical": "yes" if comparison.identical else "near-tie" if near_tie else "NO",
    }
