"""How deep to draft elsewhere: from what was measured, the surest first, and never out of nothing."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from taslak.control.history import History
from taslak.drafters.formats import Drafting, EagleConfig, write_head
from taslak.errors import OptionError
from taslak.interop.depth import Depth, best, depth
from taslak.loading import GAMMA
from tests.support.heads import LAYER, random_head
from tests.support.records import record

WRITTEN = 1_800_000_000.0


def history(tmp_path: Path, *, requests: int, ended: float = WRITTEN + 10.0, **of: object) -> History:
    """Requests in which three of four drafted tokens were right, twice as fast as plainly."""
    kept = History(tmp_path / "history.sqlite")
    for number in range(requests):
        kept.add(record(ended + number, [4, 4, 4, 0], method="eagle", speedup=2.0, **of))  # type: ignore[arg-type]
    assert kept.flush(10)
    return kept


def head_folder(tmp_path: Path) -> Path:
    write_head(tmp_path / "head", random_head(EagleConfig(LAYER)))
    os.utime(tmp_path / "head" / "config.json", (WRITTEN, WRITTEN))
    return tmp_path / "head"


def test_what_is_cheap_and_right_is_drafted_deep_and_what_is_dear_is_not() -> None:
    cheap = best([0.8, 0.8, 0.8, 0.8], tau=3.0, speedup=2.9, levels=4, reached=[])
    dear = best([0.8, 0.8, 0.8, 0.8], tau=3.0, speedup=0.8, levels=4, reached=[])
    assert (cheap.gamma, dear.gamma) == (4, 1)
    assert best([0.1], tau=1.1, speedup=0.5, levels=1, reached=[]) == Depth(
        1, "τ 1.10, 0.50 times plain, a drafted level costs 1.20 of a plain pass: drafting did not pay"
    )


def test_no_deeper_than_was_seen() -> None:
    assert best([1.0, 1.0], tau=3.0, speedup=3.0, levels=2, reached=[]).gamma == 2


def test_a_look_up_that_seldom_finds_something_is_not_charged_for_what_it_does_not_draft() -> None:
    """A quarter of the steps draft; in the others a drafted level costs nothing."""
    seldom = best([0.9] * 8, tau=1.5, speedup=1.2, levels=1.0, reached=[0.25, 1.0])
    always = best([0.9] * 8, tau=1.5, speedup=1.2, levels=1.0, reached=[])
    assert seldom.gamma >= always.gamma > 1


def test_the_surest_measure_comes_first(tmp_path: Path) -> None:
    folder = head_folder(tmp_path)
    head = random_head(EagleConfig(LAYER))
    nothing = depth("eagle", "m", folder=folder, head=head)
    assert nothing == Depth(GAMMA, "nothing was measured: taslak's default")
    head = replace(head, drafting=Drafting(7))
    assert depth("eagle", "m", folder=folder, head=head).gamma == 7
    figures = {"hazards": [0.9, 0.9, 0.1], "gamma": 3, "tau": 2.4}
    rates = {"plain_tokens_per_second": 10.0, "tokens_per_second": 20.0}
    (folder / "evaluation.json").write_text(json.dumps({**figures, **rates}))
    trained = depth("eagle", "m", folder=folder, head=head)
    assert trained.gamma == 2
    assert "evaluation" in trained.source
    lived = depth("eagle", "m", folder=folder, head=head, history=history(tmp_path, requests=4))
    assert lived.gamma == 4
    assert lived.source.startswith("4 requests here: τ 4.00, 2.00 times plain")
    assert depth("eagle", "m", asked=9, folder=folder, head=head) == Depth(9, "as asked for")


@pytest.mark.parametrize(
    ("requests", "of", "target"),
    [
        (3, {}, "m"),  # too few
        (8, {"ended": WRITTEN - 100.0}, "m"),  # of the head that lay there before
        (8, {}, "another model"),
        (8, {"speedup": None}, "m"),  # nobody knows what it cost
    ],
)
def test_requests_that_say_nothing_of_this_drafter(
    tmp_path: Path, requests: int, of: dict[str, object], target: str
) -> None:
    kept = History(tmp_path / "history.sqlite")
    ended = float(of.pop("ended", WRITTEN + 10.0))  # type: ignore[arg-type]
    for number in range(requests):
        kept.add(record(ended + number, [4, 4], **{"method": "eagle", "speedup": 2.0, **of}))  # type: ignore[arg-type]
    assert kept.flush(10)
    found = depth("eagle", target, folder=head_folder(tmp_path), history=kept)
    assert "nothing was measured" in found.source


@pytest.mark.parametrize("text", ["[]", "{", '{"hazards": [], "gamma": 3}', '{"hazards": "x"}'])
def test_an_evaluation_that_is_none_is_passed_over(tmp_path: Path, text: str) -> None:
    folder = head_folder(tmp_path)
    (folder / "evaluation.json").write_text(text)
    assert depth("eagle", "m", folder=folder).gamma == GAMMA


@pytest.mark.parametrize("gamma", [0, -1, 1000])
def test_a_depth_that_is_none(gamma: int) -> None:
    with pytest.raises(OptionError, match=f"gamma is {gamma}"):
        depth("ngram", None, asked=gamma)
