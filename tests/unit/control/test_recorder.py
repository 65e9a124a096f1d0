"""From answers to records: one for each drafter's part, that add up to the answer."""

from __future__ import annotations

from taslak.control.controller import Controller
from taslak.control.costs import Costs, DraftCost, PassCost
from taslak.control.record import Record
from taslak.control.recorder import Recorder, break_even
from taslak.engine import LanguageModel
from taslak.engine.policy import FixedGamma
from tests.support.tiny import near_model, tiny_model
from tests.unit.engine.test_language_model import Tokenizer, pretrained


def model() -> LanguageModel:
    return LanguageModel(
        pretrained(tiny_model(1), Tokenizer()),
        pretrained(near_model(1), Tokenizer()),
        method="suffix+draft-model",
        gamma=3,
    )


def test_an_answers_records_add_up_to_it() -> None:
    made = model()
    found: list[Record] = []
    made.listeners.append(Recorder(made, [found.append], clock=lambda: 123.0))
    answer = made.generate("ABCABC", max_tokens=40, task="code", temperature=0.7, seed=3)
    assert {record.method for record in found} == set(answer.by)
    assert sum(record.tokens for record in found) == len(answer.ids)
    assert sum(record.counts.passes for record in found) == answer.counts.passes
    assert sum(record.seconds.total for record in found) <= answer.seconds.total * 1.001
    for record in found:
        assert (record.ended, record.model, record.task, record.gamma) == (123.0, made.name, "code", 3)
        assert (record.temperature, record.prompt_tokens) == (0.7, answer.prompt_tokens)
        assert record.verify == "coupled"
        assert (record.draft_bytes > 0) == (record.method == "draft-model")
    assert len({record.request for record in found}) == 1


def test_each_request_has_its_own_number_and_plain_ones_are_recorded_as_such() -> None:
    made = model()
    found: list[Record] = []
    made.listeners.append(Recorder(made, [found.append]))
    made.generate(["AB", "BA"], max_tokens=5, speculate=False)
    assert [(record.method, record.gamma) for record in found] == [("plain", 0)] * 2
    assert found[0].request != found[1].request
    assert all(record.counts.acceptance_rate is None for record in found), "null, not zero"


def test_what_a_receiver_raises_does_not_reach_the_answer() -> None:
    made = model()

    def broken(_: Record) -> None:
        raise OSError("no disk")

    made.listeners.append(Recorder(made, [broken]))
    assert len(made.generate("AB", max_tokens=5).ids) == 5


def test_the_break_even_is_that_of_the_costs_in_use() -> None:
    made = model()
    rate = break_even(made)
    assert rate(made.name, "draft-model") is None, "the depth is fixed"
    made.policy = Controller(Costs(PassCost([1, 5], [1.0, 1.4]), {"draft-model": DraftCost(0.0, 0.1)}))
    assert made.gamma is None
    assert rate(made.name, "draft-model") == (1.4 + 0.4 - 1.0) / 4
    assert rate("another", "draft-model") is None
    assert rate(made.name, "eagle") is None
    made.policy = FixedGamma(3)
    assert rate(made.name, "draft-model") is None
    assert made.gamma == 3
