"""Two tokenizers beside each other: what tokens spell, and where one begins in text that is fixed."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from taslak.drafters.vocabularies import Vocabularies, read_utf8, vocabularies
from taslak.models.tokenizer import Tokenizer
from tests.support.tokenizers import as_fast, as_tokenizer, byte_level, letters, sentence_piece

KINDS = {
    "byte-level": byte_level,
    "few-merges": lambda: byte_level(300),
    "nfc": lambda: byte_level(nfc=True),
    "sentence-piece": sentence_piece,
    "dummy-space": lambda: sentence_piece(dummy=True),
}
WORDS = (
    "The",
    " harbour",
    " ",
    "  ",
    "\n",
    "\r\n",
    "    return",
    "\U0001f600",
    "e\u0301",
    "é",
    "日本",
    "'t",
    "12",
)
"""Leading spaces, line ends, an emoji, a combining mark and its composed form."""
TEXTS = st.one_of(st.text(max_size=12), st.lists(st.sampled_from(WORDS), max_size=8).map("".join))
SIZES = 10**6, 10**6


def both(target: Tokenizer, draft: Tokenizer) -> Vocabularies:
    return vocabularies(target, draft, *SIZES)


def spelled(tokenizer: Tokenizer, ids: list[int]) -> bytes:
    return b"".join(map(tokenizer.token_bytes, ids))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "nfc"])
@given(text=TEXTS)
def test_c22_tokens_spell_the_text_they_were_cut_from(kind: str, text: str) -> None:
    assume(all(token not in text for token in ("▁", "<")))  # which stand for something else in vocabularies
    tokenizer = KINDS[kind]()
    lead = b" " if tokenizer.leads_with_space and text else b""
    assert spelled(tokenizer, tokenizer.encode(text, add_special=False)) == lead + text.encode()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "nfc"])
@given(text=TEXTS, data=st.data())
def test_c22_a_continuation_is_what_the_whole_is_cut_into(kind: str, text: str, data: st.DataObject) -> None:
    """From any token on, within a code point too; of text that breaks off anywhere, what is whole."""
    assume(all(token not in text for token in ("▁", "<")))
    tokenizer = KINDS[kind]()
    words = both(tokenizer, byte_level())
    ids = tokenizer.encode(text, add_special=False)
    first = data.draw(st.integers(1 if tokenizer.leads_with_space and ids else 0, len(ids)))
    before, more = spelled(tokenizer, ids[:first]), spelled(tokenizer, ids[first:])
    assert words.continued(before, more) == ids[first:]
    cut = more[: data.draw(st.integers(0, len(more)))]
    found = words.continued(before, cut)
    if found is not None:
        whole = read_utf8(before + cut)[0].encode()
        assert before + spelled(tokenizer, found) == (whole if len(whole) > len(before) else before)


@given(text=TEXTS, data=st.data())
def test_c22_what_a_tokenizer_rewrites_is_not_drafted(text: str, data: st.DataObject) -> None:
    """Qwen's composes characters: what its tokens spell is the text's bytes or nothing."""
    tokenizer = KINDS["nfc"]()
    words = both(tokenizer, byte_level())
    at = data.draw(st.integers(0, len(text)))
    found = words.continued(text[:at].encode(), text[at:].encode())
    if found is not None:
        assert text[at:].encode().startswith(spelled(tokenizer, found))
    assert words.continued(b"e\xcc\x81 x", b" the harbour") == tokenizer.encode(" the harbour")


def test_text_that_would_have_been_cut_elsewhere_is_not_drafted() -> None:
    words = both(byte_level(), sentence_piece())
    tokenizer = byte_level()
    harbour, har = tokenizer.encode(" harbour"), tokenizer.encode(" har")
    assert len(harbour) == len(har) == 1
    assert words.continued(b" har", b"bour") is None, "who means the harbour doesn't begin with another token"
    assert words.continued(b" harbour", b" lay") == tokenizer.encode(" lay")
    assert words.continued(b"", b" lay\xf0\x9f") == tokenizer.encode(" lay"), "half an emoji is not text yet"
    assert words.continued(b"\xff\xfe", b" lay") == tokenizer.encode(" lay"), "what comes before is no text"


def test_common_tokens_spell_the_same() -> None:
    target, draft = sentence_piece(), byte_level()
    words = both(target, draft)
    assert words.target_ids.tolist() == sorted(words.common) == list(words.common)
    assert words.draft_ids.tolist() == list(words.common.values())
    marks = {target.token_id("<start_of_turn>"), target.token_id("<end_of_turn>")}
    for ours, theirs in words.common.items():
        if ours not in marks:
            assert target.token_bytes(ours) == draft.token_bytes(theirs) != b""
    assert words.common[target.token_id("▁")] == draft.token_id("Ġ")
    assert words.common[target.token_id("<0xE2>")] == draft.token_id("â")
    assert words.common[target.token_id("t")] == draft.token_id("t")
    assert target.token_id("<0x74>") not in words.common, (
        "a letter that has a token is never spelled as a byte"
    )
    assert len(set(words.common.values())) == len(words.common)


def test_ids_that_a_model_lacks_are_not_common() -> None:
    words = Vocabularies(letters(6, "BC"), letters(6, "BC"), 6, 4)
    assert words.common == {0: 0, 1: 1, 2: 2, 3: 3}
    words = Vocabularies(letters(6, "BC"), letters(6, "BC"), 4, 6)
    assert words.common == {0: 0, 1: 1, 2: 2, 3: 3}
    assert words.continued(b"", b"ABCEF") == [0], "the token for BC is not the target's"


def test_padding_is_not_common() -> None:
    one, other = as_fast(["a", "b", "[PAD2]", "<unused3>"]), as_fast(["a", "b", "[PAD2]", "<unused3>"])
    words = both(as_tokenizer(one, "padded-1"), as_tokenizer(other, "padded-2"))
    assert words.common == {0: 0, 1: 1}


def test_c22_special_tokens_of_one_vocabulary() -> None:
    """Markers of turns stand for each other by the chat templates; one without an equivalent is dropped."""
    gemma, smol = sentence_piece(), byte_level()
    words = both(gemma, smol)
    id = gemma.token_id
    assert words.special[id("<start_of_turn>")] == smol.token_id("<|im_start|>")
    assert words.special[id("<end_of_turn>")] == smol.token_id("<|im_end|>")
    assert words.special[id("<bos>")] is None
    assert words.counterpart(smol.token_id("<|im_end|>")) == id("<end_of_turn>")
    assert words.begin == [], "this one puts nothing before a text"
    back = both(smol, gemma)
    assert back.begin == [id("<bos>")]
    assert back.special[smol.token_id("<|endoftext|>")] is None
    same = both(byte_level(), byte_level(300))
    assert dict(same.special) == {0: 0, 1: 1, 2: 2}, "they are written alike"


def test_markers_need_templates_that_take_turns() -> None:
    plain = as_tokenizer(as_fast(["a"], special=["<bos>", "<eos>"]), "no-template", bos_token="<bos>")
    assert both(plain, byte_level()).special == {1: None, 2: None}
    refuses = as_tokenizer(
        as_fast(["a"], special=["<bos>"]), "refuses", chat_template="{{ raise_exception('never') }}"
    )
    assert both(refuses, byte_level()).special == {1: None}


def test_a_pair_is_looked_at_once() -> None:
    assert both(byte_level(), sentence_piece()) is both(byte_level(), sentence_piece())
