"""`audit` passes what is right and fails each mistake: of the rule, of a drafter, of the cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from taslak import native
from taslak.control import audit as module
from taslak.control.audit import FAILED, PASSED, SKIPPED, Report, audit, joint_law
from taslak.core import verify
from taslak.core.draft import Draft
from taslak.core.sampling import Sampling
from taslak.core.verify import Decision, TargetAt
from taslak.drafters.base import Budget, DrafterOptions, View, build
from taslak.engine.policy import FixedGamma
from taslak.engine.step import Engine
from taslak.errors import OptionError
from taslak.models.decoder import Decoder
from taslak.models.native_ops import pack_weights
from tests.support.decoding import Letters, decode, request
from tests.support.tiny import near_model, random_weights, tiny_config, tiny_model
from tests.unit.core.variants import Variant, Wrong

PROMPTS = ([5, 9, 2, 7, 5, 9], [1, 2, 3, 4, 1, 2, 3])
CONFIG = tiny_config(inner_size=64)
TARGET = (
    Decoder(CONFIG, pack_weights(CONFIG, random_weights(CONFIG, 1), "bfloat16"))
    if native.available()
    else tiny_model(1, exact=True)
)
DRAFT = near_model(1, exact=False, inner_size=64)


def engine(branch: int = 1, gamma: int = 3, wrap: Any = None) -> Engine:
    drafter = build("draft-model", TARGET, DrafterOptions(draft=DRAFT, branch=branch))
    return Engine(TARGET, {"it": wrap(drafter) if wrap else drafter}, FixedGamma(gamma, branch))


def outcomes(report: Report) -> dict[str, str]:
    return {check.name: check.outcome for check in report.checks}


def run(of: Engine, **options: Any) -> Report:
    return audit(of, Letters(), PROMPTS, **{"max_tokens": 24, "samples": 250, **options})


def distribution(of: Engine, samples: int = 700) -> str:
    """The outcome of that check alone, with enough samples for the mistakes here."""
    report = audit(of, Letters(), PROMPTS[:1], samples=samples, only=["distribution"])
    return outcomes(report)["distribution"]


@pytest.mark.parametrize("branch", [1, 3])
def test_what_is_right_passes(branch: int) -> None:
    report = run(engine(branch))
    assert report.passed
    assert set(outcomes(report).values()) == {PASSED}
    assert len(report.checks) == 8
    assert all(check.drafted > check.accepted > 0 for check in report.checks)
    law = next(check for check in report.checks if check.name == "distribution")
    assert 0 < law.figures["noticed"] < 0.5
    assert report.as_json()["passed"] is True


def test_where_nothing_is_drafted_nothing_is_proven() -> None:
    report = run(Engine(TARGET, {}, FixedGamma(3)), samples=20)
    assert not report.passed
    assert set(outcomes(report).values()) == {SKIPPED}


def test_the_law_is_that_of_the_tokens_drawn() -> None:
    settings = Sampling(temperature=1.0, top_k=2)
    law = joint_law(TARGET, PROMPTS[0], settings, 2)
    assert len(law) == 4
    assert sum(law.values()) == pytest.approx(1.0)
    for first, second in product({path[0] for path in law}, repeat=2):
        del second
        forced = replace(request(PROMPTS[0]), sampling=replace(settings, forced=(first,)), max_tokens=2)
        answers = decode(TARGET, None, [replace(forced, seed=seed) for seed in range(40)])
        assert {answer.ids for answer in answers} <= {path for path in law if path[0] == first}


WRONG_RULES = {
    Wrong.SIBLINGS_IN_Q_ORDER: 3,
    Wrong.BASE_Q_WITH_EARLIER_SIBLINGS: 3,
    Wrong.P_INSTEAD_OF_RESIDUAL: 1,
    Wrong.ACCEPT_AGAINST_P: 3,
    Wrong.RATIO_UPSIDE_DOWN: 1,
    Wrong.Q_INSTEAD_OF_P_AT_A_LEAF: 1,
    Wrong.ACCEPT_FROM_DRAFT_NOISE: 1,
    Wrong.RESIDUAL_FROM_DRAFT_NOISE: 1,  # the least of them
}


@pytest.mark.parametrize("wrong", WRONG_RULES, ids=lambda wrong: wrong.name)
def test_wrong_rules_of_rejection_fail(wrong: Wrong, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that change a distribution by more than this many samples can miss."""
    monkeypatch.setitem(verify.VERIFIERS, "rejection", Variant(wrong, stepwise=True))
    monkeypatch.setattr(module, "SAMPLED", Sampling(temperature=2.0, top_k=4))
    subtle = {
        Wrong.ACCEPT_AGAINST_P: 3000,
        Wrong.ACCEPT_FROM_DRAFT_NOISE: 3000,
        Wrong.RESIDUAL_FROM_DRAFT_NOISE: 6000,
    }
    samples = subtle.get(wrong, 700)
    assert distribution(engine(WRONG_RULES[wrong], wrap=Unlike), samples) == FAILED


def test_the_right_rule_passes_where_the_wrong_ones_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLED", Sampling(temperature=2.0, top_k=4))
    for branch in (1, 3):
        assert distribution(engine(branch, wrap=Unlike), 3000 if branch == 1 else 700) == PASSED


class Around:
    """A drafter between the engine and another one."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def propose(self, views: Sequence[View], budgets: Sequence[Budget]) -> list[Draft]:
        drafts: list[Draft] = self._inner.propose(views, budgets)
        return [self.changed(draft, view) for draft, view in zip(drafts, views, strict=True)]

    def changed(self, draft: Draft, view: View) -> Draft:
        del view
        return draft


class Unlike(Around):
    """Draws from another temperature than the target: the more is rejected, the more of the rule shows."""

    def propose(self, views: Sequence[View], budgets: Sequence[Budget]) -> list[Draft]:
        before = [view.sampling for view in views]
        for view in views:
            if not view.sampling.greedy:
                view.sampling = replace(view.sampling, temperature=0.5 * view.sampling.temperature)
        try:
            return super().propose(views, budgets)
        finally:
            for view, sampling in zip(views, before, strict=True):
                view.sampling = sampling


class LiesAboutQ(Around):
    """Says its tokens were drawn from a uniform row."""

    def changed(self, draft: Draft, view: View) -> Draft:
        if draft.q is None:
            return draft
        return replace(draft, q=torch.full_like(draft.q, 1.0 / draft.q.shape[1]))


class WritesIntoTheCache(Around):
    """Disturbs what the target will read."""

    def changed(self, draft: Draft, view: View) -> Draft:
        if view.cache is not None and view.cache.length:
            TARGET.pool.values[:, view.cache.slot(view.cache.length - 1)] += 0.5
        return draft


class DropsWhatItDoubts(Around):
    """Keeps of its drawn tokens those with a large q (rule 7)."""

    def changed(self, draft: Draft, view: View) -> Draft:
        for node, token in enumerate(draft.tokens):
            if draft.q is not None and float(draft.q[draft.q_row[node], token]) < 0.4:
                assert draft.confidence is not None
                return Draft.chain(draft.tokens[:node], draft.q[:node] if node else None)
        return draft


@pytest.mark.parametrize(
    ("cheat", "fails"),
    [
        (LiesAboutQ, "distribution"),
        (DropsWhatItDoubts, "distribution"),
        (WritesIntoTheCache, "greedy"),
    ],
)
def test_drafters_that_cheat_fail(cheat: type[Around], fails: str) -> None:
    report = audit(engine(wrap=cheat), Letters(), PROMPTS[:1], max_tokens=24, samples=700, only=[fails])
    assert outcomes(report) == {fails: FAILED}
    assert not report.passed


def test_a_verifier_that_trusts_its_drafts_fails_with_the_first_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def trusting(draft: Draft, p_at: TargetAt, key: int, position: int) -> Iterator[Decision]:
        if draft:
            yield Decision(draft.tokens[0], 0)
        yield from verify.coupled(Draft(), lambda _: p_at(0 if draft else -1), key, position)

    monkeypatch.setitem(verify.VERIFIERS, "coupled", trusting)
    report = run(engine(wrap=Always), samples=1)
    failed = next(check for check in report.checks if check.outcome == FAILED)
    assert failed.name == "greedy"
    assert failed.found is not None
    assert failed.found.difference is not None
    assert failed.found.difference.speculative == Always.TOKEN
    assert f"is {Always.TOKEN} with speculation" in failed.found.what


class Always(Around):
    TOKEN = 33

    def changed(self, draft: Draft, view: View) -> Draft:
        return Draft.chain([self.TOKEN]) if draft else draft


def test_settings_out_of_range_are_told() -> None:
    with pytest.raises(OptionError, match="max_tokens is 2"):
        run(engine(), max_tokens=2)
    with pytest.raises(OptionError, match="no prompt"):
        audit(engine(), Letters(), [])
