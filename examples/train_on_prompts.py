"""A drafter for your own prompts.

python examples/train_on_prompts.py PROMPTS OUT [MODEL]

PROMPTS: JSONL of `prompt` or `messages`, or a prompt a line. Stop it when you like: the same call goes on.
With fifty prompts everything works and nothing pays yet; thousands make a drafter (docs/traffic.md).
"""

from __future__ import annotations

import sys
from pathlib import Path

import taslak
from taslak.training import TrainingOptions, train


def main(prompts: str, out: str, name: str = "smollm2-135m-instruct") -> None:
    short = {"max_tokens": 64, "max_length": 512}  # of answers, and of prompts with theirs: quick to try
    options = TrainingOptions("eagle", Path(out), model=name, prompts=Path(prompts), plot=False, **short)
    evaluation = train(options).evaluation
    if evaluation is not None:
        print(f"held-out prompts: {evaluation.tau:.2f} tokens a pass, by depth {evaluation.hazards}")

    model = taslak.load(name, draft=out)
    comparison = model.compare("Write a binary search in Python.", max_tokens=60)
    counts = comparison.speculative.counts
    print(f"{model.method}: {counts.tau:.2f} tokens a pass, {comparison.speedup:.2f} times as fast")
    print(f"identical: {comparison.identical}")


if __name__ == "__main__":
    main(*sys.argv[1:])
