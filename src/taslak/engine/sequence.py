"""One answer in the making: its tokens, its cache, when it stops, what has been counted.

Commits tokens one at a time; what comes after the first stop never existed.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Literal

from taslak.core.counts import Counts
from taslak.core.noise import Stream, fresh_seed, noise_key
from taslak.core.sampling import Sampling
from taslak.core.verify import VERIFIERS
from taslak.drafters.base import View
from taslak.engine.text import Decodes, TextStream
from taslak.errors import ContextFull, OptionError, PromptError
from taslak.models.cache import Block

Finish = Literal["stop", "length", "error"]

DEEPEST = 16
"""Most drafted tokens on a path that may be asked for."""
MOST_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of the engine for one answer.

    prompt:      token ids, at least one
    max_tokens:  most tokens of the answer; None = to the end of the context
    stop:        strings the answer ends before
    eos:         token ids that end the answer (none, one or many); part of the ids, never of the text
    seed:        None = drawn from the operating system, and reported
    choice:      which of several answers to the same prompt this is
    speculate:   False = plain decoding: the same walk with empty drafts
    task:        a label of the user's, for statistics and what they teach; it changes no text
    gamma:       drafted depth of every step, 1 to 16; None = as the engine's policy has it
    methods:     which of the engine's drafters may draft, in the order they are asked; empty = all
    logprobs:    for each token also its log-probability and the so many most likely ones'; None = neither
    """

    prompt: Seq[int]
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = 256
    stop: Seq[str] = ()
    eos: Seq[int] = ()
    seed: int | None = None
    choice: int = 0
    verify: str = "coupled"
    speculate: bool = True
    task: str = ""
    gamma: int | None = None
    methods: Seq[str] = ()
    logprobs: int | None = None

    def __post_init__(self) -> None:
        # the end-of-text ids are what min_tokens holds back
        object.__setattr__(self, "sampling", replace(self.sampling, eos=tuple(self.eos)))

    def positions(self, context: int) -> int:
        """Cache positions the request may come to need, drafts not counted."""
        most = context if self.max_tokens is None else len(self.prompt) + self.max_tokens
        return min(most, context)

    def check(self, vocab_size: int, context: int) -> None:
        """Raise PromptError or OptionError for what no answer can be made from."""
        if not self.prompt:
            raise PromptError("the prompt is empty; expected at least one token")
        if len(self.prompt) >= context:
            raise ContextFull(
                f"the prompt has {len(self.prompt)} tokens; the model's context is {context} and the answer "
                "needs room in it. Shorten the prompt"
            )
        if self.max_tokens is not None and self.max_tokens < 1:
            raise OptionError(f"max_tokens is {self.max_tokens}; expected at least 1")
        if self.gamma is not None and not 1 <= self.gamma <= DEEPEST:
            raise OptionError(f"gamma is {self.gamma}; expected 1 to {DEEPEST}")
        if self.logprobs is not None and not 0 <= self.logprobs <= MOST_LOGPROBS:
            raise OptionError(f"logprobs is {self.logprobs}; expected 0 to {MOST_LOGPROBS}")
        if self.verify not in VERIFIERS:
            raise OptionError(f"verify is {self.verify!r}; expected one of {', '.join(VERIFIERS)}")
        if self.seed is not None:
            noise_key(self.seed)
        if not all(self.stop):
            raise OptionError("a stop string is empty; expected text that the answer should end before")
        sampling = self.sampling
        for ids in (self.prompt, self.eos, sampling.logit_bias, sampling.banned, sampling.forced):
            for token in ids:
                if not 0 <= token < vocab_size:
                    raise OptionError(f"token id {token} is outside the vocabulary of {vocab_size}")


@dataclass(frozen=True, slots=True)
class Logprob:
    """What the target thought of a token it emitted: natural logarithms, of its logits as they are, before
    any setting of the request.

    top: the most likely tokens with theirs, best first, the lower id on ties
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(slots=True)
class Seconds:
    """Wall-clock seconds of the steps that ran while the sequence did."""

    draft: float = 0.0
    pass_: float = 0.0
    other: float = 0.0

    @property
    def total(self) -> float:
        return self.draft + self.pass_ + self.other

    def add(self, other: Seconds) -> None:
        """Add those of another step."""
        self.draft += other.draft
        self.pass_ += other.pass_
        self.other += other.other

    def part(self, share: float) -> Seconds:
        """This share of them."""
        return Seconds(self.draft * share, self.pass_ * share, self.other * share)


@dataclass(slots=True)
class Tally:
    """What one drafter's passes of an answer came to: those that verified its draft, and those it was asked
    first in and had nothing for.

    seconds:      of these steps; where other sequences shared them the part that its rows make up
    plain, took:  seconds of those of them that took in no prompt, had they been plain, by what plain steps
                  cost, and as they were. Filled in by policies that know costs
    """

    counts: Counts = field(default_factory=Counts)
    seconds: Seconds = field(default_factory=Seconds)
    plain: float = 0.0
    took: float = 0.0

    @property
    def speedup(self) -> float | None:
        """Estimated; None where no costs are known."""
        return self.plain / self.took if self.took else None


PLAIN = "plain"
"""In tallies, the passes that nobody was asked to draft for, by design or because the policy failed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer.

    ids:            its tokens, the ending EOS included
    accepted:       one flag a token: whether it came from a draft
    finish_reason:  "stop" (EOS, a stop string, or a constraint that leaves nothing more to say), "length"
                    (max_tokens or the context's end), "error"
    by:             the same by drafter, PLAIN for passes without one
    cached_tokens:  of the prompt's, those whose K/V an earlier sequence had left in the cache
    logprobs:       one a token where the request asked for them
    dropped:        drafts thrown away because the drafter failed or proposed nonsense
    error:          why it failed, if it did; `mistaken`: the request's own settings are to blame
    speedup:        estimated from what steps cost: plain decoding's time for these tokens over the time they
                    took, prefill apart; None where no costs are known or nothing speculated
    """

    text: str
    ids: tuple[int, ...]
    accepted: tuple[bool, ...]
    finish_reason: Finish
    seed: int
    prompt_tokens: int
    counts: Counts
    seconds: Seconds
    by: Mapping[str, Tally] = field(default_factory=dict)
    cached_tokens: int = 0
    logprobs: tuple[Logprob, ...] = ()
    dropped: int = 0
    speedup: float | None = None
    error: str | None = None
    mistaken: bool = False

    @property
    def tokens_per_second(self) -> float:
        """Tokens of the answer over all its time, prefill included."""
        return len(self.ids) / self.seconds.total if self.seconds.total else 0.0


def refused(request: Request, error: str) -> Answer:
    """The answer to a request that never ran."""
    return Answer(
        "", (), (), "error", request.seed or 0, len(request.prompt), Counts(), Seconds(), error=error
    )


@dataclass(frozen=True, slots=True)
class Event:
    """What one step decided for one sequence.

    index:   which answer it belongs to, in the order asked for (prompts first, then choices)
    pieces:  text that became safe to show, each with whether the token that released it came from a draft
    logprobs: one a token where the request asked for them
    answer:  the finished answer on the last event, else None
    """

    tokens: tuple[int, ...]
    accepted: tuple[bool, ...]
    pieces: tuple[tuple[str, bool], ...]
    answer: Answer | None = None
    index: int = 0
    logprobs: tuple[Logprob, ...] = ()

    @property
    def text(self) -> str:
        return "".join(piece for piece, _ in self.pieces)


class Sequence:
    """A request being answered. `tokens` holds prompt and answer; the cache follows behind. It may hold the
    prompt's beginning already."""

    def __init__(self, request: Request, cache: Block, tokenizer: Decodes, context: int) -> None:
        self.request = request
        self.cache = cache
        self.seed = fresh_seed() if request.seed is None else request.seed
        self.tokens = list(request.prompt)
        self.accepted: list[bool] = []
        self.logprobs: list[Logprob] = []
        self.cached = cache.length
        self.seconds = Seconds()
        self.tallies: dict[str, Tally] = {}
        self.dropped = 0
        self.finish: Finish | None = None
        self.error: str | None = None
        self.mistaken = False
        room = context - len(self.tokens)
        self._limit = room if request.max_tokens is None else min(room, request.max_tokens)
        self._eos = frozenset(request.eos)
        self._stream = TextStream(tokenizer, request.stop, before=self.tokens)
        self._pieces: list[tuple[str, bool]] = []
        self._told = 0
        self.view = View(
            tokens=self.tokens,
            prompt_length=len(self.tokens),
            sampling=request.sampling,
            key=noise_key(self.seed, request.choice),
            stream=Stream.TOKEN if request.verify == "coupled" else Stream.DRAFT,
            exact_q=request.verify == "rejection",
            cache=cache,
        )
        self._views: dict[str, View] = {}

    def view_of(self, drafter: str) -> View:
        """What this drafter sees of the sequence; it holds the drafter's own state."""
        if drafter not in self._views:
            self._views[drafter] = replace(self.view)  # the tokens are the same list
        return self._views[drafter]

    def tally(self, drafter: str | None) -> Tally:
        """What is counted for this drafter; None: for nobody's passes."""
        name = PLAIN if drafter is None else drafter
        if name not in self.tallies:
            self.tallies[name] = Tally()
        return self.tallies[name]

    @property
    def speedup(self) -> float | None:
        """See Answer."""
        took = sum(tally.took for tally in self.tallies.values())
        return sum(tally.plain for tally in self.tallies.values()) / took if took else None

    @property
    def counts(self) -> Counts:
        """Of the whole answer."""
        return Counts.total(tally.counts for tally in list(self.tallies.values()))

    @property
    def pending(self) -> int:
        """Committed tokens whose K/V is not in the cache yet: the prompt at first, then the last token."""
        return len(self.tokens) - self.cache.length

    @property
    def left(self) -> int:
        """Tokens the answer may still have."""
        return self._limit - len(self.accepted)

    def commit(self, token: int, accepted: bool) -> bool:
        """Take one decided token; True when the answer ends with it.

        Where a constraint leaves nothing but the end no pass is spent on it, and a model without EOS ends all
        the same. Raises SamplingError where that can't be told.
        """
        self.tokens.append(token)
        self.accepted.append(accepted)
        if token in self._eos:
            return self._end("stop", accepted)
        self._show(self._stream.push(token), accepted)
        if self._stream.stopped or self.view.complete:
            return self._end("stop", accepted)
        if self.left <= 0:
            return self._end("length", accepted)
        return False

    def fail(self, message: str, mistaken: bool = False) -> None:
        """End with an error; what was decided before stands. mistaken: the request's own settings are why."""
        self.error = message
        self.mistaken = mistaken
        self._end("error", False)

    def event(self) -> Event:
        """What was decided since the last call."""
        start, self._told = self._told, len(self.accepted)
        pieces, self._pieces = tuple(self._pieces), []
        prompt = self.view.prompt_length
        return Event(
            tokens=tuple(self.tokens[prompt + start :]),
            accepted=tuple(self.accepted[start:]),
            pieces=pieces,
            logprobs=tuple(self.logprobs[start:]),
            answer=None if self.finish is None else self.answer(),
        )

    def answer(self) -> Answer:
        """The finished answer. Only after `finish` is set."""
        assert self.finish is not None
        return Answer(
            text=self._stream.text,
            ids=tuple(self.tokens[self.view.prompt_length :]),
            accepted=tuple(self.accepted),
            finish_reason=self.finish,
            seed=self.seed,
            prompt_tokens=self.view.prompt_length,
            counts=self.counts,
            seconds=self.seconds,
            by=self.tallies,
            cached_tokens=self.cached,
            logprobs=tuple(self.logprobs),
            speedup=self.speedup,
            dropped=self.dropped,
            error=self.error,
            mistaken=self.mistaken,
        )

    def _show(self, text: str, accepted: bool) -> None:
        if text:
            self._pieces.append((text, accepted))

    def _end(self, finish: Finish, accepted: bool) -> bool:
        self._show(self._stream.finish(), accepted)
        # text held back at the end may complete a stop string: that stop came first
        self.finish = "stop" if self._stream.stopped and finish == "length" else finish
        return True
