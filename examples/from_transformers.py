"""A model of transformers, decoded by taslak: it computes as it is, taslak drafts and verifies.

python examples/from_transformers.py [FOLDER OR HUB ID]
"""

from __future__ import annotations

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

import taslak


def main(name: str = "HuggingFaceTB/SmolLM2-135M-Instruct") -> None:
    tokenizer = AutoTokenizer.from_pretrained(name)
    model = taslak.from_transformers(AutoModelForCausalLM.from_pretrained(name), tokenizer, method="suffix")

    comparison = model.compare("Repeat: one two three, one two three, one two", max_tokens=40)
    counts = comparison.speculative.counts
    print(comparison.speculative.text)
    print(f"\n{counts.tau:.2f} tokens a pass, {comparison.speedup:.2f} times as fast")
    # its kernels may round differently for several rows than for one: a difference is a near-tie then
    print(f"identical: {comparison.identical}")


if __name__ == "__main__":
    main(*sys.argv[1:])
