"""Committed tokens as tokens of another tokenizer: a function of the tokens alone, kept up at little cost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taslak.drafters.translation import LONGEST, Translation
from taslak.drafters.vocabularies import Vocabularies, vocabularies
from taslak.models.tokenizer import Tokenizer
from tests.support.tokenizers import TEXTS, byte_level, sentence_piece

PAIRS = {
    "byte-level reads sentence-piece": (sentence_piece, byte_level),
    "sentence-piece reads byte-level": (byte_level, sentence_piece),
    "dummy-space reads byte-level": (byte_level, lambda: sentence_piece(dummy=True)),
    "byte-level reads dummy-space": (lambda: sentence_piece(dummy=True), byte_level),
}
PROSE = " ".join([TEXTS[1], "12345 times the total of 3 values returned to the harbour."] * 4)


def words(pair: str) -> Vocabularies:
    target, draft = (make() for make in PAIRS[pair])
    return vocabularies(target, draft, target.vocab_size, draft.vocab_size)


def state(translation: Translation) -> tuple[list[int], bytes, bytes]:
    return translation.ids, translation.pending, translation.open


def read(draft: Tokenizer, ids: list[int]) -> bytes:
    return b"".join(draft.token_bytes(id) for id in ids if id not in draft.special)


@pytest.mark.parametrize("pair", PAIRS)
@settings(max_examples=30)
@given(data=st.data())
def test_c37_it_depends_on_the_tokens_alone(pair: str, data: st.DataObject) -> None:
    """Tokens come and go in any steps, special ones, half code points and long runs among them."""
    vocabulary = words(pair)
    size = PAIRS[pair][0]().vocab_size
    tokens: list[int] = []
    kept = Translation(vocabulary)
    some = st.lists(st.integers(0, size - 1), max_size=12)
    for _ in range(data.draw(st.integers(1, 6))):
        del tokens[data.draw(st.integers(0, len(tokens))) :]
        tokens += data.draw(some) * data.draw(st.sampled_from((1, 1, 40)))
        kept.follow(tokens)
        fresh = Translation(vocabulary)
        fresh.follow(list(tokens))
        assert state(kept) == state(fresh)


@pytest.mark.parametrize("pair", PAIRS)
def test_c22_the_draft_model_reads_the_text(pair: str) -> None:
    """Token by token: what it has read is the text but for half a code point; nothing is lost or doubled."""
    target, draft = (make() for make in PAIRS[pair])
    translation = Translation(words(pair))
    text = "\n".join((*TEXTS, " leading", "\r\n\r\n  two", PROSE[:200], "日本語" * 60))
    ids = target.encode(text, add_special=False)
    lead = target.leads_with_space
    halves = 0
    spelled = b""
    tokens: list[int] = []
    for token in ids:
        tokens.append(token)
        spelled += target.token_bytes(token)
        translation.follow(tokens)
        if not draft.leads_with_space:
            assert read(draft, translation.ids) + translation.pending == spelled
        assert spelled.endswith(translation.open)
        assert translation.open.endswith(translation.pending)
        assert len(translation.open) < LONGEST + 64
        halves += bool(translation.pending)
        assert lead or spelled == text.encode()[: len(spelled)]
    assert halves > 3, "an emoji or a character was split over tokens"


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if "dummy" not in pair])
def test_pieces_are_cut_where_the_whole_would_be(pair: str) -> None:
    target, draft = (make() for make in PAIRS[pair])
    translation = Translation(words(pair))
    translation.follow(target.encode(PROSE, add_special=False))
    assert len(PROSE) > 3 * 128
    assert translation.ids == draft.encode(PROSE)


def test_a_space_is_not_doubled_for_a_tokenizer_that_adds_one() -> None:
    target, draft = byte_level(), sentence_piece(dummy=True)
    translation = Translation(words("dummy-space reads byte-level"))
    translation.follow(target.encode(" " + PROSE, add_special=False))
    assert read(draft, translation.ids) == b" " + PROSE.encode()
    assert translation.ids == draft.encode(PROSE)


def test_c22_bos_stands_where_the_draft_model_wants_one() -> None:
    gemma, smol = sentence_piece(), byte_level()
    bos = gemma.bos_id
    translation = Translation(words("sentence-piece reads byte-level"))
    translation.follow(smol.encode("The harbour"))
    assert translation.ids == gemma.encode("The harbour"), (
        "the target begins without, the draft model with it"
    )
    translation = Translation(words("byte-level reads sentence-piece"))
    translation.follow(gemma.encode("The harbour"))
    assert translation.ids == smol.encode("The harbour"), "the other way round"
    both = vocabularies(gemma, sentence_piece(330), gemma.vocab_size, 330)
    translation = Translation(both)
    translation.follow(gemma.encode("The harbour"))
    assert translation.ids.count(bos or 0) == 1, "both begin with it"


def test_c22_a_chat_is_read_with_the_draft_models_markers() -> None:
    gemma, smol = sentence_piece(), byte_level()
    chat = [{"role": "user", "content": "The quay?"}]
    translation = Translation(words("byte-level reads sentence-piece"))
    translation.follow(gemma.chat(chat))
    written = smol.decode(translation.ids, skip_special=False)
    assert written == "<|im_start|>user\nThe quay?<|im_end|>\n<|im_start|>model\n"


def test_a_step_costs_the_same_however_long_the_text_is(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = sentence_piece(), byte_level()
    vocabulary = Vocabularies(target, draft, target.vocab_size, draft.vocab_size)
    translation = Translation(vocabulary)
    encoded = 0
    read_text = vocabulary.read

    def counted(text: str) -> list[int]:
        nonlocal encoded
        encoded += len(text)
        return read_text(text)

    monkeypatch.setattr(vocabulary, "read", counted)
    tokens = target.encode(PROSE, add_special=False)
    text = [*tokens] * 4
    translation.follow(text)
    whole, encoded = encoded, 0
    assert whole < 4 * len(PROSE) + LONGEST
    for token in tokens[:50]:
        text.append(token)
        translation.follow(text)
    assert encoded < 50 * LONGEST
    encoded = 0
    translation.follow(text)
    assert encoded == 0, "nothing has changed"
