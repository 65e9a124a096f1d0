"""The openai client with a server of taslak's.

taslak serve smollm2-135m-instruct
python examples/server_client.py [http://127.0.0.1:8000/v1]
"""

from __future__ import annotations

import os
import sys

from openai import OpenAI


def main(url: str = "http://127.0.0.1:8000/v1") -> None:
    client = OpenAI(base_url=url, api_key=os.environ.get("TASLAK_API_KEY", "none"))
    model = client.models.list().data[0].id
    question = [{"role": "user", "content": "Name three rivers of Europe."}]

    answer = client.chat.completions.create(model=model, messages=question, max_tokens=40, temperature=0)
    print(answer.choices[0].message.content)
    print(f"\nwith drafts: {told(answer.speculation)}")

    # what OpenAI's interface doesn't have goes into extra_body
    plain = client.chat.completions.create(
        model=model,
        messages=question,
        max_tokens=40,
        temperature=0,
        extra_body={"speculation": {"off": True}},
    )
    same = plain.choices[0].message.content == answer.choices[0].message.content
    print(f"plainly: {told(plain.speculation)}; the same text: {same}\n")

    # streamed: each chunk says which of its text was drafted, the last one has the figures
    stream = client.chat.completions.create(
        model=model,
        messages=question,
        max_tokens=40,
        stream=True,
        seed=7,
        extra_body={"speculation": {"flags": True}},
    )
    for chunk in stream:
        figures = getattr(chunk, "speculation", None) or {}
        for text, drafted in figures.get("pieces", []):
            print(f"[{text}]" if drafted else text, end="", flush=True)
        if "passes" in figures:
            print(f"\n\nstreamed: {told(figures)}")


def told(figures: dict[str, object]) -> str:
    """The figures that every answer carries, in short."""
    return f"{figures['passes']} passes, {figures['drafted']} drafted, {figures['accepted']} accepted"


if __name__ == "__main__":
    main(*sys.argv[1:])
