"""taslak as a library.

python examples/library.py [MODEL]
"""

from __future__ import annotations

import sys

import taslak


def main(name: str = "smollm2-135m-instruct") -> None:
    model = taslak.load(name)

    answer = model.generate("Name three rivers of Europe.", max_tokens=40)
    print(answer.text)
    counts = answer.counts
    print(f"\n{len(answer.ids)} tokens in {counts.passes} passes, {answer.tokens_per_second:.0f} tokens/s")
    print(f"drafted {counts.drafted}, accepted {counts.accepted}, by depth {counts.hazards}\n")

    # as it is decided: text of accepted drafts in brackets
    for event in model.stream("Count from one to twenty.", max_tokens=40):
        for text, drafted in event.pieces:
            print(f"[{text}]" if drafted else text, end="", flush=True)
    print("\n")

    # several prompts share every pass; a seed makes drawn answers repeatable, whoever is beside them
    prompts = ["Say hello in Turkish.", "Say hello in German.", "Say hello in French."]
    for prompt, each in zip(
        prompts, model.generate(prompts, max_tokens=20, temperature=0.8, seed=7), strict=True
    ):
        print(f"{prompt} {each.text.strip()}")

    # the same question plainly and with drafts
    comparison = model.compare("Write a haiku about rain.", max_tokens=40, temperature=0.8, seed=7)
    print(f"\nidentical: {comparison.identical}, {comparison.speedup:.2f} times as fast")


if __name__ == "__main__":
    main(*sys.argv[1:])
