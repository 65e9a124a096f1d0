"""Choosing children: the kernels choose what PyTorch chooses."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from taslak.core.noise import Stream
from taslak.core.sampling import Sampling
from taslak.drafters import choice
from taslak.drafters.base import View
from taslak.drafters.choice import RIVALS, Children, Chooser, Wish
from taslak.native import available

VOCABULARY = 400


def both(logits: torch.Tensor, wishes: Sequence[Wish], ids: torch.Tensor | None) -> list[list[Children]]:
    """With and without the kernels."""
    chooser = Chooser(VOCABULARY, ids)
    with pytest.MonkeyPatch.context() as patched:
        found = [chooser.choose(logits, range(len(wishes)), wishes)]
        patched.setattr(choice, "available", lambda: False)
        return [*found, chooser.choose(logits, range(len(wishes)), wishes)]


@pytest.mark.skipif(not available(), reason="no native kernels here")
@given(
    seed=st.integers(0, 2**31),
    reduced=st.booleans(),
    temperature=st.sampled_from((0.0, 0.5, 1.0)),
    spread=st.sampled_from((0.5, 4.0, 30.0)),
    widths=st.lists(st.integers(1, 8), min_size=1, max_size=4),
)
def test_the_kernels_choose_the_same(
    seed: int, reduced: bool, temperature: float, spread: float, widths: list[int]
) -> None:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randperm(VOCABULARY, generator=generator)[:90].sort().values if reduced else None
    logits = torch.randn(len(widths), 90 if reduced else VOCABULARY, generator=generator) * spread
    view = View(tokens=[1, 2, 3], prompt_length=2, sampling=Sampling(temperature=temperature), key=seed)
    wishes = [Wish(view, [5] * i, width, drawn=False) for i, width in enumerate(widths)]
    native, torch_ = both(logits, wishes, ids)
    for mine, other, width in zip(native, torch_, widths, strict=True):
        assert list(mine.tokens) == list(other.tokens)
        assert list(mine.shares) == pytest.approx(list(other.shares), rel=1e-5)
        assert len(mine.tokens) == width
        assert mine.q is other.q is None


def test_nothing_is_chosen_from_a_broken_row() -> None:
    logits = torch.zeros(2, VOCABULARY)
    logits[0, 5] = math.nan
    for temperature in (0.0, 1.0):
        view = View([1, 2], 1, Sampling(temperature=temperature), key=1)
        for broken, sound in both(logits, [Wish(view, (), 2, drawn=False)] * 2, None):
            assert not broken.tokens
            assert len(sound.tokens) == 2


def test_a_draw_is_worth_its_share_of_the_likeliest_rivals() -> None:
    """One token that the noise can't reach is worth all; of many equal ones none is worth much."""
    sharp = torch.zeros(1, VOCABULARY)
    sharp[0, 9] = 60.0
    view = View([1], 1, Sampling(temperature=1.0), key=3, stream=Stream.TOKEN)
    wish = Wish(view, (), 1, drawn=False)
    chooser = Chooser(VOCABULARY)
    assert chooser.choose(sharp, [0], [wish])[0] == Children([9], [pytest.approx(1.0)])
    (flat,) = chooser.choose(torch.zeros(1, VOCABULARY), [0], [wish])
    assert 1 / RIVALS <= flat.shares[0] < 1.0
