"""Drafting across vocabularies is lossless: by enumeration, the law of what token-level intersection emits.

The draft model thinks of tokens the target doesn't have, and the target of some that can't be drafted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor

from taslak.core import sampling
from taslak.core.draft import Draft
from taslak.core.noise import Stream
from taslak.core.sampling import Distribution, Sampling
from taslak.core.verify import Verifier, rejection
from taslak.drafters.base import Budget, View
from taslak.drafters.choice import Chooser
from taslak.drafters.draft_model import Comb
from taslak.drafters.reader import Reading
from taslak.drafters.tli import Shared
from taslak.drafters.vocabularies import Vocabularies, vocabularies
from tests.support.tokenizers import letters

from .drafting import Script
from .enumeration import Choices, emitted_law
from .reference import distance, plain_law
from .test_wrong_variants import VISIBLE
from .variants import Variant, Wrong

WORDS: Vocabularies = vocabularies(letters(5, "BC"), letters(6, "AB"), 5, 6)
"""A B C D and BC beside A B C D E and AB."""
SETTINGS = {
    "plain": Sampling(temperature=1.0),
    "top-k": Sampling(temperature=0.7, top_k=3),
    "top-p": Sampling(temperature=1.3, top_p=0.8),
}
STORED = 1e-7
"""A draft's q is float32."""


Drawn = tuple[list[int], list[float]]
Spoil = Callable[[Draft], Draft]


def drafted(choices: Choices, script: Script, depth: int, width: int) -> Draft:
    """A draft by the growth under test, with every way its draws can fall. The draft model's logits are
    scripted by what it has read."""
    view = View([*script.prompt], len(script.prompt), script.sampling, 0, Stream.DRAFT, exact_q=True)
    comb = Comb(view, Budget(depth, depth * width))
    growing = Shared(Reading(), comb, width, WORDS, Chooser(5, WORDS.target_ids), WORDS.draft_ids)

    def top(self: Distribution, k: int, key: int, stream: Stream, position: int) -> Drawn:
        choices.claim(stream, position)
        left = dict(zip(self.ids.tolist(), self.softmax().tolist(), strict=True))
        tokens: list[int] = []
        while left and len(tokens) < k:
            total = sum(left.values())
            tokens.append(choices.pick([(token, share / total) for token, share in left.items()]))
            del left[tokens[-1]]
        return tokens, [0.0] * len(tokens)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Distribution, "top", top)
        monkeypatch.setattr(sampling._WholeRow, "top", top)
        while not growing.done:
            growing.expand(logits(script, comb.branch))
    return growing.draft()


def logits(script: Script, branch: list[int]) -> Tensor:
    """Float32[6], the draft model's."""
    six = Script(6, script.seed)
    return torch.tensor(six.logits("drafter", tuple(WORDS.common[token] for token in branch)))


def law_error(
    verifier: Verifier, script: Script, depth: int, width: int, spoil: Spoil = lambda draft: draft
) -> float:
    next_token = cache(script.next_token)

    def make(choices: Choices) -> Draft:
        draft = spoil(drafted(choices, script, depth, width))
        draft.check(5)
        return draft

    law = emitted_law(verifier, make, cache(script.p), next_token, depth + 1)
    return distance(law, plain_law(next_token, depth + 1))


@pytest.mark.parametrize(("depth", "width"), [(1, 1), (2, 1), (1, 3)])
@pytest.mark.parametrize("settings", SETTINGS)
def test_c05_the_law_is_the_targets(settings: str, depth: int, width: int) -> None:
    for seed in (1, 2):
        script = Script(5, seed, sampling=SETTINGS[settings])
        assert law_error(rejection, script, depth, width) < STORED


def without_what_is_not_common(draft: Draft) -> Draft:
    """q as if a token outside the intersection could have been drawn: the mass is on BC, which never is."""
    q = draft.q
    assert q is not None
    q = 0.6 * q
    q[:, 4] = 0.4
    return Draft(draft.tokens, draft.parents, q, draft.q_row)


def by_the_drafts_ids(draft: Draft) -> Draft:
    """q under a mapping that is one off."""
    assert draft.q is not None
    q = draft.q[:, [1, 2, 3, 0, 4]].clamp(min=1e-6)
    return Draft(draft.tokens, draft.parents, q / q.sum(-1, keepdim=True), draft.q_row)


@pytest.mark.parametrize("spoil", [without_what_is_not_common, by_the_drafts_ids])
def test_a_q_that_is_not_what_was_drawn_from_is_caught(spoil: Spoil) -> None:
    script = Script(5, 1)
    assert law_error(rejection, script, 1, 1, spoil) > VISIBLE


@pytest.mark.parametrize(
    "wrong",
    [Wrong.P_INSTEAD_OF_RESIDUAL, Wrong.RATIO_UPSIDE_DOWN, Wrong.ACCEPT_AGAINST_P],
    ids=lambda wrong: wrong.name,
)
def test_a_wrong_rule_is_caught_with_these_drafts_too(wrong: Wrong) -> None:
    width = 3 if wrong is Wrong.ACCEPT_AGAINST_P else 1
    assert law_error(Variant(wrong), Script(5, 2), 1, width) > VISIBLE
    assert law_error(Variant(), Script(5, 2), 1, width) < STORED


def test_the_draft_model_thinks_of_more_than_both_have() -> None:
    """Otherwise nothing above would tell an intersection from a whole vocabulary."""
    assert sorted(WORDS.common) == [0, 1, 2, 3]
    q = drafted(Choices([]), Script(5, 1), 1, 1).q
    assert q is not None
    assert q[0, 4] == 0.0
    assert (q[0, :4] > 0.0).all()
