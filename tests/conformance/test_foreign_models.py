"""Models of transformers whose architectures are not among ours: their own text, sooner; or a clear no."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from taslak import from_transformers
from taslak.core.counts import Counts
from taslak.engine.language_model import LanguageModel
from taslak.errors import CheckpointError
from tests.support.foreign import ARCHITECTURES, LINES, STATEFUL, VOCAB, build, foreign, near

PROMPTS = ([5, 6, 7, 5, 6, 7, 5, 6], [9], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5])
TOKENS = 24


def own_text(model: Any, prompt: Sequence[int], tokens: int = TOKENS) -> list[int]:
    """What the model's own `generate` adds."""
    ids = torch.tensor([prompt])
    out = model.generate(ids, max_new_tokens=tokens, do_sample=False, pad_token_id=0)
    return out[0, len(prompt) :].tolist()


def same_or_nearly(model: LanguageModel, prompt: Sequence[int], **options: Any) -> bool:
    """Plain and speculative text are the same, or part at a near-tie: the quick path rounds by width."""
    comparison = model.compare(prompt, max_tokens=TOKENS, **options)
    return comparison.identical or (comparison.difference is not None and comparison.difference.near_tie)


@pytest.mark.parametrize("kind", sorted(ARCHITECTURES))
def test_the_text_is_that_of_its_own_generate(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Greedy in float32, a look-up and a model drafting, in trees where the model keeps to a mask; elsewhere
    in lines, which is said. Sampled, with and without."""
    model = foreign(kind)
    expected = [own_text(model, prompt) for prompt in PROMPTS]
    assert len({token for text in expected for token in text}) > 5, "a text of one token shows little"
    wrapped = from_transformers(model, draft=near(model), method="ngram+draft-model", gamma=4, branch=3)
    target: Any = wrapped.target
    assert target.packs == (kind not in LINES)
    assert wrapped.branch == (1 if kind in LINES else 3)
    assert ("cut to lines" in caplog.text) == (kind in LINES)
    counts = Counts()
    for gamma in (2, 8):
        answers = wrapped.generate(list(PROMPTS), max_tokens=TOKENS, gamma=gamma)
        assert [list(answer.ids) for answer in answers] == expected, f"γ {gamma}"
        assert all(answer.dropped == 0 for answer in answers)
        for answer in answers:
            counts.add(answer.counts)
    assert 0 < counts.accepted < counts.drafted, "nothing was kept, or nothing rolled back"
    assert (counts.nodes > counts.drafted) == (kind not in LINES)
    assert same_or_nearly(wrapped, PROMPTS[0], temperature=0.8, seed=3)


def test_c15_past_the_sliding_window() -> None:
    """Text runs far beyond a window of 24, with trees, rejections, and another sequence in the pass."""
    model = foreign("starcoder2")
    wrapped = from_transformers(model, draft=near(model, 0.05), method="draft-model", gamma=5, branch=3)
    prompts = [list(range(1, 40)), [7, 8]]
    expected = [own_text(model, prompt) for prompt in prompts]
    for gamma in (1, 5, 8):
        answers = wrapped.generate(prompts, max_tokens=TOKENS, gamma=gamma)
        assert [list(answer.ids) for answer in answers] == expected


@pytest.mark.parametrize("kind", ["gemma3_text", "mistral"])
def test_c15_layers_of_two_kinds_and_of_one(kind: str) -> None:
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 128,
        "sliding_window": 16,
    }
    if kind == "gemma3_text":
        sizes["layer_types"] = ["sliding_attention", "full_attention"] * 2
    model = build(kind, sizes)
    wrapped = from_transformers(model, draft=near(model), method="draft-model", gamma=4, branch=2)
    target: Any = wrapped.target
    assert target.packs
    assert target.windows == {16}
    prompts = [list(range(1, 30)), [7, 8]]
    answers = wrapped.generate(prompts, max_tokens=TOKENS)
    assert [list(answer.ids) for answer in answers] == [own_text(model, prompt) for prompt in prompts]


@pytest.mark.parametrize("kind", sorted(STATEFUL))
def test_c17_a_state_that_cannot_be_rolled_back_is_refused(kind: str) -> None:
    model = build(kind, STATEFUL[kind])
    with pytest.raises(CheckpointError, match="can't be decoded speculatively") as refusal:
        from_transformers(model)
    reason = str(refusal.value)
    assert type(model).__name__ in reason
    assert "running state" in reason or "cache of its own" in reason
    with pytest.raises(CheckpointError, match="rolled back"):
        from_transformers(foreign("phi"), draft=model)


class Remembering(torch.nn.Module):
    """A layer that adds what it saw in earlier calls: state that no cache knows of."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.seen: torch.Tensor | float = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x) + self.seen
        self.seen = self.seen + x.mean(dim=(0, 1))
        return y


def test_c17_a_state_that_nothing_tells_of_is_found_out() -> None:
    model = foreign("phi")
    model.model.layers[0].mlp = Remembering(model.model.layers[0].mlp)
    with pytest.raises(CheckpointError, match="remembers"):
        from_transformers(model)


def test_c19_to_the_end_of_the_context() -> None:
    for kind in ("gpt_neo", "opt"):  # one with a table of places in the cache, one with learned positions
        model = foreign(kind)
        wrapped = from_transformers(model, draft=near(model), method="draft-model", gamma=8, branch=3)
        prompt = [1 + i % (VOCAB - 1) for i in range(112)]  # transformers hides the id of padding
        answer = wrapped.generate(prompt, max_tokens=None)
        assert answer.finish_reason == "length"
        assert len(answer.ids) == 128 - 112
        assert list(answer.ids) == own_text(model, prompt, 16)
