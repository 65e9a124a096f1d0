"""JSON schemas, regexes and grammars over a small real tokenizer: what is answered, and what is refused."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from taslak.core.constraint import Allowed
from taslak.engine import grammar
from taslak.engine.grammar import Grammar, Grammars, Ids
from taslak.engine.language_model import LanguageModel
from taslak.errors import OptionError, SamplingError, UserError
from taslak.models.pretrained import Pretrained
from tests.support.constraints import ENDS, PADDING, PERSON, Spelling, grammars
from tests.support.decoding import decode, request
from tests.support.scripted import Scripted
from tests.support.tiny import tiny_model

TARGET = tiny_model(1)
PROMPT = "ab 10 true"
MOST = 200


def language_model(**options: Any) -> LanguageModel:
    target = Pretrained("tiny", TARGET, Spelling(**options), "float32")  # type: ignore[arg-type]
    return LanguageModel(target, method="ngram", gamma=4)


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return language_model()


def is_person(value: Any) -> bool:
    assert set(value) == {"name", "age", "tags"}
    assert isinstance(value["name"], str)
    assert len(value["name"]) <= 6
    assert type(value["age"]) is int
    assert 0 <= value["age"] <= 120
    assert len(value["tags"]) <= 3
    return all(tag in ("ab", "true", 10) or tag is True for tag in value["tags"])


SCHEMAS: list[tuple[Any, Callable[[Any], bool]]] = [
    (PERSON, is_person),
    (json.dumps(PERSON), is_person),
    (
        {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 5},
        lambda v: 2 <= len(v) <= 5,
    ),
    ({"enum": ["red", 12, None, {"a": [True]}]}, lambda v: v in ("red", 12, None, {"a": [True]})),
    (
        {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^[ab]{3}$"}]},
        lambda v: v is None or len(v) == 3,
    ),
    ({"$ref": "#/$defs/x", "$defs": {"x": {"const": "ab"}}}, lambda v: v == "ab"),
]
REGEXES = [r"ab|abc*", r"(true|10){1,4}\.", r"[a-f]{3,8} [0-9]{2}", r"[^a-z]{5}", r"x?y?z", r"a{2,}b"]
WARMTHS = [{}, *({"temperature": 1.0, "seed": seed} for seed in range(6))]


@pytest.mark.parametrize(("schema", "holds"), SCHEMAS, ids=range(len(SCHEMAS)))
def test_answers_keep_to_the_schema(model: LanguageModel, schema: Any, holds: Callable[[Any], bool]) -> None:
    for options in WARMTHS:
        answer = model.generate(PROMPT, json_schema=schema, max_tokens=MOST, **options)
        assert answer.finish_reason == "stop"
        assert holds(json.loads(answer.text)), answer.text


@pytest.mark.parametrize("regex", REGEXES)
def test_answers_match_the_regex(model: LanguageModel, regex: str) -> None:
    ended = 0
    for options in WARMTHS:
        answer = model.generate(PROMPT, regex=regex, max_tokens=MOST, **options)
        if answer.finish_reason == "stop":
            ended += 1
            assert re.fullmatch(regex, answer.text), answer.text
        else:
            assert len(answer.ids) == MOST
            compiled = model.grammars.of(regex=regex)
            assert compiled is not None
            assert compiled.matcher().admits(answer.ids)
    assert ended


def test_any_object_is_an_object(model: LanguageModel) -> None:
    ended = 0
    for whole in (True, {}, "{}", "true"):
        for seed in range(5):
            answer = model.generate(PROMPT, json_schema=whole, temperature=1.0, seed=seed, max_tokens=MOST)
            assert answer.text.startswith("{")
            if answer.finish_reason == "stop":
                ended += 1
                assert isinstance(json.loads(answer.text), dict)
    assert ended


def test_answers_keep_to_the_grammar(model: LanguageModel) -> None:
    lark = 'start: pair (" " pair)~2\npair: KEY ":" VALUE\nKEY: /[a-c]{2}/\nVALUE: /[0-9]{1,2}/'
    for options in WARMTHS:
        answer = model.generate(PROMPT, grammar=lark, max_tokens=MOST, **options)
        assert re.fullmatch(r"[a-c]{2}:\d{1,2}( [a-c]{2}:\d{1,2}){2}", answer.text)


def test_choices_have_each_their_own_place(model: LanguageModel) -> None:
    """They share a compiled grammar, and a pass."""
    options = {"json_schema": PERSON, "temperature": 1.0, "seed": 3, "max_tokens": MOST}
    first = model.generate(PROMPT, n=3, **options)
    assert len({a.ids for a in first}) == 3
    assert [a.ids for a in model.generate(PROMPT, n=3, **options)] == [a.ids for a in first]
    assert all(is_person(json.loads(a.text)) for a in first)
    assert first[0].ids == model.generate(PROMPT, **options).ids


def test_a_neighbour_without_one_is_left_alone(model: LanguageModel) -> None:
    ids = Spelling().encode(PROMPT)
    free = request(ids, temperature=1.0)
    bound = request(ids, temperature=1.0, constraint=grammars().of(regex="[0-9]{20}"))
    together = decode(TARGET, None, [free, bound, free])
    assert together[0].ids == together[2].ids == decode(TARGET, None, [free])[0].ids
    assert re.fullmatch("[0-9]{20}", Spelling().decode(together[1].ids))


# -- the end ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eos", [(), ENDS[:1], ENDS])
def test_a_complete_answer_ends_with_any_number_of_end_ids(eos: tuple[int, ...]) -> None:
    answer = language_model(eos_ids=eos).generate(PROMPT, regex="true ab")
    assert (answer.text, answer.finish_reason, answer.error) == ("true ab", "stop", None)
    assert not set(answer.ids) & set(ENDS), "no pass is spent on an end that is all there is"


def test_an_end_that_may_come_is_drawn() -> None:
    """a* is never complete: whether it ends is the model's to say, with any of its end ids."""
    seen = set()
    for seed in range(80):
        answer = language_model().generate(PROMPT, regex="a{3}a*", temperature=2.0, seed=seed, max_tokens=60)
        if answer.finish_reason == "stop":
            assert answer.ids[-1] in ENDS
            assert set(answer.text) == {"a"}
            assert len(answer.text) >= 3
            seen.add(answer.ids[-1])
    assert seen == set(ENDS)


def test_without_end_ids_what_may_always_go_on_runs_to_its_length() -> None:
    answer = language_model(eos_ids=()).generate(PROMPT, regex="a*", max_tokens=9)
    assert (answer.finish_reason, answer.text) == ("length", "a" * 9)


def test_max_tokens_cuts_off(model: LanguageModel) -> None:
    whole = model.generate(PROMPT, json_schema=PERSON, max_tokens=MOST)
    cut = model.generate(PROMPT, json_schema=PERSON, max_tokens=len(whole.ids) - 1)
    assert (cut.ids, cut.finish_reason) == (whole.ids[:-1], "length")
    full = model.generate(PROMPT, json_schema=PERSON, max_tokens=len(whole.ids))
    assert (full.ids, full.finish_reason) == (whole.ids, "stop")


def test_a_stop_string_ends_it_before(model: LanguageModel) -> None:
    answer = model.generate(PROMPT, json_schema=PERSON, stop='"age"')
    assert answer.finish_reason == "stop"
    assert answer.text.endswith((",", ", "))


# -- drafts -------------------------------------------------------------------------------------------


def test_no_row_is_spent_on_what_is_forbidden() -> None:
    """A look-up's draft is cut at its first forbidden token; what comes before is verified."""
    spelled = Spelling().encode("abc")
    asked = request([1, 2], constraint=grammars().of(regex="abc[0-9]"), eos=ENDS)
    rows: list[int] = []
    drafts = Scripted(lambda tokens, depth: [*spelled, 60, 1, 1] if len(tokens) == 2 else [60, 60])
    answer = decode(Counting(rows), drafts, [asked], gamma=8)[0]
    assert Spelling().decode(answer.ids)[:3] == "abc"
    assert rows == [2 + len(spelled), 1][: len(rows)]
    assert answer.counts.nodes == len(spelled)
    assert answer.counts.accepted == len(spelled)


class Counting:
    """TARGET, with the rows of each pass noted."""

    def __init__(self, rows: list[int]) -> None:
        self._rows = rows

    def __getattr__(self, name: str) -> Any:
        return getattr(TARGET, name)

    def forward(self, batch: Any, *args: Any, **options: Any) -> Any:
        self._rows.append(sum(len(rows.tokens) for rows in batch))
        return TARGET.forward(batch, *args, **options)


def test_a_draft_may_end_the_answer_only_where_it_may_end() -> None:
    a, b = Spelling().encode("a b")[0], Spelling().encode("b")[0]
    asked = request([1, 2], constraint=grammars().of(regex="aa*b*"), eos=ENDS, max_tokens=6)
    plain = decode(TARGET, None, [asked])[0]
    for script in ([ENDS[0], a], [a, ENDS[1], a], [a, b, ENDS[0]], [b, b]):
        got = decode(TARGET, Scripted(lambda tokens, depth, script=script: script), [asked])[0]
        assert (got.ids, got.finish_reason) == (plain.ids, plain.finish_reason)
        assert got.dropped == 0


# -- the matcher --------------------------------------------------------------------------------------


def same(one: Allowed, other: Allowed) -> bool:
    return one.end == other.end and bool((one.tokens == other.tokens).all())


TEXTS = st.lists(st.text(st.sampled_from('{}":,ab10 true'), max_size=12), min_size=1, max_size=8)


@given(TEXTS, st.lists(st.integers(0, 60), max_size=3))
def test_what_a_matcher_says_depends_on_the_tokens_alone(texts: list[str], tail: list[int]) -> None:
    """Forwards, backwards, over what is forbidden: as one that is asked nothing else."""
    compiled = grammars().of(json_schema=True)
    assert compiled is not None
    used = compiled.matcher()
    starts = ("", '{"ab":', '{"a": [10, ')
    for i, text in enumerate(texts):
        answer = [*Spelling().encode(starts[i % 3] + text), *tail]
        assert same(used.allowed(answer), compiled.matcher().allowed(answer))
        assert used.admits(answer) == compiled.matcher().admits(answer)


def test_padding_and_ends_are_never_text() -> None:
    for vocab_size in (61, 64, 200):
        compiled = grammars(vocab_size).of(regex="(.|\n)+")
        assert compiled is not None
        tokens = compiled.matcher().allowed(()).tokens
        assert tokens.shape == (vocab_size,)
        assert tokens.nonzero()[:, 0].tolist() == list(range(56))
        for special in (*ENDS, *PADDING):
            assert not compiled.matcher().admits([special])
            assert not compiled.matcher().admits([0, special]), "the grammar may end here, in no token"


def test_a_vocabulary_smaller_than_the_tokenizers() -> None:
    compiled = grammars(40).of(regex=".+")
    assert compiled is not None
    assert compiled.matcher().allowed(()).tokens.tolist() == [True] * 40


def test_a_dead_end_fails_the_request_alone() -> None:
    """No token spells 'é': what comes before it is answered, then nothing can be."""
    bound = request([1, 2], constraint=grammars().of(regex="abé"), eos=ENDS)
    free = request([1, 2])
    dead, alive = decode(TARGET, None, [bound, free], tokenizer=Spelling())
    assert (dead.text, dead.finish_reason) == ("ab", "error")
    assert "the constraint leaves none" in str(dead.error)
    assert alive.finish_reason == "length"


def test_a_limit_of_llguidance_is_said_and_forgotten() -> None:
    import llguidance

    tokenizer, end = grammars()._vocabulary
    limits = llguidance.LLParserLimits(step_max_items=3)
    source = llguidance.LLMatcher.grammar_from_json_schema({"type": "array"})
    fresh = llguidance.LLMatcher(tokenizer, source, limits=limits, log_level=0)
    matcher = Grammar(fresh, Ids(61, tokenizer.vocab_size, end)).matcher()
    bracket = Spelling().encode("[")
    assert matcher.allowed([]).tokens[bracket].all()
    assert not matcher.admits(bracket)
    with pytest.raises(SamplingError, match="can't be followed"):
        matcher.allowed(bracket)
    assert matcher.allowed([]).tokens[bracket].all()
    bound = request([1, 2], constraint=Grammar(fresh, Ids(61, tokenizer.vocab_size, end)), eos=ENDS)
    answer = decode(TARGET, None, [bound], tokenizer=Spelling())[0]
    assert answer.finish_reason == "error"
    assert "the constraint can't be followed: parser error: Too many items" in str(answer.error)


# -- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"regex": "a", "grammar": "start: /a/"}, "regex and grammar exclude each other"),
        ({"json_schema": {}, "regex": "a"}, "json_schema and regex exclude each other"),
        ({"regex": "a("}, 'regex can.t be used: invalid regex "a." .*unclosed group$'),
        ({"regex": "(?=a)b"}, "look-around"),
        ({"regex": ""}, "regex is ''"),
        ({"regex": 5}, "regex is 5"),
        ({"regex": "é"}, "allows no answer that spelling has tokens for"),
        ({"regex": "a{0}"}, "allows no answer but the empty one"),
        ({"grammar": "start: foo"}, 'grammar can.t be used: at 1.8.: unknown name: "foo"$'),
        ({"grammar": "{}{"}, "grammar can.t be used: "),
        ({"json_schema": {"type": "foo"}}, "json_schema can.t be used: Invalid type: foo"),
        ({"json_schema": {"not": {}}}, 'Unimplemented keys: ."not"'),
        ({"json_schema": '{"type": '}, "json_schema is not JSON: Expecting value"),
        ({"json_schema": "[1]"}, "json_schema is '.1.'; expected a JSON schema"),
        ({"json_schema": False}, "json_schema is False"),
        ({"json_schema": {"const": {1, 2}}}, "json_schema is not JSON: .*set"),
        ({"constraint": grammars().of(regex="a"), "regex": "a"}, "constraint excludes"),
    ],
)
def test_what_can_t_be_a_constraint_is_said(
    model: LanguageModel, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(OptionError, match=words) as refused:
        model.generate(PROMPT, **options)
    assert "\n" not in str(refused.value)


def test_without_llguidance_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    bare = language_model()
    assert bare.generate(PROMPT, max_tokens=2).finish_reason == "length"
    with pytest.raises(UserError, match=r"taslak\[serve\]"):
        bare.generate(PROMPT, regex="a")


def test_a_tokenizer_that_leaves_out_ids_is_refused_where_the_end_would_be_a_token() -> None:
    class Gap(Spelling):
        def as_json(self) -> str:
            fast = Tokenizer(models.BPE({"a": 0, "b": 2}, []))
            fast.decoder = decoders.ByteLevel()
            return str(fast.to_str())

    with pytest.raises(UserError, match=r"answers of spelling can.t be constrained: .* share the id 2"):
        Grammars(Gap(), 3).of(regex="a")  # type: ignore[arg-type]


def test_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "REMEMBERED", 2)
    own = Grammars(Spelling(), 61)  # type: ignore[arg-type]
    first = own.of(json_schema={"type": "null"})
    assert own.of(json_schema='{"type":  "null"}') is first
    assert own.of(regex="null") is not first
    assert own.of(grammar="start: /null/") is not first
    assert own.of(json_schema={"type": "null"}) is not first, "the least used was forgotten"
    assert own.of() is None
