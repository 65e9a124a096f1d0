"""A loaded causal LM of transformers as a Target: its own forward pass, our cache.

What the architecture can do beside a plain line of tokens (trees, several sequences in one pass, hidden
states) is found out by trying, when it is wrapped: `taslak.interop.rehearsal`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from taslak.errors import CheckpointError, OptionError
from taslak.interop.paged import LayeredPool, PassCache, Stored
from taslak.models.cache import Block, Pool
from taslak.models.decoder import EMBEDDING, FINAL_NORM, layer_feature
from taslak.models.kernels import Kernels, TorchKernels
from taslak.models.layers import Ends
from taslak.models.target import Output, Rows, wanted_rows

CONTEXTS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
"""What configurations call the most positions."""
UNBOUNDED = 2048
"""Positions where the configuration says nothing: what models with biases for positions were trained on."""
BY_LENGTH = ("dynamic", "longrope")
"""Kinds of rope scaling that turn every position anew when a text grows longer than the original context."""


class TransformersTarget:
    """Implements Target. Layers can't be run one without the other (`layers` of `forward`), and rows start at
    the first.

    packs:      a pass may hold trees and several sequences: the model keeps to a mask of [rows, keys]. If not
                a draft is a line, and each sequence has a pass of its own
    why_lines:  why not
    features:   names that may be captured
    """

    width_invariant = False

    def __init__(
        self,
        model: Any,
        stored: Sequence[Stored | None],
        *,
        vocab_size: int | None = None,
        context: int | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        """stored:      what each layer's cache keeps
        vocab_size:  of the tokenizer; the head's rows from there on are padding and never drawn
        context:     fewer positions than the model has
        """
        self.model = model
        self._config = model.config.get_text_config(decoder=True)
        self._parameters = inspect.signature(model.forward).parameters
        self._cache_name = cache_parameter(model)
        self._stored = list(stored)
        self._cache_bytes = cache_bytes
        rows = int(self._config.vocab_size)
        self.padded_vocab_size = rows
        self.vocab_size = min(vocab_size or rows, rows)
        most = context_of(self._config)
        self.context = most if context is None else min(context, most)
        self.layers = int(self._config.num_hidden_layers)
        self.hidden_size = int(self._config.hidden_size)
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.kernels: Kernels = TorchKernels(self.dtype, self.device)
        self.packs = False
        self.why_lines: str | None = None
        self.features: tuple[str, ...] = ()
        self.weight_bytes = sum(weight.nbytes for weight in model.parameters())
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        tied = head is None or head.weight is embedding.weight
        self.pass_bytes = self.weight_bytes - (0 if tied else embedding.weight.nbytes)
        self.clear()

    def clear(self) -> None:
        """Forget all sequences and give their memory back."""
        self._layered = LayeredPool(self._stored, self._cache_bytes)
        self.pool: Pool = self._layered
        self.cache_limit = self.pool.limit
        self._cache = PassCache(self._layered)

    def scribble(self, block: Block, positions: int) -> None:
        """Have an empty block hold so many positions of noise."""
        self._layered.scribble(block, positions)

    def allocate(self, positions: int, shared: Sequence[int] = ()) -> Block:
        return self.pool.allocate(positions, shared)

    @torch.inference_mode()
    def forward(
        self, batch: Sequence[Rows], layers: tuple[int, int] | None = None, capture: Sequence[str] = ()
    ) -> Output:
        if layers not in (None, (0, self.layers)):
            raise OptionError("a model of transformers runs as a whole: its first layers can't draft alone")
        for rows in batch:
            rows.cache.add(rows.parents)
        if self.packs or len(batch) == 1:
            return self._pass(batch, capture)
        outputs = [self._pass([rows], capture) for rows in batch]
        features = {name: torch.cat([output.features[name] for output in outputs]) for name in capture}
        return Output(torch.cat([output.logits for output in outputs]), features)

    def _pass(self, batch: Sequence[Rows], capture: Sequence[str]) -> Output:
        """One call of the model."""
        self._cache.enter(batch)
        line = len(batch) == 1 and batch[0].cache.is_line  # positions and mask are the model's business
        if not line and not self.packs:
            raise ValueError(f"rows of this model have to be a line: {self.why_lines}")
        tokens = [token for rows in batch for token in rows.tokens]
        wanted = wanted_rows(batch)
        keep: dict[str, Any] = {}
        if "logits_to_keep" in self._parameters:
            tail = not wanted or wanted[0] + len(wanted) == len(tokens)  # the last so many; 0 = all
            keep["logits_to_keep"] = max(len(wanted), 1) if tail else torch.tensor(wanted, device=self.device)
        if capture:
            keep["output_hidden_states"] = True
        output = self.model(
            input_ids=torch.tensor([tokens], device=self.device),
            **{self._cache_name: self._cache},
            use_cache=True,
            return_dict=True,
            **keep,
            **({} if line else self._arranged(batch)),
        )
        logits = output.logits[0]  # [rows, V], of the wanted ones or of all
        if logits.shape[0] != len(wanted):
            logits = logits[wanted] if wanted else logits[:0]
        named = self._captured(output.hidden_states) if capture else {}
        return Output(logits[:, : self.vocab_size].float(), {name: named[name] for name in capture})

    def _arranged(self, batch: Sequence[Rows]) -> dict[str, Any]:
        """Positions and mask of rows that are no line: each sees its own sequence's committed positions and
        its own ancestors, as far back as the layer's window reaches."""
        where = torch.from_numpy(np.concatenate([_positions(rows.cache) for rows in batch])).to(self.device)
        counts = [rows.cache.length + rows.cache.nodes for rows in batch]
        sees = torch.zeros((sum(len(rows.tokens) for rows in batch), sum(counts)), dtype=torch.bool)
        own: list[int] = []
        row = key = 0
        for rows, count in zip(batch, counts, strict=True):
            n = len(rows.tokens)
            sees[row : row + n, key : key + count] = torch.from_numpy(_sees(rows.cache)[-n:])
            own += range(key + count - n, key + count)
            row, key = row + n, key + count
        sees = sees.to(self.device)
        at = where[own]  # [rows]
        masks = {kind: self._mask(sees, self._near(kind, at, where)) for kind in self._reach}
        listed = getattr(self._config, "layer_types", None) is not None
        return {"attention_mask": masks if listed else next(iter(masks.values())), "position_ids": at[None]}

    @cached_property
    def _reach(self) -> dict[str, int | None]:
        """The kinds of layers there are, and how many positions each sees; None = all before it."""
        window = getattr(self._config, "sliding_window", None)
        chunk = getattr(self._config, "attention_chunk_size", None)
        kinds = getattr(self._config, "layer_types", None)
        if kinds is None:
            kinds = ["sliding_attention" if window else "chunked_attention" if chunk else "full_attention"]
        sizes = {"sliding_attention": window, "chunked_attention": chunk}
        return {kind: sizes.get(kind) for kind in kinds}

    @property
    def windows(self) -> set[int]:
        """Positions that some of its layers see no further than."""
        return {reach for reach in self._reach.values() if reach is not None}

    def _near(self, kind: str, at: Tensor, where: Tensor) -> Tensor | None:
        """Bool[rows, keys] whether a key is near enough, as transformers has it; None where all are."""
        size = self._reach[kind]
        if size is None:
            return None
        if kind == "chunked_attention":
            return where // size == at[:, None] // size
        return where > at[:, None] - size

    def _mask(self, sees: Tensor, near: Tensor | None) -> Tensor:
        """As what is added to scores: Float[1, 1, rows, keys]. Every form of attention but flash takes it."""
        seen = sees if near is None else sees & near
        mask = torch.zeros(seen.shape, dtype=self.dtype, device=self.device)
        return mask.masked_fill_(~seen, torch.finfo(self.dtype).min)[None, None]

    def _captured(self, hidden: Sequence[Tensor]) -> Mapping[str, Tensor]:
        """Name -> Float[rows, H]. transformers gives the embedding, what each layer but the last puts out,
        and what the head reads."""
        inner = {layer_feature(i): states[0] for i, states in enumerate(hidden[1:-1])}
        return {EMBEDDING: hidden[0][0], FINAL_NORM: hidden[-1][0], **inner}

    @torch.inference_mode()
    def embed(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.model.get_input_embeddings()(tokens.to(self.device))
        return embedded

    def norm(self, x: Tensor, weight: Tensor | None = None) -> Tensor:  # noqa: ARG002, it can't
        raise OptionError("a model of transformers runs as a whole: its last norm is not to be had alone")

    @torch.inference_mode()
    def logits(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model.get_output_embeddings()(x)
        return logits[:, : self.vocab_size].float()

    def unembedding(self, ids: Tensor) -> Tensor:
        weight: Tensor = self.model.get_output_embeddings().weight
        return weight[ids.to(weight.device)].detach()

    @cached_property
    def ends(self) -> Ends:
        """The embedding as the model reads it: some scale it."""
        module = self.model.get_input_embeddings()
        table = module.weight.detach()
        if type(module) is not torch.nn.Embedding:
            with torch.inference_mode(False), torch.no_grad():
                table = module(torch.arange(table.shape[0], device=table.device))
        head = self.model.get_output_embeddings().weight.detach()[: self.vocab_size]
        return Ends(embedding=table, head=head)


def cache_parameter(model: Any) -> str:
    """What its forward calls the cache. Raises CheckpointError for a model that takes none."""
    parameters = inspect.signature(model.forward).parameters
    for name in ("cache", "past_key_values"):  # the second in older releases
        if name in parameters:
            return name
    raise CheckpointError(
        f"{type(model).__name__} keeps no cache of keys and values, so each token would take a pass over the "
        "whole text; use a model that has one"
    )


def context_of(config: Any) -> int:
    """Most positions of a text. Where rope scaling depends on its length, those within which it does not:
    beyond them positions in the cache would have to be turned anew."""
    found = (getattr(config, name, None) for name in CONTEXTS)
    context = next((int(value) for value in found if value), UNBOUNDED)
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    scalings = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    for scaling in scalings:
        if scaling.get("rope_type", scaling.get("type")) in BY_LENGTH:
            own = scaling.get("original_max_position_embeddings")
            own = own or getattr(config, "original_max_position_embeddings", None)
            context = min(context, int(own or context))
    return context


def _positions(cache: Block) -> np.ndarray[Any, Any]:
    """[committed + nodes] in the text, by slot."""
    return np.concatenate([np.arange(cache.length), cache.length + np.array(cache.depths, dtype=np.int64)])


def _sees(cache: Block) -> np.ndarray[Any, Any]:
    """Bool[nodes, committed + nodes]: what precedes each node, itself included."""
    sees = np.zeros((cache.nodes, cache.length + cache.nodes), dtype=bool)
    sees[:, : cache.length] = True
    for node, parent in enumerate(cache.parents):
        if parent >= 0:
            sees[node] = sees[parent]
        sees[node, cache.length + node] = True
    return sees
