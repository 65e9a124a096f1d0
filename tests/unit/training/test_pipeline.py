"""All stages on a tiny target: killed at each and gone on with, on two processes, and what is told when."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent import futures
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import taslak
from taslak.drafters.formats import Drafting, ExitConfig, read_head, write_head
from taslak.errors import OptionError, UserError
from taslak.models.loading import storage
from taslak.training import KINDS, Schedule, TrainingOptions, train
from taslak.training import report as reporting
from taslak.training.answers import Answers, Shard
from taslak.training.evaluate import evaluate
from tests.support.training import target_folder, write_prompts

SMALL: dict[str, Any] = {
    "dtype": "float32",
    "max_tokens": 24,
    "max_length": 60,
    "batch": 4,
    "held_out": 3,
    "gamma": 3,
    "plot": False,
    "schedule": Schedule(epochs=2, batch_tokens=80, save_every=1),
}
SETTINGS: dict[str, dict[str, object]] = {
    "eagle": {"ttt": 2},
    "eagle3": {"ttt": 2, "captures": (0, 1, 2)},
    "medusa": {"heads": 2},
    "early-exit": {"exit_layer": 2, "rank": 4},
    "draft-model": {"layers": (0, 2)},
}
DRIVER = """
import os, signal, sys
import torch
torch.set_num_threads(1)
from tests.unit.training.test_pipeline import asked
from taslak.training import train

out, model, prompts, stage, kind = sys.argv[1:]

def progress(what, done, total):
    if what == stage and done > total // 3:
        os.kill(os.getpid(), signal.SIGKILL)

train(asked(kind, out, model, prompts), progress)
"""
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("pipeline")
    target_folder(base / "model")
    write_prompts(base / "prompts.jsonl")
    return base


def asked(kind: str, out: object, model: object, prompts: object, **changes: Any) -> TrainingOptions:
    return TrainingOptions(
        kind=kind,
        out=Path(str(out)),
        model=str(model),
        prompts=Path(str(prompts)),
        settings=SETTINGS[kind],
        **{"draft_vocab": None if kind == "draft-model" else 200, **SMALL, **changes},
    )


def here_asked(here: Path, kind: str, out: Path, **changes: Any) -> TrainingOptions:
    return asked(kind, out, here / "model", here / "prompts.jsonl", **changes)


def run(*command: object, kills: bool = False) -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [str(part) for part in command],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == (-signal.SIGKILL if kills else 0), done.stderr


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_c32_accuracy_in_training_is_acceptance_in_decoding(kind: str, here: Path, tmp_path: Path) -> None:
    """Held-out greedy answers of the target itself: depth-1 accuracy over the stored features, and what the
    loaded head gets right of the same texts in decoding, within one point."""
    prompts = write_prompts(tmp_path / "prompts.jsonl", 30)
    schedule = replace(SMALL["schedule"], epochs=8, learning_rate=5e-3, save_every=1000)
    options = asked(
        kind, tmp_path, here / "model", prompts, held_out=12, evaluate=12, max_tokens=40, schedule=schedule
    )
    found = train(options).evaluation
    assert found is not None
    assert found.identical == found.prompts == 12
    assert found.training is not None
    assert found.training > 0.05, "a head that says nothing right proves nothing"
    assert found.everywhere[0] == pytest.approx(found.training, abs=0.01), "of about 470 places"
    assert found.warnings == []
    stored = json.loads((tmp_path / "evaluation.json").read_text())
    assert stored["everywhere"] == found.everywhere
    made = json.loads((tmp_path / "provenance.json").read_text())
    assert {"command", "commit", "versions", "data", "curves", "settings"} <= set(made)
    assert made["curves"][-1]["held_out"] is True
    model = taslak.load(str(here / "model"), draft=str(tmp_path), dtype="float32")
    assert model.method == f"suffix+{kind}"
    assert (
        model.generate("a 3", max_tokens=12).ids == model.generate("a 3", max_tokens=12, speculate=False).ids
    )


def test_c32_wrong_layers_are_told(here: Path, tmp_path: Path) -> None:
    """The head read the second layer in training and reads the first one now."""
    prompts = write_prompts(tmp_path / "prompts.jsonl", 30)
    schedule = replace(SMALL["schedule"], epochs=16, learning_rate=5e-3, save_every=1000)
    changes = {"held_out": 4, "evaluate": 4, "max_tokens": 40, "schedule": schedule}
    found = train(asked("early-exit", tmp_path, here / "model", prompts, **changes)).evaluation
    assert found is not None
    assert found.warnings == []
    head = read_head(tmp_path)
    config = ExitConfig(exit_layer=1, rank=4)
    write_head(tmp_path / "wrong", replace(head, config=config))
    answers = Answers(tmp_path / "work" / "answers.jsonl").read()
    wrong = evaluate(
        taslak.load(
            str(here / "model"),
            draft=str(tmp_path / "wrong"),
            method="early-exit",
            control=False,
            dtype="float32",
        ),
        [answer.prompt for answer in answers[3::7]][:4],
        max_tokens=40,
        training=found.training,
    )
    assert wrong.warnings, (wrong.everywhere, found.everywhere)


@pytest.mark.slow
@pytest.mark.parametrize(
    "stage", ["answering prompts", "hidden states", "training", "decoding held-out prompts"]
)
def test_killed_at_any_stage_it_ends_the_same(stage: str, here: Path, tmp_path: Path) -> None:
    """SIGKILL in the middle of a stage; the same command again gives the head of a run never killed."""
    train(here_asked(here, "eagle", tmp_path / "whole", evaluate=2))
    command = (sys.executable, "-c", DRIVER, tmp_path / "out", here / "model", here / "prompts.jsonl")
    if stage == "hidden states":  # else one pass takes all of them in
        command = (
            *command[:2],
            f"import taslak.training.store as s; s.ROWS = 64; s.FLUSH_ROWS = 1{DRIVER}",
            *command[3:],
        )
    run(*command, stage, "eagle", kills=True)
    assert not (tmp_path / "out" / "config.json").exists() or stage.startswith("decoding")
    run(*command, "none", "eagle")
    answers = [Answers(tmp_path / name / "work" / "answers.jsonl").read() for name in ("out", "whole")]
    assert answers[0] == answers[1]
    # PyTorch's float32 may round a pass of other rows otherwise; the loop itself is exact, see test_trainer
    out, whole = (read_head(tmp_path / name).tensors for name in ("out", "whole"))
    for name, tensor in whole.items():
        torch.testing.assert_close(out[name], tensor, rtol=0.02, atol=1e-3)


@pytest.mark.slow
def test_two_processes_train_one_head(here: Path, tmp_path: Path) -> None:
    """torchrun on the CPU (gloo): one head, saved once, that decodes."""
    launch = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
    (tmp_path / "driver.py").write_text(DRIVER)
    run(
        *launch,
        tmp_path / "driver.py",
        tmp_path / "out",
        here / "model",
        here / "prompts.jsonl",
        "none",
        "eagle",
    )
    assert read_head(tmp_path / "out").kind == "eagle"
    found = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert found["identical"] == found["prompts"]
    made = json.loads((tmp_path / "out" / "provenance.json").read_text())
    assert made["settings"]["processes"] == 2


def test_answers_of_shards_are_trained_on_together(here: Path, tmp_path: Path) -> None:
    parts = []
    for number in range(2):
        options = here_asked(here, "eagle", tmp_path / str(number), shard=Shard(number, 2))
        assert train(options).answers == 6
        parts.append(tmp_path / str(number) / "work" / f"answers-{number}-of-2.jsonl")
    options = here_asked(here, "eagle", tmp_path / "joint", evaluate=0)
    joint = train(replace(options, prompts=None, texts=tuple(parts)))
    assert joint.answers == 12
    train(here_asked(here, "eagle", tmp_path / "alone", evaluate=0))
    assert weights(tmp_path / "joint") == weights(tmp_path / "alone")


def test_a_second_run_in_the_same_folder_waits_for_its_turn(here: Path, tmp_path: Path) -> None:
    options = here_asked(here, "eagle", tmp_path, evaluate=0)
    (tmp_path / "work").mkdir()
    with futures.ThreadPoolExecutor(1) as pool:
        with storage.locked(tmp_path / "work" / "run"):
            second = pool.submit(train, options)
            with pytest.raises(futures.TimeoutError):
                second.result(timeout=1.5)
            assert not (tmp_path / "work" / "answers.jsonl").exists()
        assert second.result().answers == 12


def test_other_texts_under_the_same_name_do_not_go_on_with_it(here: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    options = here_asked(here, "eagle", tmp_path / "head", evaluate=0)
    options = replace(options, prompts=None, texts=(texts,))
    for reply in ("abc", "xyz"):
        rows = [{"prompt": f"prompt {i}", "answer": reply * 8} for i in range(12)]
        texts.write_text("".join(json.dumps(row) + "\n" for row in rows))
        if reply == "abc":
            train(options)
        else:
            with pytest.raises(OptionError, match="texts made with content"):
                train(options)


def test_other_settings_do_not_go_on_with_it(here: Path, tmp_path: Path) -> None:
    train(here_asked(here, "eagle", tmp_path, evaluate=0))
    with pytest.raises(OptionError, match="answers made with max_tokens 24, not 20"):
        train(here_asked(here, "eagle", tmp_path, evaluate=0, max_tokens=20))
    with pytest.raises(OptionError, match="made with another learning_rate"):
        train(
            here_asked(
                here, "eagle", tmp_path, evaluate=0, schedule=replace(SMALL["schedule"], learning_rate=0.01)
            )
        )


def test_a_draft_vocabulary_larger_than_the_targets(here: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"draft_vocab is 300 and .* has 259 tokens"):
        train(replace(here_asked(here, "eagle", tmp_path), draft_vocab=300))
    train(replace(here_asked(here, "eagle", tmp_path / "all", evaluate=0), draft_vocab=0))
    assert read_head(tmp_path / "all").draft_ids is None


def test_settings_a_target_cannot_have_are_told_before_it_answers(here: Path, tmp_path: Path) -> None:
    options = replace(here_asked(here, "early-exit", tmp_path), settings={"exit_layer": 3})
    with pytest.raises(OptionError, match="exit_layer is 3"):
        train(options)
    assert not (tmp_path / "work" / "answers.jsonl").exists()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"kind": "lora"}, "kind is 'lora'"),
        ({"prompts": None}, "give prompts for the target to answer"),
        ({"texts": (Path("x"),)}, "give prompts for the target to answer"),
        ({"settings": {"heads": 3}}, "method eagle has no setting heads"),
        ({"max_length": 100}, "expected a batch to hold the longest text"),
        ({"temperatures": (-1.0,)}, "none below 0"),
        ({"draft_vocab": -1}, "draft_vocab is -1"),
        ({"batch": 0}, "batch is 0"),
        ({"gamma": 0}, "gamma is 0"),
    ],
)
def test_settings_that_mean_nothing(here: Path, tmp_path: Path, wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        replace(here_asked(here, "eagle", tmp_path), **wrong)


def test_a_missing_plotting_package_is_told_at_once(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "find_spec", lambda name: None)
    with pytest.raises(OptionError, match="needs matplotlib") as raised:
        train(here_asked(here, "eagle", tmp_path, plot=True))
    assert len(str(raised.value).splitlines()) == 1
    assert not (tmp_path / "work").exists()


def test_the_curves_are_drawn(here: Path, tmp_path: Path) -> None:
    train(here_asked(here, "medusa", tmp_path, evaluate=0, plot=True))
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_training_goes_on_from_a_head(here: Path, tmp_path: Path) -> None:
    """Its numbers are where the next run begins, its draft vocabulary stays; the hidden states are shared."""
    shared = tmp_path / "shared"
    first = here_asked(here, "eagle", tmp_path / "a", evaluate=0, store=shared)
    train(first)
    states = (shared / "final_norm.f16").stat().st_mtime_ns
    hardly = Schedule(epochs=1, batch_tokens=80, learning_rate=1e-12)
    write_head(tmp_path / "a", replace(read_head(tmp_path / "a"), drafting=Drafting(3, 2)))
    again = here_asked(
        here, "eagle", tmp_path / "b", evaluate=0, store=shared, init=str(tmp_path / "a"), draft_vocab=None
    )
    train(replace(again, schedule=hardly))
    before, after = read_head(tmp_path / "a"), read_head(tmp_path / "b")
    assert before.draft_ids is not None
    assert torch.equal(before.draft_ids, after.draft_ids)
    for name, tensor in before.tensors.items():
        assert torch.allclose(tensor.float(), after.tensors[name].float(), atol=1e-6), name
    assert after.drafting == Drafting(3, 2)
    made = json.loads((tmp_path / "b" / "provenance.json").read_text())
    assert made["settings"]["draft_vocab"] == len(before.draft_ids)
    assert (shared / "final_norm.f16").stat().st_mtime_ns == states
    assert not (tmp_path / "b" / "work" / "store").exists()


def test_what_can_not_be_gone_on_from_is_told(here: Path, tmp_path: Path) -> None:
    train(here_asked(here, "medusa", tmp_path / "a", evaluate=0))
    made = str(tmp_path / "a")
    with pytest.raises(OptionError, match="leave draft_vocab out"):
        here_asked(here, "medusa", tmp_path / "b", init=made)
    head = read_head(made)
    assert head.draft_ids is not None
    wide = {
        name: torch.zeros([33 if size == 32 else size for size in tensor.shape])
        for name, tensor in head.tensors.items()
    }
    others = {
        "wide": replace(head, target=replace(head.target, hidden_size=33), tensors=wide),
        "layers": replace(head, target=replace(head.target, layers=9)),
        "tokens": replace(head, target=replace(head.target, vocab_size=600), draft_ids=head.draft_ids + 300),
    }
    for name, other in others.items():
        write_head(tmp_path / name, other)
    for kind, init, settings, message in (
        ("eagle", made, {}, "medusa head to go on from"),
        ("medusa", made, {"heads": 3}, "heads=2"),
        ("medusa", str(here), {}, "expected the folder or name of a medusa head"),
        ("medusa", str(tmp_path / "wide"), {"heads": 2}, "hidden size is 33"),
        ("medusa", str(tmp_path / "layers"), {"heads": 2}, "layers is 9"),
        ("medusa", str(tmp_path / "tokens"), {"heads": 2}, "vocabulary is 600"),
    ):
        options = here_asked(here, kind, tmp_path / "b", evaluate=0, init=init, draft_vocab=None)
        with pytest.raises(UserError, match=message):
            train(replace(options, settings=settings))
    with pytest.raises(OptionError, match="--shard only answers"):
        here_asked(here, "medusa", tmp_path / "b", store=tmp_path, shard=Shard(0, 2))
