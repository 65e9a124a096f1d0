"""Width invariance, checked on any decoder: what stands beside a row changes none of its bits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from hypothesis import strategies as st
from torch import Tensor

from taslak.models.cache import Block
from taslak.models.decoder import Decoder
from taslak.models.target import Rows, chain_rows

Check = Callable[[Tensor, Tensor], bool]
"""Whether two tensors agree: `torch.equal`, or up to rounding where no more is promised."""


def plain_logits(model: Decoder, tokens: list[int]) -> tuple[Tensor, Block]:
    """Logits of every position, one row a pass."""
    cache = model.allocate(len(tokens) + 40)
    rows = []
    for token in tokens:
        rows.append(model.forward([chain_rows(cache, [token], 1)]).logits)
        cache.keep([0])
    return torch.cat(rows), cache


def cache_bits(model: Decoder, cache: Block) -> Tensor:
    """K and V of the committed positions, in order."""
    where = torch.tensor([cache.slot(position) for position in range(cache.length)])
    return torch.stack((model.pool.keys[:, where], model.pool.values[:, where]))


def check_any_company(
    model: Decoder,
    data: st.DataObject,
    threads: Callable[[], int],
    set_threads: Callable[[int], None],
    most: int,
) -> None:
    """Prefill chunks, neighbours, slot placement and thread count as `data` draws them, up to `most` tokens:
    logits and cache bytes equal those of one row a pass."""
    tokens = data.draw(st.lists(st.integers(0, 60), min_size=2, max_size=most))
    expected, plain_cache = plain_logits(model, tokens)
    before = threads()
    set_threads(data.draw(st.sampled_from((1, 2, 3))))
    other = model.allocate(300)
    first, hole = model.allocate(64), model.allocate(64)
    if data.draw(st.booleans()):  # a hole in the pool, so that this sequence's pages don't lie in a row
        first.release()
    cache = model.allocate(len(tokens) + 64)
    try:
        got = []
        done = 0
        while done < len(tokens):
            chunk = tokens[done : done + data.draw(st.integers(1, 17))]
            neighbour = data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=9))
            batch = [chain_rows(cache, chunk, len(chunk)), chain_rows(other, neighbour, 0)]
            turned = data.draw(st.booleans())
            got.append(model.forward(batch[::-1] if turned else batch).logits)
            cache.keep(range(len(chunk)))
            other.keep(range(len(neighbour)) if other.length < 200 else [])
            done += len(chunk)
        assert torch.equal(torch.cat(got), expected)
        assert torch.equal(cache_bits(model, cache), cache_bits(model, plain_cache))
    finally:
        set_threads(before)
        for block in (plain_cache, other, cache, first, hole):
            block.release()


def check_tree(model: Decoder, data: st.DataObject, agree: Check, most: int, nodes: int) -> None:
    """A node's logits, and the cache after keeping its path, are those of decoding prefix + branch plainly.
    `most`: tokens of the prefix; `nodes`: of the tree, which may have several roots."""
    prefix = data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=most))
    n = data.draw(st.integers(1, nodes))
    tokens = data.draw(st.lists(st.integers(0, 60), min_size=n, max_size=n))
    parents = [-1, *(data.draw(st.integers(-1, i)) for i in range(n - 1))]
    cache = model.allocate(len(prefix) + n)
    model.forward([chain_rows(cache, prefix, 0)])
    cache.keep(range(len(prefix)))
    output = model.forward([Rows(cache, tokens, parents, first=0, wanted=n)])
    node = data.draw(st.integers(0, n - 1))
    path = cache.ancestors(node)
    expected, plain_cache = plain_logits(model, prefix + [tokens[i] for i in path])
    cache.keep(path)
    try:
        assert agree(output.logits[node], expected[-1])
        assert agree(cache_bits(model, cache), cache_bits(model, plain_cache))
    finally:
        cache.release()
        plain_cache.release()


def check_resumed_rows(model: Decoder, data: st.DataObject, exit_layer: int, most: int, nodes: int) -> None:
    """Early exit: some leading rows of a tree go through the lower layers by themselves, in several calls,
    and a pass takes them up there, all others from layer 0. Logits, features and K/V equal those of a plain
    pass. `most`: tokens of the prefix; `nodes`: of the tree."""
    prefix = data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=most))
    n = data.draw(st.integers(1, nodes))
    tokens = data.draw(st.lists(st.integers(0, 60), min_size=n, max_size=n))
    parents = [-1, *(data.draw(st.integers(0, i)) for i in range(n - 1))]
    done = data.draw(st.integers(1, n))
    seen = ["embedding", f"layer.{exit_layer}", f"layer.{model.layers - 1}", "final_norm"]
    whole_cache, cache = model.allocate(most + nodes), model.allocate(most + nodes)
    for block in (whole_cache, cache):
        model.forward([chain_rows(block, prefix, 0)])
        block.keep(range(len(prefix)))
    whole = model.forward([Rows(whole_cache, tokens, parents, 0, n)], capture=seen)
    name = f"layer.{exit_layer - 1}"
    hidden = torch.zeros(n, model.hidden_size)
    first = 0
    while first < done:
        end = data.draw(st.integers(first + 1, done))
        rows = Rows(cache, tokens[first:end], parents[first:end], first, 0)
        hidden[first:end] = model.forward([rows], (0, exit_layer), capture=[name]).features[name]
        first = end
    starts = [exit_layer] * done + [0] * (n - done)
    resumed = model.forward([Rows(cache, tokens, parents, 0, n, starts=starts, hidden=hidden)], capture=seen)
    path = cache.ancestors(data.draw(st.integers(0, n - 1)))
    for block in (whole_cache, cache):
        block.keep(path)
    try:
        assert torch.equal(resumed.logits, whole.logits)
        assert all(torch.equal(resumed.features[name], whole.features[name]) for name in seen)
        assert torch.equal(cache_bits(model, cache), cache_bits(model, whole_cache))
    finally:
        whole_cache.release()
        cache.release()
