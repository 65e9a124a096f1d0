"""Which cells are run: a base, then one value at a time, or everything."""

from __future__ import annotations

from typing import Any

import pytest

from taslak.bench.grid import PLAINLY, Grid, Setting, Way
from taslak.bench.prompts import BenchPrompt
from taslak.bench.run import units
from taslak.errors import OptionError

GRID = Grid(
    methods=("suffix", "eagle"),
    gammas=(None, 2, 4),
    temperatures=(0.0, 0.8),
    contexts=(0, 512),
    max_tokens=(96, 16),
    batches=(1, 4),
)
PROMPTS = [BenchPrompt(f"{i}", "t", "", "text") for i in range(6)]


def test_one_value_is_varied_at_a_time() -> None:
    base, gammas, *others = GRID.rounds()
    assert base.setting == gammas.setting == Setting(0.0, 0, 96, 1)
    assert base.everywhere
    assert not gammas.everywhere
    assert base.ways == (PLAINLY, Way("suffix"), Way("eagle"))
    assert set(gammas.ways) == {PLAINLY} | {Way(m, g) for m in ("suffix", "eagle") for g in (2, 4)}
    assert [each.setting for each in others] == [
        Setting(0.8, 0, 96, 1), Setting(0.0, 512, 96, 1), Setting(0.0, 0, 16, 1), Setting(0.0, 0, 96, 4),
    ]  # fmt: skip
    assert all(each.ways[0] == PLAINLY for each in GRID.rounds())


def test_cross_asks_for_every_combination() -> None:
    crossed = Grid(("suffix",), (None, 2), (0.0, 0.8), (0,), (96, 16), (1, 4), cross=True).rounds()
    assert len(crossed) == 8
    assert all(each.everywhere and len(each.ways) == 3 for each in crossed)


def test_wide_batches_are_filled_and_the_rest_left_out() -> None:
    made = units(GRID, PROMPTS, PROMPTS[:2])
    wide = [unit for unit in made if unit.setting.batch == 4]
    assert [len(unit.prompts) for unit in wide] == [4]
    assert wide[0].prompts[:2] == tuple(PROMPTS[:2])
    alone = [unit for unit in made if unit.series == 0]
    assert [unit.prompts for unit in alone] == [(prompt,) for prompt in PROMPTS]
    with pytest.raises(OptionError, match="a batch of 4 needs as many prompts, and there are 3"):
        units(GRID, PROMPTS[:3], PROMPTS[:1])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gammas": (17,)}, "gamma is 17; expected 1 to 16"),
        ({"gammas": ()}, "no gamma is given"),
        ({"temperatures": (0.5, 0.5)}, "temperature names a value twice"),
        ({"temperatures": (float("nan"),)}, "temperature is nan"),
        ({"max_tokens": (0,)}, "max_tokens is 0; expected at least 1"),
        ({"batches": (0,)}, "batch is 0"),
    ],
)
def test_values_out_of_range_are_told(values: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Grid(("suffix",), **values)
