"""The target's hidden states over texts, on disk: one memory-mapped array a feature, filled once.

A folder: `meta.json` (what it was made from, how far it is), `tokens.i32`, and `<feature>.f16` of [rows, H]
each. Filling goes on where a kill stopped it, and computes only the features that are not there yet: heads of
several kinds may share a store. Logits are not stored: a head's teacher is its target's last
hidden state through the lm_head.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from taslak.errors import OptionError
from taslak.models.loading import Progress
from taslak.models.loading.storage import (
    full_disk_is_an_error,
    make_folder,
    read_json,
    require_free,
    write_json,
)
from taslak.models.target import Target, chain_rows
from taslak.training.answers import Answer

ROWS = 1024
"""Rows of one pass of the target, and what is lost to a kill."""

FLUSH_ROWS = 32 * ROWS

LARGEST = float(np.finfo(np.float16).max)
"""Hidden states beyond it are cut to it: a few channels of the first token reach so far in some models, and
the norm after them brings them back to a size that doesn't depend on how far."""


@dataclass(frozen=True, slots=True)
class Text:
    """One sequence to take in. `prompt_length`: how many of the tokens are prompt (no loss on them);
    `held_out`: not to be trained on."""

    tokens: Sequence[int]
    prompt_length: int
    held_out: bool = False


def texts_of(answers: Sequence[Answer], held_out: frozenset[int], max_length: int) -> list[Text]:
    """The answers as texts, cut to `max_length` tokens; those with no answer left are dropped."""
    texts = [
        Text(answer.tokens[:max_length], len(answer.prompt), answer.index in held_out)
        for answer in answers
        if len(answer.prompt) < max_length
    ]
    if not any(text.held_out for text in texts) or all(text.held_out for text in texts):
        raise OptionError(
            f"of {len(answers)} answers none is left to train on, or none held out; give more prompts or a "
            "larger --max-length"
        )
    return texts


class Store:
    """Texts and the target's features over them. Made by `fill`.

    features: name -> Float16[rows, H], memory-mapped; row i is the hidden state at token i
    tokens:   Int32[rows]
    """

    def __init__(self, folder: Path, features: Sequence[str] | None = None) -> None:
        """features: the ones of interest, None = all there are."""
        meta = read_json(folder / "meta.json")
        self.digest: str = meta["texts"]
        self.width = int(meta["hidden_size"])
        lengths = meta["lengths"]
        self.offsets: npt.NDArray[np.int64] = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        self.prompt_lengths: list[int] = meta["prompt_lengths"]
        self.held_out = [i for i, held in enumerate(meta["held_out"]) if held]
        self.trained = [i for i, held in enumerate(meta["held_out"]) if not held]
        rows = int(self.offsets[-1])
        self.tokens: npt.NDArray[np.int32] = np.memmap(folder / "tokens.i32", np.int32, "r", shape=(rows,))
        self.features: dict[str, npt.NDArray[np.float16]] = {
            name: np.memmap(folder / f"{name}.f16", np.float16, "r", shape=(rows, self.width))
            for name in (meta["features"] if features is None else features)
        }

    def length(self, index: int) -> int:
        return int(self.offsets[index + 1] - self.offsets[index])

    def rows(self, index: int) -> slice:
        """Where the text's rows lie."""
        return slice(int(self.offsets[index]), int(self.offsets[index + 1]))

    def token_counts(self, vocab_size: int) -> Tensor:
        """How often each token occurs in the answers trained on. -> Int64[vocab_size]."""
        counts: npt.NDArray[np.int64] = np.zeros(vocab_size, np.int64)
        for index in self.trained:
            rows = self.rows(index)
            answer = self.tokens[rows.start + self.prompt_lengths[index] : rows.stop]
            counts += np.bincount(answer, minlength=vocab_size)
        return torch.from_numpy(counts)


def fill(
    folder: Path,
    target: Target,
    texts: Sequence[Text],
    features: Sequence[str],
    made_from: Mapping[str, Any],
    progress: Progress | None = None,
) -> Store:
    """The store in `folder`, its missing part computed.

    features:   the target's capture names; others that are there stay
    made_from:  what else the features depend on (the model, its dtype); a store made from other things,
                or of other texts, is an OptionError

    Raises DiskError before anything is written where the disk is too small.
    """
    texts = list(texts)
    lengths = [len(text.tokens) for text in texts]
    rows = sum(lengths)
    every = np.fromiter((token for text in texts for token in text.tokens), np.int32, rows)
    meta: dict[str, Any] = {
        **made_from,
        "hidden_size": target.hidden_size,
        "texts": hashlib.sha256(every.tobytes()).hexdigest(),
        "lengths": lengths,
        "prompt_lengths": [text.prompt_length for text in texts],
        "held_out": [int(text.held_out) for text in texts],
    }
    make_folder(folder)
    found = _found(folder, meta)
    there, filling, done = found or ([], [], 0)
    missing = [name for name in features if name not in there]
    meta["features"] = there
    if missing and filling != missing:
        require_free(folder, size(rows, target.hidden_size, len(missing)), f"the hidden states in {folder}")
        if found is not None:  # before a file changes, the note must not speak of it
            write_json(folder / "meta.json", {**meta, "filling": [], "done": 0})
        with full_disk_is_an_error(folder, "hidden states"):
            if found is None:  # else others may be reading them
                every.tofile(folder / "tokens.i32")
            for name in missing:
                _reserve(folder / f"{name}.f16", rows * target.hidden_size * 2)
        done = 0
    if missing:
        _compute(folder, target, texts, meta, missing, done, progress)
    return Store(folder, features)


def size(rows: int, hidden_size: int, features: int) -> int:
    """Bytes of a store."""
    return rows * (4 + 2 * hidden_size * features)


def _found(folder: Path, meta: dict[str, Any]) -> tuple[list[str], list[str], int] | None:
    """Features that are there, those being computed, and how many texts they have taken in. None where there
    is no store yet."""
    found = read_json(folder / "meta.json")
    if found is None:
        return None
    if different := [key for key in meta if found.get(key) != meta[key]]:
        raise OptionError(
            f"the hidden states in {folder} were made with another {', '.join(different)}; "
            "remove that folder to compute them anew, or give another --store"
        )
    features, done = found["features"], int(found["done"])
    if "filling" not in found:  # as it was once written: all features at a time
        return (features, [], 0) if done == len(found["lengths"]) else ([], features, done)
    return features, found["filling"], done


def _reserve(path: Path, count: int) -> None:
    """A file of this size whose blocks are really there: a memory-mapped file that outgrows the disk kills
    the process."""
    with path.open("wb") as file:
        file.truncate(count)
        with contextlib.suppress(AttributeError):  # not on every system
            os.posix_fallocate(file.fileno(), 0, max(count, 1))


def _compute(
    folder: Path,
    target: Target,
    texts: Sequence[Text],
    meta: dict[str, Any],
    filling: Sequence[str],
    done: int,
    progress: Progress | None,
) -> None:
    """The features `filling` of the texts from number `done` on."""
    total = sum(meta["lengths"])
    shape = (total, target.hidden_size)
    arrays = {name: np.memmap(folder / f"{name}.f16", np.float16, "r+", shape=shape) for name in filling}
    write_json(folder / "meta.json", {**meta, "filling": filling, "done": done})
    row = flushed = sum(meta["lengths"][:done])
    while done < len(texts):
        if progress is not None:
            progress("hidden states", row, total)
        count = _fitting(texts, done)
        for name, hidden in _features(target, texts[done : done + count], filling).items():
            arrays[name][row : row + hidden.shape[0]] = hidden.clamp(-LARGEST, LARGEST).half().cpu().numpy()
        row += sum(meta["lengths"][done : done + count])
        done += count
        if row - flushed >= FLUSH_ROWS or done == len(texts):
            for array in arrays.values():
                array.flush()  # before the note that says so
            write_json(folder / "meta.json", {**meta, "filling": filling, "done": done})
            flushed = row
    meta["features"] = [*meta["features"], *filling]
    write_json(folder / "meta.json", {**meta, "filling": [], "done": 0})
    if progress is not None:
        progress("hidden states", total, total)


def _fitting(texts: Sequence[Text], start: int) -> int:
    """How many texts from `start` on share the next pass; at least one."""
    rows = 0
    for count, text in enumerate(texts[start:]):
        rows += len(text.tokens)
        if rows > ROWS:
            return max(count, 1)
    return len(texts) - start


def _features(target: Target, texts: Sequence[Text], names: Sequence[str]) -> Mapping[str, Tensor]:
    """One pass over whole texts. -> name -> Float[rows, H]."""
    caches = [target.allocate(len(text.tokens)) for text in texts]
    try:
        batch = [chain_rows(cache, text.tokens, 0) for cache, text in zip(caches, texts, strict=True)]
        return target.forward(batch, capture=names).features
    finally:
        for cache in caches:
            cache.release()
