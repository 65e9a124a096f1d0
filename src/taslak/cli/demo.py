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
Rewrite this configuration with "port" set to 9090. Change nothing else.

{
  "host": "localhost",
  "port": 8080,
  "user": "admin",
  "database": "customers",
  "timeout": 30
}
""",
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
    rows = []
    for name, prompt in PROMPTS.items():
        rendering.heading(name)
        print(prompt.strip(), flush=True)
        rendering.note("(decoding it both ways …)")
        comparison = model.compare(prompt, max_tokens=MAX_TOKENS)
        rendering.heading(f"{name}: the answer")
        print(comparison.speculative.text.strip())
        rows.append([name, *_row(comparison)])
    print()
    rendering.table(COLUMNS, rows, right=range(1, len(COLUMNS)))
    print(f"{model.name}, method {model.method}, γ {model.gamma}, {model.verify}, {model.dtype}, greedy")


COLUMNS = [
    "prompt",
    "tokens",
    "plain\ntokens/s",
    "speculative\ntokens/s",
    "speed-up",
    "tokens\na pass",
    "acceptance\nrate",
    "identical",
]


def _row(comparison: Comparison) -> list[str]:
    plain, speculative = comparison.plain, comparison.speculative
    near_tie = comparison.difference is not None and comparison.difference.near_tie
    return [
        str(len(speculative.ids)),
        f"{plain.tokens_per_second:.1f}",
        f"{speculative.tokens_per_second:.1f}",
        f"{comparison.speedup:.2f}",
        rendering.number(speculative.counts.tau),
        rendering.number(speculative.counts.acceptance_rate),
        "yes" if comparison.identical else "near-tie" if near_tie else "NO",
    ]
