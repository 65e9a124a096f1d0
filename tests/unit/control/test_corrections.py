"""What steps have taught: kept beside what was measured, believed less with age, never past a bound."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from taslak.control import corrections
from taslak.control.corrections import EVERY, HALF_LIFE, KEY, MOST, Keeper, corrected
from taslak.control.costs import Costs, DraftCost, PassCost, RestCost
from taslak.models.loading import storage

NOW = 1.8e9


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


def measured() -> Costs:
    return Costs(
        PassCost([1, 5], [1.0, 2.0], beyond=0.25),
        {"eagle": DraftCost(0.1, 0.05), "early-exit": DraftCost(0.5, 0.5, left=0.5)},
        {"greedy": RestCost(0.1, 0.15, 0.01)},
    )


def other() -> Costs:
    """As a busy hour left them."""
    known = measured()
    known.scale = 7.0
    known.passing.seconds[1] = 4.0
    known.passing.beyond = 0.5
    known.drafters["eagle"].fixed = 0.2
    known.drafters["early-exit"].left = 1.0
    known.rest["greedy"].row = 0.02
    known.rest["sampled"] = RestCost(0.2, 0.3, 0.02)
    known.crowds["eagle/4"] = 2.0
    return known


def kept(costs: Costs, at: float = NOW) -> dict[str, object]:
    return json.loads(json.dumps({"at": at, "costs": costs.as_json()}))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("age", "times"), [(0.0, 2.0), (1.0, 2**0.5), (2.0, 2**0.25), (60.0, 1.0)])
def test_it_is_believed_less_the_older_it_is(age: float, times: float) -> None:
    found = corrected(measured(), kept(other()), NOW + age * HALF_LIFE)
    assert found.passing.seconds == [1.0, pytest.approx(2 * times)]
    assert found.passing.beyond == pytest.approx(0.25 * times)
    assert found.drafters["eagle"].fixed == pytest.approx(0.1 * times)
    assert found.drafters["early-exit"].left == pytest.approx(0.5 * times)
    assert found.rest["greedy"] == RestCost(0.1, 0.15, pytest.approx(0.01 * times))  # type: ignore[arg-type]
    assert found.rest["sampled"].plain == pytest.approx(0.1 * times), "never measured: from the first on"
    assert found.crowds == {"eagle/4": pytest.approx(times)}
    assert found.scale == 1.0, "a few steps will tell"


def test_ages_add_up_whoever_reads_and_writes_between() -> None:
    once = corrected(measured(), kept(other()), NOW + HALF_LIFE)
    again = corrected(measured(), kept(once, NOW + HALF_LIFE), NOW + 2 * HALF_LIFE)
    straight = corrected(measured(), kept(other()), NOW + 2 * HALF_LIFE)
    assert again.passing.seconds == pytest.approx(straight.passing.seconds)


def test_a_clock_that_was_wrong_gives_no_faith_for_ever() -> None:
    found = corrected(measured(), kept(other(), at=NOW + 1e9), NOW)
    assert found.passing.seconds == pytest.approx(measured().passing.seconds)


def test_never_is_a_figure_thought_to_be_many_times_off() -> None:
    mad = other()
    mad.passing.seconds[1] = 1e3
    mad.drafters["eagle"].level = 1e-9
    mad.rest["greedy"].plain = float("nan")
    found = corrected(measured(), kept(mad), NOW)
    assert found.passing.seconds[1] == pytest.approx(2.0 * MOST)
    assert found.drafters["eagle"].level == pytest.approx(0.05 / MOST)
    assert found.rest["greedy"].plain == 0.1


@pytest.mark.parametrize("damage", [None, 3, {}, {"at": NOW}, {"at": "now", "costs": {}}, "rows"], ids=str)
def test_what_no_keeper_wrote_is_refused(damage: object) -> None:
    if damage == "rows":
        wider = measured()
        wider.passing.rows = [1, 9]
        damage = kept(wider)
    with pytest.raises((AttributeError, KeyError, TypeError, ValueError)):
        corrected(measured(), damage, NOW)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "costs.json"
    storage.write_json(path, {"key": {"version": 1}, "costs": measured().as_json(), "priors": {}})
    return path


def test_it_is_written_once_a_minute_and_at_the_end(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, costs = Clock(), measured()
    keep = Keeper(file, costs, clock)
    before = file.read_text()
    keep()
    clock.now += EVERY
    keep()
    assert file.read_text() == before, "nothing has changed"
    costs.passing.seconds[1] = 3.0
    clock.now += EVERY / 2
    keep()
    assert KEY not in json.loads(file.read_text()), "too soon"
    clock.now += EVERY / 2
    keep()
    told = json.loads(file.read_text())
    assert told[KEY]["at"] == clock.now
    assert {**told, KEY: None} == {**json.loads(before), KEY: None}, "what was measured stays what it was"
    assert corrected(measured(), told[KEY], clock.now).passing.seconds == [1.0, 3.0]
    costs.passing.seconds[1] = 3.5
    keep.close()
    assert json.loads(file.read_text())[KEY]["costs"]["passing"]["seconds"] == [1.0, 3.5]
    monkeypatch.setattr(storage, "write_json", None)  # would be told if it were called
    keep.close()
    assert keep._told is False


def test_of_several_the_last_one_wins_and_no_file_is_ever_torn(file: Path) -> None:
    """Readers while two write all the time: every one sees a whole file."""
    keepers = []
    for value in (3.0, 5.0):
        costs = measured()
        keepers.append((Keeper(file, costs, Clock()), costs, value))
    stop = threading.Event()

    def write(keep: Keeper, costs: Costs, value: float) -> None:
        while not stop.is_set():
            costs.passing.seconds[1] = value + (costs.passing.seconds[1] == value) / 10
            keep.close()

    threads = [threading.Thread(target=write, args=each) for each in keepers]
    for thread in threads:
        thread.start()
    for _ in range(200):
        told = json.loads(file.read_text())
        assert KEY not in told or told[KEY]["costs"]["passing"]["seconds"][1] in (3.0, 3.1, 5.0, 5.1)
    stop.set()
    for thread in threads:
        thread.join()
    keep, costs, _ = keepers[0]
    costs.passing.seconds[1] = 4.0
    keep.close()
    assert json.loads(file.read_text())[KEY]["costs"]["passing"]["seconds"][1] == 4.0


def test_what_was_measured_anew_is_left_alone(file: Path) -> None:
    costs = measured()
    keep = Keeper(file, costs, Clock())
    anew = measured()
    anew.passing.seconds[0] = 0.9
    storage.write_json(file, {"key": {}, "costs": anew.as_json(), "priors": {}})
    costs.passing.seconds[1] = 3.0
    keep.close()
    assert KEY not in json.loads(file.read_text())
    file.unlink()
    keep.close()
    assert not file.exists()


def test_what_can_not_be_kept_is_told_once_and_costs_nothing_else(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    costs = measured()
    keep = Keeper(file, costs, Clock())
    costs.passing.seconds[1] = 3.0
    monkeypatch.setattr(corrections.storage, "write_json", full)
    keep.close()
    keep.close()
    assert caplog.text.count("no space left") == 1
