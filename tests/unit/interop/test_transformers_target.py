"""A wrapped model keeps the Target's promises: shown on a llama that both transformers and we can run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from taslak.drafters.base import DrafterOptions, build
from taslak.errors import CheckpointError, OptionError
from taslak.interop.transformers_target import TransformersTarget, context_of
from taslak.interop.wrap import pretrained
from taslak.models.decoder import Decoder
from taslak.models.target import PREFIX, Rows, chain_rows
from tests.support.decoding import decode, plain, request
from tests.support.foreign import build as foreign
from tests.support.foreign import foreign as any_of
from tests.support.foreign import twin
from tests.support.heads import CONFIGS, random_head
from tests.support.tiny import random_weights, tiny_config

CONFIG = tiny_config()
WEIGHTS = random_weights(CONFIG, 1)
OURS = Decoder(CONFIG, WEIGHTS)
FEATURES = ("embedding", "layer.0", "layer.1", "final_norm")
TEXT = [1, 2, 3, 1, 2, 4, 9, 8]


def wrapped(model: Any = None) -> TransformersTarget:
    target = pretrained(twin(CONFIG, WEIGHTS) if model is None else model).decoder
    assert isinstance(target, TransformersTarget)
    return target


TARGET = wrapped()


def test_what_the_model_is_known_by() -> None:
    assert (TARGET.vocab_size, TARGET.padded_vocab_size, TARGET.context) == (61, 61, 512)
    assert (TARGET.layers, TARGET.hidden_size, TARGET.dtype) == (3, 32, torch.float32)
    assert TARGET.features == FEATURES
    assert TARGET.weight_bytes == OURS.weight_bytes
    assert TARGET.pass_bytes == OURS.pass_bytes
    assert TARGET.pool.bytes_per_position == OURS.pool.bytes_per_position
    assert TARGET.pool.pages == 0, "what the rehearsal took is given back"
    assert TARGET.packs
    assert TARGET.why_lines is None


def _two_sequences(target: Decoder | TransformersTarget) -> list[Rows]:
    """The end of one text with a tree behind it, and another's beginning, of which one row wants logits."""
    first, second = target.allocate(64), target.allocate(200)
    target.forward([chain_rows(first, TEXT[:5], 0)])
    first.keep(range(5))
    tree = Rows(first, [*TEXT[5:], 7, 11, 12, 13], [PREFIX, 0, 1, 2, 2, 3, 4], first=0, wanted=5)
    return [tree, chain_rows(second, list(range(60)) * 2, 1)]


def test_logits_and_hidden_states_are_ours() -> None:
    """Of a tree and another sequence in one pass, whose rows want no logits in between."""
    ours, theirs = (t.forward(_two_sequences(t), capture=FEATURES) for t in (OURS, TARGET))
    assert theirs.logits.shape == (6, 61)
    assert theirs.logits.dtype == torch.float32
    torch.testing.assert_close(theirs.logits, ours.logits, atol=1e-4, rtol=0)
    for name in FEATURES:
        torch.testing.assert_close(theirs.features[name], ours.features[name], atol=1e-4, rtol=0)


def test_what_is_kept_is_what_was_walked() -> None:
    """A path with a gap is moved together; what follows it is as if it had always been there."""
    tree, _ = _two_sequences(TARGET)
    TARGET.forward([tree])
    tree.cache.keep([0, 1, 2, 4, 6])  # 4, 9, 8, 11, 13
    after = TARGET.forward([chain_rows(tree.cache, [30, 31], 2)]).logits
    whole = TARGET.allocate(64)
    expected = TARGET.forward([chain_rows(whole, [*TEXT, 11, 13, 30, 31], 2)]).logits
    torch.testing.assert_close(after, expected, atol=1e-4, rtol=0)


def test_rows_that_lie_apart_in_the_pool() -> None:
    """A sequence whose pages are in no row is gathered: the same logits."""
    target = wrapped()
    blocks = [target.allocate(64) for _ in range(4)]
    blocks[0].release()
    blocks[2].release()
    apart = target.allocate(128)
    assert not isinstance(apart.slots(0, 128), slice)
    text = [i * 7 % 61 for i in range(100)]
    got = target.forward([chain_rows(apart, text, 3)]).logits
    expected = OURS.forward([chain_rows(OURS.allocate(128), text, 3)]).logits
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)


def test_ends_and_head_for_those_who_draft_beside_it() -> None:
    tokens = torch.tensor([3, 5])
    x = OURS.forward([chain_rows(OURS.allocate(8), TEXT, 1)], capture=("final_norm",)).features["final_norm"]
    torch.testing.assert_close(TARGET.embed(tokens), OURS.embed(tokens))
    torch.testing.assert_close(TARGET.logits(x), OURS.logits(x))
    torch.testing.assert_close(TARGET.unembedding(tokens), OURS.unembedding(tokens))
    assert torch.equal(TARGET.ends.embedding, WEIGHTS["model.embed_tokens.weight"])
    assert torch.equal(TARGET.ends.head, WEIGHTS["lm_head.weight"])


def test_a_scaled_embedding_is_handed_on_as_the_model_reads_it() -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "head_dim": 8}
    model = foreign("gemma3_text", {**sizes, "num_attention_heads": 4, "num_key_value_heads": 2})
    target = wrapped(model)
    ids = torch.arange(61)
    torch.testing.assert_close(target.ends.embedding, target.embed(ids))
    assert not torch.allclose(target.ends.embedding, model.get_input_embeddings().weight)


@pytest.mark.parametrize("kind", ["medusa", "eagle", "eagle3"])
def test_heads_draft_from_its_hidden_states(kind: str) -> None:
    """As many drafts accepted as beside our own decoder of the same weights, and the same text."""
    from dataclasses import replace

    config = CONFIGS[kind]
    if kind == "eagle3":
        config = replace(config, captures=(0, 0, 1))  # type: ignore[call-arg]
    requests = [request(TEXT, temperature=t, seed=5, max_tokens=40) for t in (0.0, 0.9)]
    answers = []
    for target in (OURS, TARGET):
        head = build(kind, target, DrafterOptions(head=random_head(config, scale=0.1), branch=3))
        answers.append(decode(target, head, requests, gamma=3, branch=3))
    ours, theirs = answers
    assert [a.ids for a in theirs] == [a.ids for a in ours] == [a.ids for a in plain(OURS, requests)]
    assert [a.counts.drafted for a in theirs] == [a.counts.drafted for a in ours]
    assert all(a.dropped == 0 and a.counts.drafted > 0 for a in theirs)


def test_finished_sequences_leave_nothing_behind() -> None:
    target, draft = wrapped(), wrapped()
    drafter = build("draft-model", target, DrafterOptions(draft=draft, branch=2))
    for _ in range(2):
        decode(target, drafter, [request([i, i + 1]) for i in range(4)], branch=2)
        for each in (target, draft):
            assert each.pool.free_pages == each.pool.pages > 0


def test_its_layers_do_not_run_alone() -> None:
    with pytest.raises(OptionError, match="runs as a whole"):
        TARGET.forward([chain_rows(TARGET.allocate(8), [1], 0)], layers=(0, 1))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda model: model.train(), "training mode"),
        (lambda model: setattr(model, "get_output_embeddings", lambda: None), "no language-model head"),
    ],
)
def test_models_that_are_no_causal_language_models_are_refused(change: Any, match: str) -> None:
    model = twin(CONFIG, WEIGHTS)
    change(model)
    with pytest.raises(CheckpointError, match=match):
        pretrained(model)


def test_other_models_are_refused() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"vocab_size": 61, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    with pytest.raises(CheckpointError, match="an encoder-decoder model"):
        pretrained(T5ForConditionalGeneration(T5Config(**sizes)).eval())
    with pytest.raises(CheckpointError, match="expected a loaded causal language model"):
        pretrained(torch.nn.Linear(2, 2))
    with pytest.raises(CheckpointError, match="keeps no cache"):
        pretrained(foreign("openai-gpt", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}))


@pytest.mark.parametrize(
    ("settings", "context"),
    [
        ({}, 512),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}, 512),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, 512),
        (
            {
                "rope_parameters": {
                    "rope_type": "longrope",
                    "rope_theta": 1e4,
                    "factor": 8.0,
                    "short_factor": [1.0] * 4,
                    "long_factor": [2.0] * 4,
                    "original_max_position_embeddings": 64,
                }
            },
            64,
        ),
    ],
    ids=["none", "linear", "dynamic", "longrope"],
)
def test_the_context_ends_where_positions_would_turn(settings: dict[str, Any], context: int) -> None:
    from transformers import LlamaConfig

    sizes = {"hidden_size": 32, "num_attention_heads": 4, "max_position_embeddings": 512}
    assert context_of(LlamaConfig(**sizes, **settings)) == context


def test_a_mask_that_is_not_the_models_own_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """One position too many beyond the window, and drafts are lines."""
    assert wrapped(any_of("starcoder2")).why_lines is None
    near = TransformersTarget._near
    monkeypatch.setattr(
        TransformersTarget, "_near", lambda self, kind, at, where: near(self, kind, at - 1, where)
    )
    target = wrapped(any_of("starcoder2"))
    assert target.why_lines is not None
    assert "24 positions into a text" in target.why_lines
    assert not target.packs


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_is_no_reason_to_refuse(dtype: torch.dtype) -> None:
    """Nor to draft lines; what stands in the way of trees is found in any width."""
    assert wrapped(any_of("qwen2_moe").to(dtype)).packs
    lines = wrapped(any_of("mpt").to(dtype))
    assert "see each other" in (lines.why_lines or "")
    with pytest.raises(ValueError, match="have to be a line"):
        lines.forward([Rows(lines.allocate(8), [1, 2], [PREFIX, PREFIX], first=0, wanted=2)])
