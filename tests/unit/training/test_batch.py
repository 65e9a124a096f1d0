"""Texts side by side: which rows have a loss, and no text sees another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from taslak.training.batch import Batch, Tail, collate, packed
from taslak.training.eagle import Eagle, Eagle3
from taslak.training.layers import _attend
from tests.support.training import make_store, target_folder, teacher, whole_batch


def test_rows_ahead_are_answers_of_the_same_text(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    batch = whole_batch(store)
    for steps in (1, 2, 5):
        expected = []
        for index in range(6):
            rows = store.rows(index)
            expected += [row for row in range(rows.start, rows.stop - steps) if row + steps > rows.start + 5]
        assert batch.ahead(steps).tolist() == expected
    assert [batch.tokens[span].tolist() for span in batch.spans] == [
        store.tokens[store.rows(i)].tolist() for i in range(6)
    ]
    assert all(batch.positions[span].tolist() == [*range(span.stop - span.start)] for span in batch.spans)


def test_batches_hold_every_text_once(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    batches = packed(store, store.trained, 60, seed=4)
    assert sorted(i for batch in batches for i in batch) == store.trained
    assert all(len(b) == 1 or sum(map(store.length, b)) <= 60 for b in batches)
    assert batches == packed(store, store.trained, 60, seed=4)
    assert batches != packed(store, store.trained, 60, seed=5)
    assert [i for batch in packed(store, [2, 0, 1], 10, None) for i in batch] == [2, 0, 1]


def sees(length: int, earlier: int) -> torch.Tensor:
    """`_attend`'s rule written out for a text all of whose rows run in every round: which keys a row of
    round `earlier` attends to, the first round's, then each later one's. -> Bool[L, L · (1 + earlier)].
    """
    row = torch.arange(length)
    back = row[:, None] - row[None]
    return torch.cat([back >= earlier, *(back == earlier - j for j in range(1, earlier + 1))], dim=1)


def test_what_a_round_sees() -> None:
    """Row 3 of round 2: target-made keys two or more rows back, round 1 one row back, round 2 itself."""
    assert sees(4, 0).int().tolist() == torch.ones(4, 4).tril().int().tolist()
    keys = torch.nonzero(sees(4, 2)[3])[:, 0].tolist()
    assert keys == [0, 1, 4 + 2, 8 + 3]


@pytest.mark.parametrize("kind", [Eagle, Eagle3])
def test_neighbours_change_nothing(tmp_path: Path, kind: type[Eagle] | type[Eagle3]) -> None:
    store = make_store(tmp_path / "s")
    torch.manual_seed(0)
    options = {"captures": (0, 1, 2)} if kind is Eagle3 else {}
    head = kind(teacher(target_folder(tmp_path / "m")), 3, **options)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    batch = whole_batch(store)
    tail = batch.tail(2)
    together = head.run(batch, tail)
    for index, (_, own) in enumerate(tail.spans):
        one = collate(store, [index], batch.device)
        alone = head.run(one, one.tail(2))
        for number, (a, b) in enumerate(zip(together, alone, strict=True)):
            torch.testing.assert_close(a[own][number:-1], b[number:-1], rtol=1e-4, atol=1e-5)


def test_a_tail_begins_before_the_first_row_that_counts(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    batch = whole_batch(store)
    for lead, first in ((0, 6), (2, 4), (6, 0), (9, 0)):  # prompts of 5: row 6 is the second answered token
        tail = batch.tail(lead)
        for index, (whole, own) in enumerate(tail.spans):
            rows = store.rows(index)
            assert (whole.start, whole.stop) == (rows.start, rows.stop)
            assert tail.rows[own].tolist() == [*range(rows.start + first, rows.stop)]
    silent = replace(batch, answered=torch.zeros_like(batch.answered))
    assert silent.tail(3).rows.tolist() == [store.rows(index).stop - 1 for index in range(6)]


@pytest.mark.parametrize("kind", [Eagle, Eagle3])
@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_what_a_tail_leaves_out_changes_no_loss(
    tmp_path: Path, kind: type[Eagle] | type[Eagle3], rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses and gradients are those of running every row in every round."""
    batch = whole_batch(make_store(tmp_path / "s"))
    options = {"captures": (0, 1, 2)} if kind is Eagle3 else {}
    head = kind(teacher(target_folder(tmp_path / "m")), rounds, **options)
    torch.manual_seed(0)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.2)

    def losses() -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
        found = head(batch)
        return found, list(torch.autograd.grad(found["loss"], list(head.parameters())))

    found, gradients = losses()
    monkeypatch.setattr(
        Batch, "tail", lambda self, _: Tail(torch.arange(len(self)), [(s, s) for s in self.spans])
    )
    expected, wanted = losses()
    assert torch.equal(found["right"], expected["right"])
    torch.testing.assert_close(found["loss"], expected["loss"])
    for mine, theirs in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rounds", [1, 2, 3, 5])
@pytest.mark.parametrize("length", [1, 2, 4, 9])
@pytest.mark.parametrize("before", [0, 3])
def test_attention_is_that_over_the_keys_a_row_sees(rounds: int, length: int, before: int) -> None:
    """Values and gradients, also for short texts. `before`: rows that only the first round runs."""
    generator = torch.Generator().manual_seed(length)

    def numbers(heads: int, rows: int = length) -> torch.Tensor:
        return torch.randn(rows, heads, 8, generator=generator).requires_grad_()

    whole = before + length
    q, past = numbers(4), [(numbers(2, whole), numbers(2, whole))]
    past += [(numbers(2), numbers(2)) for _ in range(rounds - 1)]
    keys, values = (torch.cat([both[i] for both in past]).repeat_interleave(2, dim=1) for i in (0, 1))
    scores = torch.einsum("qhd,khd->hqk", q, keys) / 8**0.5
    # of the later rounds' keys those of the rows that ran
    ran = torch.cat(
        [torch.arange(whole), *(i * whole + torch.arange(before, whole) for i in range(1, rounds))]
    )
    seen = sees(whole, rounds - 1)[before:, ran]
    weights = torch.softmax(scores.masked_fill(~seen, -torch.inf), dim=-1)
    expected = torch.einsum("hqk,khd->qhd", weights, values).reshape(length, -1)
    found = _attend(q, past)
    torch.testing.assert_close(found, expected)
    leaves = [q, *(t for both in past for t in both)]

    def gradients(result: torch.Tensor) -> list[torch.Tensor | None]:
        return list(torch.autograd.grad(result.square().sum(), leaves, allow_unused=True))

    for mine, theirs in zip(gradients(found), gradients(expected), strict=True):
        torch.testing.assert_close(
            *(torch.zeros(1) if g is None else g for g in (mine, theirs)), atol=1e-5, rtol=1e-4
        )
