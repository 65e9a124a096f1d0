"""Rejection verification emits plain decoding's distribution exactly: every branch of every random choice
is run and weighed, and the sums are compared with products of p. No sampling error, so 1e-9 is the bound."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taslak.core import verify
from taslak.core.draft import EMPTY, Draft
from taslak.core.noise import Stream, noise_key
from taslak.core.sampling import Distribution, Sampling
from taslak.core.verify import Decision, rejection

from .checks import EXACT, SIGNIFICANCE, law_error, p_value, power
from .drafting import CHOSEN, DRAWN, Grower, Script, enumerated
from .enumeration import SharedNoise, emitted_law, passes

ONE, TWO, THREE, FOUR = (DRAWN,), (DRAWN,) * 2, (DRAWN,) * 3, (DRAWN,) * 4

SHAPES = {
    "linear-1": (ONE,),
    "linear-2": (ONE, ONE),
    "linear-3": (ONE, ONE, ONE),
    "siblings-2": (TWO,),
    "siblings-3": (THREE,),
    "siblings-4": (FOUR,),
    "tree-2x1": (TWO, ONE),
    "tree-1x2": (ONE, TWO),
    "tree-2x2": (TWO, TWO),
    "chosen-linear": ((CHOSEN,), (CHOSEN,), (CHOSEN,)),
    "chosen-tree": ((CHOSEN,) * 3, (CHOSEN,) * 2),
    "chosen-then-drawn": ((CHOSEN, DRAWN), (CHOSEN, DRAWN)),
    "drawn-then-chosen": ((DRAWN, CHOSEN), (DRAWN, CHOSEN)),
    "mixed-4": ((DRAWN, CHOSEN, DRAWN, CHOSEN),),
}

SETTINGS = {
    "plain": Sampling(temperature=1.0),
    "cold": Sampling(temperature=0.4),
    "hot": Sampling(temperature=3.0),
    "top-k": Sampling(temperature=1.0, top_k=2),
    "top-p": Sampling(temperature=1.0, top_p=0.8),
    "min-p": Sampling(temperature=1.0, min_p=0.2),
    "all-cuts": Sampling(temperature=0.9, top_k=3, top_p=0.9, min_p=0.05),
    "penalties": Sampling(
        temperature=1.0, repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25
    ),
    "no-repeat": Sampling(temperature=1.0, no_repeat_ngram=2),
    "bias": Sampling(temperature=1.0, logit_bias={0: -100.0, 1: 1.25}),
    "greedy": Sampling(),
}


def vocab_for(levels: tuple[tuple[str, ...], ...]) -> int:
    return 3 if len(levels) > 1 else 5


@pytest.mark.parametrize("shape", SHAPES)
def test_c09_every_shape_emits_p_exactly(shape: str) -> None:
    levels = SHAPES[shape]
    script = Script(vocab=vocab_for(levels), seed=1)
    assert law_error(rejection, Grower(script.q, levels), script, len(levels) + 1) < EXACT


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("shape", ["linear-3", "siblings-3", "tree-2x1", "drawn-then-chosen"])
def test_c07_settings_hold_at_every_position(shape: str, name: str) -> None:
    levels = SHAPES[shape]
    script = Script(vocab=vocab_for(levels), seed=2, sampling=SETTINGS[name])
    assert law_error(rejection, Grower(script.q, levels), script, len(levels) + 1) < EXACT


@pytest.mark.parametrize("name", SETTINGS)
def test_c05_q_is_the_processed_distribution_that_was_sampled(name: str) -> None:
    script = Script(vocab=3, seed=3, sampling=SETTINGS[name], draft_sampling=SETTINGS[name])
    for levels in (SHAPES["linear-2"], SHAPES["tree-2x1"]):
        assert law_error(rejection, Grower(script.q, levels), script, 3) < EXACT


@pytest.mark.parametrize("name", ["top-k", "top-p", "min-p", "all-cuts"])
def test_c05_q_may_be_narrower_than_p(name: str) -> None:
    script = Script(vocab=4, seed=4, draft_sampling=SETTINGS[name])
    assert law_error(rejection, Grower(script.q, (TWO, ONE)), script, 3) < EXACT


@pytest.mark.parametrize("seed", range(4))
def test_c06_chosen_tokens_are_accepted_with_p_and_leave_p_without_them(seed: int) -> None:
    script = Script(vocab=4, seed=seed)
    p = script.next_token(())
    token = int(script.q(()).argmax())
    draft = Draft((token,), (-1,))
    law = dict.fromkeys(p, 0.0)
    for _, decisions, mass in passes(rejection, lambda choices: draft, script.p, length=1):
        law[decisions[0].token] += mass
        assert (decisions[0].node == 0) == (decisions[0].token == token)
    assert law == pytest.approx(p, abs=EXACT)


KINDS = st.lists(st.sampled_from([DRAWN, CHOSEN]), min_size=1, max_size=2)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    levels=st.lists(KINDS, min_size=1, max_size=2),
    sampling=st.sampled_from(sorted(SETTINGS)),
    draft_sampling=st.sampled_from(sorted(SETTINGS)),
    likeness=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
)
def test_c09_any_tree_of_any_drafter_emits_p_exactly(
    seed: int, levels: list[list[str]], sampling: str, draft_sampling: str, likeness: float
) -> None:
    drawn = sum(level.count(DRAWN) for level in levels)  # the number of drafts grows as vocab ** drawn
    script = Script(
        5 - drawn if drawn < 3 else 2, seed, SETTINGS[sampling], SETTINGS[draft_sampling], likeness
    )
    assert law_error(rejection, Grower(script.q, levels), script, len(levels) + 1) < EXACT


@pytest.mark.parametrize("shape", ["siblings-2", "siblings-4", "tree-2x2", "mixed-4"])
def test_c09_equal_probabilities(shape: str) -> None:
    levels = SHAPES[shape]
    vocab = vocab_for(levels)
    script = Script(vocab=vocab, seed=5)
    flat = Grower(lambda branch: torch.full((vocab,), 1 / vocab), levels)
    assert law_error(rejection, flat, script, len(levels) + 1) < EXACT
    hot = replace(script, sampling=Sampling(temperature=1e30))
    assert law_error(rejection, flat, hot, len(levels) + 1) < EXACT


def test_a_draft_below_kept_nodes_may_stop_for_any_reason() -> None:
    script = Script(vocab=3, seed=6)
    grower = Grower(
        script.q, (TWO, TWO), expand=lambda branch: float(script.q(branch[:-1])[branch[-1]]) > 0.3
    )
    assert law_error(rejection, grower, script, 3) < EXACT


def test_c36_chosen_nodes_may_be_pruned_by_their_confidence() -> None:
    script = Script(vocab=4, seed=7)
    grower = Grower(script.q, ((CHOSEN,) * 3, (CHOSEN,) * 2), keep=lambda q, branch: q > 0.2)
    assert law_error(rejection, grower, script, 3) < EXACT


def test_a_q_row_of_any_scale_is_normalised() -> None:
    script = Script(vocab=4, seed=8)
    for scale in (1e-30, 7.0):
        grower = Grower(lambda branch, scale=scale: script.q(branch) * scale, (TWO,))
        assert law_error(rejection, grower, script, 2) < EXACT


def test_c08_a_draft_equal_to_its_target_is_accepted_whole() -> None:
    script = Script(vocab=3, seed=9)
    same = Grower(lambda branch: script.p(branch).probabilities(3), (ONE, ONE, ONE))
    whole = 0.0
    for draft, decisions, mass in passes(rejection, lambda c: same(enumerated(c)), script.p):
        whole += mass * ([d.node for d in decisions] == [0, 1, 2, None])
        assert all(decision.token in range(3) for decision in decisions), draft
    assert whole == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("siblings", [1, 2, 4])
@pytest.mark.parametrize("shift", [0.0, 1e-8, -1e-8, 1e-17])
def test_c08_forced_rejections_never_meet_a_nan(
    shift: float, siblings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = Distribution(torch.arange(4), torch.tensor([0.25] * 4, dtype=torch.float64).log())
    q = p.probabilities(4)
    q[0] += shift
    drawn: list[Distribution] = []
    draw = Distribution.draw

    def spy(self: Distribution, key: int, stream: Stream, position: int) -> int:
        drawn.append(self)
        return draw(self, key, stream, position)

    monkeypatch.setattr(Distribution, "draw", spy)
    monkeypatch.setattr(verify, "uniform_at", lambda *address: 2.0)  # above every ratio: nothing is accepted
    draft = Draft(tuple(range(siblings)), (-1,) * siblings, q[None], (0,) * siblings)
    (decision,) = rejection(draft, lambda node: p, 1, 0)
    assert decision.node is None
    assert decision.token in range(4)
    assert bool(drawn[0].z.isfinite().all())
    assert float(drawn[0].softmax().sum()) == pytest.approx(1.0)
    if shift == 0.0 and siblings == 1:
        assert torch.allclose(drawn[0].probabilities(4), p.probabilities(4))


def test_c08_an_empty_residual_is_p(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(vocab=4, seed=10)
    p = script.p(())
    monkeypatch.setattr(verify, "uniform_at", lambda *address: 2.0)
    laws: list[torch.Tensor] = []
    monkeypatch.setattr(Distribution, "draw", lambda self, *address: laws.append(self.probabilities(4)) or 0)
    list(rejection(Draft((2,), (-1,), p.probabilities(4)[None], (0,)), lambda node: p, 1, 0))
    assert torch.allclose(laws[0], p.probabilities(4), atol=1e-15)


def test_greedy_targets_accept_their_own_token_and_no_other() -> None:
    script = Script(vocab=4, seed=11, sampling=Sampling())
    best = script.p(()).draw(0, Stream.TOKEN, 0)
    for token in range(4):
        decision = next(rejection(Draft((token,), (-1,)), lambda node: script.p(()), 3, 0))
        assert decision == Decision(best, 0 if token == best else None)


def test_a_full_draft_may_be_longer_than_what_the_caller_takes() -> None:
    """Rows past the last decision asked for are never looked at: they may belong to text after a stop."""
    asked: list[int] = []

    def p_at(node: int) -> Distribution:
        asked.append(node)
        return Distribution(torch.tensor([1]), torch.zeros(1, dtype=torch.float64))

    decisions = rejection(Draft.chain([1, 1, 1, 1]), p_at, 0, 0)
    assert [d.node for d in islice(decisions, 2)] == [0, 1]
    assert asked == [-1, 0]


def test_ids_past_the_draft_are_rejected_not_misread() -> None:
    """Without q rows the vocabulary is as wide as the widest id on either side."""
    p = Distribution(torch.tensor([0, 9]), torch.zeros(2, dtype=torch.float64))

    def first(token: int, key: int) -> Decision:
        return next(rejection(Draft((token,), (-1,)), lambda node: p, noise_key(key), 0))

    assert {first(30, key).token for key in range(40)} == {0, 9}
    assert {first(9, key).node for key in range(40)} == {0, None}


def test_every_noise_address_serves_one_purpose() -> None:
    """The enumeration claims each draw's address and would raise SharedNoise; here it is seen to."""
    script = Script(vocab=3, seed=13)

    def twice(draft: Draft, p_at, key: int, position: int):  # type: ignore[no-untyped-def]
        p_at(-1).draw(key, Stream.RESIDUAL, position)
        yield from rejection(draft, p_at, key, position)

    with pytest.raises(SharedNoise):
        emitted_law(twice, lambda choices: EMPTY, script.p, script.next_token, 1)


@pytest.mark.parametrize("levels", [(ONE, ONE), (TWO, ONE)], ids=["linear-2", "tree-2x1"])
def test_c05_drafts_from_stream_draft_are_judged_by_streams_accept_and_residual(
    levels: tuple[tuple[str, ...], ...],
) -> None:
    script = Script(vocab=3, seed=14, likeness=0.0)
    assert power(effect=0.15, cells=27) > 0.97  # a law off by 15 % of itself is seen
    assert p_value(rejection, Grower(script.q, levels), script, 3, Stream.DRAFT) > SIGNIFICANCE


def test_addresses_used(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[str, Stream, int, int]] = []
    monkeypatch.setattr(verify, "uniform_at", lambda k, s, pos, i: used.append(("u", s, pos, i)) or 2.0)
    monkeypatch.setattr(Distribution, "draw", lambda self, k, s, pos: used.append(("draw", s, pos, 0)) or 0)
    script = Script(vocab=4, seed=15)
    list(rejection(Draft((1, 2, 3), (-1, -1, -1)), lambda node: script.p(()), 0, 7))
    list(rejection(EMPTY, lambda node: script.p(()), 0, 8))
    accept, residual = Stream.ACCEPT, Stream.RESIDUAL
    assert used == [
        *(("u", accept, 7, sibling) for sibling in range(3)),
        ("draw", residual, 7, 0),
        ("draw", residual, 8, 0),
    ]
