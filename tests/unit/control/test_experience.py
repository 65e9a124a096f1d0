"""What a history teaches: hazards by method, drawn or greedy, and task; the more the likelier, the newer."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from taslak.control.controller import controller
from taslak.control.costs import Costs, PassCost
from taslak.control.estimate import Prior
from taslak.control.experience import HALF_LIFE, WEIGHT, Experience, experience, learnt
from taslak.control.history import History
from taslak.control.measure import Calibration
from taslak.control.record import Record
from taslak.engine import LanguageModel
from tests.support.records import record
from tests.support.tiny import near_model, tiny_model
from tests.unit.engine.test_language_model import Tokenizer, pretrained

NOW = 1.8e9
PRIOR = Prior((0.5, 0.5), trust=0.7)


def records(count: int, right: int = 4, **other: object) -> list[Record]:
    """Requests of eight drafts of four, `right` tokens of each accepted."""
    return [record(NOW, [right] * 8, **{"draft_bytes": 0, **other}) for _ in range(count)]  # type: ignore[arg-type]


def taught(*past: Record, verify: str = "coupled", now: float = NOW, **priors: Prior) -> Experience:
    return learnt(past, priors or {"ngram": PRIOR}, verify=verify, draft_bytes={"ngram": 0}, now=now)


def test_a_few_requests_prove_nothing() -> None:
    assert taught().priors == {"ngram": PRIOR}
    assert taught(*records(3)).priors == {"ngram": PRIOR}


def test_the_more_there_are_the_more_they_are_believed() -> None:
    some, many = (taught(*records(count)).priors["ngram"] for count in (10, 1000))
    assert some.yields[0] == pytest.approx((80 + WEIGHT / 2) / (80 + WEIGHT))
    assert many.yields[:4] == pytest.approx([0.995] * 4, abs=0.005), "depths that no calibration drafted, too"
    assert many.reach == (1.0,) * 4
    assert many.trust == PRIOR.trust, "of which a history knows nothing"
    wrong = taught(*records(1000, right=1)).priors["ngram"]
    assert wrong.yields[0] > 0.99
    assert wrong.yields[1] < 0.01


def test_a_long_request_says_no_more_than_a_short_one() -> None:
    """Its drafts are alike: four of a thousand drafts weigh what four of thirty-two do."""
    long = [record(NOW, [4] * 1000, draft_bytes=0) for _ in range(4)]
    short = [record(NOW, [4] * 32, draft_bytes=0) for _ in range(4)]
    assert taught(*long).priors["ngram"].yields == pytest.approx(taught(*short).priors["ngram"].yields)


def test_newer_ones_say_more() -> None:
    old = [record(NOW - 2 * HALF_LIFE, [0] * 8, draft_bytes=0) for _ in range(40)]
    found = taught(*old, *records(40)).priors["ngram"].yields[0]
    assert found == pytest.approx((320 + WEIGHT / 2) / (320 + 80 + WEIGHT))
    assert taught(*records(40), now=NOW + 5 * HALF_LIFE).priors == {"ngram": PRIOR}, "it fades to nothing"


def test_how_far_drafts_go_is_not_in_a_hazard() -> None:
    """Half of the drafts end after one token: a hazard of one leaves the second at a half. That they had to
    end is not held against them; that they went on, where they were thought not to, is believed."""
    short = Prior((0.6, 0.3), (1.0, 0.5))
    ended = [record(NOW, [1] * 8, depth=1, draft_bytes=0) for _ in range(2000)]
    found = taught(*ended, ngram=short).priors["ngram"]
    assert found.yields == pytest.approx((1.0, 0.3), abs=0.01)
    assert found.reach == (1.0, 0.5)
    half = [record(NOW, [2] * 8, depth=2, draft_bytes=0) for _ in range(1000)]
    found = taught(*ended[:1000], *half, ngram=short).priors["ngram"]
    assert found.yields == pytest.approx((1.0, 0.5), abs=0.01)
    for never in (Prior((0.6, 0.0), (1.0, 0.0)), Prior((0.6, 0.0, 0.0), (1.0, 0.0, 0.0))):
        found = taught(*records(2000), ngram=never).priors["ngram"]
        assert found.yields[3] > 0.95
        assert found.reach[3] > 0.95


def test_drawn_and_greedy_are_two_things_and_so_are_the_rules_of_drawn_ones() -> None:
    found = taught(*records(500), *records(500, right=0, temperature=0.8)).priors
    assert found["ngram"].yields[0] > 0.98
    assert found["ngram, drawn"].yields[0] < 0.02
    other = records(500, right=0, temperature=0.8, verify="rejection")
    assert "ngram, drawn" not in taught(*other).priors
    assert taught(*other, verify="rejection").priors["ngram, drawn"].yields[0] < 0.02
    assert taught(*records(500, verify="rejection")).priors["ngram"].yields[0] > 0.98, "greedy is greedy"


def test_other_drafters_say_nothing() -> None:
    """Another method, another size of draft model, passes in which nobody drafted."""
    strange = [*records(99, method="eagle"), *records(99, draft_bytes=5), *records(99, method="plain")]
    assert taught(*strange).priors == {"ngram": PRIOR}
    nothing = [record(NOW, [], draft_bytes=0) for _ in range(99)]
    assert taught(*nothing).priors == {"ngram": PRIOR}


def test_a_task_with_enough_of_its_own_starts_from_it_and_others_from_all() -> None:
    found = taught(*records(100, task="code"), *records(100, right=0, task="prose"), *records(3, task="few"))
    assert set(found.tasks) == {"code", "prose"}
    code, prose = (found.tasks[task]["ngram"].yields[0] for task in ("code", "prose"))
    assert code > 0.9
    assert prose < 0.1
    assert found.priors["ngram"].yields[0] == pytest.approx(0.5, abs=0.05)
    drawn = taught(*records(100), *records(100, right=0, task="code", temperature=1.0))
    assert drawn.tasks["code"]["ngram"] == drawn.priors["ngram"], "of its greedy ones nothing is known"


def test_what_is_rolled_up_counts_for_the_requests_it_was() -> None:
    one = record(NOW, [4] * 320, draft_bytes=0, requests=40, request="")
    assert taught(one).priors["ngram"].yields[0] == pytest.approx((320 + WEIGHT / 2) / (320 + WEIGHT))


def model() -> LanguageModel:
    return LanguageModel(
        pretrained(tiny_model(1), Tokenizer()),
        pretrained(near_model(1), Tokenizer()),
        method="suffix+draft-model",
    )


def past(path: Path, right: int = 4, **other: object) -> History:
    history = History(path)
    for _ in range(50):
        history.add(record(time.time(), [right] * 8, model="tiny", **other))  # type: ignore[arg-type]
    history.flush()
    return history


def test_c35_a_history_is_read_once_and_no_request_changes_what_another_starts_from(tmp_path: Path) -> None:
    made = model()
    size = made.draft_bytes_of["draft-model"]
    history = past(tmp_path / "history.sqlite", method="draft-model", draft_bytes=size, task="code")
    priors = {"draft-model": Prior((0.1,)), "suffix": Prior((0.1,))}
    known = Calibration(Costs(PassCost([1, 40], [1e-3, 1e-3])), priors)
    policy = controller(made, known, history=history)
    assert policy.priors["draft-model"].yields[0] > 0.8
    assert policy.priors["suffix"] == Prior((0.1,))
    assert policy.tasks["code"]["draft-model"].yields[0] > 0.8
    assert controller(made, known).priors == priors, "without a history nothing is known of the past"
    before = (dict(policy.priors), dict(policy.tasks))
    made.policy = policy
    texts = [made.generate("ABCABC", max_tokens=30, task="code").ids for _ in range(2)]
    past(history.path, method="draft-model", draft_bytes=size, right=0).close()
    texts.append(made.generate("ABCABC", max_tokens=30, task="code").ids)
    assert (policy.priors, policy.tasks) == before
    made.policy = controller(made, known)
    assert {*texts} == {made.generate("ABCABC", max_tokens=30).ids}, "and no text"
    history.close()


def test_a_history_that_can_not_be_read_is_told_and_costs_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "folder").mkdir()
    found = experience(model(), {"suffix": PRIOR}, History(tmp_path / "folder"))
    assert found.priors == {"suffix": PRIOR}
    assert "what was measured alone" in caplog.text
