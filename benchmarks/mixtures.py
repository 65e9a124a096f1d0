"""Which matrices of an int8 model are worth their bytes in bfloat16: what `quantised.width` was chosen by.

python benchmarks/mixtures.py [--model NAME]

One window of 1,024 tokens of Python source and one of English prose (the texts of quality.py). "KL" is the
Kullback-Leibler divergence of float32's distribution of the next token from the mixture's, in 1e-4 nats a
token: all logits count in it, so it tells two mixtures apart on less text than first choices do. "Won back"
is how much of it the bfloat16 matrices take away, both texts together, for each percent of bytes they add.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import torch
from harness import finish
from quality import CHUNK, SMALL, WINDOW, english_prose, python_source, windows

from taslak.models.config import DecoderConfig
from taslak.models.decoder import Decoder
from taslak.models.layers import HEAD, PRODUCTS
from taslak.models.loading import load_tensors, resolve
from taslak.models.loading.quantised import width
from taslak.models.native_ops import pack_weights
from taslak.models.target import chain_rows
from taslak.models.tokenizer import Tokenizer

Wide = Callable[[str], bool]


def mixtures(layers: int) -> dict[str, Wide]:
    """What is bfloat16, by name."""

    def product(*names: str) -> Wide:
        return lambda name: any(f".{part}_proj." in name for part in names)

    def layer(number: int, part: str = "") -> Wide:
        return lambda name: name.startswith(f"model.layers.{number}.{part}")

    last = layers - 1
    return {
        "nothing": lambda _: False,
        **{f"{name} of every layer": product(name) for name in PRODUCTS},
        "head": lambda name: name == HEAD,
        "first layer": layer(0),
        "last layer": layer(last),
        "q, k, v": product("q", "k", "v"),
        "v, the last layer": lambda name: product("v")(name) or layer(last)(name),
        "v, the last MLP (int8)": lambda name: width(name, "int8", layers) == "bfloat16",
        "everything": lambda _: True,
    }


def distributions(decoder: Decoder, ids: list[int]) -> Iterator[torch.Tensor]:
    """Of every token after the first, from an empty cache: log-probabilities [CHUNK, V], chunk by chunk."""
    cache = decoder.allocate(WINDOW)
    for start in range(0, WINDOW, CHUNK):
        logits = decoder.forward([chain_rows(cache, ids[start : start + CHUNK], CHUNK)]).logits
        cache.keep(range(CHUNK))
        yield logits.log_softmax(-1)
    cache.release()


def divergence(decoder: Decoder, ids: list[int], expected: list[torch.Tensor]) -> float:
    """Mean over tokens of Σ p · (log p − log q), p being what is expected. In 1e-4 nats."""
    pairs = zip(expected, distributions(decoder, ids), strict=True)
    return sum(float((p.exp() * (p - q)).sum()) for p, q in pairs) / WINDOW * 1e4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default=SMALL)
    name = parser.parse_args().model
    folder = resolve(name, dtype=torch.float32)
    config, tokenizer = DecoderConfig.from_folder(folder), Tokenizer.from_folder(folder, name=name)
    weights = load_tensors(folder, torch.float32)
    texts = [windows(tokenizer, text)[0] for text in (python_source(), english_prose())]
    reference = Decoder(config, weights, vocab_size=tokenizer.vocab_size)
    expected = [list(distributions(reference, ids)) for ids in texts]
    packed = {
        kind: pack_weights(config, weights, kind, tokenizer.vocab_size) for kind in ("int8", "bfloat16")
    }
    rows: list[list[Any]] = []
    raw: list[dict[str, Any]] = []
    for label, wide in mixtures(config.layers).items():
        mixed = {key: packed["bfloat16" if wide(key) else "int8"][key] for key in packed["int8"]}
        decoder = Decoder(config, mixed, vocab_size=tokenizer.vocab_size, cache_dtype=torch.bfloat16)
        found = [divergence(decoder, ids, log_p) for ids, log_p in zip(texts, expected, strict=True)]
        raw.append({"wide": label, "bytes": decoder.pass_bytes, "kl": found})
        more = decoder.pass_bytes / raw[0]["bytes"] - 1
        won = 1 - sum(found) / sum(raw[0]["kl"])
        each = f"{won / more / 100:.1%}" if more else "–"
        rows.append([label, f"{decoder.pass_bytes / 1e6:.1f}", f"{more:+.1%}", *found, each])
        print(*rows[-1], flush=True)
    finish(
        __file__,
        columns=["in bfloat16", "MB a token", "more", "KL, python", "KL, prose", "won back for 1 %"],
        rows=rows,
        raw=raw,
        requirements=[],
        model=name,
    )


if __name__ == "__main__":
    main()
