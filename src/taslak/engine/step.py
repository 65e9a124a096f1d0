"""One step: propose, forward, verify, commit, for many sequences at once.

The only decoding loop there is: plain decoding is this with an empty draft, prefill is this with a chunk of
the prompt in front.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from time import perf_counter

import torch
from torch import Tensor

from taslak.core.counts import Counts
from taslak.core.draft import Draft
from taslak.core.sampling import Distribution
from taslak.core.verify import VERIFIERS
from taslak.drafters.base import NOTHING, Budget, Drafter, Report
from taslak.engine.policy import FixedGamma, Policy
from taslak.engine.sequence import PLAIN, Logprob, Request, Seconds, Sequence
from taslak.engine.turn import Load, Plan, Step, Turn
from taslak.errors import DraftError, NothingToChoose, OptionError, SamplingError
from taslak.models.cache import Block
from taslak.models.target import Target, chain_rows

log = logging.getLogger(__name__)

CHUNK = 512
"""Most committed tokens one pass takes in: longer prompts are prefilled in chunks of this …"""
BESIDE = 128
"""… and of this while other sequences decode, so that their streams keep flowing."""


def take_in(target: Target, cache: Block, tokens: Seq[int]) -> None:
    """Run tokens into a cache in chunks and commit them, without logits."""
    for start in range(0, len(tokens), CHUNK):
        chunk = tokens[start : start + CHUNK]
        target.forward([chain_rows(cache, chunk, 0)])
        cache.keep(range(len(chunk)))


class Engine:
    """Runs steps over the sequences it is given. Without drafters it decodes plainly."""

    def __init__(
        self, target: Target, drafters: Mapping[str, Drafter], policy: Policy, shape: FixedGamma | None = None
    ) -> None:
        """drafters: by the names that the policy's plans use. shape: of drafts whose depth a request sets;
        None = a line."""
        self.target = target
        self.drafters = dict(drafters)
        self.policy = policy
        self._shape = FixedGamma(1) if shape is None else shape
        self.totals: dict[str, Counts] = {}
        """Of all sequences so far, by drafter; PLAIN: passes nobody was asked to draft for."""
        self._remote = target.device.type != "cpu"
        self._complained: set[str] = set()

    def step(self, sequences: Seq[Sequence]) -> None:
        """Advance every sequence by one pass; each must be unfinished."""
        started = perf_counter()
        turns = self._turns(sequences)
        decided = [turn for turn in turns if turn.decides]
        load = Load.of(turns)
        drafting = self._propose(decided, load)
        drafted = perf_counter()
        output = self.target.forward([turn.rows() for turn in turns], capture=self._features(turns))
        logits = output.logits.cpu() if self._remote else output.logits  # here the pass is waited for
        passed = perf_counter()
        reports = self._decide(turns, logits, output.features)
        self._observe(turns, reports)
        ended = perf_counter()
        seconds = Seconds(drafted - started, passed - drafted, ended - passed)
        for sequence in sequences:
            sequence.seconds.add(seconds)
        rows = sum(turn.rows_taken for turn in turns)
        for turn in decided:
            turn.sequence.tally(turn.by).seconds.add(seconds.part(turn.rows_taken / rows))
        self.policy.record(
            Step(
                turns,
                decided,
                load,
                drafting,
                seconds.pass_,
                seconds.total - seconds.pass_ - sum(drafting.values()),
            )
        )

    def _features(self, turns: Seq[Turn]) -> tuple[str, ...]:
        """What drafters read of this pass."""
        hearing = dict.fromkeys(name for turn in turns for name in self._hearing(turn))
        needed = (feature for name in hearing for feature in self.drafters[name].needs.features)
        return tuple(dict.fromkeys(needed))

    def _hearing(self, turn: Turn) -> Iterable[str]:
        """Who hears of a turn's pass: everybody of the prompt's, then those that its plan names."""
        if not turn.sequence.request.speculate:
            return ()
        return turn.plan if turn.decides and turn.take == 1 else self.drafters

    def _turns(self, sequences: Seq[Sequence]) -> list[Turn]:
        """Share the pass: one pending token always goes, prompts take the chunk in order of arrival."""
        decoding = any(sequence.pending == 1 for sequence in sequences)
        room = BESIDE if decoding else CHUNK
        turns = []
        for sequence in sorted(sequences, key=lambda s: s.pending > 1):
            take = min(sequence.pending, room)
            if take:
                turns.append(Turn(sequence, take, decides=take == sequence.pending))
                room -= take if sequence.pending > 1 else 0
        return turns

    def _propose(self, turns: Seq[Turn], load: Load) -> dict[str, float]:
        """Fill in the drafts; the seconds each drafter took. Whoever is next in a turn's plan is asked, all
        turns together, until the turn has a draft or its plan ends."""
        asking = [turn for turn in turns if turn.sequence.request.speculate]
        seconds: dict[str, float] = {}
        if not self.drafters or not asking:
            return seconds
        try:
            plans = self._plans([turn.sequence for turn in asking], load)
        except Exception as error:  # it asks drafters how far behind they are
            self._complain("policy", error)
            return seconds
        left = []
        for turn, plan in zip(asking, plans, strict=True):
            turn.plan = {name: _clamp(budget, turn.sequence.left - 1) for name, budget in plan.items()}
            left.append([name for name, budget in turn.plan.items() if budget.depth > 0 and budget.nodes > 0])
        while any(left):
            name = next(names[0] for names in left if names)
            asked = []
            for turn, names in zip(asking, left, strict=True):
                if names and names[0] == name:
                    del names[0]
                    if not turn.draft or turn.plan[name].shadow:
                        asked.append(turn)
            if asked:
                started = perf_counter()
                self._ask(name, asked)
                seconds[name] = seconds.get(name, 0.0) + perf_counter() - started
        for turn in asking:
            if not turn.draft and turn.spare is not None:
                turn.by, turn.draft = turn.spare
        return seconds

    def _plans(self, sequences: Seq[Sequence], load: Load) -> list[Plan]:
        """As each request says, else as the policy does: over all at once that may use the same drafters."""
        plans: dict[Sequence, Plan] = {}
        open_: dict[tuple[str, ...], list[Sequence]] = {}
        for sequence in sequences:
            request = sequence.request
            if request.gamma is None:
                open_.setdefault(tuple(request.methods), []).append(sequence)
            else:
                own = self.shape_of(request)
                plans[sequence] = own.plans([sequence], self._allowed(request.methods), load)[0]
        for methods, theirs in open_.items():
            made = self.policy.plans(theirs, self._allowed(methods), load)
            plans.update(zip(theirs, made, strict=True))
        return [plans[sequence] for sequence in sequences]

    def shape_of(self, request: Request) -> FixedGamma:
        """Of the drafts of a request that sets their depth."""
        return self._shape if request.gamma is None else replace(self._shape, gamma=request.gamma)

    def max_nodes(self, request: Request) -> int:
        """Drafted nodes that a sequence's cache needs room for."""
        return max(self.policy.max_nodes, self.shape_of(request).max_nodes)

    def check(self, request: Request) -> None:
        """Raise PromptError or OptionError for what no answer can be made from."""
        request.check(self.target.vocab_size, self.target.context)
        for name in request.methods:
            if name not in self.drafters:
                known = ", ".join(self.drafters) or "none"
                raise OptionError(f"method is {name!r}, which is not among this model's drafters: {known}")

    def _allowed(self, methods: Seq[str]) -> Mapping[str, Drafter]:
        return {name: self.drafters[name] for name in methods} if methods else self.drafters

    def _ask(self, name: str, turns: Seq[Turn]) -> None:
        """One drafter's drafts for these turns. Whatever it does wrong costs its draft and nothing else."""
        budgets = [turn.plan[name] for turn in turns]
        for turn, budget in zip(turns, budgets, strict=True):
            if not budget.shadow and turn.by is None:
                turn.by = name
        try:
            drafts = self.drafters[name].propose([turn.sequence.view_of(name) for turn in turns], budgets)
            if len(drafts) != len(turns):
                raise DraftError(f"{len(drafts)} drafts for {len(turns)} sequences")
        except Exception as error:
            self._complain(name, error)
            self._reset(name, turns)
            return
        for turn, budget, proposed in zip(turns, budgets, drafts, strict=True):
            try:
                draft = self._checked(turn, budget, name, proposed)
            except Exception as error:
                self._complain(name, error)
                turn.sequence.dropped += 1
            else:
                if budget.shadow:
                    turn.shadows[name] = draft
                elif draft and not (
                    draft.q is None and sum(draft.confidence or (budget.least,)) < budget.least
                ):
                    turn.by, turn.draft = name, draft
                elif draft and turn.spare is None:
                    turn.spare = name, draft

    def _checked(self, turn: Turn, budget: Budget, name: str, draft: Draft) -> Draft:
        """The draft, without nodes that the request's constraint forbids: no row is spent on them. Drawn ones
        stay (see `Draft.pruned`); they were drawn from what it allows. Raises DraftError for a draft that
        can't be verified."""
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
            raise DraftError(f"a draft of depth {draft.depth} and {len(draft)} nodes exceeds {budget}")
        view = turn.sequence.view_of(name)
        if view.matcher is None or draft.q is not None or partial is not None:
            return draft
        return draft.pruned(view.admits)

    def _decide(self, turns: Seq[Turn], logits: Tensor, features: Mapping[str, Tensor]) -> list[Report]:
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

    def _walk(self, turn: Turn, logits: Tensor, root: int) -> list[int]:
        """Verify and commit one draft; the accepted nodes. logits: [W, V], the draft's from row `root` on."""
        sequence, draft = turn.sequence, turn.draft
        request, view = sequence.request, sequence.view

        def p_at(node: int) -> Distribution:
            # by the time a node is visited its whole branch has been committed
            return view.distribution(logits[root + 1 + node])

        path = turn.path
        row = root
        try:
            for decision in VERIFIERS[request.verify](draft, p_at, view.key, view.position):
                if request.logprobs is not None:
                    sequence.logprobs.append(_logprob(logits[row], decision.token, request.logprobs))
                if decision.node is None:
                    turn.bonus = True
                else:
                    path.append(decision.node)
                    row = root + 1 + decision.node
                if sequence.commit(decision.token, accepted=decision.node is not None):
                    break
        except SamplingError as error:
            sequence.fail(str(error), mistaken=isinstance(error, NothingToChoose))
        for counts in (sequence.tally(turn.by).counts, self._total(turn.by)):
            counts.record(draft, path, turn.bonus)
        watch = self.drafters[turn.by].watch if draft and turn.by is not None else None
        if watch is not None:
            watch.record(bool(path))
        return path

    def _total(self, drafter: str | None) -> Counts:
        name = PLAIN if drafter is None else drafter
        if name not in self.totals:
            self.totals[name] = Counts()
        return self.totals[name]

    def _observe(self, turns: Seq[Turn], reports: Seq[Report]) -> None:
        """Tell drafters of the pass, whoever drafted for it."""
        told: dict[str, list[tuple[Turn, Report]]] = {}
        for turn, report in zip(turns, reports, strict=True):
            for name in self._hearing(turn):
                told.setdefault(name, []).append((turn, report))
        for name, heard in told.items():
            views = [turn.sequence.view_of(name) for turn, _ in heard]
            try:
                self.drafters[name].observe(views, [report for _, report in heard])
            except Exception as error:
                self._complain(name, error)
                self._reset(name, [turn for turn, _ in heard])

    def forget(self, sequence: Sequence) -> None:
        """Free everything kept for a sequence. Calling it twice is harmless."""
        sequence.cache.release()
        self.policy.forget(sequence)
        for name in self.drafters:
            self._forget(name, sequence)

    def _forget(self, name: str, sequence: Sequence) -> None:
        try:
            self.drafters[name].forget(sequence.view_of(name))
        except Exception as error:
            self._complain(name, error)

    def _reset(self, name: str, turns: Seq[Turn]) -> None:
        """After a failed call nothing a drafter remembers can be trusted: it starts afresh."""
        for turn in turns:
            turn.sequence.dropped += 1
            self._forget(name, turn.sequence)
            turn.sequence.view_of(name).state = None

    def _complain(self, name: str, error: Exception) -> None:
        """Once in the log; every time in the counts."""
        if name not in self._complained:
            self._complained.add(name)
            log.warning(
                "%s failed; what it would have drafted is left out, the answer is unaffected: %s",
                name if name == "policy" else f"drafter {name}",
                error,
            )


def _logprob(row: Tensor, token: int, count: int) -> Logprob:
    """Of one token and the `count` most likely ones. row: Float32[V], logits."""
    logs = torch.log_softmax(row.double(), dim=-1)
    top: tuple[tuple[int, float], ...] = ()
    if count:
        best = torch.topk(logs, min(count, logs.numel())).values[-1]
        ids = (logs >= best).nonzero()[:, 0]  # ascending, so that the lower id goes first on ties
        order = torch.sort(logs[ids], descending=True, stable=True).indices[:count]
        top = tuple(zip(ids[order].tolist(), logs[ids[order]].tolist(), strict=True))
    return Logprob(token, float(logs[token]), top)


def _rows_of(hidden: Tensor, first: int, kept: list[int]) -> Tensor:
    """Rows first + kept, ascending: a view where they stand side by side, which saves a copy and its call."""
    if kept[-1] == len(kept) - 1:
        return hidden[first : first + len(kept)]
    return hidden[[first + i for i in kept]]


def _clamp(budget: Budget, most: int) -> Budget:
    """Never deeper than what may still be emitted besides the bonus."""
    if most <= 0:
        return NOTHING
    return budget if budget.depth <= most else replace(budget, depth=most)
