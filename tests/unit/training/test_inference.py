"""Training computes what decoding computes: each kind's forward against its drafter, on the same features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from taslak.drafters import base
from taslak.drafters.base import DrafterOptions
from taslak.drafters.eagle_network import EagleNetwork
from taslak.drafters.medusa import MedusaHeads
from taslak.models.ops import Share
from taslak.models.target import chain_rows
from taslak.training.batch import Batch, Tail
from taslak.training.eagle import Rounds
from taslak.training.early_exit import EarlyExit
from taslak.training.medusa import Medusa
from taslak.training.options import KINDS
from tests.support.training import FEATURES, target, target_folder, teacher

IDS = torch.arange(3, 259, 4)
TOKENS = torch.randint(0, 250, (24,), generator=torch.Generator().manual_seed(1))
CLOSE = {"rtol": 1e-3, "atol": 1e-3}


@pytest.fixture(scope="module")
def model() -> Any:
    return target()


@pytest.fixture(scope="module")
def batch(model: Any) -> Batch:
    cache = model.allocate(len(TOKENS))
    features = model.forward([chain_rows(cache, TOKENS.tolist(), 0)], capture=FEATURES).features
    rows = torch.arange(len(TOKENS))
    return Batch(TOKENS, rows, torch.zeros_like(rows), rows > 5, {n: f.clone() for n, f in features.items()})


def build(kind: str, folder: Path, ids: torch.Tensor | None, **options: Any) -> Any:
    torch.manual_seed(2)
    head = KINDS[kind].make(teacher(folder, ids), **options)
    for name, parameter in head.named_parameters():
        torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.2)
    return head


@pytest.mark.parametrize("ids", [None, IDS], ids=["all", "some"])
@pytest.mark.parametrize(
    ("kind", "options"), [("eagle", {}), ("eagle", {"inner_size": 96}), ("eagle3", {"captures": (0, 1, 2)})]
)
def test_eagle(kind: str, options: Any, ids: Any, model: Any, batch: Batch, tmp_path: Path) -> None:
    """Round 1 over all rows at once; rounds 2 and 3 as a chain of two drafted tokens, from every place."""
    head: Rounds = build(kind, target_folder(tmp_path / "m"), ids, ttt=3, **options)
    whole = Tail(torch.arange(len(TOKENS)), [(slice(0, len(TOKENS)),) * 2])
    rounds = [output.detach() for output in head.run(batch, whole)]
    network = EagleNetwork(model, head.head())
    following = TOKENS[1:].tolist()
    n = len(following)
    hidden = network.fuse(torch.cat([batch.features[name][:n] for name in network.features], dim=-1))
    cache = network.allocate()
    cache.reserve(n + 4)
    cache.add(range(-1, n - 1))
    first, logits = network.run(following, hidden, [Share(cache, range(n))], range(n))
    torch.testing.assert_close(first, rounds[0][:n], **CLOSE)
    states, unembedding = head.unembedded(rounds[0][:n])
    torch.testing.assert_close(logits, states @ unembedding.t(), **CLOSE)
    cache.keep(range(n))
    for row in range(n - 2, 0, -1):
        cache.crop(row)  # the rows before it, made from the target's features
        drafted = first[row - 1 : row]
        for number in (1, 2):
            node = number - 1
            cache.add([node - 1])
            at = row + node
            drafted, _ = network.run([following[at]], drafted, [Share(cache, [node])], [0])
            torch.testing.assert_close(drafted[0], rounds[number][at], **CLOSE)


@pytest.mark.parametrize("ids", [None, IDS], ids=["all", "some"])
@pytest.mark.parametrize("unembedding", ["own", "shared", "target"])
def test_medusa(unembedding: str, ids: Any, model: Any, batch: Batch, tmp_path: Path) -> None:
    head: Medusa = build(
        "medusa", target_folder(tmp_path / "m"), ids, heads=3, blocks=2, unembedding=unembedding
    )
    x = batch.features["final_norm"]
    logits = MedusaHeads(model, head.head()).logits(x, 3)
    for number in range(3):
        states, weight = head.hidden(number, x)
        torch.testing.assert_close(logits[number], (states @ weight.t()).detach(), **CLOSE)


@pytest.mark.parametrize("ids", [None, IDS], ids=["all", "some"])
@pytest.mark.parametrize("rank", [0, 4])
def test_early_exit(rank: int, ids: Any, model: Any, batch: Batch, tmp_path: Path) -> None:
    head: EarlyExit = build("early-exit", target_folder(tmp_path / "m"), ids, exit_layer=2, rank=rank)
    drafter: Any = base.build("early-exit", model, DrafterOptions(head=head.head()))
    x = batch.features["layer.1"]
    expected = (head.hidden(x) @ head.teacher.head.t()).detach()
    logits = drafter._logits(x)
    logits = logits if logits.shape[1] == expected.shape[1] else logits[:, ids]
    torch.testing.assert_close(logits, expected, **CLOSE)
