"""The front door, on a tiny model: prompts, options, comparison, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

import taslak
from taslak.engine.language_model import LanguageModel
from taslak.errors import ContextFull, OptionError, PromptError, TokenizerMismatch
from taslak.models.pretrained import Pretrained
from tests.support.tiny import near_model, tiny_model


class Tokenizer:
    """Letters 'A' to 'z' as ids 0 to 57; a chat message becomes '<' text '>'."""

    has_text = True

    def __init__(self, name: str = "letters", template: bool = False) -> None:
        self.name = name
        self.has_chat_template = template
        self.eos_ids: tuple[int, ...] = ()

    def encode(self, text: str) -> list[int]:
        return [ord(c) - 65 for c in text if 0 <= ord(c) - 65 < 58]

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return "".join(chr(65 + i) for i in ids)

    def chat(self, messages: Sequence[Any]) -> list[int]:
        return [59, *self.encode("".join(m["content"] for m in messages)), 60]

    def require_same_as(self, other: Tokenizer) -> None:
        if self.name != other.name:
            raise TokenizerMismatch(f"{self.name} is not {other.name}")


def pretrained(model: Any, tokenizer: Tokenizer) -> Pretrained:
    return Pretrained("tiny", model, tokenizer, "float32")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return LanguageModel(pretrained(tiny_model(1), Tokenizer()), method="ngram", gamma=4)


def test_one_prompt_gives_an_answer_many_a_list(model: LanguageModel) -> None:
    one = model.generate("ABCABC", max_tokens=8)
    many = model.generate(["ABCABC", "XYZ"], max_tokens=8)
    assert [a.ids for a in many] == [one.ids, model.generate("XYZ", max_tokens=8).ids]
    assert one.counts.emitted == len(one.ids) == len(one.accepted) == 8


def test_speculation_can_be_switched_off(model: LanguageModel) -> None:
    off = model.generate("ABCABC", max_tokens=8, speculate=False)
    assert off.counts.drafted == 0
    assert off.counts.acceptance_rate is None
    assert off.ids == model.generate("ABCABC", max_tokens=8).ids


def test_the_method_can_be_chosen_anew() -> None:
    chosen = LanguageModel(pretrained(tiny_model(1), Tokenizer()), method="suffix+early-exit", gamma=4)
    text = chosen.generate("ABCABC", max_tokens=8).text
    for method in ("early-exit", "ngram", "suffix+early-exit"):  # a look-up needs nothing
        chosen.choose(method)
        answer = chosen.generate("ABCABC", max_tokens=8)
        assert (answer.text, chosen.method) == (text, method)
        assert {*answer.by} <= {*method.split("+"), "plain"}
    assert chosen.lacks("suffix+medusa") == ["medusa"]
    with pytest.raises(OptionError, match="without medusa"):
        chosen.choose("suffix+medusa")
    assert chosen.method == "suffix+early-exit"


def test_a_prompt_that_fills_the_context_is_told_apart() -> None:
    short = LanguageModel(pretrained(tiny_model(1, context=16), Tokenizer()))
    with pytest.raises(ContextFull, match="16 tokens; the model's context is 16"):
        short.generate("A" * 16)


def test_n_answers_a_prompt(model: LanguageModel) -> None:
    first = model.generate("ABC", n=3, temperature=1.0, seed=5, max_tokens=12)
    assert len({a.ids for a in first}) == 3
    assert [a.ids for a in model.generate("ABC", n=3, temperature=1.0, seed=5, max_tokens=12)] == [
        a.ids for a in first
    ]


def test_messages_go_through_the_chat_template() -> None:
    chat = LanguageModel(pretrained(tiny_model(1), Tokenizer(template=True)))
    messages = [{"role": "user", "content": "AB"}]
    assert chat.encode(messages) == chat.encode("AB") == [59, 0, 1, 60]
    assert chat.encode("AB", raw=True) == [0, 1]
    assert chat.generate(messages, max_tokens=4).prompt_tokens == 4
    with pytest.raises(PromptError, match="no chat template"):
        LanguageModel(pretrained(tiny_model(1), Tokenizer())).encode(messages)


def test_a_stream_closed_early_frees_its_memory(model: LanguageModel) -> None:
    stream = model.stream("ABCABC", max_tokens=50)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    pool = model.target.pool
    assert pool.free_pages == pool.pages


def test_a_stream_of_several_answers_tells_them_apart(model: LanguageModel) -> None:
    prompts = ["ABCABC", "XYZ"]
    expected = model.generate(prompts, n=2, temperature=0.9, seed=3, max_tokens=9)
    texts = [""] * 4
    answers = {}
    for event in model.stream(prompts, n=2, temperature=0.9, seed=3, max_tokens=9):
        texts[event.index] += event.text
        if event.answer:
            answers[event.index] = event.answer
    assert texts == [a.text for a in expected]
    assert [answers[i].ids for i in range(4)] == [a.ids for a in expected]


def test_comparison_says_identical_and_how_fast(model: LanguageModel) -> None:
    comparison = model.compare("ABCABC", max_tokens=12, temperature=0.7)
    assert comparison.identical
    assert comparison.difference is None
    assert comparison.speedup > 0
    told = json.loads(json.dumps(comparison.as_json()))
    assert told["plain"]["seed"] == told["speculative"]["seed"]
    assert told["plain"]["acceptance_rate"] is None
    assert set(told["speculative"]) >= {
        "text", "tokens", "tokens_per_second", "passes", "drafted", "accepted", "acceptance_rate",
        "node_rate", "alpha", "tau", "theoretical_speedup", "seconds", "method", "gamma", "verify",
        "dtype", "seed",
    }  # fmt: skip
    assert set(told["speculative"]["seconds"]) == {"draft", "pass", "other"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"temprature": 1.0}, "no option temprature"),
        ({"n": 0}, "n is 0"),
        ({"seed": -1}, "seed -1"),
        ({"stop": ["x", ""]}, "stop string is empty"),
        ({"top_k": 2.0}, "top_k is 2.0"),
        ({"logit_bias": {99: 1.0}}, "token id 99"),
    ],
)
def test_bad_options_are_named(model: LanguageModel, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        model.generate("ABC", **options)


def test_bad_prompts_are_named(model: LanguageModel) -> None:
    with pytest.raises(PromptError, match="empty"):
        model.generate("  ")
    with pytest.raises(PromptError, match="600 tokens"):
        model.generate("A" * 600)
    with pytest.raises(PromptError, match="not valid UTF-8 text at character 1"):
        model.generate("A\ud800")
    for other in (None, 5):
        with pytest.raises(PromptError, match=type(other).__name__):
            model.generate(other)  # type: ignore[call-overload]
    with pytest.raises(PromptError, match="int"):
        model.generate(["AB", 7])  # type: ignore[list-item]


def test_c21_another_tokenizer_is_refused() -> None:
    with pytest.raises(TokenizerMismatch):
        LanguageModel(
            pretrained(tiny_model(1), Tokenizer()),
            pretrained(near_model(1), Tokenizer("runes")),
            method="draft-model",
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draft": "x", "method": "ngram"}, "uses no draft model"),
        ({"method": "draft-model"}, "needs a draft model"),
        ({"method": "telepathy"}, "expected one of"),
        ({"gamma": 0}, "gamma is 0"),
        ({"gamma": 17}, "gamma is 17"),
        ({"branch": 9}, "branch is 9"),
        ({"verify": "hope"}, "coupled"),
        ({"method": "tli"}, "needs a draft model"),
        ({"cross_vocab": True}, "cross_vocab is for a draft model of another tokenizer; name one"),
        (
            {"draft": "x", "cross_vocab": "both"},
            "'both'; expected True or one of auto, tli, slem",
        ),
        ({"draft": "x", "cross_vocab": True, "method": "ngram"}, "drafts with no second model"),
        ({"dtype": "float8"}, "dtype is 'float8'"),
        ({"device": "abacus"}, "device is 'abacus'"),
    ],
)
def test_c34_what_cannot_be_used_is_said_before_anything_is_loaded(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        taslak.load("no-such-model-anywhere", **options)
