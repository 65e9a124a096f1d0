"""The target's answers: one line each, gone on with after a kill, shared out over machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from taslak.engine import LanguageModel
from taslak.engine.prompts import Prompt, read_prompts
from taslak.errors import OptionError, PromptError
from taslak.loading import load
from taslak.training.answers import Answer, Answers, Shard, answer_prompts, read_texts
from tests.support.training import target_folder, write_prompts

WORDS = {"max_tokens": 8, "max_length": 60}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return load(str(target_folder(tmp_path_factory.mktemp("target") / "tiny")), dtype="float32", exact=True)


@pytest.fixture
def prompts(tmp_path: Path) -> list[Prompt]:
    return read_prompts(write_prompts(tmp_path / "p.jsonl", 7))


def test_a_batch_of_answers_is_what_each_would_be_alone(
    model: LanguageModel, prompts: list[Prompt], tmp_path: Path
) -> None:
    file = Answers(tmp_path / "a.jsonl")
    told: list[tuple[str, int, int]] = []
    answer_prompts(
        model,
        prompts,
        file,
        temperatures=(0.0, 0.8),
        greedy=frozenset({3}),
        seed=5,
        batch=3,
        progress=lambda *at: told.append(at),
        **WORDS,
    )
    answers = file.read()
    assert [a.index for a in answers] == list(range(7))
    assert [a.temperature for a in answers] == [0.0, 0.8, 0.0, 0.0, 0.0, 0.8, 0.0]
    for prompt, answer in zip(prompts, answers, strict=True):
        alone = model.generate(
            prompt.text, temperature=answer.temperature, seed=5 + answer.index, max_tokens=8, speculate=False
        )
        assert tuple(answer.answer) == alone.ids
        assert answer.prompt == model.encode(prompt.text)
        assert answer.finish == alone.finish_reason
        assert answer.seed == 5 + answer.index
    assert told[-1] == ("answering prompts", 7, 7)
    assert set(json.loads(file.path.read_text().splitlines()[0])) == {
        *("index", "prompt", "answer", "temperature", "seed", "finish")
    }


def test_a_line_cut_by_a_kill_is_answered_again(
    model: LanguageModel, prompts: list[Prompt], tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    answer_prompts(model, prompts, Answers(path), **WORDS)
    whole = Answers(path).read()
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:4]) + lines[4][:20])
    file = Answers(path)
    assert len(file.read()) == 4
    counted: list[int] = []
    answer_prompts(model, prompts, file, progress=lambda what, done, total: counted.append(done), **WORDS)
    assert counted[0] == 4
    assert file.read() == whole


def test_shards_are_the_whole(model: LanguageModel, prompts: list[Prompt], tmp_path: Path) -> None:
    answer_prompts(model, prompts, Answers(tmp_path / "all.jsonl"), **WORDS)
    parts = [tmp_path / f"{i}.jsonl" for i in range(3)]
    for number, part in enumerate(parts):
        answer_prompts(model, prompts, Answers(part), shard=Shard(number, 3), **WORDS)
    assert read_texts(parts, model) == Answers(tmp_path / "all.jsonl").read()


@pytest.mark.parametrize("text", ["3/3", "-1/2", "1", "a/b", "0/0", ""])
def test_a_shard_is_i_of_n(text: str) -> None:
    assert Shard.parse("0/4") == Shard(0, 4)
    with pytest.raises(OptionError, match="expected i/n"):
        Shard.parse(text)


@pytest.mark.parametrize("changed", ["prompts", "seed", "temperature"])
def test_answers_to_something_else_are_not_gone_on_with(
    model: LanguageModel, prompts: list[Prompt], tmp_path: Path, changed: str
) -> None:
    file = Answers(tmp_path / "a.jsonl")
    answer_prompts(model, prompts, file, **WORDS)
    if changed == "prompts":
        prompts = prompts[::-1]
    options = {"seed": {"seed": 1}, "temperature": {"temperatures": (0.5,)}}.get(changed, {})
    with pytest.raises(OptionError, match="answers to other prompts"):
        answer_prompts(model, prompts, file, **WORDS, **options)


def test_long_prompts_are_left_out_and_counted(model: LanguageModel, tmp_path: Path) -> None:
    prompts = [Prompt("x" * 70, "p:1"), Prompt("short", "p:2")]
    assert answer_prompts(model, prompts, Answers(tmp_path / "a.jsonl"), **WORDS) == 1
    assert [a.index for a in Answers(tmp_path / "a.jsonl").read()] == [1]


def test_a_prompt_that_cannot_be_encoded_names_its_line(model: LanguageModel, tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=r"p\.jsonl:9: the prompt is not valid UTF-8"):
        answer_prompts(model, [Prompt("\ud800", "p.jsonl:9")], Answers(tmp_path / "a.jsonl"), **WORDS)


def test_given_texts(model: LanguageModel, tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    rows = [
        {"prompt": "Hi", "answer": "Ho"},
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, second = read_texts([file], model)
    assert first == Answer(0, model.encode("Hi"), first.answer, 0.0, 0, "given")
    assert model.tokenizer.decode(first.answer) == "Ho"
    assert first.answer[-1] in model.tokenizer.eos_ids
    assert (second.prompt, second.answer) == (first.prompt, first.answer)
    file.write_text('{"prompt": "Hi"}\n')
    with pytest.raises(PromptError, match=r't\.jsonl:1: no "answer"'):
        read_texts([file], model)
    file.write_text('{"prompt": [1, 2], "answer": "x"}\n')
    with pytest.raises(PromptError, match=r"t\.jsonl:1: not an answer"):
        read_texts([file], model)


def test_answers_of_a_larger_vocabulary_are_not_this_models(model: LanguageModel, tmp_path: Path) -> None:
    file = Answers(tmp_path / "a.jsonl")
    file.append(Answer(0, [1, 2], [3, 99999], 0.0, 0, "stop"))
    with pytest.raises(PromptError, match=r"a\.jsonl:1: token id 99999; the model has 259"):
        read_texts([file.path], model)
