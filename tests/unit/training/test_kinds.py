"""What is trained is what decodes: a kind's forward in training against the engine's own computation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from taslak.drafters.formats import read_head
from taslak.errors import OptionError
from taslak.models.decoder import Decoder
from taslak.models.target import chain_rows
from taslak.training.draft_model import DraftModel
from taslak.training.eagle import Eagle, Eagle3
from taslak.training.early_exit import EarlyExit
from taslak.training.kind import Kind
from taslak.training.medusa import Medusa
from taslak.training.options import KINDS
from taslak.training.store import fill
from taslak.training.teacher import Teacher, frequent
from tests.support.families import ours, tiny_transformers
from tests.support.training import CONFIG, make_store, target, target_folder, teacher, texts, whole_batch

IDS = torch.arange(3, 259, 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return target_folder(tmp_path_factory.mktemp("target") / "tiny")


def build(kind: str, from_: Teacher) -> Kind:
    torch.manual_seed(0)
    options = {"eagle3": {"captures": (0, 1, 2)}, "early-exit": {"rank": 4}, "medusa": {"heads": 2}}
    return KINDS[kind].make(from_, **options.get(kind, {}))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ids", [None, IDS], ids=["all", "some"])
def test_a_loss_and_a_gradient_for_every_parameter(
    kind: str, ids: torch.Tensor | None, folder: Path, tmp_path: Path
) -> None:
    if kind == "draft-model" and ids is not None:
        pytest.skip("says every token")
    head = build(kind, teacher(folder, ids))
    batch = whole_batch(make_store(tmp_path))
    losses = head(batch)
    assert torch.isfinite(losses["loss"])
    assert (losses["right"] <= losses["rows"]).all()
    assert losses["rows"][0] == batch.ahead(1 if kind in ("early-exit", "draft-model") else 2).numel()
    losses["loss"].backward()
    without = [name for name, p in head.named_parameters() if p.grad is None]
    assert without == []


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "draft-model"])
@pytest.mark.parametrize("ids", [None, IDS], ids=["all", "some"])
def test_a_head_is_read_back(kind: str, ids: torch.Tensor | None, folder: Path, tmp_path: Path) -> None:
    head = build(kind, teacher(folder, ids))
    head.save(tmp_path, {"made": "here"})
    found = read_head(tmp_path)
    assert found.kind == kind
    assert found.config == head.config
    assert (found.draft_ids is None) == (ids is None)
    for name, tensor in head.state_dict().items():
        assert torch.equal(found.tensors[name], tensor.bfloat16()), name
    assert json.loads((tmp_path / "provenance.json").read_text()) == {"made": "here"}


def test_the_teacher_is_the_target(folder: Path, tmp_path: Path) -> None:
    """Its distributions are the softmax of the target's own logits, over the draft vocabulary."""
    batch = whole_batch(make_store(tmp_path))
    model = target()
    p = teacher(folder, IDS).distributions(batch)
    for span in batch.spans:
        tokens = batch.tokens[span].tolist()
        cache = model.allocate(len(tokens))
        logits = model.forward([chain_rows(cache, tokens, len(tokens))]).logits
        cache.release()
        rows = [row for row in batch.ahead(1).tolist() if span.start <= row < span.stop]
        expected = torch.softmax(logits[[row - span.start for row in rows]][:, IDS], dim=-1)
        torch.testing.assert_close(p[rows], expected, rtol=2e-2, atol=1e-3)  # the store is float16


@pytest.mark.parametrize("case", ["gemma2", "granite", "gpt_neox", "phi3"])
def test_heads_learn_from_any_family(case: str, tmp_path: Path) -> None:
    """Caps and multipliers are in what is learnt; what can't be trained so is refused."""
    model = tiny_transformers(case, vocab_size=CONFIG.vocab_size)
    model.save_pretrained(tmp_path / "target")
    decoder = Decoder(*ours(model), exact=True)
    batch = whole_batch(fill(tmp_path / "store", decoder, texts(), ("final_norm",), {"model": case}))
    from_ = teacher(tmp_path / "target")
    span = batch.spans[0]
    cache = decoder.allocate(span.stop)
    logits = decoder.forward([chain_rows(cache, batch.tokens[span].tolist(), span.stop)]).logits
    rows = [row for row in batch.ahead(1).tolist() if row < span.stop]
    expected = torch.softmax(logits[rows], dim=-1)
    torch.testing.assert_close(from_.distributions(batch)[rows], expected, rtol=2e-2, atol=1e-3)
    for kind in ("medusa", "eagle"):
        build(kind, from_)(batch)["loss"].backward()
    with pytest.raises(OptionError, match=f"of the family {case}, whose layers are built differently"):
        DraftModel(from_)
    if case == "gpt_neox":
        with pytest.raises(OptionError, match="ends in a LayerNorm"):
            EarlyExit(from_)


def test_all_layers_of_the_target_are_the_target(folder: Path, tmp_path: Path) -> None:
    """A draft model of every layer, untrained, computes the target's last hidden states."""
    batch = whole_batch(make_store(tmp_path))
    draft = DraftModel(teacher(folder), layers=range(3))
    torch.testing.assert_close(draft.hidden(batch), batch.features["final_norm"], rtol=2e-3, atol=2e-3)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize("rope_scaling", [None, YARN], ids=["plain", "yarn"])
def test_a_draft_model_is_an_ordinary_checkpoint(rope_scaling: Any, tmp_path: Path) -> None:
    """Loaded by transformers and by our own decoder it gives the logits it was trained with."""
    import transformers

    import taslak

    folder = target_folder(tmp_path / "target")
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "rope_scaling": rope_scaling}))
    draft = DraftModel(teacher(folder), layers=(0, 2))
    draft.round_as_saved()
    draft.save(tmp_path / "draft", {})
    batch = whole_batch(make_store(tmp_path / "store"))
    ids = batch.tokens[batch.spans[0]]
    expected = (draft.hidden(batch) @ draft.lm_head.t())[batch.spans[0]].detach()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "draft", dtype=torch.float32)
    with torch.inference_mode():
        torch.testing.assert_close(theirs(ids[None]).logits[0], expected, rtol=1e-3, atol=1e-3)
    draft_name = str(tmp_path / "draft")
    model = taslak.load(str(folder), draft=draft_name, method="draft-model", gamma=5, dtype="float32")
    decoder = model.engine.drafters["draft-model"].reader._model
    cache = decoder.allocate(64)
    ours = decoder.forward([chain_rows(cache, ids.tolist(), len(ids))]).logits
    torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-3)
    assert model.generate("Hi", max_tokens=8).counts.drafted > 0


def test_a_draft_model_from_another_checkpoint(folder: Path, tmp_path: Path) -> None:
    first = DraftModel(teacher(folder), layers=(1,))
    first.save(tmp_path / "a", {})
    again = DraftModel(teacher(folder), init=tmp_path / "a")
    assert again.chosen == [0]
    torch.testing.assert_close(again.layers[0].q.weight, first.layers[0].q.weight.bfloat16().float())


def test_an_untrained_exit_is_the_last_norm_of_the_exit_layer(folder: Path, tmp_path: Path) -> None:
    batch = whole_batch(make_store(tmp_path))
    head = EarlyExit(teacher(folder), exit_layer=2, rank=4)
    x = batch.features["layer.1"]
    weight = teacher(folder).weight("model.norm.weight")
    torch.testing.assert_close(head.hidden(x), F.rms_norm(x, (32,), weight, CONFIG.norm_eps))


def test_medusa_heads_start_as_the_targets_own_choice(folder: Path, tmp_path: Path) -> None:
    batch = whole_batch(make_store(tmp_path))
    head = Medusa(teacher(folder, IDS), heads=2)
    x = batch.features["final_norm"]
    hidden, unembedding = head.hidden(1, x)
    assert torch.equal(hidden, x)
    assert torch.equal(unembedding, teacher(folder, IDS).head)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda t: Medusa(t, heads=0), "heads is 0"),
        (lambda t: Medusa(t, unembedding="mine"), "unembedding is 'mine'"),
        (lambda t: Medusa(t, blocks=0, unembedding="target"), "would all say the same"),
        (lambda t: Eagle(t, 0), "ttt is 0"),
        (lambda t: Eagle(t, 9), "ttt is 9"),
        (lambda t: Eagle(t, inner_size=0), "inner_size is 0"),
        (lambda t: Eagle3(t, captures=(0, 1)), r"captures is \[0, 1\]"),
        (lambda t: Eagle3(t, captures=(2, 1, 0)), r"captures is \[2, 1, 0\]"),
        (lambda t: Eagle3(t, captures=(0, 1, 3)), "from 0 to 2"),
        (lambda t: EarlyExit(t, exit_layer=0), "exit_layer is 0"),
        (lambda t: EarlyExit(t, exit_layer=3), "exit_layer is 3"),
        (lambda t: EarlyExit(t, exit_layer=1, rank=33), "rank is 33"),
        (lambda t: DraftModel(t, layers=(1, 0)), "layers are 1, 0"),
        (lambda t: DraftModel(t, layers=(3,)), "layers are 3"),
    ],
)
def test_what_a_target_cannot_have(folder: Path, make, says: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(OptionError, match=says):
        make(teacher(folder))


def test_the_most_frequent_tokens_ascending() -> None:
    assert frequent(torch.tensor([0, 5, 2, 5, 9]), 3).tolist() == [1, 3, 4]
    assert frequent(torch.tensor([0, 0, 1]), 2).tolist() == [0, 2]
