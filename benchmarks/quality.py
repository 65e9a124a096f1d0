"""What narrow weights cost in quality: perplexity and first choices beside float32, on real text.

python benchmarks/quality.py [--models NAME ...] [--dtypes bfloat16 int8 int4] [--keep FOLDER]

Text: modules of Python's standard library, and the prose of the language reference that Python ships
(`pydoc_data.topics`), in windows of 1,024 tokens, at least 8,192 tokens each. float32 is the same checkpoint
dequantised, in PyTorch; for int4, whose weights are the file's own, the difference is that of the arithmetic
(activations in 8 bits, K/V in bfloat16). "Ratio" is the perplexity over float32's, "top-1" the share of
positions where both prefer the same token. --keep holds every window's scores, so that a run that was ended
goes on where it stopped: use a new folder when the arithmetic or the packing has changed.
"""

from __future__ import annotations

import argparse
import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from harness import finish, requirement

from taslak.models.decoder import Decoder
from taslak.models.loading import resolve
from taslak.models.pretrained import load_pretrained
from taslak.models.target import chain_rows
from taslak.models.tokenizer import Tokenizer

MODELS = ("smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct", "qwen2.5-coder-1.5b-instruct")
DTYPES = ("bfloat16", "int8", "int4")
MODULES = (
    "argparse",
    "ast",
    "calendar",
    "csv",
    "fractions",
    "heapq",
    "inspect",
    "statistics",
    "textwrap",
    "zipfile",
)
WINDOW, CHUNK, TOKENS = 1024, 128, 8192
SMALL = "smollm2-135m-instruct"


@dataclass(frozen=True)
class Scores:
    """Of every predicted token: its negative log-likelihood [T], and the model's first choice [T]."""

    losses: torch.Tensor
    choices: torch.Tensor


def python_source() -> list[str]:
    """One text a module, its licence and imports left out by starting at a sixth of it."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    texts = [
        path.read_text(encoding="utf-8")
        for name in MODULES
        for path in (folder / f"{name}.py", folder / name / "__init__.py")
        if path.is_file()
    ]
    return [text[text.index("\n", len(text) // 6) + 1 :] for text in texts]


def english_prose() -> list[str]:
    """The longest pages of the language reference, without code, grammar and tables."""
    from pydoc_data.topics import topics

    texts = []
    for _, page in sorted(topics.items(), key=lambda item: (-len(item[1]), item[0]))[:24]:
        paragraphs = page.split("\n\n")
        kept = [p for p in paragraphs if p[:1].isalpha() and "::=" not in p and p.count("\n") > 1]
        texts.append("\n\n".join(kept))
    return texts


def windows(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Windows of WINDOW + 1 tokens from text after text, until TOKENS of them are predicted."""
    found = []
    for text in texts:
        ids = tokenizer.encode(text)
        if len(ids) > WINDOW:
            found.append(ids[: WINDOW + 1])
    # pages shorter than a window are joined
    if len(found) < TOKENS // WINDOW:
        ids = tokenizer.encode("\n\n".join(texts))
        found = [ids[start : start + WINDOW + 1] for start in range(0, len(ids) - WINDOW, WINDOW)]
    if len(found) < TOKENS // WINDOW:
        raise SystemExit(f"only {len(found)} windows of text; {TOKENS // WINDOW} are needed")
    return found[: TOKENS // WINDOW]


def measure(decoder: Decoder, ids: list[int]) -> Scores:
    """One window, from an empty cache."""
    losses, choices = [], []
    cache = decoder.allocate(WINDOW)
    for start in range(0, WINDOW, CHUNK):
        logits = decoder.forward([chain_rows(cache, ids[start : start + CHUNK], CHUNK)]).logits
        cache.keep(range(CHUNK))
        following = torch.tensor(ids[start + 1 : start + CHUNK + 1])
        losses.append(torch.nn.functional.cross_entropy(logits, following, reduction="none"))
        choices.append(logits.argmax(-1))
    cache.release()
    return Scores(torch.cat(losses).double(), torch.cat(choices))


def measure_all(
    name: str, dtype: str, corpora: dict[str, list[list[int]]], keep: Path | None
) -> dict[str, Scores]:
    """Every window of every text; the model is loaded only where some window was not kept."""
    decoder = None
    found: dict[str, list[Scores]] = {what: [] for what in corpora}
    for what, texts in corpora.items():
        for ids in texts:
            digest = hashlib.sha256(str(ids).encode()).hexdigest()[:16]
            path = keep and keep / f"{name}-{dtype}-{digest}.pt"
            if path and path.is_file():
                scores = Scores(*torch.load(path))
            else:
                decoder = decoder or load_pretrained(name, dtype=dtype).decoder
                scores = measure(decoder, ids)
                print(f"    {name} {dtype} {what}: {len(found[what]) + 1} of {len(texts)}", flush=True)
                if path:
                    torch.save((scores.losses, scores.choices), path)
            found[what].append(scores)
    return {
        what: Scores(torch.cat([s.losses for s in parts]), torch.cat([s.choices for s in parts]))
        for what, parts in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--dtypes", nargs="+", default=DTYPES)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    rows: list[list[Any]] = []
    raw: list[dict[str, Any]] = []
    requirements = []
    for name in options.models:
        tokenizer = Tokenizer.from_folder(resolve(name, dtype=torch.float32), name=name)
        texts = {"python": python_source(), "prose": english_prose()}
        corpora = {what: windows(tokenizer, text) for what, text in texts.items()}
        expected = measure_all(name, "float32", corpora, options.keep)
        for dtype in options.dtypes:
            for what, found in measure_all(name, dtype, corpora, options.keep).items():
                ratio = float((found.losses.mean() - expected[what].losses.mean()).exp())
                same = float((found.choices == expected[what].choices).double().mean())
                perplexity = float(expected[what].losses.mean().exp())
                rows.append([name, dtype, what, len(found.losses), perplexity, f"{ratio:.4f}", f"{same:.2%}"])
                raw.append(
                    dict(
                        zip(
                            ("model", "dtype", "text", "tokens", "float32_perplexity"), rows[-1], strict=False
                        )
                    )
                )
                raw[-1] |= {"perplexity_ratio": ratio, "top1": same}
                print(*rows[-1], flush=True)
                if dtype == "int8":
                    requirements += asked(name, what, ratio, same)
    finish(
        __file__,
        columns=["model", "dtype", "text", "tokens", "perplexity, float32", "ratio", "top-1"],
        rows=rows,
        raw=raw,
        requirements=requirements,
        text={"python": MODULES, "prose": "pydoc_data.topics", "window": WINDOW},
    )


def asked(name: str, what: str, ratio: float, same: float) -> list[dict[str, Any]]:
    """What int8 must keep to."""
    most, least = (0.01, 0.96) if name == SMALL else (0.005, 0.985)
    return [
        requirement(f"{name}, {what}: perplexity ratio", f"<= {1 + most}", ratio, ratio <= 1 + most),
        requirement(f"{name}, {what}: top-1", f">= {least}", same, same >= least),
    ]


if __name__ == "__main__":
    main()
