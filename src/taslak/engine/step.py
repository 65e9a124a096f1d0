"""One step: propose, forward, verify, commit, for many sequences at once.

The only decoding loop there is: plain decoding is this with an empty draft, prefill is this with a chunk of
the prompt in front.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from torch import Tensor

from taslak.core.draft import EMPTY, Draft
from taslak.core.sampling import Distribution
from taslak.core.verify import VERIFIERS
from taslak.drafters.base import NOTHING, Budget, Drafter, Report
from taslak.engine.sequence import Sequence
from taslak.errors import DraftError, OptionError, SamplingError
from taslak.models.cache import Block
from taslak.models.target import Rows, Target, chain_rows

log = logging.getLogger(__name__)

CHUNK = 512
"""Most committed tokens one pass takes in: longer prompts are prefilled in chunks of this."""


def take_in(target: Target, cache: Block, tokens: Seq[int]) -> None:
    """Run tokens into a cache in chunks and commit them, without logits."""
    for start in range(0, len(tokens), CHUNK):
        chunk = tokens[start : start + CHUNK]
        target.forward([chain_rows(cache, chunk, 0)])
        cache.keep(range(len(chunk)))


class Policy(Protocol):
    """How much each sequence may draft."""

    @property
    def max_nodes(self) -> int:
        """Never more than this many drafted nodes a step and sequence; the cache keeps room for them."""
        ...

    def budgets(self, sequences: Seq[Sequence]) -> list[Budget]: ...


@dataclass(frozen=True, slots=True)
class FixedGamma:
    """The same depth in every step, `branch` siblings at each; a draft ends early where its joint confidence
    falls under `stop_below`. `nodes`: most of them in a draft, None = γ · branch.

    Raises OptionError for γ outside 1 … 16, nodes outside 1 … 128 or a confidence outside 0 … 1.
    """

    gamma: int
    branch: int = 1
    stop_below: float = 0.0
    nodes: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.gamma <= 16:
            raise OptionError(f"gamma is {self.gamma}; expected 1 to 16")
        if not 0.0 <= self.stop_below <= 1.0:
            raise OptionError(f"stop_below is {self.stop_below}; expected a confidence from 0 to 1")
        if self.nodes is not None and not 1 <= self.nodes <= 128:
            raise OptionError(f"nodes is {self.nodes}; expected 1 to 128")

    @property
    def max_nodes(self) -> int:
        return self.gamma * self.branch if self.nodes is None else self.nodes

    def budgets(self, sequences: Seq[Sequence]) -> list[Budget]:
        budget = Budget(self.gamma, self.max_nodes, self.stop_below)
        return [budget] * len(sequences)


@dataclass(slots=True)
class _Turn:
    """One sequence's part of a step."""

    sequence: Sequence
    take: int
    """Committed tokens run in this pass."""
    draft: Draft = EMPTY

    @property
    def decides(self) -> bool:
        """Whether the pass reaches the last committed token; otherwise it is prefill."""
        return self.take == self.sequence.pending

    def rows(self) -> Rows:
        """The committed tokens taken in as a chain, then the draft below the last of them."""
        s, n, partial = self.sequence, self.take, self.draft.partial
        if partial is None:
            s.cache.crop(s.cache.length)  # nodes that a dropped early-exit draft left behind
        start = s.cache.length
        return Rows(
            cache=s.cache,
            tokens=[*s.tokens[start : start + n], *self.draft.tokens],
            parents=[*range(-1, n - 1), *(n + parent for parent in self.draft.parents)],
            first=0,
            wanted=1 + len(self.draft) if self.decides else 0,
            starts=() if partial is None else partial.starts(1 + len(self.draft)),
            hidden=None if partial is None else partial.hidden,
        )


class Engine:
    """Runs steps over the sequences it is given. `drafter` None decodes plainly."""

    def __init__(self, target: Target, drafter: Drafter | None, policy: Policy) -> None:
        self.target = target
        self.drafter = drafter
        self.policy = policy
        self._features = drafter.needs.features if drafter is not None else ()
        self._watch = drafter.watch if drafter is not None else None
        self._remote = target.device.type != "cpu"
        self._complained = False

    def step(self, sequences: Seq[Sequence]) -> None:
        """Advance every sequence by one pass; each must be unfinished."""
        started = perf_counter()
        turns = self._turns(sequences)
        self._propose([turn for turn in turns if turn.decides])
        drafted = perf_counter()
        output = self.target.forward([turn.rows() for turn in turns], capture=self._features)
        logits = output.logits.cpu() if self._remote else output.logits  # here the pass is waited for
        passed = perf_counter()
        reports = self._decide(turns, logits, output.features)
        self._observe(turns, reports)
        ended = perf_counter()
        for sequence in sequences:
            sequence.seconds.draft += drafted - started
            sequence.seconds.pass_ += passed - drafted
            sequence.seconds.other += ended - passed

    def _turns(self, sequences: Seq[Sequence]) -> list[_Turn]:
        """Share the pass: one pending token always goes, prompts take the chunk in order of arrival."""
        room = CHUNK
        turns = []
        for sequence in sorted(sequences, key=lambda s: s.pending > 1):
            take = min(sequence.pending, room)
            if take:
                turns.append(_Turn(sequence, take))
                room -= take if sequence.pending > 1 else 0
        return turns

    def _propose(self, turns: Seq[_Turn]) -> None:
        """Fill in the drafts. Whatever a drafter does wrong costs its draft and nothing else."""
        drafting = [turn for turn in turns if turn.sequence.request.speculate]
        if self.drafter is None or not drafting:
            return
        given = self.policy.budgets([turn.sequence for turn in drafting])
        budgets = [_clamp(b, turn.sequence.left - 1) for b, turn in zip(given, drafting, strict=True)]
        try:
            drafts = self.drafter.propose([turn.sequence.view for turn in drafting], budgets)
            if len(drafts) != len(drafting):
                raise DraftError(f"{len(drafts)} drafts for {len(drafting)} sequences")
        except Exception as error:
            self._complain(error)
            self._reset(drafting)
            return
        for turn, budget, draft in zip(drafting, budgets, drafts, strict=True):
            try:
                draft.check(self.target.vocab_size)
                partial = draft.partial
                if partial is not None and not (
                    turn.take == 1
                    and partial.rows == turn.sequence.cache.nodes
                    and partial.layer < self.target.layers
                    and partial.hidden.shape[1] == self.target.hidden_size
                ):
                    raise DraftError("the lower-layer work handed over does not fit the draft's rows")
                if draft.depth > budget.depth or len(draft) > budget.nodes:
                    raise DraftError(
                        f"a draft of depth {draft.depth} and {len(draft)} nodes exceeds {budget}"
                    )
            except Exception as error:
                self._complain(error)
                turn.sequence.dropped += 1
            else:
                turn.draft = draft

    def _decide(self, turns: Seq[_Turn], logits: Tensor, features: Mapping[str, Tensor]) -> list[Report]:
        """Walk each draft, commit what the walk decides, keep the walked path in the cache."""
        reports = []
        wanted = row = 0
        for turn in turns:
            first, n = turn.sequence.cache.length, turn.take
            kept = [*range(n)]
            if turn.decides:
                kept += [n + node for node in self._walk(turn, logits, wanted)]
                wanted += 1 + len(turn.draft)
            turn.sequence.cache.keep(kept)
            reports.append(
                Report(
                    first=first,
                    tokens=turn.sequence.tokens[first : first + len(kept)],
                    features={name: _rows_of(f, row, kept) for name, f in features.items()},
                )
            )
            row += n + len(turn.draft)
        return reports

    def _walk(self, turn: _Turn, logits: Tensor, root: int) -> list[int]:
        """Verify and commit one draft; the accepted nodes. logits: [W, V], the draft's from row `root` on."""
        sequence, draft = turn.sequence, turn.draft
        request, view = sequence.request, sequence.view

        def p_at(node: int) -> Distribution:
            # by the time a node is visited its whole branch has been committed
            return view.distribution(logits[root + 1 + node])

        path: list[int] = []
        bonus = False
        try:
            for decision in VERIFIERS[request.verify](draft, p_at, view.key, view.position):
                if decision.node is None:
                    bonus = True
                else:
                    path.append(decision.node)
                if sequence.commit(decision.token, accepted=decision.node is not None):
                    break
        except SamplingError as error:
            sequence.fail(str(error))
        sequence.counts.record(draft, path, bonus)
        if self._watch is not None and draft:
            self._watch.record(bool(path))
        return path

    def _observe(self, turns: Seq[_Turn], reports: Seq[Report]) -> None:
        heard = [(t, r) for t, r in zip(turns, reports, strict=True) if t.sequence.request.speculate]
        if self.drafter is None or not heard:
            return
        try:
            self.drafter.observe([turn.sequence.view for turn, _ in heard], [report for _, report in heard])
        except Exception as error:
            self._complain(error)
            self._reset([turn for turn, _ in heard])

    def forget(self, sequence: Sequence) -> None:
        """Free everything kept for a sequence. Calling it twice is harmless."""
        sequence.cache.release()
        if self.drafter is not None:
            try:
                self.drafter.forget(sequence.view)
            except Exception as error:
                self._complain(error)

    def _reset(self, turns: Seq[_Turn]) -> None:
        """After a failed call nothing a drafter remembers can be trusted: it starts afresh."""
        for turn in turns:
            turn.sequence.dropped += 1
            try:
                assert self.drafter is not None
                self.drafter.forget(turn.sequence.view)
            except Exception as error:
                self._complain(error)
            turn.sequence.view.state = None

    def _complain(self, error: Exception) -> None:
        """Once in the log; every time in the counts."""
        if not self._complained:
            self._complained = True
            log.warning("the drafter failed; its drafts are dropped, the answer is unaffected: %s", error)


def _rows_of(hidden: Tensor, first: int, kept: list[int]) -> Tensor:
    """Rows first + kept, ascending: a view where they stand side by side, which saves a copy and its call."""
    if kept[-1] == len(kept) - 1:
        return hidden[first : first + len(kept)]
    return hidden[[first + i for i in kept]]


def _clamp(budget: Budget, most: int) -> Budget:
    """Never deeper than what may still be emitted besides the bonus."""
    if most <= 0:
        return NOTHING
    return Budget(min(budget.depth, most), budget.nodes, budget.stop_below)
