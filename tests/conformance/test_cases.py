"""The ways systems like this break (the project's list of cases), each shown not to happen here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from taslak.core.draft import Draft
from taslak.drafters.base import Budget, DrafterOptions, View, build
from taslak.drafters.draft_model import DraftModel
from taslak.engine.compare import first_difference
from taslak.engine.policy import FixedGamma
from taslak.engine.scheduler import Scheduler
from taslak.engine.sequence import Request
from taslak.engine.step import Engine
from taslak.engine.text import TextStream
from taslak.errors import OptionError, PromptError
from taslak.models.cache import Block
from taslak.models.decoder import Decoder
from tests.support.decoding import GAMMAS, Bytes, Letters, decode, plain, request, whole
from tests.support.scripted import Scripted, flip, nothing, oracle
from tests.support.tiny import near_model, poison, random_weights, tiny_config, tiny_model

MODEL = tiny_model(1)
PROMPT = [1, 2, 3, 1, 2]


def test_c01_eos_inside_a_draft_ends_everything_there() -> None:
    free = plain(MODEL, [request(PROMPT)])[0].ids
    for depth in range(1, 9):
        eos = free[depth]
        end = free.index(eos) + 1  # the first time it appears
        knows = oracle([[*PROMPT, *free]])
        for gamma in GAMMAS:
            caches: list[Block] = []
            answer = decode(Spy(MODEL, caches), knows, [request(PROMPT, eos=(eos,))], gamma=gamma)[0]
            assert answer.ids == free[:end]
            assert answer.finish_reason == "stop"
            assert answer.text == Letters().decode(free[: end - 1]), "the ending token has no text"
            assert answer.counts.emitted == end
            assert LENGTHS[id(caches[0])] <= len(PROMPT) + end, "the cache went on after the end"


LENGTHS: dict[int, int] = {}


class Spy:
    """A target that notes each cache's committed length at every pass."""

    def __init__(self, model: Decoder, caches: list[Block]) -> None:
        self._model, self._caches = model, caches

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def allocate(self, positions: int, shared: Sequence[int] = ()) -> Block:
        cache = self._model.allocate(positions, shared)
        keep = cache.keep

        def noted(path: Sequence[int]) -> None:
            keep(path)
            LENGTHS[id(cache)] = cache.length

        cache.keep = noted  # type: ignore[method-assign]
        self._caches.append(cache)
        return cache


@pytest.mark.parametrize("gamma", GAMMAS)
def test_c02_stop_strings_inside_a_path_and_across_passes(gamma: int) -> None:
    free = plain(MODEL, [request(PROMPT)])[0]
    text = free.text
    for start in range(1, 9):
        for length in (1, 2, 3, 5):
            stop = text[start : start + length]
            knows = oracle([[*PROMPT, *free.ids]])
            events = list(_events(MODEL, knows, request(PROMPT, stop=(stop, "never")), gamma))
            answer = events[-1].answer
            assert answer is not None
            assert answer.text == text[: text.index(stop)]
            assert answer.finish_reason == "stop"
            assert "".join(e.text for e in events) == answer.text, "the stream showed what the text lacks"
            assert answer.ids == free.ids[: text.index(stop) + length], "ids end with the completing token"


def _events(target: Decoder, drafter: Scripted, r: Request, gamma: int, tokenizer: object = None):  # type: ignore[no-untyped-def]
    scheduler = Scheduler(Engine(target, {"it": drafter}, FixedGamma(gamma)), tokenizer or Letters())  # type: ignore[arg-type]
    scheduler.add(r)
    return (event for _, event in scheduler.run())


def test_c03_max_tokens_smaller_than_the_draft() -> None:
    free = plain(MODEL, [request(PROMPT)])[0].ids
    for most in range(1, 10):
        for gamma in GAMMAS:
            answer = decode(
                MODEL, oracle([[*PROMPT, *free]]), [request(PROMPT, max_tokens=most)], gamma=gamma
            )[0]
            assert answer.ids == free[:most]
            assert answer.finish_reason == "length"
            assert answer.counts.emitted == most


@pytest.mark.parametrize("kind", ["none", "one", "list"])
def test_c04_any_number_of_end_ids(kind: str) -> None:
    free = plain(MODEL, [request(PROMPT)])[0].ids
    unused = next(i for i in range(61) if i not in free)
    eos = {"none": (), "one": (free[5],), "list": (unused, free[5], free[3])}[kind]
    end = min((free.index(e) + 1 for e in eos if e in free), default=len(free))
    answer = decode(MODEL, oracle([[*PROMPT, *free]]), [request(PROMPT, eos=eos)], gamma=8)[0]
    assert answer.ids == free[:end]
    assert answer.finish_reason == ("length" if kind == "none" else "stop")


@pytest.mark.parametrize(
    "options",
    [{"top_k": 2}, {"top_p": 0.3}, {"min_p": 0.5}, {"top_k": 7, "top_p": 0.8, "min_p": 0.02}],
    ids=str,
)
@pytest.mark.parametrize("verify", ["coupled", "rejection"])
def test_c07_settings_hold_at_every_verified_position(options: dict[str, float], verify: str) -> None:
    """Every emitted token lies in the support the settings leave at its own position."""
    from taslak.core.sampling import distribution
    from taslak.models.target import chain_rows

    requests = [request(PROMPT, temperature=1.5, seed=s, verify=verify, **options) for s in range(6)]
    drafts = build("draft-model", MODEL, DrafterOptions(draft=near_model(1)))
    for r, answer in zip(requests, decode(MODEL, drafts, requests), strict=True):
        context = [*PROMPT, *answer.ids]
        cache = MODEL.allocate(len(context))
        logits = MODEL.forward([chain_rows(cache, context, len(context))]).logits
        cache.release()
        for i, token in enumerate(answer.ids):
            at = len(PROMPT) + i
            support = distribution(logits[at - 1], context[:at], (), len(PROMPT), r.sampling).ids
            assert token in support


@pytest.mark.parametrize("verify", ["coupled", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_c10_bias_bans_or_forces_the_drafted_token(verify: str, temperature: float) -> None:
    free = plain(MODEL, [request(PROMPT, temperature=temperature)])[0].ids
    stubborn = Scripted(lambda tokens, depth: [free[0]] * depth)
    options = {"temperature": temperature, "verify": verify}
    banned = decode(MODEL, stubborn, [request(PROMPT, logit_bias={free[0]: -100.0}, **options)])[0]
    assert free[0] not in banned.ids
    forced = decode(MODEL, stubborn, [request(PROMPT, logit_bias={free[0]: 100.0}, **options)])[0]
    assert set(forced.ids) == {free[0]}
    assert forced.counts.acceptance_rate == 1.0


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.8},
        {"frequency_penalty": 1.5},
        {"presence_penalty": 2.0},
        {"no_repeat_ngram": 2},
        {"no_repeat_ngram": 3, "frequency_penalty": 0.5},
    ],
    ids=str,
)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_c11_penalties_follow_the_drafts_own_branch(options: dict[str, float], temperature: float) -> None:
    requests = [request(PROMPT, temperature=temperature, seed=s, **options) for s in range(3)]
    expected = plain(MODEL, requests)
    texts = whole(requests, expected)
    for gamma in GAMMAS:
        for drafter in (oracle(texts), flip(texts, 2, 61), build("ngram", MODEL, DrafterOptions())):
            got = decode(MODEL, drafter, requests, gamma=gamma)
            assert [a.ids for a in got] == [a.ids for a in expected]


def test_c13_tiny_temperatures_are_greedy_in_mixed_batches() -> None:
    temperatures = (0.0, 1e-9, 1e-6, 0.7)
    requests = [request(PROMPT, temperature=t, seed=3) for t in temperatures]
    draft = build("draft-model", MODEL, DrafterOptions(draft=near_model(1)))
    greedy, nano, micro, warm = decode(MODEL, draft, requests)
    assert greedy.ids == nano.ids == micro.ids != warm.ids
    assert all(a.error is None for a in (greedy, nano, micro, warm))


def test_c14_a_difference_is_shown_with_both_margins() -> None:
    """Two answers that part at a near-tie are told apart from two that part for no reason."""
    r = request(PROMPT)
    best = plain(MODEL, [r])[0]
    rival = (best.ids[0] + 1) % 61
    weights = random_weights(tiny_config(), seed=1)
    head = weights["lm_head.weight"]
    head[rival] = head[best.ids[0]] * (1 + 1e-6)
    twin = Decoder(tiny_config(), weights, exact=True)  # its two best first tokens are nearly equal
    near = first_difference(twin, r, replace(best, ids=(best.ids[0],)), replace(best, ids=(rival,)))
    assert near is not None
    assert near.position == 0
    assert near.near_tie
    assert max(abs(margin) for margin in near.margins) < 1e-3
    far = first_difference(MODEL, r, best, replace(best, ids=((best.ids[0] + 5) % 61,)))
    assert far is not None
    assert not far.near_tie
    assert first_difference(MODEL, r, best, best) is None


def test_c16_one_token_prompt_and_everything_rejected() -> None:
    """The cache never holds more than was committed, nor less than all but the last token."""
    for prompt in ([5], PROMPT):
        r = request(prompt)
        expected = plain(MODEL, [r])
        texts = whole([r], expected)
        for right in (0, 1, 3):
            for gamma in GAMMAS:
                caches: list[Block] = []
                engine = Engine(Spy(MODEL, caches), {"it": flip(texts, right, 61)}, FixedGamma(gamma))  # type: ignore[arg-type]
                scheduler = Scheduler(engine, Letters())
                scheduler.add(r)
                committed = len(prompt)
                for _, event in scheduler.run():
                    committed += len(event.tokens)
                    assert LENGTHS[id(caches[0])] == committed - 1
                assert event.answer is not None
                assert event.answer.ids == expected[0].ids


def test_c18_the_target_as_its_own_drafter() -> None:
    """Acceptance is exactly 1 over 200 tokens, and again after one forced rejection."""
    r = request([3, 4], max_tokens=200, temperature=0.9)
    own = DraftModel(tiny_model(1), 61)
    answer = decode(MODEL, own, [r], gamma=5)[0]
    assert answer.counts.acceptance_rate == 1.0
    assert answer.ids == plain(MODEL, [r])[0].ids

    class OneWrong(DraftModel):
        steps = 0

        def propose(self, views: Sequence[View], budgets: Sequence[Budget]) -> list[Draft]:
            drafts = super().propose(views, budgets)
            self.steps += 1
            if self.steps == 5:
                tokens = list(drafts[0].tokens)
                tokens[2] = (tokens[2] + 1) % 61
                return [Draft.chain(tokens)]
            return drafts

    answer = decode(MODEL, OneWrong(tiny_model(1), 61), [r], gamma=5)[0]
    assert answer.counts.drafted - answer.counts.accepted == 3, "only the disturbed draft lost tokens"
    assert answer.ids == plain(MODEL, [r])[0].ids


def test_c19_the_end_of_the_context() -> None:
    short = tiny_model(1, context=40)
    draft = DraftModel(near_model(1, context=40), 61)
    for length in (1, 30, 37, 38, 39):
        r = request([i % 61 for i in range(length)], max_tokens=None)
        expected = plain(short, [r])[0]
        assert len(expected.ids) == 40 - length
        assert expected.finish_reason == "length"
        for gamma in GAMMAS:
            assert decode(short, draft, [r], gamma=gamma)[0].ids == expected.ids
            # a draft model whose own context ends earlier drafts as long as it can
            small = DraftModel(near_model(1, context=35), 61)
            assert decode(short, small, [r], gamma=gamma)[0].ids == expected.ids
    with pytest.raises(PromptError, match="40"):
        decode(short, None, [request([1] * 40)])


def test_c20_heads_padded_to_different_sizes() -> None:
    """Both know 50 tokens; their heads have 61 and 80 rows, and the padding would always win."""
    target, wide_target = _padded(1, 0.0, 50), _padded(1, 0.0, 61)
    wide_draft = _padded(1, 0.05, 80)
    settings = [{"temperature": t, "seed": 4} for t in (0.0, 1.2)]
    expected = plain(target, [request(PROMPT, **s) for s in settings])
    for verify in ("coupled", "rejection"):
        requests = [request(PROMPT, verify=verify, **s) for s in settings]
        got = decode(wide_target, DraftModel(wide_draft, 50), requests)
        assert all(token < 50 for a in got for token in a.ids)
        assert all(a.dropped == 0 for a in got), "a padding id was drafted"
        if verify == "coupled":
            assert [a.ids for a in got] == [a.ids for a in expected]


def _padded(seed: int, noise: float, rows: int) -> Decoder:
    """A model of 50 tokens whose head and embedding have `rows` rows."""
    config = tiny_config(vocab_size=rows)
    small = random_weights(tiny_config(vocab_size=50), seed)
    other = random_weights(tiny_config(vocab_size=50), seed + 1000)
    weights = {name: weight + noise * other[name] for name, weight in small.items()}
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        padding = 10.0 * weights[name][:1].sign().expand(rows - 50, -1)
        weights[name] = torch.cat((weights[name], padding))
    return Decoder(config, weights, vocab_size=50, exact=True)


def test_c24_ragged_batches_of_oracle_anti_and_nothing() -> None:
    prompts = ([9], [1, 2, 3, 4, 5, 6, 7], [i * 7 % 61 for i in range(20)])
    requests = [request(p, max_tokens=n) for p, n in zip(prompts, (24, 5, 24), strict=True)]
    expected = plain(MODEL, requests)
    texts = whole(requests, expected)
    scripts = (oracle(texts[:1]), flip(texts[1:2], 0, 61), nothing())

    def script(tokens: Sequence[int], depth: int) -> Sequence[int]:
        return next((found for s in scripts if (found := s._script(tokens, depth))), ())

    for gamma in GAMMAS:
        got = decode(MODEL, Scripted(script), requests, gamma=gamma)
        assert [a.ids for a in got] == [a.ids for a in expected]
        assert got[0].counts.acceptance_rate == 1.0
        assert got[1].counts.acceptance_rate == 0.0
        assert got[2].counts.acceptance_rate is None


@pytest.mark.parametrize("gamma", GAMMAS)
def test_c28_code_points_split_over_tokens_and_passes(gamma: int) -> None:
    """A model of 256 byte tokens is made to write emoji; every chunk shown is whole code points."""
    text = "naïve 🦊🦊 – ağaç 👩‍🚀!"
    data = tuple(text.encode())
    model = tiny_model(1, vocab_size=256)
    r = request([65], forced=data, max_tokens=len(data))
    for knows in (oracle([[65, *data]]), flip([[65, *data]], 2, 256), nothing()):
        events = list(_events(model, knows, r, gamma, Bytes()))
        assert "".join(event.text for event in events) == events[-1].answer.text == text
        assert not any("\N{REPLACEMENT CHARACTER}" in event.text for event in events)


def test_c02_a_stop_followed_by_half_a_code_point_is_found_at_once() -> None:
    """A token that completes the stop and begins an emoji ends the answer; it is not waited for the rest."""

    class Pairs:
        def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
            return b"".join((b"ab", b"c.\xf0", b"\x9f\xa6\x8a")[i] for i in ids).decode(errors="replace")

    stream = TextStream(Pairs(), stops=["c."])
    assert stream.push(0) == "ab"
    assert stream.push(1) == ""
    assert stream.stopped
    assert stream.text == "ab"


def test_c28_bytes_that_never_become_a_code_point_are_shown_at_the_end() -> None:
    stream = TextStream(Bytes())
    shown = "".join(stream.push(t) for t in [65, 0xF0, 0x9F]) + stream.finish()
    assert shown == stream.text == bytes([65, 0xF0, 0x9F]).decode("utf-8", errors="replace")


def test_c29_a_partial_stop_string_is_held_back_then_flushed() -> None:
    stream = TextStream(Letters(), stops=["CDE", "DX"])
    assert [stream.push(i) for i in range(4)] == ["A", "B", "", ""]
    assert stream.push(5) == "CDF"
    assert stream.push(2) == ""
    assert stream.finish() == "C"
    assert stream.text == "ABCDFC"
    assert not stream.stopped


class Broken(Scripted):
    """Fails in the named way on every third call; right otherwise."""

    def __init__(self, how: str, know: Scripted) -> None:
        super().__init__(know._script)
        self._how = how
        self._calls = 0

    def propose(self, views: Sequence[View], budgets: Sequence[Budget]) -> list[Draft]:
        drafts = super().propose(views, budgets)
        self._calls += 1
        if self._calls % 3:
            return drafts
        if self._how == "raises":
            raise RuntimeError("out of luck")
        if self._how == "too few":
            return drafts[:-1]
        return [self._bad(budget) for budget in budgets]

    def _bad(self, budget: Budget) -> Draft:
        if self._how == "vocabulary":
            return Draft.chain([61])
        if self._how == "negative":
            return Draft.chain([-1])
        if self._how == "cycle":
            return Draft(tokens=(1, 2), parents=(1, 0))
        if self._how == "nan":
            return Draft.chain([1], q=torch.full((1, 61), math.nan))
        if self._how == "impossible":
            q = torch.zeros(1, 61)
            q[0, 5] = 1.0
            return Draft.chain([1], q=q)
        return Draft.chain([1] * (budget.depth + 1))

    def observe(self, views: object, reports: object) -> None:  # type: ignore[override]
        if self._how == "observe":
            raise ValueError("not listening")


@pytest.mark.parametrize("verify", ["coupled", "rejection"])
@pytest.mark.parametrize(
    "how",
    ["raises", "too few", "vocabulary", "negative", "cycle", "nan", "impossible", "too long", "observe"],
)
def test_c38_a_failing_drafter_never_touches_the_answer(how: str, verify: str) -> None:
    requests = [request(p, verify=verify) for p in (PROMPT, [8, 9])]
    expected = plain(MODEL, requests)
    broken = Broken(how, oracle(whole(requests, expected)))
    got = decode(MODEL, broken, requests, gamma=4)
    assert [a.ids for a in got] == [a.ids for a in expected]
    assert all(a.dropped > 0 for a in got), "a dropped draft is counted"


def test_a_nan_row_fails_its_request_alone() -> None:
    poisoned = tiny_model(1)
    poison(poisoned, 60, math.nan)
    good = request(PROMPT, banned=(60,))
    bad = request([1, 60])
    fine, failed = decode(poisoned, None, [good, bad])
    assert failed.finish_reason == "error"
    assert "nan" in (failed.error or "")
    assert fine.error is None
    assert len(fine.ids) == 24


def test_options_are_checked_against_the_vocabulary() -> None:
    with pytest.raises(OptionError, match="outside the vocabulary"):
        decode(MODEL, None, [request(PROMPT, logit_bias={61: 1.0})])
    with pytest.raises(PromptError, match="empty"):
        decode(MODEL, None, [request([])])
    with pytest.raises(OptionError, match="gamma is 17"):
        FixedGamma(17)


def test_n_answers_of_one_seed_differ_and_repeat() -> None:
    requests = [request(PROMPT, temperature=1.0, choice=c) for c in range(3)]
    once, again = (decode(MODEL, None, requests) for _ in range(2))
    assert [a.ids for a in once] == [a.ids for a in again]
    assert len({a.ids for a in once}) == 3
    unseeded = decode(MODEL, None, [request(PROMPT, temperature=1.0, seed=None) for _ in range(2)])
    assert unseeded[0].ids != unseeded[1].ids
    assert unseeded[0].seed != unseeded[1].seed
