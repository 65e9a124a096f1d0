"""Hidden states on disk: the target's own, and what is there after a kill is not computed again."""

from __future__ import annotations

import json
from collections import namedtuple
from pathlib import Path

import pytest
import torch

from taslak.errors import DiskError, OptionError
from taslak.models.loading import storage
from taslak.models.target import chain_rows
from taslak.training import store as module
from taslak.training.answers import Answer
from taslak.training.store import Store, Text, fill, size, texts_of
from tests.support.tiny import poison
from tests.support.training import FEATURES, make_store, target, texts

Usage = namedtuple("Usage", "total used free")


def test_it_holds_the_targets_hidden_states(tmp_path: Path) -> None:
    given, model = texts(), target()
    store = make_store(tmp_path / "store")
    for index, text in enumerate(given):
        rows = store.rows(index)
        assert store.tokens[rows].tolist() == text.tokens
        cache = model.allocate(len(text.tokens))
        features = model.forward([chain_rows(cache, text.tokens, 0)], capture=FEATURES).features
        for name in FEATURES:
            stored = torch.from_numpy(store.features[name][rows].copy())
            assert torch.equal(stored, features[name].half())
        cache.release()
    assert store.held_out == [5]
    assert store.trained == [0, 1, 2, 3, 4]
    counts = store.token_counts(259)
    assert int(counts.sum()) == sum(len(text.tokens) - 5 for text in given[:5])
    folder = sum(file.stat().st_size for file in (tmp_path / "store").glob("*.*[26]"))
    assert folder == size(int(store.offsets[-1]), 32, len(FEATURES))


def test_it_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped between two passes: the passes noted as done are not run again; the numbers are the same."""
    whole = make_store(tmp_path / "whole")
    monkeypatch.setattr(module, "ROWS", 40)
    monkeypatch.setattr(module, "FLUSH_ROWS", 1)

    def stop(what: str, done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path / "s", target(), texts(), FEATURES, {"model": "tiny"}, stop)
    done = json.loads((tmp_path / "s" / "meta.json").read_text())["done"]
    assert 0 < done < 6
    model = target()
    rows = 0
    forward = model.forward

    def counted(batch, **options):  # type: ignore[no-untyped-def]
        nonlocal rows
        rows += sum(len(r.tokens) for r in batch)
        return forward(batch, **options)

    model.forward = counted  # type: ignore[method-assign]
    again = fill(tmp_path / "s", model, texts(), FEATURES, {"model": "tiny"})
    assert rows == sum(len(text.tokens) for text in texts()[done:])
    for name in FEATURES:
        assert (again.features[name][:] == whole.features[name][:]).all()
    rows = 0
    fill(tmp_path / "s", model, texts(), FEATURES, {"model": "tiny"})
    assert rows == 0


def test_too_little_disk_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = size(sum(len(text.tokens) for text in texts()), 32, len(FEATURES))
    free = needed + storage.DISK_MARGIN_BYTES - 1
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda _: Usage(0, 0, free))
    with pytest.raises(DiskError, match="not enough disk space for the hidden states"):
        make_store(tmp_path / "store")
    assert list((tmp_path / "store").iterdir()) == []
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda _: Usage(0, 0, free + 1))
    assert isinstance(make_store(tmp_path / "store"), Store)


def test_hidden_states_of_other_texts_or_another_model_are_not_used(tmp_path: Path) -> None:
    make_store(tmp_path)
    with pytest.raises(OptionError, match="made with another texts"):
        make_store(tmp_path, texts(length=21))
    with pytest.raises(OptionError, match="made with another model"):
        fill(tmp_path, target(), texts(), FEATURES, {"model": "other"})


def test_only_what_is_missing_is_computed(tmp_path: Path) -> None:
    """Two kinds of heads share a store: the second adds its own features, the first's stay as they are."""
    whole = make_store(tmp_path / "whole")
    first = fill(tmp_path / "s", target(), texts(), FEATURES[:1], {"model": "tiny"})
    assert list(first.features) == [FEATURES[0]]
    files = [tmp_path / "s" / f"{FEATURES[0]}.f16", tmp_path / "s" / "tokens.i32"]
    before = [file.stat().st_mtime_ns for file in files]
    names: list[tuple[str, ...]] = []
    model = target()
    forward = model.forward

    def noted(batch, **options):  # type: ignore[no-untyped-def]
        names.append(tuple(options["capture"]))
        return forward(batch, **options)

    model.forward = noted  # type: ignore[method-assign]
    wanted = [FEATURES[0], FEATURES[2]]
    second = fill(tmp_path / "s", model, texts(), wanted, {"model": "tiny"})
    assert set(names) == {(FEATURES[2],)}
    assert [file.stat().st_mtime_ns for file in files] == before, "others may be reading them"
    for name in wanted:
        assert (second.features[name][:] == whole.features[name][:]).all()
    assert set(Store(tmp_path / "s").features) == set(wanted)


def test_numbers_beyond_float16_are_cut(tmp_path: Path) -> None:
    model = target()
    poison(model, 7, 1e6)
    store = fill(tmp_path, model, [Text([7, 1, 2], 1), Text([7, 1], 1, True)], ["layer.0"], {})
    assert abs(store.features["layer.0"][0]).max() == module.LARGEST


def test_answers_become_texts() -> None:
    answers = [Answer(i, [1] * (i + 1), [2, 3], 0.0, 0, "stop") for i in range(5)]
    made = texts_of(answers, frozenset({1}), 4)
    assert [(len(t.tokens), t.prompt_length, t.held_out) for t in made] == [
        *((3, 1, False), (4, 2, True), (4, 3, False))
    ]
    with pytest.raises(OptionError, match="none is left to train on, or none held out"):
        texts_of(answers, frozenset({4}), 4)


def test_a_filling_that_another_kind_broke_off_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One kind is stopped half-way, another one fails before it has computed anything: what the first had is
    overwritten by then, and must not count."""
    whole = make_store(tmp_path / "whole")
    monkeypatch.setattr(module, "ROWS", 40)
    monkeypatch.setattr(module, "FLUSH_ROWS", 1)

    def stop(what: str, done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path / "s", target(), texts(), FEATURES[:1], {"model": "tiny"}, stop)
    reserve = module._reserve
    calls = []

    def failing(path: Path, count: int) -> None:
        calls.append(path)
        if len(calls) == 2:
            raise OSError("no")
        reserve(path, count)

    monkeypatch.setattr(module, "_reserve", failing)
    with pytest.raises(DiskError):
        fill(tmp_path / "s", target(), texts(), FEATURES[:2], {"model": "tiny"})
    monkeypatch.setattr(module, "_reserve", reserve)
    again = fill(tmp_path / "s", target(), texts(), FEATURES[:1], {"model": "tiny"})
    assert (again.features[FEATURES[0]][:] == whole.features[FEATURES[0]][:]).all()


@pytest.mark.parametrize("done", [2, 6], ids=["half", "whole"])
def test_a_store_of_an_earlier_version_is_gone_on_with(tmp_path: Path, done: int) -> None:
    """Its note lists all features at once, and says how far they are together."""
    whole = make_store(tmp_path)
    note = tmp_path / "meta.json"
    meta = json.loads(note.read_text())
    del meta["filling"]
    note.write_text(json.dumps({**meta, "done": done}))
    model = target()
    rows = 0
    forward = model.forward

    def counted(batch, **options):  # type: ignore[no-untyped-def]
        nonlocal rows
        rows += sum(len(r.tokens) for r in batch)
        return forward(batch, **options)

    model.forward = counted  # type: ignore[method-assign]
    again = fill(tmp_path, model, texts(), FEATURES, {"model": "tiny"})
    assert rows == sum(len(text.tokens) for text in texts()[done:])
    for name in FEATURES:
        assert (again.features[name][:] == whole.features[name][:]).all()
