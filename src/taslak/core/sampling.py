"""The one sampling pipeline: from a logits row to the distribution `p`, and the one draw from it.

`p` is a pure function of (logits row, committed tokens + the node's ancestors, prompt length, settings).
Target and drafters use the same code. Greedy is not a special case: it is the distribution on one token.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from taslak.core.constraint import Constraint, Matcher
from taslak.core.noise import Stream, address, gumbel
from taslak.errors import NothingToChoose, OptionError, SamplingError

GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy: dividing by them would only overflow."""

RowDraw = Callable[[Tensor, float, int, int, Tensor | None], tuple[list[int], list[float]]]
"""(logits, temperature, noise address, k, ids) -> the k largest of (logits − max) / temperature + noise, best
first, the lower id on ties, and these sums; at temperature 0 of the logits alone. For kernels that list no
support; the ids are the same. logits: Float32[V] on the CPU; ids: Int64[V], the token of each, ascending,
None = logit i is token i's. Raises ValueError where they hold a NaN or +inf, or nothing above −inf."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. Applied in the order of the fields; the defaults are greedy.

    repetition_penalty  over prompt and answer: positive logits are divided, others multiplied (CTRL, Keskar
                        et al. 2019); 1 = off
    frequency_penalty   subtracted once for each occurrence in the answer; 0 = off
    presence_penalty    subtracted once if the token occurs in the answer; 0 = off
    no_repeat_ngram     no n-gram of this length occurs twice in prompt and answer; 0 = off
    logit_bias          token id -> added to its logit; −100 or less bans it, 100 or more forces it
    banned              token ids never chosen
    forced              the answer's first tokens, whatever the logits
    min_tokens, eos     before this many answer tokens none of `eos` is chosen
    constraint          what the answer may say, stronger than all of the above: nothing else is ever chosen,
                        and a bias forces none that it forbids; None = anything
    temperature         divides the logits; under 1e-5 greedy
    top_k               keep the k largest; 0 = off
    top_p               keep the smallest set of largest tokens with at least this probability; 1 = off
    min_p               keep tokens with at least this share of the largest probability; 0 = off

    Cuts break ties by (logit descending, id ascending). Raises OptionError for values out of range.
    """

    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    no_repeat_ngram: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    banned: tuple[int, ...] = ()
    forced: tuple[int, ...] = ()
    min_tokens: int = 0
    eos: tuple[int, ...] = ()
    constraint: Constraint | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("temperature", self.temperature, 0.0, math.inf),
            ("repetition_penalty", self.repetition_penalty, 1e-6, math.inf),
            ("frequency_penalty", self.frequency_penalty, -math.inf, math.inf),
            ("presence_penalty", self.presence_penalty, -math.inf, math.inf),
            ("no_repeat_ngram", self.no_repeat_ngram, 0, math.inf),
            ("min_tokens", self.min_tokens, 0, math.inf),
            ("top_k", self.top_k, 0, math.inf),
            ("top_p", self.top_p, 1e-9, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
        ):
            if not math.isfinite(value) or not low <= value <= high:
                most = "" if high == math.inf else f" and at most {high:g}"
                least = "" if low == -math.inf else f" of at least {low:g}"
                raise OptionError(f"{name} is {value}; expected a number{least}{most}")
        for name in ("no_repeat_ngram", "min_tokens", "top_k"):
            if not isinstance(getattr(self, name), int):
                raise OptionError(f"{name} is {getattr(self, name)!r}; expected a whole number")
        for token, bias in self.logit_bias.items():
            if math.isnan(bias) or bias == math.inf:
                raise OptionError(f"logit_bias of token {token} is {bias}; expected a number, 100 forces")

    @property
    def greedy(self) -> bool:
        """Whether every draw is the largest logit."""
        return self.temperature < GREEDY_BELOW

    @property
    def cut(self) -> bool:
        """Whether unlikely tokens are left out."""
        return bool(self.top_k or self.top_p < 1.0 or self.min_p)

    @property
    def penalised(self) -> bool:
        """Whether a row depends on the tokens before it."""
        return (
            self.repetition_penalty != 1.0
            or self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
            or self.no_repeat_ngram > 0
        )


class Distribution:
    """A next-token distribution on its support.

    ids: Int64[S] token ids, ascending and distinct
    z:   Float64[S] unnormalised log-probabilities, finite
    """

    def __init__(self, ids: Tensor, z: Tensor) -> None:
        self._support = (ids, z)

    @property
    def ids(self) -> Tensor:
        return self._support[0]

    @property
    def z(self) -> Tensor:
        return self._support[1]

    def draw(self, key: int, stream: Stream, position: int) -> int:
        """argmax(z + Gumbel noise): one exact sample (Gumbel-max); the lowest id on ties."""
        if self.ids.numel() == 1:
            return int(self.ids)
        return int(self.ids[torch.argmax(self.z + gumbel(key, stream, position, self.ids))])

    def top(self, k: int, key: int, stream: Stream, position: int) -> tuple[list[int], list[float]]:
        """The ids with the k largest of z + noise, largest first, and these sums: k draws without replacement
        (Gumbel-top-k, Kool et al. 2019); the first is `draw`. Fewer where the support is smaller."""
        noisy = self.z + gumbel(key, stream, position, self.ids)
        largest = _largest(noisy, min(k, noisy.numel()))
        best = torch.sort(noisy[largest], descending=True, stable=True)
        return self.ids[largest[best.indices]].tolist(), best.values.tolist()

    def renamed(self, ids: Tensor) -> Distribution:
        """Of the tokens `ids`, Int64[V], ascending, where this one is of 0 … V − 1."""
        return Distribution(ids[self.ids], self.z)

    def storable(self) -> Distribution:
        """Without the tokens a float32 row can't hold the probability of to full precision: a second sibling
        drawn from a sharp distribution may be one. Who draws for a draft's q draws from this."""
        keep = self.softmax() > 1e-30
        return self if bool(keep.all()) else Distribution(self.ids[keep], self.z[keep])

    def probabilities(self, vocab_size: int) -> Tensor:
        """Float64[V], zero outside the support, summing to one."""
        p = torch.zeros(vocab_size, dtype=torch.float64, device=self.z.device)
        return p.index_put_((self.ids,), self.softmax())

    def softmax(self) -> Tensor:
        """Float64[S] probabilities on the support."""
        return torch.softmax(self.z[None], dim=-1)[0]

    @classmethod
    def of_weights(cls, weights: Tensor) -> Distribution:
        """From non-negative weights, Float64[V], not all zero."""
        ids = weights.nonzero()[:, 0]
        return cls(ids=ids, z=weights[ids].log())


class _Certain(Distribution):
    """All on one token; tensors are made only when somebody asks for them."""

    def __init__(self, token: int, device: torch.device) -> None:
        self._token, self._device = token, device

    @cached_property
    def _support(self) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        ids = torch.tensor([self._token], device=self._device)
        return ids, torch.zeros(1, dtype=torch.float64, device=self._device)

    def draw(self, key: int, stream: Stream, position: int) -> int:
        del key, stream, position  # no noise can move it
        return self._token


class _WholeRow(Distribution):
    """An uncut row, drawn from by a kernel; its support is listed only when somebody asks for it. Looked at
    once, by whoever uses it first: that raises SamplingError for a row nothing can be drawn from."""

    def __init__(self, row: Tensor, temperature: float, draw: RowDraw, ids: Tensor | None = None) -> None:
        self._row, self._temperature, self._draw, self._ids = row, temperature, draw, ids

    @cached_property
    def _support(self) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        largest = float(self._row.max())
        _check(largest)
        ids, z = _listed(self._row, largest, self._temperature)
        return ids if self._ids is None else self._ids[ids], z

    def draw(self, key: int, stream: Stream, position: int) -> int:
        return self.top(1, key, stream, position)[0][0]

    def top(self, k: int, key: int, stream: Stream, position: int) -> tuple[list[int], list[float]]:
        try:
            return self._draw(self._row, self._temperature, address(key, stream, position), k, self._ids)
        except ValueError as error:
            raise _refused(str(error)) from error

    def renamed(self, ids: Tensor) -> Distribution:
        return _WholeRow(self._row, self._temperature, self._draw, ids)


def distribution(
    logits: Tensor,
    committed: Sequence[int],
    branch: Sequence[int],
    prompt_length: int,
    sampling: Sampling,
    draw: RowDraw | None = None,
    matcher: Matcher | None = None,
) -> Distribution:
    """The distribution `p` of the token after (committed + branch).

    logits:         Float[V], one row; not modified
    committed:      prompt and answer so far, the last committed token included
    branch:         the draft tokens between the last committed token and this row, this row's included
    prompt_length:  how many of `committed` are prompt
    draw:           draws from rows that no cut applies to, where PyTorch's way is too slow; rows on the CPU
    matcher:        the constraint's, at hand where an answer is followed; None = a new one, the same p

    Raises SamplingError if the row holds a NaN or +inf (where `draw` serves, whoever uses the distribution
    first gets it), and NothingToChoose if the settings leave no token.
    """
    row = logits.float()
    answered = len(committed) - prompt_length + len(branch)  # answer tokens before the one chosen here
    bans = sampling.banned + (sampling.eos if answered < sampling.min_tokens else ())
    constrained = sampling.constraint is not None
    if constrained or sampling.forced or sampling.penalised or sampling.logit_bias or bans:
        _check(float(row.max()))  # before a ban can hide a NaN
    mask = allowed_after([*committed[prompt_length:], *branch], sampling, matcher)
    if answered < len(sampling.forced):
        forced = sampling.forced[answered]
        if mask is not None and not mask[forced]:
            raise _refused(f"token {forced} is forced and the constraint forbids it", NothingToChoose)
        return _Certain(forced, row.device)
    if sampling.penalised:
        row = _penalise(row, [*committed, *branch], prompt_length, sampling)
    if sampling.logit_bias or bans:
        row = _bias(row, sampling.logit_bias, bans, mask)
    if mask is not None:
        row = row.masked_fill(~mask.to(row.device), -math.inf)
    if (mask is not None or sampling.logit_bias or bans) and float(row.max()) == -math.inf:
        raise _refused("every token is banned", NothingToChoose)
    if draw is not None and sampling.greedy:
        return _Certain(_WholeRow(row, 0.0, draw).draw(0, Stream.TOKEN, 0), row.device)
    if draw is not None and not sampling.cut:
        return _WholeRow(row, sampling.temperature, draw)
    best, index = torch.max(row, dim=-1)
    largest = float(best)
    _check(largest)
    if sampling.greedy:
        return _Certain(int(index), row.device)
    return Distribution(*_cut(row, largest, sampling))


def allowed_after(answer: Sequence[int], sampling: Sampling, matcher: Matcher | None = None) -> Tensor | None:
    """Bool[V] what the constraint lets come after these tokens of the answer, ends included; None without
    one. matcher: as for `distribution`. Raises SamplingError where that is nothing."""
    if sampling.constraint is None:
        return None
    mask = (matcher or sampling.constraint.matcher()).allowed(answer).mask(sampling.eos)
    if not mask.any():
        raise _refused("the constraint leaves none", NothingToChoose)
    return mask


def _check(largest: float) -> None:
    if not math.isfinite(largest):  # max() hands a NaN on, so one look at the largest finds it
        raise _refused("every token is banned" if largest == -math.inf else f"the logits hold {largest}")


def _refused(why: str, kind: type[SamplingError] = SamplingError) -> SamplingError:
    return kind(f"no token can be chosen: {why}")


def _penalise(row: Tensor, context: Sequence[int], prompt_length: int, sampling: Sampling) -> Tensor:
    """Penalties by what stands before the row. row: [V] -> [V]."""
    row = row.clone()
    if sampling.repetition_penalty != 1.0:
        seen = torch.tensor(sorted(set(context)), dtype=torch.int64, device=row.device)
        old = row[seen]
        r = sampling.repetition_penalty
        row[seen] = torch.where(old > 0, old / r, old * r)
    if sampling.frequency_penalty or sampling.presence_penalty:
        counts = Counter(context[prompt_length:])
        if counts:
            ids = torch.tensor(list(counts), device=row.device)
            times = torch.tensor(list(counts.values()), dtype=row.dtype, device=row.device)
            row[ids] -= sampling.frequency_penalty * times + sampling.presence_penalty
    n = sampling.no_repeat_ngram
    if n and len(context) >= n - 1:
        tail = tuple(context[len(context) - n + 1 :])
        for i in range(len(context) - n + 1):
            if tuple(context[i : i + n - 1]) == tail:
                row[context[i + n - 1]] = -math.inf
    return row


def _bias(row: Tensor, bias: Mapping[int, float], bans: Sequence[int], allowed: Tensor | None) -> Tensor:
    """Bias as the OpenAI API has it: −100 or less bans, 100 or more forces, among the tokens allowed where
    not all are. row: [V]; allowed: Bool[V] -> [V]."""
    row = row.clone()
    forced = [
        token for token, value in bias.items() if value >= 100.0 and (allowed is None or allowed[token])
    ]
    if forced:
        kept = row[forced]
        row.fill_(-math.inf)
        row[forced] = kept
    if bias:
        values = [-math.inf if value <= -100.0 else value for value in bias.values()]
        row[list(bias)] += torch.tensor(values, dtype=row.dtype, device=row.device)
    if bans:
        row[list(bans)] = -math.inf
    return row


def _listed(row: Tensor, largest: float, temperature: float) -> tuple[Tensor, Tensor]:
    """Every token above −inf and its z. row: Float32[V] -> Int64[S], Float64[S]."""
    ids = (row > -math.inf).nonzero()[:, 0]
    return ids, (row[ids].double() - largest) / temperature


def _cut(row: Tensor, largest: float, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Temperature, top-k, top-p, min-p. row: Float32[V], its largest value finite -> Int64[S], Float64[S].

    Each cut leaves few of 150k tokens, so what can't survive it is dropped in float32, by a bound with room
    for rounding; the cut itself is made on the rest in float64.
    """
    ids: Tensor | None = None  # None = the whole row
    if 0 < sampling.top_k < row.numel():
        ids = _largest(row, sampling.top_k)
        row = row[ids]
    possible = row > -math.inf
    weights = None
    total = 0.0
    if sampling.top_p < 1.0:
        weights = torch.exp((row - largest) / sampling.temperature)  # [S]
        total = float(weights.sum(dtype=torch.float64))
        # all tokens below this bound together have less than 1 − top_p
        possible &= weights >= 0.99 * total * (1.0 - sampling.top_p) / row.numel()
    elif sampling.min_p > 0.0:
        reach = sampling.temperature * math.log(sampling.min_p)
        possible &= row >= largest + 1.001 * reach - 1e-6 * abs(largest)
    kept = possible.nonzero()[:, 0]
    z = (row[kept].double() - largest) / sampling.temperature
    if weights is not None:
        rest = total - float(weights[kept].sum(dtype=torch.float64))
        nucleus = _nucleus(row[kept], z, max(rest, 0.0), sampling.top_p)
        kept, z = kept[nucleus], z[nucleus]
    if sampling.min_p > 0.0:
        enough = (z >= math.log(sampling.min_p)).nonzero()[:, 0]
        kept, z = kept[enough], z[enough]
    return kept if ids is None else ids[kept], z


def _largest(values: Tensor, k: int) -> Tensor:
    """Indices of the k largest values, ascending; ties go to the lower index. values: [S] -> Int64[k]."""
    threshold = torch.topk(values, k).values[-1] if k else math.inf
    at_least = (values >= threshold).nonzero()[:, 0]
    surplus = at_least.numel() - k
    if surplus > 0:
        ties = (values[at_least] == threshold).nonzero()[:, 0]
        keep = torch.ones_like(at_least, dtype=torch.bool)
        keep[ties[-surplus:]] = False
        at_least = at_least[keep]
    return at_least


def _nucleus(logits: Tensor, z: Tensor, rest: float, top_p: float) -> Tensor:
    """Indices of the nucleus, ascending. logits, z: [S] -> Int64[≤ S].

    The fewest largest tokens whose probability reaches top_p; the token that crosses it is kept. `rest`: what
    exp(z) of the tokens left out, all less likely, sums to.
    """
    weights = torch.exp(z)
    order = torch.sort(logits, descending=True, stable=True).indices
    reached = torch.cumsum(weights[order] / (weights.sum() + rest), dim=0)
    fewest = int((reached < top_p).sum()) + 1  # the token that crosses top_p included
    return order[:fewest].sort().values
