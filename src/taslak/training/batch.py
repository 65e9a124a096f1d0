"""Whole texts side by side in one row of tokens: what a training step sees.

Knows nothing about heads: tokens, features, and which rows of a text lie how far ahead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from taslak.training.store import Store


@dataclass(frozen=True, slots=True)
class Tail:
    """The last rows of each text of a batch.

    rows:   Int64[n], where they lie in the batch, ascending
    spans:  of each text, where all its rows lie in the batch, and its last ones among `rows`
    """

    rows: Tensor
    spans: list[tuple[slice, slice]]


@dataclass(frozen=True)
class Batch:
    """T rows of several texts.

    tokens:    Int64[T]
    positions: Int64[T], from 0 in each text
    texts:     Int64[T], which text a row belongs to
    answered:  Bool[T], whether the token at the row is an answer's, the first one left out: the pass over the
               prompt gives that before anything is drafted. The others bear no loss
    features:  name -> Float32[T, H]
    """

    tokens: Tensor
    positions: Tensor
    texts: Tensor
    answered: Tensor
    features: Mapping[str, Tensor]

    def __len__(self) -> int:
        return int(self.tokens.shape[0])

    def ahead(self, steps: int) -> Tensor:
        """The rows i whose text has a row i + steps that is part of an answer. -> Int64[n], ascending."""
        last = len(self) - steps
        good = (self.texts[:last] == self.texts[steps:]) & self.answered[steps:]
        return torch.nonzero(good)[:, 0]

    def tail(self, lead: int) -> Tail:
        """From `lead` rows before the first answered one on; of a text without one its last row."""
        rows: list[int] = []
        spans = []
        answered = self.answered.cpu()
        for span in self.spans:
            place = int(answered[span].float().argmax())  # of the first; 0 where there is none
            start = max(span.start, span.start + place - lead) if answered[span].any() else span.stop - 1
            spans.append((span, slice(len(rows), len(rows) + span.stop - start)))
            rows += range(start, span.stop)
        return Tail(torch.tensor(rows, device=self.device), spans)

    @property
    def device(self) -> torch.device:
        return self.tokens.device

    @cached_property
    def spans(self) -> list[slice]:
        """Where each text lies. A row attends to its own text alone."""
        lengths = torch.bincount(self.texts).tolist()
        ends = list(accumulate(lengths))
        return [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]


def collate(store: Store, texts: Sequence[int], device: torch.device) -> Batch:
    """The texts side by side."""
    where = [store.rows(index) for index in texts]
    lengths = [rows.stop - rows.start for rows in where]
    answered = [
        torch.arange(length) > store.prompt_lengths[index]
        for index, length in zip(texts, lengths, strict=True)
    ]
    return Batch(
        tokens=torch.cat([torch.from_numpy(store.tokens[rows].astype("int64")) for rows in where]).to(device),
        positions=torch.cat([torch.arange(length) for length in lengths]).to(device),
        texts=torch.repeat_interleave(torch.arange(len(texts)), torch.tensor(lengths)).to(device),
        answered=torch.cat(answered).to(device),
        features={
            name: torch.cat([torch.from_numpy(array[rows].astype("float32")) for rows in where]).to(device)
            for name, array in store.features.items()
        },
    )


def packed(store: Store, texts: Sequence[int], rows: int, seed: int | None) -> list[list[int]]:
    """The texts in batches of at most `rows` rows (a longer text makes one of its own), shuffled by `seed`
    (None: as they come)."""
    order = list(texts)
    if seed is not None:
        shuffle = torch.randperm(len(order), generator=torch.Generator().manual_seed(seed))
        order = [order[i] for i in shuffle.tolist()]
    batches: list[list[int]] = [[]]
    room = rows
    for index in order:
        length = store.length(index)
        if batches[-1] and length > room:
            batches.append([])
            room = rows
        batches[-1].append(index)
        room -= length
    return batches
