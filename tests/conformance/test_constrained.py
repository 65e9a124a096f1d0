"""Every registered drafter under a constraint: the text of plain decoding, or its distribution."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
import torch
from scipy.stats import chisquare

from taslak import native
from taslak.core.draft import Draft
from taslak.drafters.base import REGISTRY, Budget, Drafter, DrafterOptions, View, build
from taslak.engine.sequence import Request
from taslak.models.decoder import Decoder
from taslak.models.native_ops import pack_weights
from taslak.models.target import chain_rows
from tests.support.constraints import ENDS, PERSON, Spelling, States, grammars
from tests.support.decoding import decode, plain, request
from tests.support.heads import head_for
from tests.support.registry import METHODS, MODES, SEVERAL, TARGET, drafter, drafters
from tests.support.tiny import near_model, random_weights, tiny_config, tiny_model

PROMPT = '{"name": "ab", "age": 10, "tags": [true]} {"name": "abc", "age": 11, "tags": ['
GIVEN = (
    {"json_schema": PERSON},
    {"json_schema": True},
    {"regex": r"(ab|true)+( [a-f]{2,5}){3,}10"},
    {"grammar": 'start: "{" item* "}"\nitem: /[a-f]+/ ":" /[0-9]{1,3}/ ","?'},
)
SAMPLED = {"temperature": 1.0, "top_p": 0.97, "repetition_penalty": 1.1}


def requests(**options: object) -> list[Request]:
    ids = Spelling().encode(PROMPT)
    return [request(ids, constraint=grammars().of(**given), eos=ENDS, **options) for given in GIVEN]  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", ["greedy", "sampled"])
@pytest.mark.parametrize(("name", "branch", "tree"), MODES + SEVERAL)
def test_coupled_text_is_plain_text(name: str, branch: int, tree: str, temperature: str) -> None:
    asked = requests(**(SAMPLED if temperature == "sampled" else {}))
    expected = plain(TARGET, asked)
    for gamma in (1, 4, 16):
        got = decode(TARGET, drafters(name, branch, tree=tree), asked, gamma=gamma, branch=branch)
        assert [(a.ids, a.finish_reason) for a in got] == [(a.ids, a.finish_reason) for a in expected]
        assert all(a.dropped == 0 for a in got)
        assert all(a.counts.emitted == len(a.ids) for a in got)
    for one, answer in zip(asked, expected, strict=True):
        kept = [token for token in answer.ids if token not in ENDS]
        assert one.sampling.constraint is not None
        assert one.sampling.constraint.matcher().admits(kept)


@pytest.mark.parametrize(("name", "branch", "tree"), MODES)
def test_rejection_at_temperature_zero_is_greedy(name: str, branch: int, tree: str) -> None:
    asked = requests(verify="rejection")
    got = decode(TARGET, drafters(name, branch, tree=tree), asked, branch=branch)
    assert [a.ids for a in got] == [a.ids for a in plain(TARGET, asked)]
    assert all(a.dropped == 0 for a in got)


class Noted:
    """A drafter whose drafts are looked at before the engine sees them."""

    def __init__(self, inner: Drafter) -> None:
        self._inner = inner
        self.nodes = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def propose(self, views: Sequence[View], budgets: Sequence[Budget]) -> list[Draft]:
        drafts = self._inner.propose(views, budgets)
        for view, draft in zip(views, drafts, strict=True):
            assert all(view.admits(draft.branch(node)) for node in range(len(draft)))
            self.nodes += len(draft)
        return drafts


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 1.0}, {"temperature": 1.0, "verify": "rejection"}], ids=str
)
@pytest.mark.parametrize(
    ("name", "branch", "tree"), [mode for mode in MODES if not REGISTRY[str(mode.values[0])].looks_up]
)
def test_what_models_and_heads_draft_keeps_to_it(
    name: str, branch: int, tree: str, options: dict[str, object]
) -> None:
    """Drawn nodes can't be dropped for what they are: they must come from what is allowed."""
    noted = Noted(drafter(name, branch, tree=tree))
    answers = decode(TARGET, noted, requests(**options), gamma=4, branch=branch)  # type: ignore[arg-type]
    assert all(a.dropped == 0 for a in answers)
    assert noted.nodes > 50


@pytest.mark.parametrize("name", [name for name in METHODS if REGISTRY[name].needs_head])
def test_heads_of_a_reduced_vocabulary_beside_native_targets(name: str) -> None:
    """A mask is by the target's ids, whatever the head numbers its own by."""
    if not native.available():
        pytest.skip("no native kernels here")
    config = tiny_config(inner_size=64)
    target = Decoder(config, pack_weights(config, random_weights(config, 1), "bfloat16"))
    head = head_for(name, target, draft_ids=None if name == "early-exit" else list(range(0, 61, 2)))
    asked = [*requests(), *requests(temperature=0.9)]
    expected = plain(target, asked)
    for branch, tree in ((1, "static"), (3, "static"), (3, "dynamic")):
        method = build(name, target, DrafterOptions(head=head, branch=branch, tree=tree))
        got = decode(target, method, asked, gamma=4, branch=branch)
        assert [a.ids for a in got] == [a.ids for a in expected]
        assert all(a.dropped == 0 for a in got)
        assert any(a.counts.drafted for a in got)


# -- rejection: the law of whole answers, counted against the target's own under the mask, enumerated --------

SMALL = {"vocab_size": 6, "layers": 2}
LAW_TARGET = tiny_model(6, exact=False, **SMALL)  # type: ignore[arg-type]
LAW_DRAFT = near_model(6, noise=0.4, exact=False, **SMALL)
LAW_PROMPT = [1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2]
END = 5
STATES = ({3: 1, 1: 2, 4: 1}, {1: 2, 2: 2}, {2: 3, 3: 3, 0: 1, 4: 3}, {1: 4, 0: 4, 2: 4}, {})
LAW_CONSTRAINT = States(6, STATES, ends=(2, 4))
"""Two to four tokens, with an end that is free to come early and one that must."""
LAW_SETTINGS = {"temperature": 1.3, "top_k": 3}
LAW_RUNS = 1500
LAW_LENGTH = 4


@cache
def enumerated_law() -> dict[tuple[int, ...], float]:
    """P(answer), from the target's logits; mask, top-k and softmax written out anew."""
    law: dict[tuple[int, ...], float] = {}

    def go_on(path: tuple[int, ...], state: int, mass: float) -> None:
        if len(path) == LAW_LENGTH or (path and path[-1] == END) or not STATES[state]:
            law[path] = mass
            return
        cache = LAW_TARGET.allocate(64)
        logits = LAW_TARGET.forward([chain_rows(cache, [*LAW_PROMPT, *path], 1)]).logits[0].double()
        cache.release()
        may = [*STATES[state], *([END] if state in (2, 4) else [])]
        kept = sorted(may, key=lambda token: -float(logits[token]))[:3]
        shares = torch.softmax(logits[kept] / 1.3, dim=0).tolist()
        for token, share in zip(kept, shares, strict=True):
            go_on((*path, token), STATES[state].get(token, -1), mass * share)

    go_on((), 0, 1.0)
    return law


def fits(law: dict[tuple[int, ...], float], answers: list[tuple[int, ...]]) -> float:
    """p-value of the answers under the law; rare ones are pooled."""
    if not set(answers) <= set(law):
        return 0.0
    n = len(answers)
    usual = [path for path, p in law.items() if p * n >= 5]
    observed = [answers.count(path) for path in usual]
    expected = [law[path] * n for path in usual]
    if n - sum(expected) >= 5:
        observed, expected = [*observed, n - sum(observed)], [*expected, n - sum(expected)]
    scale = sum(observed) / sum(expected)
    return float(chisquare(observed, [e * scale for e in expected], sum_check=False).pvalue)


def law_requests(**changes: object) -> list[Request]:
    options = {
        **LAW_SETTINGS,
        "constraint": LAW_CONSTRAINT,
        "max_tokens": LAW_LENGTH,
        "eos": (END,),
        **changes,
    }
    return [request(LAW_PROMPT, choice=choice, **options) for choice in range(LAW_RUNS)]


@pytest.mark.parametrize(("name", "branch", "tree"), MODES + SEVERAL)
def test_rejection_has_the_targets_distribution(name: str, branch: int, tree: str) -> None:
    method = drafters(name, branch, LAW_TARGET, LAW_DRAFT, tree)
    answers = decode(LAW_TARGET, method, law_requests(verify="rejection"), gamma=4, branch=branch)
    assert sum(a.counts.accepted for a in answers) > LAW_RUNS / 20, "nothing was accepted: nothing was tested"
    assert sum(a.dropped for a in answers) == 0
    assert fits(enumerated_law(), [a.ids for a in answers]) > 1e-4


def test_the_law_catches_a_wrong_distribution() -> None:
    law = enumerated_law()
    assert sum(law.values()) == pytest.approx(1.0)
    assert fits(law, [a.ids for a in decode(LAW_TARGET, None, law_requests())]) > 1e-4
    for wrong in ({"temperature": 1.0}, {"top_k": 2}, {"constraint": States(6, STATES, ends=(4,))}):
        assert fits(law, [a.ids for a in decode(LAW_TARGET, None, law_requests(**wrong))]) < 1e-6


def test_answers_are_of_every_length_the_states_know() -> None:
    """The law above would hold of nothing if all answers were cut off, or none."""
    answers = decode(LAW_TARGET, None, law_requests()[:200])
    assert {len(a.ids) for a in answers} >= {2, 3, 4}
    assert {a.finish_reason for a in answers} == {"stop", "length"}
