"""Text between a beginning and an end: the tokens that models trained for it know.

Names of the special tokens (prefix, suffix, middle) are those of the models' own files: Qwen2.5-Coder and
others, CodeGemma, DeepSeek-Coder, StarCoder, Code Llama.
"""

from __future__ import annotations

from taslak.errors import OptionError
from taslak.models.tokenizer import Tokenizer

FAMILIES = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
)


def infill(tokenizer: Tokenizer, before: str, after: str) -> list[int]:
    """The prompt whose continuation stands between the two. Raises OptionError for a model without such
    tokens."""
    for names in FAMILIES:
        ids = [tokenizer.token_id(name) for name in names]
        prefix, suffix, middle = ids
        if prefix is not None and suffix is not None and middle is not None:
            first = tokenizer.encode("")[:1]  # the bos of models that begin every text with one
            return [
                *([id for id in first if id == tokenizer.bos_id]),
                prefix,
                *tokenizer.encode(before, add_special=False),
                suffix,
                *tokenizer.encode(after, add_special=False),
                middle,
            ]
    raise OptionError(f"{tokenizer.name} has no tokens to fill in between texts with; leave suffix out")
