"""The Drafter protocol, and the registry every method is found in.

A drafter proposes and learns what was kept; it never decides anything. Whatever it does wrong costs
acceptance, not correctness. A new method is one file and one `register` line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from taslak.core.constraint import Matcher
from taslak.core.draft import Draft
from taslak.core.noise import Stream, address
from taslak.core.sampling import Distribution, Sampling, allowed_after, distribution
from taslak.drafters.formats import Head
from taslak.drafters.watch import Watch
from taslak.errors import OptionError
from taslak.models.cache import Block
from taslak.models.target import Target
from taslak.models.tokenizer import Tokenizer
from taslak.native import row_draw


@dataclass(frozen=True, slots=True)
class Needs:
    """What a drafter reads from the target's passes.

    features:    names for Target.forward's `capture`
    exit_layer:  the layer an early-exit drafter stops at, None for all others
    """

    features: tuple[str, ...] = ()
    exit_layer: int | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """How much one sequence may draft in this step.

    depth:       most tokens on a path (γ)
    nodes:       most tokens in the draft
    stop_below:  don't expand below a node whose joint confidence is under this (0 = never stop)
    least:       for the engine: a draft that is expected to have fewer tokens accepted (the sum of its joint
                 confidences) gives way to that of a later drafter, if there is one. Not a drawn draft: what
                 becomes of it may not depend on what was drawn
    shadow:      for the engine: the draft is only to be scored against the text to come, not to be verified
    """

    depth: int
    nodes: int
    stop_below: float = 0.0
    least: float = 0.0
    shadow: bool = False


NOTHING = Budget(depth=0, nodes=0)


@dataclass(slots=True)
class View:
    """What a drafter may see of one sequence. Owned by the engine; a drafter writes `state` alone.

    tokens:         committed token ids, prompt first; the last one has not been through the target yet
    prompt_length:  how many of them are prompt
    sampling:       the request's settings, as the target applies them
    key:            noise key
    stream:         which stream a draw must use: TOKEN under coupled verification (sharing the target's noise
                    makes both agree as often as they can), DRAFT under rejection
    exact_q:        whether drawn tokens need their q rows (rejection verification reads them)
    cache:          the target's cache of this sequence, for drafters that run its lower layers themselves
    state:          this drafter's own memory for this sequence; None before its first call
    matcher:        where the constraint stands, None without one; each view has its own, so that no branch a
                    drafter looks at can touch what the target knows
    """

    tokens: list[int]
    prompt_length: int
    sampling: Sampling
    key: int
    stream: Stream = Stream.TOKEN
    exact_q: bool = False
    cache: Block | None = None
    state: Any = None
    matcher: Matcher | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        constraint = self.sampling.constraint
        self.matcher = None if constraint is None else constraint.matcher()

    def distribution(
        self, logits: Tensor, branch: Sequence[int] = (), sampling: Sampling | None = None
    ) -> Distribution:
        """The distribution of the token after (tokens + branch) under this request's settings, for target and
        drafters alike. logits: Float[V]; sampling: other settings with the same constraint. Raises
        SamplingError as `core.sampling.distribution`."""
        return distribution(
            logits,
            self.tokens,
            branch,
            self.prompt_length,
            sampling or self.sampling,
            row_draw(logits),
            self.matcher,
        )

    def constrained(self, logits: Tensor, branch: Sequence[int] = ()) -> Tensor:
        """The row after (tokens + branch) with −inf where the constraint, if any, forbids the token. Float[V]
        -> Float[V]. Raises SamplingError where it leaves none."""
        mask = allowed_after(self._answer(branch), self.sampling, self.matcher)
        return logits if mask is None else logits.masked_fill(~mask.to(logits.device), -math.inf)

    def admits(self, branch: Sequence[int]) -> bool:
        """Whether the constraint, if any, lets these tokens, at least one, come after the view's."""
        if self.matcher is None:
            return True
        if branch[-1] in self.sampling.eos:
            return self.matcher.allowed(self._answer(branch[:-1])).end
        return self.matcher.admits(self._answer(branch))

    @property
    def complete(self) -> bool:
        """Whether the constraint leaves the answer nothing but to end."""
        return self.matcher is not None and self.matcher.allowed(self._answer()).complete

    def _answer(self, branch: Sequence[int] = ()) -> list[int]:
        return [*self.tokens[self.prompt_length :], *branch]

    @property
    def position(self) -> int:
        """The position the first drafted token will have: the address of its noise."""
        return len(self.tokens)

    @property
    def draft_key(self) -> int:
        """The key a drafter draws with. Under rejection it is another in every step: what an earlier draft
        drew has taught the policy something, whether it was looked at or not, and the same draw at the same
        position would make what is drafted there depend on its own value."""
        if self.stream is Stream.TOKEN:
            return self.key
        return address(self.key, self.stream, self.position)


@dataclass(frozen=True, slots=True)
class Report:
    """What a pass did to one sequence.

    first:     position of the first row below
    tokens:    [n] the tokens of the rows kept: root (or prefill chunk) first, then the accepted path
    features:  name -> Float[n, H] of those rows; row i pairs with the token at position first + i + 1.
               Valid until the next forward
    """

    first: int
    tokens: Sequence[int]
    features: Mapping[str, Tensor] = field(default_factory=dict)


class Drafter(Protocol):
    """Proposes tokens. One object serves all sequences; storage may be pooled, information may not cross."""

    needs: Needs

    @property
    def watch(self) -> Watch | None:
        """Told of every judged draft by the engine; None where a wrong draft is no mistake of anybody's."""
        ...

    def propose(self, views: Sequence[View], budgets: Sequence[Budget]) -> list[Draft]:
        """One draft a view, within its budget. Right from any earlier state: what it remembers is cut to the
        longest common prefix with the view. A view it can't serve gets an empty draft."""
        ...

    def observe(self, views: Sequence[View], reports: Sequence[Report]) -> None:
        """Told after passes, also of prefill chunks, empty drafts and other drafters' passes, but for those
        that the engine's policy leaves it out of."""
        ...

    def lag(self, view: View) -> int:
        """Committed tokens it would have to catch up on before it can draft for this view."""
        ...

    def forget(self, view: View) -> None:
        """The sequence is over: free what is kept for it. Calling it twice is harmless."""
        ...


def common_prefix(known: Sequence[int], tokens: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    short = min(len(known), len(tokens))
    if known[:short] == tokens[:short]:
        return short
    return next(i for i in range(short) if known[i] != tokens[i])


TREES = ("static", "dynamic")
NGRAM = (1, 8)
"""See DrafterOptions."""


@dataclass(frozen=True, slots=True)
class DrafterOptions:
    """Settings of the drafters; each reads its own.

    draft:      the draft model (draft-model, and cross-vocab, tli, slem)
    tokenizers: the target's and the draft model's, for methods that draft across vocabularies
    head:       the trained head (medusa, eagle, eagle3, early-exit)
    branch:     children an expanded node (1 = linear)
    tree:       which tree a head drafts where branch > 1: "static", its shape fixed beforehand and its
                children drawn, or "dynamic", grown and re-ranked by joint confidence
    ngram:      tokens of the shortest and the longest suffix that the n-gram drafter looks for
    exit_layer: how many of the target's layers `early-exit` drafts with; None = most of them
    """

    draft: Target | None = None
    tokenizers: tuple[Tokenizer, Tokenizer] | None = None
    head: Head | None = None
    branch: int = 1
    tree: str = "dynamic"
    ngram: tuple[int, int] = NGRAM
    exit_layer: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.branch <= 8:
            raise OptionError(f"branch is {self.branch}; expected 1 to 8")
        if self.tree not in TREES:
            raise OptionError(f"tree is {self.tree!r}; expected one of {', '.join(TREES)}")
        if not (len(self.ngram) == 2 and 1 <= self.ngram[0] <= self.ngram[1]):
            raise OptionError(
                f"ngram is {self.ngram}; expected (shortest, longest) with 1 ≤ shortest ≤ longest"
            )
        if self.exit_layer is not None and self.exit_layer < 1:
            raise OptionError(f"exit_layer is {self.exit_layer}; expected at least 1 layer to draft with")


Factory = Callable[[Target, DrafterOptions], Drafter]


@dataclass(frozen=True, slots=True)
class Method:
    """A registered way to draft, and which settings mean anything to it: others are refused, not ignored.

    needs_draft:  it drafts with a second model
    crosses:      that model may have another tokenizer
    needs_head:   it drafts with a head of the kind of its name
    trees:        it can propose several children a node (`branch`, `nodes`)
    shapes:       it can shape its tree in more than one way (`tree`)
    confident:    it estimates how likely its tokens are (`stop_below`)
    looks_up:     it looks for what stands in the text already, which costs next to nothing
    exits:        it drafts with the target's first layers (`exit_layer`)
    matches:      it looks for ends of the text of certain lengths (`ngram`)
    """

    factory: Factory
    needs_draft: bool = False
    crosses: bool = False
    needs_head: bool = False
    trees: bool = True
    shapes: bool = False
    confident: bool = True
    looks_up: bool = False
    exits: bool = False
    matches: bool = False


REGISTRY: dict[str, Method] = {}

FALLBACK = "fallback"
"""A name for a look-up with the draft model behind it."""


def drafters_of(name: str, lookup: str | None = None) -> tuple[str, ...]:
    """The registered methods that a name stands for, in the order they are asked: "suffix+eagle" looks up and
    lets the head draft where that finds nothing; FALLBACK is `lookup` (None = "ngram") with the draft model
    behind it. Raises OptionError for an unknown or repeated one, and for a look-up given to another name."""
    if name == FALLBACK:
        names: tuple[str, ...] = (lookup or "ngram", "draft-model")
        if not method(names[0]).looks_up:
            known = ", ".join(sorted(known for known, each in REGISTRY.items() if each.looks_up))
            raise OptionError(f"lookup is {lookup!r}; expected one of {known}")
    else:
        names = tuple(name.split("+"))
        if lookup is not None:
            raise OptionError(f"method {name} tries no look-up first; leave lookup out")
    for each in names:
        method(each)
    if len(set(names)) < len(names):
        raise OptionError(f"method {name} names a drafter twice; expected each at most once")
    return names


def register(name: str, **traits: bool) -> Callable[[Factory], Factory]:
    """Enter a factory under the method name users type; `traits` are the fields of Method."""

    def enter(factory: Factory) -> Factory:
        REGISTRY[name] = Method(factory, **traits)
        return factory

    return enter


def method(name: str) -> Method:
    """The registered method of this name. Raises OptionError for an unknown one."""
    try:
        return REGISTRY[name]
    except KeyError:
        known = ", ".join(sorted([*REGISTRY, FALLBACK]))
        raise OptionError(f"method is {name!r}; expected one of {known}, or several joined by +") from None


def build(name: str, target: Target, options: DrafterOptions) -> Drafter:
    """The drafter of this name. Raises OptionError for an unknown name or missing options."""
    return method(name).factory(target, options)


def needed_head(kind: str, target: Target, options: DrafterOptions) -> Head:
    """The head a method of its kind drafts with. Raises OptionError without one or for one of another kind,
    CheckpointError for one made for another target."""
    head = options.head
    if head is None:
        raise OptionError(f"method {kind} needs a {kind} head; name its folder with --draft")
    if head.kind != kind:
        raise OptionError(f"method {kind} needs a {kind} head and got one of kind {head.kind}")
    head.check_fits(target.hidden_size, target.vocab_size, target.padded_vocab_size, target.layers)
    return head
