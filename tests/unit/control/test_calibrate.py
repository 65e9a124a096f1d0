"""What is measured of a model here: sane figures, kept, found again, and thrown away where they don't fit."""

from __future__ import annotations

import gc
import itertools
import json
import time
from pathlib import Path

import pytest

from taslak.control import calibrate, corrections, measure
from taslak.control.calibrate import calibrated, keeper, remembered
from taslak.control.controller import Controller
from taslak.control.costs import DraftCost, PassCost, mode_of
from taslak.control.estimate import Prior
from taslak.control.history import History
from taslak.control.measure import Calibration
from taslak.core.counts import Counts
from taslak.core.draft import Draft
from taslak.core.sampling import Sampling
from taslak.engine import LanguageModel
from taslak.engine.policy import FixedGamma
from taslak.models.loading import storage
from tests.support.records import record
from tests.support.tiny import near_model, tiny_model
from tests.unit.engine.test_language_model import Tokenizer, pretrained


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LanguageModel:
    monkeypatch.setenv("TASLAK_HOME", str(tmp_path))
    monkeypatch.setattr(measure, "PATIENCE", 0.05)
    monkeypatch.setattr(measure, "ROWS", (1, 2, 5, 9))
    monkeypatch.setattr(measure, "CHUNKS", (17,))
    monkeypatch.setattr(measure, "SOON", 0.5)
    return LanguageModel(
        pretrained(tiny_model(1), Tokenizer()),
        pretrained(near_model(1), Tokenizer()),
        method="suffix+draft-model",
    )


def test_everything_that_a_decision_needs_is_measured(model: LanguageModel) -> None:
    found = measure.calibrate(model)
    costs = found.costs
    assert 0 < costs.pass_(1) <= costs.pass_(5) <= costs.pass_(9) < 5
    assert costs.pass_(1, 1000) >= costs.pass_(1)
    assert set(costs.drafters) == {"suffix", "draft-model"}
    kinds = ("", ", drawn", ", hot")
    assert set(found.priors) == {f"{name}{kind}" for name in ("suffix", "draft-model") for kind in kinds}
    assert costs.draft("draft-model", 5) > costs.draft("suffix", 5) > 0
    assert list(costs.rest) == ["greedy", "sampled", "sampled, cut"]
    assert all(0 < rest.row < 1 for rest in costs.rest.values())
    assert costs.passing.rows[-1] == 17
    assert costs.passing.beyond > 0
    assert costs.pass_(17, prompt=16) <= costs.pass_(17)
    for prior in found.priors.values():
        assert len(prior.yields) == len(prior.reach) == measure.DEPTH
        assert all(0 < each < 1 for each in prior.yields), "a few drafts prove neither always nor never"
    assert found.priors["draft-model"].yields[0] > 0.5, "it is nearly the target"


@pytest.mark.parametrize(("chats", "texts"), [(True, measure.ASKED), (False, measure.TEXTS)])
def test_a_chat_model_is_measured_as_it_is_talked_to(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch, chats: bool, texts: tuple[str, ...]
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(model.tokenizer, "has_chat_template", chats)
    monkeypatch.setattr(model, "encode", lambda text: asked.append(text) or [1, 2, 3])
    measure.calibrate(model)
    assert set(asked) == set(texts)


def test_it_is_measured_once(model: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = calibrated(model)
    monkeypatch.setattr(calibrate, "calibrate", None)  # would fail if it were called
    assert calibrated(model).as_json() == first.as_json()
    ((key, again),) = remembered()
    assert key["model"] == model.name
    assert again.as_json() == first.as_json()
    with pytest.raises(TypeError):
        calibrated(model, fresh=True)


def test_a_cut_changes_what_draws_take_and_nothing_else(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under both rules, where the model verifies by the other one."""
    draws = {"greedy": 0.01, "sampled": 0.02, "sampled, cut": 0.05}

    def draw(_model: object, _row: object, sampling: Sampling, verify: str) -> float:
        return draws[mode_of(sampling, "coupled")] * (2 if verify == "rejection" else 1)

    monkeypatch.setattr(measure, "_draw", draw)
    model.verify = "rejection"
    rest = measure.calibrate(model).costs.rest
    assert len(rest) == 6
    for mode, row in draws.items():
        assert (rest[mode].row, rest[f"{mode}, rejection"].row) == (row, 2 * row)
    for rule, more in (("", 0.03), (", rejection", 0.06)):
        warm, cut = rest[f"sampled{rule}"], rest[f"sampled, cut{rule}"]
        assert cut.drafted - warm.drafted == pytest.approx(cut.plain - warm.plain)
        assert cut.plain == pytest.approx(max(warm.plain + more, 0.05 if not rule else 0.1))


def test_a_draw_is_timed_for_each_row_that_is_visited(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that only a look at it moves: a second a row."""
    now = itertools.count()
    monkeypatch.setattr(measure, "perf_counter", lambda: float(next(now)))
    row = measure._row(model)
    assert row.shape == (61,)
    for sampling in (Sampling(), measure.WARM, measure.CUT):
        for rule in ("coupled", "rejection"):
            assert measure._draw(model, row, sampling, rule) == 1.0
    assert next(now) >= 6 * 2 * measure.DRAWS


def test_a_prompt_is_measured_as_wide_as_soon_is(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def timed(_target: object, _cache: object, widths: object, **how: object) -> list[float]:
        asked.append((widths, how["wanted"]))
        return [8.0, 1.6]

    monkeypatch.setattr(measure, "_timed", timed)
    target = tiny_model(1)
    found = measure._chunk(target, target.allocate(1), PassCost([1, 2], [0.001, 0.002]))
    assert found == ({65: 8.0}, pytest.approx(0.1))
    measure._chunk(target, target.allocate(1), PassCost([1, 2], [0.001, 0.004]))
    assert asked == [((65, 65), (65, 1)), ((33, 33), (33, 1))]
    slow = PassCost([1, 2], [0.5, 0.6])
    assert measure._chunk(target, target.allocate(1), slow) == ({}, 0.0)


@pytest.mark.parametrize("change", ["method", "branch", "draft_fingerprint", "name"])
def test_another_model_or_drafter_is_measured_anew(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    calibrated(model)
    setattr(model, change, 3 if change == "branch" else "other")
    made = Calibration(measure.calibrate(model).costs)
    monkeypatch.setattr(calibrate, "calibrate", lambda *_: made)
    assert calibrated(model) is made
    assert len(remembered()) == 2


def test_passes_are_not_measured_again_for_another_drafter(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = calibrated(model)
    model.method = "other"
    monkeypatch.setattr(measure, "_passes", None)
    assert calibrated(model).costs.passing == first.costs.passing
    model.name = "another"
    with pytest.raises(TypeError):
        calibrated(model)


@pytest.mark.parametrize("context", [9, 33, 40, 64])
def test_short_contexts_can_be_measured(monkeypatch: pytest.MonkeyPatch, context: int) -> None:
    monkeypatch.setattr(measure, "PATIENCE", 0.01)
    found = measure._passes(tiny_model(1, context=context))
    assert max(found.rows) <= context
    assert found(1) > 0


def test_a_slow_model_is_measured_at_fewer_widths() -> None:
    assert measure._widths(0.005) == measure.ROWS
    slow, slower = measure._widths(0.08), measure._widths(1.0)
    assert set(slower) < set(slow) < set(measure.ROWS)
    assert 1 in slower


def test_the_cost_of_a_level_comes_from_the_depths_there_were() -> None:
    assert measure._levels({1: [3.0, 3.0], 5: [7.0]}) == DraftCost(2.0, 1.0)
    assert measure._levels({1: [3.0], 4: [6.0]}) == DraftCost(2.0, 1.0), "heads that go no deeper than four"
    assert measure._levels({2: [3.0]}) == DraftCost(3.0, 0.0)
    assert measure._levels({}) == DraftCost(0.0, 0.0)


def test_a_drafter_that_fails_costs_the_control_and_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import taslak
    from tests.e2e.conftest import write_model

    def broken(*_: object) -> None:
        raise RuntimeError("no clock")

    monkeypatch.setenv("TASLAK_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(calibrate, "calibrate", broken)
    made = taslak.load(str(write_model(tmp_path / "tiny")), dtype="float32")
    assert isinstance(made.policy, FixedGamma)
    assert made.generate("abcabc", max_tokens=4).ids
    assert "can't be measured, so its depth is fixed: no clock" in caplog.text


@pytest.mark.parametrize(
    "damage", ["", "{", "[1]", '{"key": {}, "costs": [], "priors": []}', '{"key": 1}', "costs", "priors"]
)
def test_a_damaged_file_is_measured_anew(model: LanguageModel, tmp_path: Path, damage: str) -> None:
    calibrated(model)
    (file,) = (tmp_path / "costs").glob("*.json")
    whole = json.loads(file.read_text())
    if damage in whole:
        whole[damage] = {"passing": 1} if damage == "costs" else {"suffix": {"length": 3}}
        damage = json.dumps(whole)
    file.write_text(damage)
    assert not remembered()
    assert set(calibrated(model).costs.drafters) == {"suffix", "draft-model"}
    assert len(remembered()) == 1


def test_what_can_not_be_kept_is_used_all_the_same(
    model: LanguageModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "costs").write_text("a file where the folder should be")
    assert calibrated(model).costs.pass_(1) > 0
    assert "can't be kept" in caplog.text


def test_noise_among_neighbours_is_shared_and_more_rows_are_never_cheaper() -> None:
    assert measure._rising([1.0, 2.0, 3.0]) == [1.0, 2.0, 3.0]
    assert measure._rising([1.0, 3.0, 2.0, 4.0]) == [1.0, 2.5, 2.5, 4.0]
    assert measure._rising([9.0, 1.0, 2.0]) == [4.0, 4.0, 4.0]


def test_what_a_request_starts_from_is_what_was_seen_and_a_little_doubt() -> None:
    counts = Counts()
    drafts = [Draft.chain([1, 2, 3, 4, 5])] * 8
    for draft in drafts:
        counts.record(draft, [0, 1], bonus=True)
    prior = measure._prior(counts, drafts)
    assert prior.yields == (9 / 10, 9 / 10, 1 / 10, 1 / 2, 1 / 2)
    assert prior.reach == (1.0,) * 5
    assert measure._prior(Counts(), []) == Prior()


def test_what_steps_taught_is_there_the_next_time(model: LanguageModel, tmp_path: Path) -> None:
    first = calibrated(model)
    keep = keeper(model, first.costs)
    before = first.costs.passing(1)
    first.costs.passing.seconds[0] /= 2
    keep.close()
    assert calibrated(model).costs.passing(1) == pytest.approx(before / 2, rel=1e-3)
    ((_, measured),) = remembered()
    assert measured.costs.passing(1) == before
    (file,) = (tmp_path / "costs").glob("*.json")
    storage.write_json(file, {**storage.read_json(file), corrections.KEY: {"at": "now"}})
    assert calibrated(model).costs.passing(1) == before, "damaged corrections are none"


def test_a_loaded_model_keeps_what_its_steps_taught_when_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import taslak
    from tests.e2e.conftest import write_model

    monkeypatch.setenv("TASLAK_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(measure, "PATIENCE", 0.05)
    folder = str(write_model(tmp_path / "tiny"))
    made = taslak.load(folder, dtype="float32")
    assert isinstance(made.policy, Controller)
    made.policy.costs.passing.seconds[0] *= 0.75
    expected = made.policy.costs.passing(1)
    made.policy = FixedGamma(1)
    gc.collect()
    again = taslak.load(folder, dtype="float32").policy
    assert isinstance(again, Controller)
    assert again.costs.passing(1) == pytest.approx(expected, rel=1e-3)


def test_a_loaded_model_starts_from_the_history_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import taslak
    from tests.e2e.conftest import write_model

    monkeypatch.setenv("TASLAK_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(measure, "PATIENCE", 0.05)
    folder = str(write_model(tmp_path / "tiny"))
    history = History(tmp_path / "history.sqlite")
    name = taslak.load(folder, dtype="float32").name
    for _ in range(50):
        history.add(record(time.time(), [4] * 8, model=name, method="suffix", draft_bytes=0))
    for given, right in ((history, True), (None, False)):
        policy = taslak.load(folder, dtype="float32", history=given).policy
        assert isinstance(policy, Controller)
        assert (policy.priors["suffix"].yields[3] > 0.8) == right
    history.close()
