"""The checks of `test_verify_rejection` can fail: each mistake people make is put to them and is caught.

Mistakes that keep every choice independent are caught by enumeration. Those that share one noise address
between two purposes make choices dependent, so the real noise and a chi-squared test catch them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from taslak.core.draft import ROOT, Draft
from taslak.core.noise import Stream, noise_key
from taslak.core.sampling import Distribution, Sampling
from taslak.core.verify import Verifier, rejection
from taslak.errors import DraftError

from .checks import EXACT, SIGNIFICANCE, law_error, p_value
from .drafting import CHOSEN, DRAWN, Branch, Choose, Grower, Level, Script, hashed
from .variants import Variant, Wrong

VISIBLE = 1e-3
"""A mistake is caught when it moves a probability by this much; exact laws stay under 1e-9."""

ONE, TWO, THREE = (DRAWN,), (DRAWN,) * 2, (DRAWN,) * 3
SCRIPT = Script(vocab=4, seed=3, likeness=0.0)

WRONG_RULES: dict[Wrong, tuple[Level, ...]] = {
    Wrong.SIBLINGS_IN_Q_ORDER: (TWO,),
    Wrong.BASE_Q_WITH_EARLIER_SIBLINGS: (TWO,),
    Wrong.BASE_Q_NOT_RENORMALISED: (TWO,),
    Wrong.ONE_ACCEPT_FOR_ALL_SIBLINGS: (THREE,),
    Wrong.TOP_P_ON_RESIDUAL: (ONE,),
    Wrong.RESIDUAL_NOT_RENORMALISED: (TWO,),
    Wrong.P_INSTEAD_OF_RESIDUAL: (ONE,),
    Wrong.ACCEPT_AGAINST_P: (TWO,),
    Wrong.RATIO_UPSIDE_DOWN: (ONE,),
    Wrong.Q_INSTEAD_OF_P_AT_A_LEAF: (ONE,),
    Wrong.CHOSEN_TOKENS_ALWAYS_KEPT: ((CHOSEN,),),
}


@pytest.mark.parametrize("wrong", WRONG_RULES, ids=lambda wrong: wrong.name)
def test_wrong_rules_are_caught(wrong: Wrong) -> None:
    errors = []
    for seed in (3, 4, 5):
        script = replace(SCRIPT, seed=seed)
        grower = Grower(script.q, WRONG_RULES[wrong])
        assert law_error(Variant(), grower, script, 2) < EXACT
        errors.append(law_error(Variant(wrong), grower, script, 2))
    assert max(errors) > VISIBLE


@pytest.mark.parametrize("verifier", [rejection, Variant()], ids=["core", "second-writing"])
def test_the_right_rule_passes_where_the_wrong_ones_fail(verifier: Verifier) -> None:
    for levels in {*WRONG_RULES.values()}:
        assert law_error(verifier, Grower(SCRIPT.q, levels), SCRIPT, 2) < EXACT


@pytest.mark.parametrize("levels", [(ONE, ONE), (THREE, TWO), ((DRAWN, CHOSEN), ONE)])
def test_the_second_writing_decides_as_core_does(levels: tuple[Level, ...]) -> None:
    for seed in range(200):
        key = noise_key(seed)
        draft = Grower(SCRIPT.q, levels)(hashed(key, Stream.DRAFT))

        def p_at(node: int, draft: Draft = draft):  # type: ignore[no-untyped-def]
            return SCRIPT.p(tuple(draft.branch(node)))

        assert list(rejection(draft, p_at, key, 0)) == list(Variant()(draft, p_at, key, 0))


def pruned(script: Script, levels: tuple[Level, ...]) -> Grower:
    return Grower(script.q, levels, keep=lambda q, branch: q > 0.3)


@pytest.mark.parametrize("levels", [(ONE,), (TWO,), (ONE, ONE)], ids=["linear-1", "siblings-2", "linear-2"])
def test_c36_a_drawn_node_dropped_for_its_own_q_is_caught(levels: tuple[Level, ...]) -> None:
    assert law_error(rejection, pruned(SCRIPT, levels), SCRIPT, len(levels) + 1) > VISIBLE


@pytest.mark.parametrize("seed", [3, 5])
def test_c36_a_drawn_tree_cut_to_its_most_probable_nodes_is_caught(seed: int) -> None:
    """Re-ranking: of the drawn nodes, the best by joint q stay."""
    script = replace(SCRIPT, seed=seed)
    drawn = Grower(script.q, (TWO, ONE))
    chosen = Grower(script.q, ((CHOSEN,) * 2, (CHOSEN,)))

    class Reranked(Grower):
        def __call__(self, choose: Choose) -> Draft:
            return best_nodes(super().__call__(choose), script, 2)

    assert law_error(rejection, drawn, script, 3) < EXACT
    assert law_error(rejection, Reranked(drawn.q, drawn.levels), script, 3) > VISIBLE
    assert law_error(rejection, Reranked(chosen.q, chosen.levels), script, 3) < EXACT


def best_nodes(draft: Draft, script: Script, nodes: int) -> Draft:
    """The `nodes` most probable nodes by joint q. Parents are never less probable than their children."""

    def joint(node: int) -> float:
        branch = tuple(draft.branch(node))
        mass = 1.0
        for i, token in enumerate(branch):
            mass *= float(script.q(branch[:i])[token])
        return mass

    kept = sorted(sorted(range(len(draft)), key=lambda node: (-joint(node), node))[:nodes])
    new = {old: i for i, old in enumerate(kept)}
    return Draft(
        tuple(draft.tokens[node] for node in kept),
        tuple(new.get(draft.parents[node], ROOT) for node in kept),
        draft.q,
        tuple(draft.q_row[node] for node in kept),
    )


@pytest.mark.parametrize("levels", [((CHOSEN,),), ((CHOSEN,), (CHOSEN,))])
def test_c06_argmax_scored_with_softmax_q_is_caught(levels: tuple[Level, ...]) -> None:
    honest = Grower(SCRIPT.q, levels)
    assert law_error(rejection, honest, SCRIPT, len(levels) + 1) < EXACT
    assert law_error(rejection, replace(honest, scored=True), SCRIPT, len(levels) + 1) > VISIBLE


@pytest.mark.parametrize(
    "drawn_with",
    [Sampling(temperature=0.5), Sampling(temperature=1.0, top_k=2), Sampling(temperature=1.0, top_p=0.7)],
)
def test_c05_q_other_than_what_was_sampled_is_caught(drawn_with: Sampling) -> None:
    script = replace(SCRIPT, draft_sampling=drawn_with)
    honest = Grower(script.q, (ONE, ONE))
    assert law_error(rejection, honest, script, 3) < EXACT
    assert law_error(rejection, replace(honest, reported=SCRIPT.q), script, 3) > VISIBLE


def test_c07_settings_at_the_first_position_only_are_caught() -> None:
    script = replace(SCRIPT, sampling=Sampling(temperature=1.0, top_k=2))

    class FirstOnly(Script):
        def p(self, branch: Branch):  # type: ignore[no-untyped-def]
            return script.p(branch) if not branch else SCRIPT.p(branch)

    first = FirstOnly(script.vocab, script.seed, script.sampling, script.draft_sampling, script.likeness)
    assert law_error(rejection, Grower(script.q, (ONE, ONE)), script, 3) < EXACT
    assert law_error(rejection, Grower(script.q, (ONE, ONE)), first, 3) > VISIBLE


def test_accepting_on_equality_lets_impossible_tokens_through() -> None:
    """u · q ≤ r with q = r = 0 accepts a token that neither side can draw."""
    script = replace(SCRIPT, sampling=Sampling(temperature=1.0, top_k=1))
    impossible = next(t for t in range(4) if t not in script.next_token(()))
    q = script.p(()).probabilities(4).float()
    draft = Draft((impossible,), (-1,), q[None], (0,))
    with pytest.raises(DraftError, match="can't draw"):
        draft.check(4)  # so the right verifier never sees it
    wrong = list(Variant(Wrong.ACCEPT_ON_EQUAL)(draft, lambda node: script.p(()), 5, 0))
    assert wrong[0].token == impossible
    right = list(rejection(draft, lambda node: script.p(()), 5, 0))
    assert [d.token for d in right] == list(script.next_token(()))


class Rivals(Script):
    """Tokens 0 and 1 compete in the draft, 1 and 2 in the residual. Where 0 was drawn and rejected, the noise
    of 1 is known to be small and that of 2 is not, so a residual that reuses it emits 1 a third of the time
    instead of half of it."""

    TARGET = (0.02, 0.73, 0.25)
    DRAFTER = (0.5, 0.49, 0.01)

    def p(self, branch: Branch) -> Distribution:
        return Distribution.of_weights(torch.tensor(self.TARGET, dtype=torch.float64))

    def next_token(self, branch: Branch) -> dict[int, float]:
        return dict(enumerate(self.TARGET))

    def q(self, branch: Branch) -> Tensor:
        return torch.tensor(self.DRAFTER)


@pytest.mark.parametrize(
    ("wrong", "drafted_from"),
    [
        (Wrong.RESIDUAL_FROM_DRAFT_NOISE, Stream.DRAFT),
        (Wrong.ACCEPT_FROM_DRAFT_NOISE, Stream.DRAFT),
        (None, Stream.RESIDUAL),
        (None, Stream.TOKEN),
    ],
    ids=["residual-from-draft", "accept-from-draft", "draft-from-residual", "draft-from-token-is-harmless"],
)
def test_shared_noise_is_caught(wrong: Wrong | None, drafted_from: Stream) -> None:
    script = Rivals(vocab=3, seed=0)
    grower = Grower(script.q, (ONE,))
    verifier = rejection if wrong is None else Variant(wrong)
    p = p_value(verifier, grower, script, 1, drafted_from)
    if drafted_from is Stream.TOKEN:  # nothing else reads that stream under rejection verification
        assert p > SIGNIFICANCE
    else:
        assert p < SIGNIFICANCE**2


@pytest.mark.parametrize("levels", [(ONE,), (TWO,)], ids=["linear", "siblings"])
def test_streams_kept_apart_pass_where_shared_ones_fail(levels: tuple[Level, ...]) -> None:
    """Enough for the second writing too: it was seen to decide as core does, noise and all."""
    script = Rivals(vocab=3, seed=0)
    assert p_value(rejection, Grower(script.q, levels), script, 1, Stream.DRAFT) > SIGNIFICANCE
