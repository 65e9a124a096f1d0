"""A head that is hardly ever right says so, once (C32); one that is right doesn't."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from taslak.drafters import watch
from taslak.drafters.base import Drafter, DrafterOptions, build
from taslak.training.evaluate import Shadow
from tests.support.decoding import decode, plain, request
from tests.support.oracles import PROMPT, head_oracle, permuting_target, shifted


@pytest.mark.parametrize("kind", ["medusa", "eagle", "eagle3"])
@pytest.mark.parametrize("wrap", [None, shifted], ids=["right", "shifted"])
def test_c32_near_zero_acceptance_is_told(
    kind: str,
    wrap: Callable[[Drafter], Drafter] | None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "ENOUGH", 10)
    target = permuting_target()
    drafter = build(kind, target, DrafterOptions(head=head_oracle(kind, None)))
    drafter = drafter if wrap is None else wrap(drafter)
    r = request(PROMPT, max_tokens=80)
    with caplog.at_level(logging.WARNING):
        (answer,) = decode(target, drafter, [r])
    assert answer.ids == plain(target, [r])[0].ids
    told = [record.getMessage() for record in caplog.records]
    if wrap is None:
        assert told == []
    else:
        (message,) = told
        assert f"method {kind}" in message
        assert "trained for this model" in message


def test_drafts_that_no_pass_judges_are_no_mistakes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "ENOUGH", 10)
    target = permuting_target()
    shadow = Shadow(build("eagle", target, DrafterOptions(head=head_oracle("eagle", None))), depth=3)
    with caplog.at_level(logging.WARNING):
        decode(target, shadow, [request(PROMPT, max_tokens=80)])
    assert shadow.hazards() == [1.0, 1.0, 1.0]
    assert caplog.records == []
