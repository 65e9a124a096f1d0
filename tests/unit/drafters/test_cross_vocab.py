"""A draft model with another tokenizer: the text is plain text, and what can be right is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import taslak
from taslak.bench import methods
from taslak.core.noise import Stream, noise_key
from taslak.core.sampling import Sampling
from taslak.drafters import cross_vocab
from taslak.drafters.base import Budget, DrafterOptions, View, build
from taslak.drafters.cross_vocab import PROBE, SLEM, TLI, CrossVocab
from taslak.drafters.vocabularies import vocabularies
from taslak.errors import OptionError, TokenizerMismatch
from taslak.loading import whatever_there_is
from taslak.models.decoder import Decoder
from taslak.models.tokenizer import Tokenizer
from tests.support.checkpoint import write_model
from tests.support.decoding import GAMMAS, decode, plain, request
from tests.support.tiny import random_weights, tiny_config, tiny_model
from tests.support.tokenizers import as_fast, as_tokenizer, byte_level, sentence_piece

METHODS = ("tli", "slem", "cross-vocab")
SP_FOR_BL, BL_FOR_SP = "sentence-piece for byte-level", "byte-level for sentence-piece"
PAIRS: dict[str, tuple[Callable[[], Tokenizer], Callable[[], Tokenizer]]] = {
    BL_FOR_SP: (sentence_piece, byte_level),
    SP_FOR_BL: (byte_level, sentence_piece),
    "sentence-piece for bytes": (lambda: byte_level(259), sentence_piece),
    "byte-level for dummy-space": (lambda: sentence_piece(dummy=True), byte_level),
    "dummy-space for one that rewrites": (lambda: byte_level(nfc=True), lambda: sentence_piece(dummy=True)),
}
PROMPTS = (
    "  The harbour\r\n\r\n\tlay",
    "日本 \U0001f468\u200d\U0001f469 e\u0301 \U0001f600",
    "def mean(values):\n    total",
)


def drafter(
    target: Decoder, draft: Decoder, pair: tuple[Tokenizer, Tokenizer], method: str, branch: int = 1
) -> CrossVocab:
    made = build(method, target, DrafterOptions(draft=draft, tokenizers=pair, branch=branch))
    assert isinstance(made, CrossVocab)
    return made


def models(pair: tuple[Tokenizer, Tokenizer]) -> tuple[Decoder, Decoder]:
    """Random ones; the target in reference mode, for its text must not depend on what is drafted."""
    target, draft = (each.vocab_size for each in pair)
    return tiny_model(3, vocab_size=target, layers=1), tiny_model(3, exact=False, vocab_size=draft, layers=1)


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    ("pair", "method"),
    [
        *itertools.product([BL_FOR_SP, SP_FOR_BL], METHODS),
        ("byte-level for dummy-space", "slem"),
        ("dummy-space for one that rewrites", "cross-vocab"),
    ],
)
def test_c22_text_is_plain_text(pair: str, method: str, sampled: bool) -> None:
    """Random models say anything: half emoji, special tokens in the middle, spaces without end."""
    tokenizers = PAIRS[pair][0](), PAIRS[pair][1]()
    target, draft = models(tokenizers)
    options = {"temperature": 0.9, "top_p": 0.98} if sampled else {}
    requests = [request(tokenizers[0].encode(text), max_tokens=12, **options) for text in PROMPTS]
    expected = plain(target, requests)
    drafted = 0
    for gamma in GAMMAS:
        got = decode(target, drafter(target, draft, tokenizers, method), requests, gamma=gamma)
        assert [answer.ids for answer in got] == [answer.ids for answer in expected]
        assert all(answer.dropped == 0 for answer in got), "an id outside the target's vocabulary, or worse"
        drafted += sum(answer.counts.drafted for answer in got)
    assert drafted > 0


# -- the same model under two alphabets -------------------------------------------------------------------

LETTERS = [chr(65 + id) for id in range(48)]
ORDER = [(id * 29 + 7) % 48 for id in range(48)]
"""The draft's id of each letter."""


def renamed_pair(seed: int = 5) -> tuple[Decoder, Decoder, tuple[Tokenizer, Tokenizer]]:
    """A target, and itself with its tokens numbered differently: any text is cut into letters by both."""
    config = tiny_config(vocab_size=48, layers=2)
    weights = random_weights(config, seed)
    other = dict(weights)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        other[name] = torch.empty_like(weights[name])
        other[name][ORDER] = weights[name]
    renamed = ["" for _ in LETTERS]
    for letter, id in zip(LETTERS, ORDER, strict=True):
        renamed[id] = letter
    tokenizers = as_tokenizer(as_fast(LETTERS), "letters"), as_tokenizer(as_fast(renamed), "letters-renamed")
    return Decoder(config, weights), Decoder(config, other), tokenizers


@pytest.mark.parametrize(("method", "options"), [("tli", {}), ("slem", {}), ("tli", {"temperature": 1.1})])
def test_c18_the_target_under_another_alphabet_is_always_right(
    method: str, options: dict[str, float]
) -> None:
    """Over 200 tokens; and at once again after it was wrong."""
    target, draft, tokenizers = renamed_pair()
    asked = [request([1, 2, 3], max_tokens=200, **options)]
    expected = plain(target, asked)
    answer = decode(target, drafter(target, draft, tokenizers, method), asked)[0]
    assert answer.ids == expected[0].ids
    assert answer.counts.acceptance_rate == 1.0
    banned = request([1, 2, 3], max_tokens=60, banned=(expected[0].ids[7],), **options)
    answer = decode(target, drafter(target, draft, tokenizers, method), [banned])[0]
    assert answer.ids == plain(target, [banned])[0].ids
    if method == TLI:
        assert answer.counts.acceptance_rate == 1.0, "bans are of the target's ids"


@pytest.mark.parametrize("method", METHODS)
def test_c37_it_goes_on_from_any_text(method: str) -> None:
    target, draft, tokenizers = renamed_pair()
    it = drafter(target, draft, tokenizers, method)
    view = View([1, 2, 3], 1, Sampling(), noise_key(1))
    free = list(plain(target, [request([1, 2, 3], max_tokens=40)])[0].ids)
    for text in ([1, 2, 3], [1, 2, 3, *free[:9]], [1, 2, 3, *free[:4]], [1, 2, 3, *free[:20]]):
        view.tokens = list(text)
        said = it.propose([view], [Budget(6, 6)])[0].tokens
        assert list(said) == free[len(text) - 3 :][:6]
    assert it.lag(view) == 0
    it.forget(view)
    it.forget(view)
    assert draft.pool.free_pages == draft.pool.pages


# -- the two ways -----------------------------------------------------------------------------------------


def one_draft(
    method: str, pair: str, text: bytes | str, says: Sequence[str], **options: object
) -> list[bytes]:
    """What is drafted where the draft model says these tokens of its own, by how they are written."""
    target_tokenizer, draft_tokenizer = PAIRS[pair][0](), PAIRS[pair][1]()
    target, draft = models((target_tokenizer, draft_tokenizer))
    words = vocabularies(target_tokenizer, draft_tokenizer, target.vocab_size, draft.vocab_size)
    last = next(id for id in draft_tokenizer.special if words.counterpart(id) is None)
    script = [draft_tokenizer.token_id(token) for token in says] + [last]
    assert None not in script, says
    said: list[int] = []

    def scripted(batch, **_):  # type: ignore[no-untyped-def]
        logits = torch.zeros(sum(rows.wanted for rows in batch), draft_tokenizer.vocab_size)
        for rows in batch:
            rows.cache.add(rows.parents)
            if rows.wanted:
                logits[0, script[min(len(said), len(script) - 1)]] = 9.0
                said.append(1)
        return type("Output", (), {"logits": logits})

    draft.forward = scripted  # type: ignore[method-assign]
    it = drafter(target, draft, (target_tokenizer, draft_tokenizer), method)
    if isinstance(text, bytes):
        ids = [
            next(id for id, spelled in enumerate(target_tokenizer.spellings) if spelled == bytes([byte]))
            for byte in text
        ]
    else:
        ids = target_tokenizer.encode(text)
    view = View(ids, 1, Sampling(**options), noise_key(1))  # type: ignore[arg-type]
    draft_made = it.propose([view], [Budget(len(says), len(says))])[0]
    assert all(0 <= token < target.vocab_size for token in draft_made.tokens)
    assert all(0.0 < share <= 1.0 for share in draft_made.confidence or ())
    return [target_tokenizer.token_bytes(token) for token in draft_made.tokens]


def test_c22_text_is_cut_anew_by_the_targets_tokenizer() -> None:
    assert one_draft("slem", BL_FOR_SP, "The quay", ["Ġ", "l", "a", "y"]) == [b" lay"]
    assert one_draft("tli", BL_FOR_SP, "The quay", ["Ġ", "l", "a", "y"]) == [b" ", b"l", b"a", b"y"]


def test_c22_a_draft_that_would_change_committed_tokens_is_none() -> None:
    """The target said " har" where it has " harbour": it doesn't mean the harbour."""
    assert byte_level().encode("The har")[-1] == byte_level().token_id("Ġhar")
    assert one_draft("slem", SP_FOR_BL, "The har", ["b", "o", "u", "r"]) == []
    assert one_draft("slem", SP_FOR_BL, "The har", ["v", "e"]) == [b"v", b"e"]


def test_c22_half_an_emoji_is_waited_for() -> None:
    """The last bytes committed begin a code point: text has to go on from there, tokens can't."""
    pair = "sentence-piece for bytes"
    half = "\U0001f600".encode()[:2]
    rest = ["<0xF0>", "<0x9F>", "<0x98>", "<0x80>"]
    spelled = b"".join(one_draft("slem", pair, half, rest))
    assert spelled == b"\x98\x80"
    assert one_draft("slem", pair, half, ["<0xF0>", "<0x90>", "<0x98>", "<0x80>"]) == [], "another one"
    assert one_draft("tli", pair, half, rest) == []
    assert b"".join(one_draft("cross-vocab", pair, half, rest)) == b"\x98\x80"
    assert one_draft("slem", SP_FOR_BL, "The", ["<0xF0>", "<0x9F>"]) == [], "a draft ends with a code point"


def test_c22_the_end_of_a_turn_is_drafted() -> None:
    end = byte_level().token_bytes(byte_level().eos_ids[0])
    assert one_draft("slem", SP_FOR_BL, "The", ["▁", "l", "a", "y", "<end_of_turn>"]) == [b" lay", end]
    assert one_draft("tli", SP_FOR_BL, "The", ["▁lay", "<end_of_turn>"]) == [b" lay", end]
    assert one_draft("slem", SP_FOR_BL, "The", ["▁lay", "<unk>"]) == [b" lay"], "which has no counterpart"


def test_sure_of_what_can_not_be_said_is_not_sure() -> None:
    """Under token-level intersection the confidence counts what lies outside of it."""
    shared, draft = byte_level(), sentence_piece()
    words = vocabularies(shared, draft, shared.vocab_size, draft.vocab_size)
    assert draft.token_id("<0x74>") not in words.common.values()
    target, model = models((shared, draft))
    it = drafter(target, model, (shared, draft), "tli")
    rows = torch.full((1, draft.vocab_size), -20.0)
    rows[0, draft.token_id("<0x74>")], rows[0, draft.token_id("▁lay")] = 3.0, 0.0
    forward = model.forward

    def outside(batch, **options):  # type: ignore[no-untyped-def]
        forward(batch, **options)
        return type("Output", (), {"logits": rows.clone()})

    model.forward = outside  # type: ignore[method-assign]
    view = View(shared.encode("The"), 1, Sampling(), noise_key(1))
    made = it.propose([view], [Budget(1, 1)])[0]
    assert made.tokens == (shared.token_id("Ġlay"),)
    assert made.confidence == pytest.approx([torch.softmax(torch.tensor([3.0, 0.0]), 0)[1].item()], rel=1e-3)


def test_c05_q_is_what_was_drawn_from() -> None:
    """Under rejection: nothing outside of what both spell, all of it renormalised under the settings."""
    target_tokenizer, draft_tokenizer = sentence_piece(), byte_level()
    target, draft = models((target_tokenizer, draft_tokenizer))
    it = drafter(target, draft, (target_tokenizer, draft_tokenizer), "tli", branch=2)
    view = View(
        target_tokenizer.encode("The harbour"),
        1,
        Sampling(temperature=1.2, top_k=7),
        noise_key(4),
        Stream.DRAFT,
        True,
    )
    made = it.propose([view], [Budget(3, 6)])[0]
    words = vocabularies(target_tokenizer, draft_tokenizer, target.vocab_size, draft.vocab_size)
    assert made.q is not None
    made.check(target.vocab_size)
    outside = torch.ones(target.vocab_size, dtype=torch.bool)
    outside[words.target_ids] = False
    assert (made.q[:, outside] == 0).all()
    assert made.q.sum(-1).tolist() == pytest.approx([1.0] * len(made.q))
    assert ((made.q > 0).sum(-1) == 7).all()
    reading = view.state.reading
    cache = draft.allocate(64)
    from taslak.models.target import chain_rows

    row = draft.forward([chain_rows(cache, reading.text, 1)]).logits[0][words.draft_ids]
    best = row.topk(7)
    expected = torch.zeros(target.vocab_size)
    expected[words.target_ids[best.indices]] = torch.softmax(best.values / 1.2, 0)
    assert torch.allclose(made.q[0], expected, atol=1e-5)


def test_the_way_that_is_worth_more_is_taken() -> None:
    state = cross_vocab._State(None)  # type: ignore[arg-type]
    ways = (SLEM, TLI)
    first = state.way(ways, price=8.0)
    (other,) = set(ways) - {first}
    for _ in range(12):
        state.worth[first].record(0, 5)
    taken = [state.way(ways, price=8.0) for _ in range(2 * PROBE)]
    assert taken.count(first) == 2, "it is tried now and then"
    for _ in range(12):
        state.worth[other].record(1, 5)
        state.worth[first].record(4, 5)
    taken = [state.way(ways, price=8.0) for _ in range(2 * PROBE)]
    assert taken.count(other) == 2, "text changes, and so does what is taken"
    assert state.way((TLI,), price=8.0) == TLI


def test_passes_of_the_draft_model_count_by_what_they_cost() -> None:
    """A token more for four passes more pays beside a target that takes as long as ten of them."""
    state = cross_vocab._State(None)  # type: ignore[arg-type]
    state.way((SLEM, TLI), price=1.0)
    for _ in range(60):
        state.worth[SLEM].record(2, 9)
        state.worth[TLI].record(1, 5)
    assert state.way((SLEM, TLI), price=10.0) == SLEM
    assert state.way((SLEM, TLI), price=1.0) == TLI


def test_drafts_are_judged_by_the_text_that_came() -> None:
    target, draft, tokenizers = renamed_pair()
    it = drafter(target, draft, tokenizers, "slem")
    view = View([1, 2, 3], 1, Sampling(), noise_key(1))
    made = it.propose([view], [Budget(4, 4)])[0]
    worth = view.state.worth[SLEM]
    before = worth.right, worth.passes, worth.drafts
    view.tokens += [*made.tokens[:2], (made.tokens[2] + 1) % 48]
    it.propose([view], [Budget(4, 4)])
    it.propose([view], [Budget(4, 4)])
    keep = 1 - 1 / cross_vocab.MEMORY
    for value, old, new in zip((worth.right, worth.passes, worth.drafts), before, (2, 4, 1), strict=True):
        assert value == pytest.approx(keep * old + new)


# -- failures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_c38_a_tokenizer_that_fails_costs_the_drafts(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft, tokenizers = renamed_pair()
    it = drafter(target, draft, tokenizers, method)

    def fails(text: str) -> list[int]:
        raise RuntimeError("no more")

    monkeypatch.setattr(it._words, "read", fails)
    asked = [request([1, 2, 3])]
    answer = decode(target, it, asked)[0]
    assert answer.ids == plain(target, asked)[0].ids
    assert answer.dropped > 0


@pytest.mark.parametrize("method", METHODS)
def test_c38_a_draft_model_of_nan_drafts_nothing(method: str) -> None:
    target, draft, tokenizers = renamed_pair()
    forward = draft.forward

    def broken(batch, **options):  # type: ignore[no-untyped-def]
        return type("Output", (), {"logits": forward(batch, **options).logits * torch.nan})

    draft.forward = broken  # type: ignore[method-assign]
    for options in ({}, {"temperature": 1.0}, {"temperature": 1.0, "verify": "rejection"}):
        answer = decode(target, drafter(target, draft, tokenizers, method), [request([1, 2, 3], **options)])[
            0
        ]
        assert len(answer.ids) == 24
        assert (answer.counts.drafted, answer.dropped) == (0, 0)


def test_a_token_that_a_request_forces_and_only_the_target_has() -> None:
    tokenizers = sentence_piece(), byte_level()
    target, draft = models(tokenizers)
    lone = tokenizers[0].token_id("<pad>")
    asked = [request(tokenizers[0].encode("The"), forced=(lone, lone))]
    for method in METHODS:
        answer = decode(target, drafter(target, draft, tokenizers, method), asked)[0]
        assert answer.ids == plain(target, asked)[0].ids
        assert answer.dropped == 0


@pytest.mark.parametrize("method", METHODS)
def test_c19_a_draft_model_of_a_short_context(method: str) -> None:
    """It stops drafting where its own context ends; the answer goes on."""
    target, _, tokenizers = renamed_pair()
    config = tiny_config(vocab_size=48, layers=2, context=30)
    short = Decoder(config, random_weights(config, 5))
    asked = [request([1, 2, 3], max_tokens=60)]
    answer = decode(target, drafter(target, short, tokenizers, method), asked)[0]
    assert answer.ids == plain(target, asked)[0].ids
    assert answer.counts.drafted > 0
    assert answer.dropped == 0


def test_both_tokenizers_are_needed() -> None:
    target, draft, _ = renamed_pair()
    with pytest.raises(OptionError, match="both models' tokenizers"):
        build("tli", target, DrafterOptions(draft=draft))


# -- loading ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two random models whose tokenizers differ in one token."""
    folder = tmp_path_factory.mktemp("models")
    return str(write_model(folder / "target")), str(write_model(folder / "draft", seed=2, extra="Ψ"))


OPTIONS: dict[str, Any] = {"dtype": "float32", "exact": True, "gamma": 3}


@pytest.mark.parametrize(
    ("given", "method"),
    [
        ({"cross_vocab": True}, "suffix+cross-vocab"),
        ({"cross_vocab": "tli"}, "suffix+tli"),
        ({"cross_vocab": True, "method": "fallback"}, "ngram+cross-vocab"),
        ({"cross_vocab": "slem", "method": "draft-model"}, "slem"),
        ({"cross_vocab": True, "method": "tli"}, "tli"),
        ({"method": "slem"}, "slem"),
    ],
    ids=str,
)
def test_load_drafts_across_vocabularies(
    folders: tuple[str, str], given: dict[str, Any], method: str
) -> None:
    target, draft = folders
    model = taslak.load(target, draft=draft, **OPTIONS, **given)
    assert model.method == method
    both = model.compare("abcabc e\u0301 \U0001f600", max_tokens=12)
    assert both.identical
    assert both.speculative.counts.drafted > 0


def test_c21_the_way_out_is_named(folders: tuple[str, str]) -> None:
    target, draft = folders
    for method in (None, "draft-model", "tli+draft-model"):
        with pytest.raises(TokenizerMismatch) as error:
            taslak.load(target, draft=draft, method=method, **OPTIONS)
        for word in (target, draft, "the id 256", "'Ω'", "'Ψ'", "--cross-vocab"):
            assert word in str(error.value)


def test_one_tokenizer_is_a_hint(folders: tuple[str, str], caplog: pytest.LogCaptureFixture) -> None:
    target, draft = folders
    taslak.load(target, draft=target, cross_vocab=True, **OPTIONS)
    assert "have one tokenizer" in caplog.text
    caplog.clear()
    taslak.load(target, draft=draft, cross_vocab=True, **OPTIONS)
    assert "have one tokenizer" not in caplog.text


def test_methods_are_compared_with_models_of_other_tokenizers(folders: tuple[str, str]) -> None:
    target, draft = folders
    models = methods.load(target, [draft, target], dtype="float32", cross_vocab=True)
    assert models.available == ["auto", "suffix", "ngram", f"cross-vocab:{draft}", f"draft-model:{target}"]
    alone = methods.load(target, [draft], dtype="float32", cross_vocab=True)
    assert alone.available[-1] == "cross-vocab"
    assert list(alone.drafters("auto")) == ["suffix", "cross-vocab"]
    assert list(alone.drafters("slem")) == ["slem"]
    with pytest.raises(TokenizerMismatch):
        methods.load(target, [draft], dtype="float32")
    with pytest.raises(OptionError, match="name one"):
        methods.load(target, dtype="float32", cross_vocab=True)
    assert whatever_there_is(target, draft, cross_vocab=True) == "suffix+cross-vocab"
