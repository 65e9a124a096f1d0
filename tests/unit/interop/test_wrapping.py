"""from_transformers: what it takes, what it makes of it, and what it says when that can't be."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import taslak
from taslak import from_transformers
from taslak.control.controller import Controller
from taslak.drafters.formats import write_head
from taslak.errors import CheckpointError, OptionError, PromptError, TokenizerMismatch, UserError
from taslak.interop.tokenizer import WrappedTokenizer
from taslak.models.tokenizer import Tokenizer
from tests.support.checkpoint import write_model
from tests.support.foreign import foreign, near
from tests.support.heads import CONFIGS, random_head

TEXT = "round and round and round"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny", context=256)


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


def test_it_is_the_language_model_that_load_returns(folder: Path, model: Any, tokenizer: Any) -> None:
    """Texts, chats, streams, batches, stops, comparisons, sampling: as of the same checkpoint, loaded."""
    ours = taslak.load(str(folder), dtype="float32", method="suffix", gamma=4)
    theirs = from_transformers(model, tokenizer, method="suffix", gamma=4)
    assert type(theirs) is taslak.LanguageModel
    assert theirs.name == str(folder)
    assert theirs.weights.path == "transformers (sdpa)"
    assert theirs.dtype == "float32"
    for prompt, options in (
        (TEXT, {}),
        ([{"role": "user", "content": TEXT}], {}),
        (TEXT, {"raw": True, "temperature": 0.9, "seed": 4, "top_p": 0.9}),
        ([TEXT, "x", [1, 2, 3]], {"raw": True, "repetition_penalty": 1.2}),
        (TEXT, {"n": 2, "temperature": 1.0, "seed": 1, "verify": "rejection"}),
    ):
        assert _ids(theirs.generate(prompt, max_tokens=20, **options)) == _ids(
            ours.generate(prompt, max_tokens=20, **options)
        )
    free = theirs.generate(TEXT, max_tokens=20)
    assert free.text == ours.generate(TEXT, max_tokens=20).text
    cut = theirs.generate(TEXT, max_tokens=20, stop=free.text[4:6])
    assert cut.text == free.text[: free.text.index(free.text[4:6])]
    events = list(theirs.stream(TEXT, max_tokens=20))
    assert "".join(event.text for event in events) == free.text
    assert theirs.compare(TEXT, max_tokens=20).identical


def _ids(answers: Any) -> list[tuple[int, ...]]:
    return [answer.ids for answer in (answers if isinstance(answers, list) else [answers])]


def test_the_controller_decides_unless_told_not_to(
    model: Any, tokenizer: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.setenv("TASLAK_HOME", str(tmp_path))
    monkeypatch.setattr("taslak.control.measure.PATIENCE", 0.02)
    chosen = from_transformers(model, tokenizer, method="suffix")
    assert isinstance(chosen.policy, Controller)
    assert chosen.gamma is None
    assert chosen.compare(TEXT, max_tokens=20).identical
    assert from_transformers(model, tokenizer, control=False).gamma == 5


@pytest.mark.parametrize("given", ["a name", "a model", "a model and its tokenizer"])
def test_a_draft_model_by_name_or_loaded(folder: Path, model: Any, tokenizer: Any, given: str) -> None:
    draft: dict[str, Any] = {"draft": str(folder)} if given == "a name" else {"draft": near(model)}
    if given.endswith("tokenizer"):
        draft["draft_tokenizer"] = AutoTokenizer.from_pretrained(folder)
    wrapped = from_transformers(model, tokenizer, method="draft-model", gamma=3, branch=2, **draft)
    answer = wrapped.generate(TEXT, max_tokens=30)
    assert answer.counts.accepted > 0
    assert answer.ids == wrapped.generate(TEXT, max_tokens=30, speculate=False).ids


def test_c21_another_tokenizer_is_refused(tmp_path: Path, model: Any, tokenizer: Any) -> None:
    other = write_model(tmp_path / "other", extra="Ψ")
    with pytest.raises(TokenizerMismatch, match="differ"):
        from_transformers(model, tokenizer, draft=str(other))
    loaded = AutoModelForCausalLM.from_pretrained(other)
    with pytest.raises(TokenizerMismatch, match="differ"):
        from_transformers(
            model, tokenizer, draft=loaded, draft_tokenizer=AutoTokenizer.from_pretrained(other)
        )
    with pytest.raises(TokenizerMismatch, match="without a tokenizer"):
        from_transformers(model, draft=str(other))
    with pytest.raises(OptionError, match=r"259 tokens .* 61; give the draft model's tokenizer"):
        from_transformers(model, tokenizer, draft=foreign("phi"))
    with pytest.raises(OptionError, match="draft_tokenizer belongs to a draft model"):
        from_transformers(model, tokenizer, draft=str(other), draft_tokenizer=tokenizer)


def test_c20_padding_rows_of_the_head_are_never_drawn(folder: Path, tokenizer: Any) -> None:
    """The padded head would always win there."""
    padded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    padded.resize_token_embeddings(288, mean_resizing=False)
    with torch.no_grad():
        padded.lm_head.weight[259:] = 10 * padded.lm_head.weight[5].sign()
    wrapped = from_transformers(padded, tokenizer, draft=near(padded), method="draft-model", gamma=3)
    assert (wrapped.target.vocab_size, wrapped.target.padded_vocab_size) == (259, 288)
    for settings in ({}, {"temperature": 1.5, "seed": 1}):
        answer = wrapped.generate(TEXT, max_tokens=30, **settings)
        assert max(answer.ids) < 259
        assert answer.dropped == 0


@pytest.mark.parametrize("ends", [None, 1, [1, 2]])
def test_c04_texts_end_as_the_generation_config_says(
    model: Any, tokenizer: Any, ends: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(model.generation_config, "eos_token_id", ends)
    own = tokenizer.eos_token_id
    expected = {None: (own,), 1: (1,)}.get(ends if not isinstance(ends, list) else 0, (1, 2))
    assert from_transformers(model, tokenizer, control=False).tokenizer.eos_ids == expected
    assert from_transformers(model, control=False).tokenizer.eos_ids == (() if ends is None else expected)


def test_without_a_tokenizer_prompts_are_ids(model: Any, caplog: pytest.LogCaptureFixture) -> None:
    wrapped = from_transformers(model, name="nameless")
    assert "costs can't be measured" in caplog.text, "a policy that measures needs texts"
    assert wrapped.gamma == 5
    answer = wrapped.generate([5, 6, 7, 5, 6], max_tokens=10)
    assert len(answer.ids) == 10
    assert answer.text == ""
    with pytest.raises(
        PromptError, match="nameless was wrapped without a tokenizer: give prompts as token ids"
    ):
        wrapped.generate(TEXT, raw=True)
    with pytest.raises(OptionError, match="no tokenizer to find stop strings"):
        wrapped.generate([1, 2], stop="x")
    with pytest.raises(UserError, match="without a tokenizer"):
        wrapped.generate([1, 2], regex="a+")


def test_a_head_drafts_from_hidden_states(tmp_path: Path, model: Any, tokenizer: Any) -> None:
    head = random_head(CONFIGS["eagle"], vocab_size=259, scale=0.1)
    write_head(tmp_path, head)
    wrapped = from_transformers(model, tokenizer, draft=str(tmp_path), gamma=3, branch=2)
    assert wrapped.method == "suffix+eagle"
    answer = wrapped.generate(TEXT, max_tokens=30, method="eagle")
    assert answer.counts.drafted > 0
    assert answer.dropped == 0
    assert answer.ids == wrapped.generate(TEXT, max_tokens=30, speculate=False).ids


def test_what_a_drafter_needs_and_the_model_does_not_give(tmp_path: Path, model: Any, tokenizer: Any) -> None:
    with pytest.raises(OptionError, match="its first layers can't draft alone"):
        from_transformers(model, tokenizer, method="early-exit")
    write_head(
        tmp_path, random_head(CONFIGS["eagle3"], vocab_size=259)
    )  # it reads the last layer's own output
    with pytest.raises(
        OptionError, match=r"eagle3 reads layer.2 of .*, which gives embedding, layer.0, layer.1"
    ):
        from_transformers(model, tokenizer, draft=str(tmp_path))


def test_options_that_mean_nothing_here(model: Any, tokenizer: Any) -> None:
    for option in ("dtype", "exact", "device", "gama"):
        with pytest.raises(OptionError, match=f"no option {option}; known: method, gamma"):
            from_transformers(model, tokenizer, **{option: 1})
    with pytest.raises(OptionError, match="looks for no n-grams"):
        from_transformers(model, tokenizer, method="suffix", ngram=(1, 2))
    with pytest.raises(CheckpointError, match="got a Linear"):
        from_transformers(torch.nn.Linear(2, 2))


def test_a_shorter_context_may_be_asked_for(model: Any, tokenizer: Any) -> None:
    wrapped = from_transformers(model, tokenizer, context=40, method="ngram", gamma=8)
    assert len(wrapped.generate(list(range(30)), max_tokens=None, eos=()).ids) == 10


def test_trees_are_cut_to_lines_where_the_model_has_no_mask(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    from_transformers(foreign("bloom"), method="ngram", gamma=2)
    assert caplog.text == "", "nobody asked for a tree"
    model = foreign("bloom")
    wrapped = from_transformers(model, draft=near(model), method="draft-model", gamma=4, branch=3, nodes=9)
    assert (wrapped.branch, wrapped.nodes) == (1, None)
    assert "drafts of BloomForCausalLM are cut to lines" in caplog.text


def test_importing_taslak_imports_no_transformers() -> None:
    import subprocess
    import sys

    code = (
        "import sys, taslak, taslak.interop; sys.exit(not {'transformers', 'torch'}.isdisjoint(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class Slow:
    """The surface of a tokenizer of transformers that has no fast form, over single letters."""

    is_fast = False
    chat_template = None
    special_tokens_map: dict[str, str] = {"eos_token": "z"}  # noqa: RUF012
    added_tokens_decoder: dict[int, str] = {}  # noqa: RUF012

    def get_vocab(self) -> dict[str, int]:
        return {chr(97 + i): i for i in range(26)}

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [ord(char) - 97 for char in text]

    def decode(self, ids: list[int], skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        assert not clean_up_tokenization_spaces, "a text that is changed behind can't be streamed"
        return "".join(chr(97 + i) for i in ids)


def test_a_slow_tokenizer_serves_too() -> None:
    slow = WrappedTokenizer(Slow(), name="slow", eos_ids=(25,), rows=30)
    assert slow.encode("cab") == [2, 0, 1]
    assert slow.decode([2, 0, 1]) == "cab"
    assert slow.vocab_size == 26
    assert slow.token_bytes(3) == b"d"
    assert not slow.has_chat_template
    slow.require_same_as(WrappedTokenizer(Slow(), name="other", eos_ids=(), rows=26))
    with pytest.raises(UserError, match="Slow has no form"):
        slow.as_json()


def test_a_wrapped_tokenizer_is_the_folders_own(folder: Path) -> None:
    """Also after its owner has had it pad and cut."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer([TEXT, "x"], padding="max_length", max_length=40, truncation=True)
    tokenizer(TEXT, truncation=True, max_length=3)
    mine = WrappedTokenizer(tokenizer, name="mine", eos_ids=(), rows=259)
    own = Tokenizer.from_folder(folder)
    messages = [{"role": "user", "content": TEXT}]
    assert mine.encode(TEXT) == own.encode(TEXT)
    assert mine.chat(messages) == own.chat(messages)
    assert mine.decode(mine.encode(TEXT)) == TEXT
    assert mine.vocab_size == own.vocab_size
    assert mine.first_difference(own) is None
    assert [mine.token_bytes(i) for i in range(259)] == [own.token_bytes(i) for i in range(259)]
