"""transformers' calls, word for word: the same tokens, and an error for what has no counterpart."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM as Theirs
from transformers import AutoTokenizer, GenerationConfig, GenerationMixin

import taslak
from taslak.errors import OptionError
from taslak.interop import AutoModelForCausalLM, CausalLM, aliases, from_transformers
from taslak.interop.transformers_target import TransformersTarget
from tests.support.checkpoint import write_model
from tests.support.foreign import foreign, near

PROMPT = torch.tensor([[82, 79, 85, 78, 68, 32, 82, 79, 85]])
EXACT = {"control": False}
"""What no call names drafts at a fixed depth: nothing is measured in tests."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny", context=256)


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    return Theirs.from_pretrained(folder, dtype=torch.float32)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module", params=["taslak's own", "wrapped"])
def model(request: pytest.FixtureRequest, folder: Path) -> CausalLM:
    options = {} if request.param == "taslak's own" else {"attn_implementation": "eager"}
    made = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options, **EXACT)
    wrapped = isinstance(made.language_model.target, TransformersTarget)
    assert wrapped == (request.param == "wrapped"), (
        "an option only transformers has is transformers' business"
    )
    return made


GREEDY: list[dict[str, Any]] = [
    {},
    {"max_new_tokens": 30},
    {"max_length": 30},
    {"max_new_tokens": 30, "do_sample": True, "top_k": 1},
    {"max_new_tokens": 30, "temperature": 0.7, "top_p": 0.5, "do_sample": False},
    {"max_new_tokens": 30, "repetition_penalty": 1.3},
    {"max_new_tokens": 30, "no_repeat_ngram_size": 2},
    {"max_new_tokens": 30, "suppress_tokens": [1, 5, 9, 100]},
    {"max_new_tokens": 30, "bad_words_ids": [[7], [8], [200]]},
    {"max_new_tokens": 30, "sequence_bias": {(7,): 3.0, (8,): -2.0}},
    {"max_new_tokens": 30, "sequence_bias": [[[7], 3.0], [[8], -2.0]]},
    {"max_new_tokens": 30, "num_beams": 1, "use_cache": True, "renormalize_logits": True},
    {"generation_config": GenerationConfig(max_new_tokens=12, repetition_penalty=1.1)},
    {"generation_config": GenerationConfig(max_new_tokens=12), "max_new_tokens": 15},
]


@pytest.mark.parametrize("call", GREEDY, ids=" ".join)
def test_calls_give_the_tokens_they_gave(model: CausalLM, theirs: Any, call: dict[str, Any]) -> None:
    expected = theirs.generate(PROMPT, **call)
    got = model.generate(PROMPT, **call)
    assert torch.equal(got, expected)
    assert got.dtype == torch.int64


def test_ends_and_least_lengths(model: CausalLM, theirs: Any) -> None:
    free = theirs.generate(PROMPT, max_new_tokens=20)[0, PROMPT.shape[1] :].tolist()
    for ends in (free[6], [250, free[6], free[3]]):
        for least in ({}, {"min_new_tokens": 12}, {"min_length": 18}):
            call = {"eos_token_id": ends, "pad_token_id": 0, "max_new_tokens": 20, **least}
            assert torch.equal(model.generate(PROMPT, **call), theirs.generate(PROMPT, **call))


def test_stop_strings(model: CausalLM, theirs: Any, tokenizer: Any) -> None:
    free = theirs.generate(PROMPT, max_new_tokens=20)[0, PROMPT.shape[1] :].tolist()
    stop = tokenizer.decode([next(token for token in free[2:] if token < 94)])  # one that spells a character
    call = {"stop_strings": [stop, "never"], "tokenizer": tokenizer, "max_new_tokens": 20, "pad_token_id": 0}
    assert torch.equal(model.generate(PROMPT, **call), theirs.generate(PROMPT, **call))


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_batch(model: CausalLM, theirs: Any, side: str) -> None:
    """Each prompt's answer is its own; shorter answers are padded."""
    inputs = {"input_ids": torch.full((2, 9), 3), "attention_mask": torch.ones(2, 9, dtype=torch.int64)}
    inputs["input_ids"][0] = PROMPT[0]
    short = slice(4, 9) if side == "left" else slice(0, 5)
    inputs["input_ids"][1, short] = torch.tensor([5, 6, 7, 5, 6])
    inputs["attention_mask"][1] = 0
    inputs["attention_mask"][1, short] = 1
    alone = [theirs.generate(ids, max_new_tokens=20) for ids in (PROMPT, torch.tensor([[5, 6, 7, 5, 6]]))]
    end = int(alone[0][0, 9 + 4])
    got = model.generate(**inputs, max_new_tokens=20, eos_token_id=end, pad_token_id=1)
    assert torch.equal(got[:, :9], inputs["input_ids"])
    for row, whole in zip(got, alone, strict=True):
        answer = whole[0, -20:].tolist()
        stop = answer.index(end) + 1 if end in answer else 20
        assert row[9 : 9 + stop].tolist() == answer[:stop]
        assert set(row[9 + stop :].tolist()) <= {1}


def test_samples_repeat_as_pytorchs_generator_does(model: CausalLM) -> None:
    call = {"do_sample": True, "max_new_tokens": 12, "num_return_sequences": 3}
    torch.manual_seed(1)
    first, second = (model.generate(PROMPT.repeat(2, 1), **call) for _ in range(2))
    assert first.shape == (6, 9 + 12)
    assert len({tuple(row.tolist()) for row in first}) == 6, "rows with one prompt are drawn for themselves"
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert torch.equal(model.generate(PROMPT.repeat(2, 1), **call), first)
    seeded = model.generate(PROMPT.repeat(2, 1), **call, seed=5)
    assert torch.equal(model.generate(PROMPT.repeat(2, 1), **call, seed=5), seeded)
    assert len({tuple(row.tolist()) for row in seeded}) == 6


def test_sampling_cuts_as_transformers_does_where_nothing_is_said() -> None:
    """50 tokens at most, temperature 1, whatever the drafts."""
    asked = aliases.options(GenerationConfig(do_sample=True), 9)
    assert (asked["temperature"], asked["top_k"], asked["top_p"], asked["min_p"]) == (1.0, 50, 1.0, 0.0)
    assert aliases.options(GenerationConfig(do_sample=True, top_k=0), 9)["top_k"] == 0
    assert "temperature" not in aliases.options(GenerationConfig(temperature=0.5), 9)


def test_the_models_own_generation_config_says_what_a_call_does_not(folder: Path, tmp_path: Path) -> None:
    import shutil

    other = shutil.copytree(folder, tmp_path / "copy")
    GenerationConfig(max_new_tokens=7, repetition_penalty=1.4, eos_token_id=250).save_pretrained(other)
    model = AutoModelForCausalLM.from_pretrained(other, dtype="float32", **EXACT)
    theirs = Theirs.from_pretrained(other, dtype=torch.float32)
    assert torch.equal(model.generate(PROMPT), theirs.generate(PROMPT))
    assert model.generate(PROMPT).shape == (1, 16)
    assert model.generation_config.eos_token_id == 250
    (other / "generation_config.json").unlink()
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "eos_token_id": 31}))
    plain = AutoModelForCausalLM.from_pretrained(other, dtype="float32", **EXACT)
    assert plain.generation_config.eos_token_id == 31, "the tokenizer's own is not transformers' business"
    model.generation_config.max_new_tokens = 3
    assert model.generate(PROMPT).shape == (1, 12)
    assert model.generate(PROMPT, max_new_tokens=2).shape == (1, 11)


ASSISTED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"prompt_lookup_num_tokens": 3}, {"method": "ngram", "gamma": 3, "ngram": None}),
    ({"prompt_lookup_num_tokens": 4, "max_matching_ngram_size": 2}, {"gamma": 4, "ngram": (1, 2)}),
    ({"assistant_model": "near", "num_assistant_tokens": 4}, {"method": "draft-model", "gamma": 4}),
    (
        {"assistant_model": "near", "num_assistant_tokens": 4, "num_assistant_tokens_schedule": "heuristic"},
        {"gamma": None},
    ),
    (
        {"assistant_model": "near", "num_assistant_tokens": 6, "assistant_confidence_threshold": 0.3},
        {"gamma": 6, "stop_below": 0.3},
    ),
]


@pytest.mark.parametrize(("call", "meaning"), ASSISTED, ids=[" ".join(call) for call, _ in ASSISTED])
def test_what_drafts_for_a_call(
    model: CausalLM, theirs: Any, call: dict[str, Any], meaning: dict[str, Any], monkeypatch: Any
) -> None:
    """The tokens of plain decoding, drafted for as the names say."""
    monkeypatch.setattr(
        "taslak.interop.wrap.control_depth", lambda *_, **__: None
    )  # measuring takes its time
    given = {**call, "assistant_model": near(theirs)} if "assistant_model" in call else call
    answers: list[taslak.Answer] = []
    got = model.generate(PROMPT, max_new_tokens=24, **given)
    assert torch.equal(got, theirs.generate(PROMPT, max_new_tokens=24))
    by, used = next(reversed(model._assisted.values()))
    assert {name: by.options[name] for name in meaning} == meaning
    used.listeners.append(lambda _, answer: answers.append(answer))
    model.generate(PROMPT, max_new_tokens=24, **given)
    used.listeners.clear()
    assert answers[0].counts.drafted > 0, "calls alike share a model, and it drafts"


def test_an_assistant_may_be_named_or_one_of_ours(model: CausalLM, theirs: Any, folder: Path) -> None:
    expected = theirs.generate(PROMPT, max_new_tokens=16)
    ours = AutoModelForCausalLM.from_pretrained(folder, **EXACT)
    ours.generation_config.num_assistant_tokens = 3
    for assistant in (str(folder), ours):
        call = {"num_assistant_tokens": 2} if isinstance(assistant, str) else {}
        got = model.generate(PROMPT, assistant_model=assistant, max_new_tokens=16, **call)
        assert torch.equal(got, expected)
        assert next(reversed(model._assisted.values()))[0].gamma == call.get("num_assistant_tokens", 3)


def test_early_exit_where_taslak_runs_the_model(folder: Path, theirs: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32", **EXACT)
    got = model.generate(PROMPT, assistant_early_exit=2, num_assistant_tokens=3, max_new_tokens=12)
    assert torch.equal(got, theirs.generate(PROMPT, max_new_tokens=12))
    wrapped = CausalLM(from_transformers(theirs, **EXACT))
    with pytest.raises(OptionError, match="runs as a whole"):
        wrapped.generate(PROMPT, assistant_early_exit=2, num_assistant_tokens=3)


def test_deeper_drafts_than_there_are_here_are_cut_and_that_is_said(
    model: CausalLM, caplog: pytest.LogCaptureFixture
) -> None:
    model.generate(PROMPT, prompt_lookup_num_tokens=20, max_new_tokens=4)
    assert "at most 16 tokens deep; 20 were asked for" in caplog.text
    assert next(reversed(model._assisted.values()))[0].gamma == 16


def test_a_streamer_hears_tokens_as_they_come(model: CausalLM, tokenizer: Any) -> None:
    from transformers import TextIteratorStreamer

    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True)
    got = model.generate(PROMPT, max_new_tokens=12, prompt_lookup_num_tokens=3, streamer=streamer)
    assert "".join(streamer) == tokenizer.decode(got[0, 9:])
    with pytest.raises(OptionError, match="a streamer takes one answer"):
        model.generate(PROMPT.repeat(2, 1), streamer=streamer)


def test_a_dictionary_where_one_is_asked_for(model: CausalLM) -> None:
    out = model.generate(PROMPT, max_new_tokens=4, return_dict_in_generate=True)
    assert torch.equal(out.sequences, model.generate(PROMPT, max_new_tokens=4))


WITHOUT_COUNTERPART: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 5}, "what taslak calls so is max_new_tokens in transformers"),
    ({"gamma": 5}, "num_assistant_tokens"),
    ({"max_new_token": 5}, "did you mean max_new_tokens"),
    ({"colour": "red"}, "expected those of transformers' generate"),
    ({"num_beams": 4}, "num_beams=4 has no counterpart in taslak: there are no beams"),
    ({"typical_p": 0.9}, "cut with top_p or min_p"),
    ({"assistant_ensemble_weight": 0.5}, "drafts never do"),
    ({"output_scores": True}, "logprobs"),
    ({"cache_implementation": "quantized"}, "a cache of taslak's own"),
    ({"logits_processor": [1]}, "many are settings"),
    ({"past_key_values": ()}, "each call has a cache of its own"),
    ({"bad_words_ids": [[1, 2]]}, r"sequence \[1, 2\]"),
    ({"sequence_bias": {(1, 2): 1.0}}, r"sequence \[1, 2\]"),
    ({"max_length": 5}, "the prompt has 9 tokens; use max_new_tokens"),
    ({"num_assistant_tokens": 4}, "belongs to assistant_model, which isn't given"),
    ({"assistant_tokenizer": object()}, "belongs to assistant_model"),
    ({"max_matching_ngram_size": 4}, "belongs to prompt_lookup_num_tokens"),
    ({"prompt_lookup_num_tokens": 3, "assistant_early_exit": 1}, "exclude each other"),
    (
        {"assistant_early_exit": 1, "num_assistant_tokens_schedule": "sometimes"},
        "expected constant, heuristic",
    ),
    ({"attention_mask": torch.ones(1, 3)}, "shape of input_ids"),
    ({"streamer": object(), "num_return_sequences": 2, "do_sample": True}, "a streamer takes one answer"),
    ({"num_return_sequences": 2}, "Greedy methods"),
]


@pytest.mark.parametrize(
    ("call", "match"), WITHOUT_COUNTERPART, ids=[" ".join(call) for call, _ in WITHOUT_COUNTERPART]
)
def test_what_has_no_counterpart_is_an_error_with_a_hint(
    model: CausalLM, call: dict[str, Any], match: str
) -> None:
    with pytest.raises(OptionError, match=match):
        model.generate(PROMPT, **call)


@pytest.mark.parametrize(
    "ids",
    [None, [1, 2], torch.tensor([1, 2]), torch.ones(1, 3)],
    ids=["none", "list", "one dimension", "floats"],
)
def test_prompts_are_tensors_of_ids(model: CausalLM, ids: Any) -> None:
    with pytest.raises(OptionError, match="expected a tensor of token ids"):
        model.generate(ids)


def test_every_setting_and_argument_of_transformers_is_known() -> None:
    """A new release's have to be put somewhere; and what asks for nothing there is no error here."""
    settings = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    groups = (aliases.TRANSLATED, aliases.WITHOUT_EFFECT, {*aliases.REFUSED})
    assert settings == set().union(*groups)
    assert sum(map(len, groups)) == len(settings), "one is in two groups"
    arguments = set(inspect.signature(GenerationMixin.generate).parameters)
    arguments -= {"self", "inputs", "generation_config", "kwargs"}
    assert arguments <= {*aliases.ARGUMENTS, *aliases.REFUSED_ARGUMENTS}
    defaults = GenerationConfig._get_default_generation_params()
    assert (defaults["max_length"], defaults["top_k"]) == (aliases.NEW_TOKENS, aliases.TOP_K)
    for name, value in defaults.items():
        if name in aliases.REFUSED and value is not None:
            assert value in aliases.REFUSED[name][0], name
    told = {name: value for name, value in defaults.items() if name not in aliases.OF_ASSISTANTS}
    config, arguments = aliases.resolved(told, None, GenerationConfig())
    assert arguments == {}
    assert aliases.assistance(config, {}) == aliases.Assistance()


def test_who_drafts_is_what_the_call_names_and_then_what_its_config_does() -> None:
    def drafts(given: dict[str, Any], **config: Any) -> str | None:
        made, arguments = aliases.resolved(given, GenerationConfig(**config), GenerationConfig())
        return aliases.assistance(made, arguments).method

    assert drafts({}, prompt_lookup_num_tokens=3) == "ngram"
    assert drafts({"assistant_model": "small"}, prompt_lookup_num_tokens=3) == "draft-model"
    assert drafts({"prompt_lookup_num_tokens": 3}, assistant_early_exit=2) == "ngram"
    with pytest.raises(OptionError, match="belongs to assistant_model"):
        drafts({"prompt_lookup_num_tokens": 3, "num_assistant_tokens": 5}, assistant_early_exit=2)
    with pytest.raises(OptionError, match="exclude each other"):
        drafts({}, prompt_lookup_num_tokens=3, assistant_early_exit=2)


@pytest.mark.parametrize("of_the_tokenizer", ["sub", "."])
def test_a_tokenizer_lies_beside_the_weights_or_above_them(tmp_path: Path, of_the_tokenizer: str) -> None:
    write_model(tmp_path / "sub", context=256)
    for file in (tmp_path / "sub").glob("token*"):
        file.rename(tmp_path / of_the_tokenizer / file.name)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, subfolder="sub", **EXACT)
    assert model.language_model.tokenizer.encode("ab")


def test_the_model_says_what_it_is_and_is_not(model: CausalLM) -> None:
    assert model.eval() is model
    assert model.device.type == "cpu"
    assert model.dtype == torch.float32
    assert isinstance(model.language_model, taslak.LanguageModel)
    with pytest.raises(AttributeError, match=r"no attribute 'get_memory_footprint': it generates, no more"):
        model.get_memory_footprint()


def test_other_families_are_loaded_by_transformers(tmp_path: Path) -> None:
    """A folder without a tokenizer too: prompts are ids."""
    foreign("phi").save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, method="ngram", gamma=3)
    assert isinstance(model.language_model.target, TransformersTarget)
    prompt = torch.tensor([[5, 6, 7, 5, 6, 7]])
    expected = Theirs.from_pretrained(tmp_path).generate(prompt, max_new_tokens=20)
    assert torch.equal(model.generate(prompt, max_new_tokens=20), expected)
    assert model.language_model.method == "ngram"
