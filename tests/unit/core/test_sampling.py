"""The pipeline against a brute-force one in plain Python, its edges by hand, and the law of its draws."""

from __future__ import annotations

import math
from collections import Counter
from itertools import permutations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from taslak.core.noise import Stream, noise_key, uniform_at
from taslak.core.sampling import Distribution, Sampling, distribution
from taslak.errors import OptionError, SamplingError

from .reference import adjusted, near_a_cut, reference

VOCAB = 8
QUARTERS = st.integers(-12, 12).map(lambda n: n / 4)
LOGITS = st.lists(QUARTERS | st.just(-math.inf), min_size=VOCAB, max_size=VOCAB)
TIED = st.lists(st.sampled_from([-math.inf, 0.0, 1.0]), min_size=VOCAB, max_size=VOCAB)
ROWS = (LOGITS | TIED).filter(lambda row: max(row) > -math.inf)  # none: an error, below
TOKENS = st.integers(0, VOCAB - 1)


@st.composite
def samplings(draw: st.DrawFn) -> Sampling:
    """Every setting, alone and together; penalties on a grid that float32 holds exactly."""
    return Sampling(
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 0.5, 2.0, 4.0])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, 0.5, -0.25])),
        presence_penalty=draw(st.sampled_from([0.0, 0.0, 1.0, -0.5])),
        no_repeat_ngram=draw(st.sampled_from([0, 0, 1, 2, 3])),
        logit_bias=draw(
            st.dictionaries(TOKENS, st.sampled_from([-200.0, -100.0, -2.5, 1.25, 100.0]), max_size=2)
        ),
        banned=tuple(draw(st.lists(TOKENS, max_size=2))),
        forced=tuple(draw(st.lists(TOKENS, max_size=1))),
        min_tokens=draw(st.sampled_from([0, 0, 2, 5])),
        eos=tuple(draw(st.lists(TOKENS, max_size=2))),
        temperature=draw(st.sampled_from([0.0, 0.3, 0.8, 1.0, 5.0])),
        top_k=draw(st.sampled_from([0, 0, 1, 2, 3, 7, 8, 50])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.9, 0.5, 0.05])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.1, 0.6, 1.0])),
    )


def law(
    logits: list[float], s: Sampling, context: tuple[int, ...] = (0,), prompt: int = 1
) -> dict[int, float]:
    """What the pipeline under test makes of a row."""
    d = distribution(torch.tensor(logits), context, (), prompt, s)
    return dict(zip(d.ids.tolist(), d.softmax().tolist(), strict=True))


@settings(max_examples=400)
@given(
    ROWS,
    samplings(),
    st.lists(TOKENS, min_size=1, max_size=8),
    st.lists(TOKENS, max_size=4),
    st.integers(1, 8),
)
def test_every_setting_equals_the_reference(
    logits: list[float], s: Sampling, committed: list[int], branch: list[int], prompt: int
) -> None:
    prompt = min(prompt, len(committed))
    context = [*committed, *branch]
    assume(not near_a_cut(logits, context, prompt, s))
    row = torch.tensor(logits)
    before = row.clone()
    want = reference(logits, context, prompt, s)
    if not want:
        with pytest.raises(SamplingError):
            distribution(row, committed, branch, prompt, s)
        return
    got = distribution(row, committed, branch, prompt, s)
    assert torch.equal(row, before)
    assert got.ids.tolist() == sorted(want)
    assert got.softmax().tolist() == pytest.approx([want[t] for t in sorted(want)], abs=1e-12)
    assert got.probabilities(VOCAB).tolist() == pytest.approx(
        [want.get(t, 0.0) for t in range(VOCAB)], abs=1e-12
    )
    assert bool(got.z.isfinite().all())


@settings(max_examples=100)
@given(ROWS, samplings(), st.integers(0, 2**64 - 1), st.integers(0, 1000))
def test_a_draw_is_the_largest_of_z_plus_noise(
    logits: list[float], s: Sampling, key: int, position: int
) -> None:
    assume(reference(logits, [0], 1, s) and not near_a_cut(logits, [0], 1, s))
    left, kept = adjusted(logits, [0], 1, s), reference(logits, [0], 1, s)
    scores = {
        t: left[t] / max(s.temperature, 1.0 if s.greedy else 0.0) - math.log(-math.log(u))
        for t in kept
        if (u := max(uniform_at(key, Stream.TOKEN, position, t), 2.0**-54))
    }
    want = max(scores, key=lambda t: scores[t])
    assert distribution(torch.tensor(logits), [0], [], 1, s).draw(key, Stream.TOKEN, position) == want


# --- by hand ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1e-9, 1e-6, 9.99e-6])
def test_c13_tiny_temperatures_are_greedy(temperature: float) -> None:
    for scale in (1.0, 1e30, 1e-30):
        row = [x * scale for x in (0.5, 2.0, -1.0, 2.0)]
        assert law(row, Sampling(temperature=temperature)) == {1: 1.0}  # the lower id of the tie
    assert Sampling(temperature=temperature).greedy


def test_c13_the_coldest_sampled_temperature_neither_overflows_nor_ties() -> None:
    s = Sampling(temperature=1e-5)
    assert not s.greedy
    d = distribution(torch.tensor([3e38, -3e38, 3.1e38]), [0], [], 1, s)
    assert bool(d.z.isfinite().all())
    assert d.draw(1, Stream.TOKEN, 0) == 2
    assert d.probabilities(3).tolist() == [0.0, 0.0, 1.0]


def test_c13_the_hottest_temperature_is_uniform() -> None:
    assert law([5.0, -5.0], Sampling(temperature=1e300)) == pytest.approx({0: 0.5, 1: 0.5})


def test_ties_go_to_the_lower_id_everywhere() -> None:
    flat = [1.0] * 6
    assert sorted(law(flat, Sampling(temperature=1.0, top_k=2))) == [0, 1]
    assert sorted(law(flat, Sampling(temperature=1.0, top_p=0.5))) == [0, 1, 2]
    assert sorted(law([0.0, 1.0, 0.0, 1.0, 0.0, 0.0], Sampling(temperature=1.0, top_k=4))) == [0, 1, 2, 3]
    assert law([-0.0, 0.0], Sampling()) == {0: 1.0}
    assert sorted(law([-0.0, 0.0, -0.0], Sampling(temperature=1.0, top_k=2))) == [0, 1]


def test_greedy_ties_in_a_wide_row() -> None:
    row = torch.zeros(152_064)
    row[[70_001, 151_000, 70_002]] = 9.0
    assert distribution(row, [0], [], 1, Sampling()).ids.tolist() == [70_001]


def test_the_token_that_crosses_top_p_is_kept() -> None:
    row = [math.log(p) for p in (0.5, 0.3, 0.2)]
    for top_p, kept in [(0.49, 1), (0.5001, 2), (0.79, 2), (0.81, 3), (1e-9, 1), (0.999999, 3)]:
        assert len(law(row, Sampling(temperature=1.0, top_p=top_p))) == kept, top_p
    assert sorted(law([0.0] * 4, Sampling(temperature=1.0, top_p=0.5))) == [0, 1]  # reached exactly


def test_cuts_renormalise_one_after_the_other() -> None:
    row = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    # of {0.4, 0.3} the first is 0.571: top_p 0.55 keeps it alone, over all four it would keep two
    assert sorted(law(row, Sampling(temperature=1.0, top_k=2, top_p=0.55))) == [0]
    assert sorted(law(row, Sampling(temperature=1.0, top_p=0.55))) == [0, 1]
    # top-p works on tempered probabilities, and so does min-p
    assert sorted(law(row, Sampling(temperature=0.25, top_p=0.55))) == [0]
    assert sorted(law(row, Sampling(temperature=1.0, min_p=0.6))) == [0, 1]
    assert sorted(law(row, Sampling(temperature=0.25, min_p=0.6))) == [0]
    assert law(row, Sampling(temperature=1.0, min_p=0.6)) == pytest.approx({0: 4 / 7, 1: 3 / 7})


def test_min_p_of_one_keeps_the_largest_and_its_ties() -> None:
    assert sorted(law([2.0, 1.0, 2.0], Sampling(temperature=0.7, min_p=1.0))) == [0, 2]


@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0, 4.0])
@pytest.mark.parametrize("top_p", [0.1, 0.9, 0.999])
def test_the_quick_nucleus_equals_the_full_sort(spread: float, top_p: float) -> None:
    generator = torch.Generator().manual_seed(0)
    row = (torch.randn(40_000, generator=generator) * spread * 8).round() / 8  # many ties
    s = Sampling(temperature=1.0, top_p=top_p)
    quick = distribution(row, [0], [], 1, s)
    p = torch.softmax(row.double(), 0)
    order = sorted(range(len(row)), key=lambda t: (-float(row[t]), t))
    mass = p[order].cumsum(0)
    fewest = int((mass < top_p).sum()) + 1
    assert quick.ids.tolist() == sorted(order[:fewest])


@settings(max_examples=60)
@given(
    st.integers(0, 2**31),
    st.sampled_from([0.01, 1.0, 20.0, 1e4, 1e30]),
    st.sampled_from([1e-5, 0.1, 1.0, 7.0, 1e30]),
    st.sampled_from([1e-9, 0.02, 0.5, 1.0]),
    st.booleans(),
)
def test_what_min_p_drops_in_float32_float64_would_drop_too(
    seed: int, spread: float, temperature: float, min_p: float, shifted: bool
) -> None:
    row = torch.randn(5000, generator=torch.Generator().manual_seed(seed)) * spread + shifted * 1e3
    row[:100] = -math.inf
    d = distribution(row, [0], [], 1, Sampling(temperature=temperature, min_p=min_p))
    z = (row.double() - row.double().max()) / temperature
    assert torch.equal(d.ids, (z >= math.log(min_p)).nonzero()[:, 0])
    assert torch.equal(d.z, z[d.ids])


def test_a_nucleus_is_a_run_of_the_largest_even_where_rounding_is_larger_than_a_token() -> None:
    tail = [-36.5 - i / 512 for i in range(600)]  # each less than the last bit of the running sum
    row = [0.0, *tail]
    kept = sorted(law(row, Sampling(temperature=1.0, top_p=1.0 - 2**-53)))
    assert kept == list(range(len(kept)))


def test_c10_minus_100_never_appears_and_plus_100_always() -> None:
    row = [9.0, 0.0, -9.0, 1.0]
    for bias in (-100.0, -1000.0, -math.inf):
        for s in (Sampling(logit_bias={0: bias}), Sampling(logit_bias={0: bias}, temperature=5.0)):
            assert 0 not in law(row, s)
    for bias in (100.0, 1e6):
        for s in (Sampling(logit_bias={2: bias}), Sampling(logit_bias={2: bias}, temperature=5.0)):
            assert law(row, s) == {2: 1.0}
    assert 0 in law(row, Sampling(logit_bias={0: -99.0}, temperature=1.0))
    assert len(law(row, Sampling(logit_bias={2: 99.0}, temperature=1.0))) == 4
    assert sorted(law(row, Sampling(logit_bias={1: 100.0, 3: 100.0, 0: 50.0}, temperature=1.0))) == [1, 3]


def test_bans_beat_forces() -> None:
    with pytest.raises(SamplingError, match="every token is banned"):
        law([0.0, 1.0], Sampling(logit_bias={1: 100.0}, banned=(1,)))


def test_c11_penalties_read_the_history_and_the_branch() -> None:
    row = torch.tensor([4.0, 3.0, -2.0, 1.0])
    s = Sampling(repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25, temperature=1.0)
    d = distribution(row, [0, 1], [2, 2], 1, s)  # prompt 0; answer 1, then 2 and 2 on the branch
    logits = [2.0, 1.5 - 0.75, -4.0 - 1.25, 1.0]
    assert d.softmax().tolist() == pytest.approx(torch.tensor(logits).double().softmax(0).tolist(), abs=1e-12)
    undone = distribution(row, [0, 1], [], 1, s)  # the branch was rejected: nothing of it is left
    logits = [2.0, 1.5 - 0.75, -2.0, 1.0]
    assert undone.softmax().tolist() == pytest.approx(
        torch.tensor(logits).double().softmax(0).tolist(), abs=1e-12
    )


def test_c11_a_branch_counts_as_if_it_had_been_committed() -> None:
    row = torch.tensor([0.0, 0.25, 0.5, 0.75])
    s = Sampling(
        repetition_penalty=1.3,
        frequency_penalty=0.2,
        no_repeat_ngram=2,
        temperature=1.0,
        forced=(1,),
        min_tokens=4,
    )
    for split in range(1, 6):
        tokens = [0, 1, 2, 0, 1]
        d = distribution(row, tokens[:split], tokens[split:], 1, s)
        whole = distribution(row, tokens, [], 1, s)
        assert torch.equal(d.ids, whole.ids)
        assert torch.equal(d.z, whole.z)


def test_c11_ngrams_reach_over_the_seam_between_history_and_branch() -> None:
    flat = torch.zeros(4)
    s = Sampling(no_repeat_ngram=3, temperature=1.0)
    assert distribution(flat, [1, 2, 3, 1], [2], 1, s).ids.tolist() == [0, 1, 2]
    assert distribution(flat, [1, 2, 3, 1], [], 1, s).ids.tolist() == [0, 1, 2, 3]
    assert distribution(flat, [1], [], 1, s).ids.tolist() == [0, 1, 2, 3]
    assert distribution(flat, [1, 2], [], 1, Sampling(no_repeat_ngram=1, temperature=1.0)).ids.tolist() == [
        0,
        3,
    ]


def test_a_prompt_counts_for_repetition_only() -> None:
    row = [1.0, 1.0]
    assert law(row, Sampling(frequency_penalty=2.0, presence_penalty=2.0), (0, 0), 2) == {0: 1.0}
    assert law(row, Sampling(repetition_penalty=2.0), (0, 0), 2) == {1: 1.0}
    assert law(row, Sampling(frequency_penalty=2.0), (1, 0), 1) == {1: 1.0}


def test_penalties_of_an_empty_context() -> None:
    s = Sampling(repetition_penalty=2.0, frequency_penalty=1.0, no_repeat_ngram=1)
    assert law([1.0, 2.0], s, (), 0) == {1: 1.0}


def test_forced_tokens_come_first_whatever_the_logits() -> None:
    row = torch.tensor([-math.inf, 0.0, 5.0])
    s = Sampling(forced=(0, 1), banned=(0,), temperature=1.0)
    assert distribution(row, [9], [], 1, s).ids.tolist() == [0]
    assert distribution(row, [9], [0], 1, s).ids.tolist() == [1]
    assert distribution(row, [9, 0], [1], 1, s).ids.tolist() == [1, 2]


def test_min_tokens_count_the_branch() -> None:
    row = torch.tensor([9.0, 0.0])
    s = Sampling(min_tokens=2, eos=(0,))
    assert distribution(row, [5], [], 1, s).ids.tolist() == [1]
    assert distribution(row, [5], [1], 1, s).ids.tolist() == [1]
    assert distribution(row, [5], [1, 1], 1, s).ids.tolist() == [0]
    assert distribution(row, [5, 1], [1], 1, s).ids.tolist() == [0]


SOME = {
    "greedy": Sampling(),
    "sampled": Sampling(temperature=1.0),
    "top-p": Sampling(temperature=1.0, top_k=2, top_p=0.9, min_p=0.1),
    "ban": Sampling(banned=(0,)),
    "force": Sampling(logit_bias={1: 100.0}),
    "forced": Sampling(forced=(1,)),
    "penalties": Sampling(repetition_penalty=1.2, no_repeat_ngram=1),
}


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_row_that_is_no_row_fails(name: str, value: float, at: int) -> None:
    row = [0.0, 1.0, 2.0]
    row[at] = value
    with pytest.raises(SamplingError, match="the logits hold"):
        law(row, SOME[name])


@pytest.mark.parametrize("name", SOME)
def test_a_row_of_nothing_fails(name: str) -> None:
    with pytest.raises(SamplingError, match="no token can be chosen"):
        law([-math.inf] * 3, SOME[name])


def test_all_banned_fails() -> None:
    for s in (
        Sampling(banned=(0, 1)),
        Sampling(logit_bias={0: -100.0, 1: -100.0}),
        Sampling(min_tokens=1, eos=(0, 1), temperature=1.0),
    ):
        with pytest.raises(SamplingError, match="every token is banned"):
            law([0.0, 1.0], s)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_the_row_is_never_modified(dtype: torch.dtype) -> None:
    for s in SOME.values():
        row = torch.tensor([0.5, 1.0, 2.0], dtype=dtype)
        distribution(row, [2], [], 1, s).draw(1, Stream.TOKEN, 0)
        assert row.tolist() == [0.5, 1.0, 2.0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.01},
        {"top_p": math.nan},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": -1.0},
        {"frequency_penalty": math.inf},
        {"presence_penalty": math.nan},
        {"no_repeat_ngram": -1},
        {"min_tokens": -1},
        {"logit_bias": {3: math.nan}},
        {"logit_bias": {3: math.inf}},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    (name,) = wrong
    with pytest.raises(OptionError, match=f"{name}.* is .*expected"):
        Sampling(**wrong)  # type: ignore[arg-type]


def test_the_edges_of_the_ranges_are_legal() -> None:
    Sampling(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)
    Sampling(temperature=1e300, top_k=10**9, top_p=1e-9, min_p=1.0, logit_bias={0: -math.inf})
    assert Sampling() == Sampling(temperature=0.0)
    assert not Sampling().penalised


# --- draws -----------------------------------------------------------------------------------------------

DRAWS = 20_000
WEIGHTS = [0.4, 0.25, 0.2, 0.1, 0.05]
FIVE = Distribution(torch.tensor([0, 3, 4, 7, 9]), torch.tensor(WEIGHTS, dtype=torch.float64).log() + 5.0)


@pytest.mark.parametrize("over", ["seeds", "positions"])
def test_draws_are_distributed_as_p(over: str) -> None:
    counts = Counter(
        FIVE.draw(noise_key(i), Stream.TOKEN, 3) if over == "seeds" else FIVE.draw(1, Stream.TOKEN, i)
        for i in range(DRAWS)
    )
    seen = [counts[t] for t in FIVE.ids.tolist()]
    assert stats.chisquare(seen, [w * DRAWS for w in WEIGHTS]).pvalue > 1e-4
    # power: a law off by 5 % of itself (Cohen's w) is seen with near certainty
    assert stats.ncx2.sf(stats.chi2.isf(1e-4, 4), 4, DRAWS * 0.05**2) > 0.98


def test_top_is_drawing_without_replacement() -> None:
    counts = Counter(tuple(FIVE.top(2, 2, Stream.DRAFT, i)[0]) for i in range(DRAWS))
    ids = FIVE.ids.tolist()
    pairs = {
        (ids[a], ids[b]): WEIGHTS[a] * WEIGHTS[b] / (1 - WEIGHTS[a]) for a, b in permutations(range(5), 2)
    }
    assert set(counts) <= set(pairs)
    assert sum(pairs.values()) == pytest.approx(1.0)
    seen, expected = zip(*((counts[pair], mass * DRAWS) for pair, mass in pairs.items()), strict=True)
    assert stats.chisquare(seen, expected).pvalue > 1e-4


@given(ROWS, st.integers(0, 2**64 - 1), st.integers(1, VOCAB + 2))
def test_the_first_of_top_is_the_draw(logits: list[float], key: int, k: int) -> None:
    d = distribution(torch.tensor(logits), [0], [], 1, Sampling(temperature=1.0))
    top, scores = d.top(k, key, Stream.TOKEN, 5)
    assert top[0] == d.draw(key, Stream.TOKEN, 5)
    assert len(top) == len(set(top)) == len(scores) == min(k, d.ids.numel())
    assert scores == sorted(scores, reverse=True)
    left = d
    for token in top:  # each is the draw from what the earlier ones left
        assert left.draw(key, Stream.TOKEN, 5) == token
        rest = left.ids != token
        left = Distribution(left.ids[rest], left.z[rest])
    assert d.top(0, key, Stream.TOKEN, 5) == ([], [])


def test_a_single_token_needs_no_noise() -> None:
    one = Distribution(torch.tensor([6]), torch.zeros(1, dtype=torch.float64))
    assert one.draw(1, Stream.TOKEN, 0) == 6
    assert one.top(3, 1, Stream.TOKEN, 0)[0] == [6]


def test_a_tokens_noise_is_addressed_by_its_id_not_its_place() -> None:
    """Cutting the support must not reshuffle the draw: the winner among all wins among fewer."""
    full = Distribution(torch.arange(50), torch.zeros(50, dtype=torch.float64))
    for position in range(50):
        winner = full.draw(3, Stream.TOKEN, position)
        ids = torch.tensor(sorted({winner, 1, 17, 40, 49}))
        assert (
            Distribution(ids, torch.zeros(len(ids), dtype=torch.float64)).draw(3, Stream.TOKEN, position)
            == winner
        )


def test_weights_become_a_distribution_on_their_support() -> None:
    d = Distribution.of_weights(torch.tensor([0.0, 3.0, 0.0, 1.0], dtype=torch.float64))
    assert d.ids.tolist() == [1, 3]
    assert d.probabilities(4).tolist() == pytest.approx([0.0, 0.75, 0.0, 0.25])
