"""The loop: it learns, the same seed gives the same weights, a checkpoint goes on as if nothing had been."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from taslak.errors import CheckpointError, OptionError
from taslak.training.eagle import Eagle
from taslak.training.trainer import Schedule, Trainer
from taslak.training.world import World
from tests.support.training import make_store, target_folder, teacher

SCHEDULE = Schedule(epochs=4, batch_tokens=80, save_every=3, precision="float32")
HERE = World(0, 1, torch.device("cpu"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("trainer")
    target_folder(base / "model")
    make_store(base / "store")
    return base


def trainer(folder: Path, checkpoint: Path, schedule: Schedule = SCHEDULE, **identity: object) -> Trainer:
    from taslak.training.store import Store

    torch.manual_seed(schedule.seed)
    head = Eagle(teacher(folder / "model"), 2)
    return Trainer(head, Store(folder / "store"), schedule, HERE, checkpoint, identity)


def weights(made: Trainer) -> list[torch.Tensor]:
    return [p.detach().clone() for p in made.kind.parameters()]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_same_seed_gives_the_same_weights(folder: Path, tmp_path: Path, precision: str) -> None:
    schedule = replace(SCHEDULE, precision=precision)
    made = []
    for number, seed in enumerate((0, 0, 1)):
        one = trainer(folder, tmp_path / f"{number}.pt", replace(schedule, seed=seed))
        one.run()
        made.append(weights(one))
    assert same(made[0], made[1])
    assert not same(made[0], made[2])


def test_the_loss_falls(folder: Path, tmp_path: Path) -> None:
    one = trainer(folder, tmp_path / "c.pt", replace(SCHEDULE, epochs=30, learning_rate=5e-3))
    one.run()
    seen = [point for point in one.curves if not point.held_out]
    assert seen[-1].loss < 0.9 * seen[0].loss
    assert seen[-1].step == one.steps
    assert [point for point in one.curves if point.held_out]


@pytest.mark.parametrize("stop", [1, 4, 7])
def test_going_on_is_as_if_nothing_had_been(folder: Path, tmp_path: Path, stop: int) -> None:
    whole = trainer(folder, tmp_path / "whole.pt")
    whole.run()
    assert whole.steps > stop

    def interrupt(what: str, done: int, total: int) -> None:
        if done == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer(folder, tmp_path / "c.pt").run(interrupt)
    steps: list[int] = []
    again = trainer(folder, tmp_path / "c.pt")
    again.run(lambda what, done, total: steps.append(done))
    assert steps[0] == stop // 3 * 3
    assert same(weights(again), weights(whole))
    assert again.curves == whole.curves
    steps.clear()
    done = trainer(folder, tmp_path / "c.pt")
    done.run(lambda what, done, total: steps.append(done))
    assert steps == [whole.steps], "a run that is over trains no more"
    assert same(weights(done), weights(whole))


def test_a_checkpoint_of_another_run_is_not_gone_on_with(folder: Path, tmp_path: Path) -> None:
    trainer(folder, tmp_path / "c.pt", kind="eagle", epochs=4).run()
    with pytest.raises(OptionError, match="made with another epochs"):
        trainer(folder, tmp_path / "c.pt", kind="eagle", epochs=5).run()
    (tmp_path / "c.pt").write_bytes(b"PK broken")
    with pytest.raises(CheckpointError, match=r"c\.pt can't be read"):
        trainer(folder, tmp_path / "c.pt").run()


def test_the_learning_rate_rises_and_falls() -> None:
    s = Schedule(learning_rate=1.0 / 2, warm_up=0.1)
    rates = [s.rate(step, 100) for step in range(100)]
    assert rates[:10] == sorted(rates[:10])
    assert rates[9] == max(rates) == 0.5
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(0.05, rel=0.02)


@pytest.mark.parametrize(
    "wrong", [{"epochs": 0}, {"batch_tokens": 1}, {"learning_rate": 0.0}, {"precision": "int8"}]
)
def test_a_schedule_out_of_range(wrong: dict[str, object]) -> None:
    with pytest.raises(OptionError, match=f"{next(iter(wrong))} is"):
        Schedule(**wrong)  # type: ignore[arg-type]
