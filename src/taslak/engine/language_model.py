"""The front door: a target, a drafter and a tokenizer that answer prompts."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from collections.abc import Sequence as Seq
from contextlib import closing
from dataclasses import fields, replace
from typing import Any, cast, overload

from taslak.core.noise import fresh_seed
from taslak.core.sampling import Sampling
from taslak.drafters import base
from taslak.drafters.base import DrafterOptions
from taslak.drafters.formats import Head
from taslak.drafters.reader import ReadsAlong
from taslak.engine.compare import Comparison, compare
from taslak.engine.grammar import Grammars
from taslak.engine.policy import FixedGamma, Policy
from taslak.engine.scheduler import Listener, Scheduler
from taslak.engine.sequence import Answer, Event, Request
from taslak.engine.step import Engine
from taslak.engine.usage import Statistics, statistics, weights_of
from taslak.errors import OptionError, PromptError
from taslak.models.prefix import PrefixCache
from taslak.models.pretrained import Pretrained
from taslak.models.target import chain_rows
from taslak.models.tokenizer import require_text

Message = Mapping[str, str]
Prompt = str | Seq[Message] | Seq[int]
"""Plain text, chat messages of {"role", "content"}, or token ids."""

_SAMPLING = frozenset(f.name for f in fields(Sampling)) - {"eos"}
_OWN = frozenset(
    ("max_tokens", "stop", "seed", "n", "speculate", "eos", "task", "gamma", "method", "verify", "logprobs")
)
"""Options of an answer beside how its tokens are drawn, and what it may say:"""
_GRAMMARS = frozenset(("json_schema", "regex", "grammar"))


class LanguageModel:
    """Answers prompts, speculatively or plainly. Made by `loading.load`."""

    def __init__(
        self,
        target: Pretrained,
        draft: Pretrained | None = None,
        *,
        method: str = "ngram",
        gamma: int = 5,
        verify: str = "coupled",
        branch: int = 1,
        stop_below: float = 0.0,
        lookup: str | None = None,
        heads: Mapping[str, Head] | None = None,
        tree: str | None = None,
        nodes: int | None = None,
        exit_layer: int | None = None,
        ngram: tuple[int, int] | None = None,
    ) -> None:
        """method: drafters of the registry, joined by "+" in the order they are asked
        heads:  what they draft with, by the name they are known by; at most one of a kind
        The others as for `load`. The depth of a draft is `gamma` in every step unless `policy` is set.
        """
        heads = heads or {}
        kinds = {head.kind: head for head in heads.values()}
        names = base.drafters_of(method, lookup)
        check_method(
            method, names, draft is not None, [*kinds], branch, stop_below, tree, nodes, exit_layer, ngram
        )
        methods = [base.method(name) for name in names]
        if draft is not None and any(method.needs_draft and not method.crosses for method in methods):
            target.tokenizer.require_same_as(draft.tokenizer)
        self.pretrained = target
        self.name = target.name
        used = [*([] if draft is None else [draft.name]), *heads]
        self.draft_name = " + ".join(used) if used else None
        self.draft_bytes_of = {
            kind: sum(tensor.nbytes for tensor in head.tensors.values()) for kind, head in kinds.items()
        }
        """By drafter, the weights that it needs beside the target's."""
        self.draft_fingerprint = " ".join(head.fingerprint for head in kinds.values())
        """Of the heads' weights: another training, another fingerprint."""
        if draft is not None:
            self.draft_bytes_of |= {
                name: draft.decoder.weight_bytes for name in names if base.method(name).needs_draft
            }
        self.method = method
        self.gamma: int | None = gamma
        self.branch = branch
        self.stop_below = stop_below
        shaped = branch > 1 and any(base.method(name).shapes for name in names)
        self.tree = (tree or "dynamic") if shaped else None
        self.nodes = nodes
        self.verify = verify
        self.dtype = target.dtype
        self.weights = weights_of(target)
        self.draft_weights = None if draft is None else weights_of(draft)
        self.tokenizer = target.tokenizer
        self.target = target.decoder
        self.grammars = Grammars(target.tokenizer, target.decoder.vocab_size)
        self._decoders = [target.decoder] if draft is None else [target.decoder, draft.decoder]
        options = DrafterOptions(
            draft=None if draft is None else draft.decoder,
            tokenizers=None if draft is None else (target.tokenizer, draft.tokenizer),
            branch=branch,
            tree=tree or "dynamic",
            exit_layer=exit_layer,
            ngram=ngram or base.NGRAM,
        )
        drafters = {
            name: base.build(name, target.decoder, replace(options, head=kinds.get(name))) for name in names
        }
        exits = (drafter.needs.exit_layer for drafter in drafters.values())
        self.exit_layer = next((layer for layer in exits if layer is not None), None)
        fixed = FixedGamma(gamma, branch, stop_below, nodes)
        self._drafters = drafters
        self.engine = Engine(target.decoder, drafters, fixed, fixed)
        self.listeners: list[Listener] = []
        """Told of every finished answer, with its request."""

    @property
    def policy(self) -> Policy:
        """Who decides how much is drafted. Setting another one than a `FixedGamma` leaves `gamma` None."""
        return self.engine.policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        self.engine.policy = policy
        self.gamma = policy.gamma if isinstance(policy, FixedGamma) else None

    def lacks(self, method: str) -> list[str]:
        """Of a method's drafters those that it can't `choose`. Raises OptionError for an unknown method."""
        names = base.drafters_of(method)
        return [name for name in names if name not in self._drafters and not base.method(name).looks_up]

    def choose(self, method: str) -> None:
        """Draft by this method from the next answer on: with drafters it was made with, and look-ups, which
        need nothing. The policy stays. Raises OptionError for an unknown method and for one it `lacks`."""
        if lacking := self.lacks(method):
            raise OptionError(f"{self.name} was loaded without {', '.join(lacking)}; load it for {method}")
        names = base.drafters_of(method)
        for name in names:
            if name not in self._drafters:
                self._drafters[name] = base.build(name, self.target, DrafterOptions(branch=self.branch))
        self.engine.drafters = {name: self._drafters[name] for name in names}
        self.method = "+".join(names)

    @overload
    def generate(self, prompt: str, *, raw: bool = ..., **options: Any) -> Answer: ...
    @overload
    def generate(self, prompt: Seq[Prompt], *, raw: bool = ..., **options: Any) -> list[Answer]: ...

    def generate(self, prompt: Prompt | Seq[Prompt], *, raw: bool = False, **options: Any) -> Any:
        """Answer one prompt or many (many share every pass).

        prompt:  text, a list of chat messages, a list of token ids, or a list of any of these
        raw:     continue the text as it is; otherwise the chat template is applied where the model has one
        options: max_tokens (256; None = to the end of the context), stop (a string or several), seed, n
                 (answers a prompt), speculate (True), task (a label for statistics), logprobs (how many of
                 the most likely tokens to tell beside each), gamma, method and verify of this answer alone
                 (method: of the drafters that were loaded), at most one of json_schema, regex and grammar
                 (what the answer may say, see `Grammars.of`), and every field of `Sampling`: temperature, …

        -> an Answer for one prompt, a list for several or for n > 1 (all answers of the first prompt first).
        Raises PromptError, OptionError, MemoryLimitError. How drafts are verified, with the papers:
        `taslak.core.verify`.
        """
        _, single = _listed(prompt)
        with closing(self.stream(prompt, raw=raw, **options)) as events:
            answers = {event.index: event.answer for event in events if event.answer is not None}
        ordered = [answers[index] for index in sorted(answers)]
        return ordered[0] if single and options.get("n", 1) == 1 else ordered

    def stream(
        self, prompt: Prompt | Seq[Prompt], *, raw: bool = False, **options: Any
    ) -> Generator[Event, None, None]:
        """Answer step by step. Prompts and options as for `generate`; with several answers their events come
        interleaved, told apart by `event.index`. The last event of each carries its Answer.

        Closing the iterator stops the answers and frees their memory. Raises what `generate` raises, at once.
        """
        prompts, _ = _listed(prompt)
        scheduler = Scheduler(self.engine, self.tokenizer, listeners=self.listeners)
        for one in prompts:
            for request in self.requests(one, raw=raw, **options):
                scheduler.add(request)
        return _events(scheduler)

    def compare(self, prompt: Prompt, *, raw: bool = False, **options: Any) -> Comparison:
        """Answer once plainly and once speculatively, with one seed, and say whether the texts are identical
        and which was faster. Options as for `generate`, without n and speculate."""
        return compare(self, prompt, raw=raw, **options)

    def reuse_prefixes(self, max_bytes: int) -> PrefixCache:
        """A cache of what prompts have in common, for a Scheduler; a draft model gets one as large of its
        own. max_bytes: 0 = nothing is kept."""
        for drafter in self._drafters.values():
            if isinstance(drafter, ReadsAlong) and max_bytes and drafter.reader.prefixes is None:
                drafter.reader.prefixes = PrefixCache(drafter.reader.pool, max_bytes)
        return PrefixCache(self.target.pool, max_bytes)

    @property
    def draft_bytes(self) -> int:
        """Of the weights that drafting needs beside the target's."""
        return sum(self.draft_bytes_of.values())

    def warm_up(self) -> None:
        """Touch every weight once, so that the first timed answer does not pay for reading them."""
        for decoder in self._decoders:
            cache = decoder.allocate(2)
            decoder.forward([chain_rows(cache, [0, 1], 1)])
            cache.release()

    def statistics(self) -> Statistics:
        """Memory as it stands now."""
        return statistics(self._decoders)

    def encode(self, prompt: Prompt, raw: bool = False) -> list[int]:
        """Token ids of a prompt. Raises PromptError for an empty one or one of another kind."""
        if isinstance(prompt, list | tuple) and prompt and all(isinstance(part, int) for part in prompt):
            return list(cast("Seq[int]", prompt))
        messages: Any = prompt
        if isinstance(prompt, str):
            if not prompt.strip():
                raise PromptError("the prompt is empty; expected some text")
            require_text(prompt, "the prompt")
            if raw or not self.tokenizer.has_chat_template:
                return self.tokenizer.encode(prompt)
            messages = [{"role": "user", "content": prompt}]
        if not isinstance(messages, list | tuple) or not all(isinstance(m, Mapping) for m in messages):
            raise PromptError(
                f"a prompt is text, a list of chat messages or of token ids; got {type(prompt).__name__}"
            )
        if raw or not self.tokenizer.has_chat_template:
            raise PromptError(f"{self.name} has no chat template to render messages with; give plain text")
        return self.tokenizer.chat(messages)

    def requests(self, prompt: Prompt, *, raw: bool = False, **options: Any) -> list[Request]:
        """The requests `generate` would run for one prompt. Raises OptionError for an unknown option,
        and what `Grammars.of` raises."""
        unknown = options.keys() - _OWN - _SAMPLING - _GRAMMARS
        if unknown:
            known = ", ".join(sorted(_OWN | _SAMPLING | _GRAMMARS))
            raise OptionError(f"no option {', '.join(sorted(unknown))}; known: {known}")
        n = int(options.get("n", 1))
        if n < 1:
            raise OptionError(f"n is {n}; expected at least 1")
        stop = options.get("stop") or ()
        if stop and not self.tokenizer.has_text:
            raise OptionError(f"{self.name} has no tokenizer to find stop strings with; leave stop out")
        eos = options.get("eos", self.tokenizer.eos_ids)
        eos = () if eos is None else (eos,) if isinstance(eos, int) else eos
        seed = options.get("seed")
        if seed is None:
            seed = fresh_seed()  # one for all choices: with it each of them can be had again
        method = options.get("method")
        sampling = {k: v for k, v in options.items() if k in _SAMPLING}
        grammar = self.grammars.of(**{k: v for k, v in options.items() if k in _GRAMMARS})
        if grammar is not None:
            if sampling.get("constraint") is not None:
                raise OptionError("constraint excludes json_schema, regex and grammar; give one of them")
            sampling["constraint"] = grammar
        ids = self.encode(prompt, raw)
        return [
            Request(
                prompt=ids,
                sampling=Sampling(**sampling),
                max_tokens=options.get("max_tokens", 256),
                stop=(stop,) if isinstance(stop, str) else tuple(stop),
                eos=tuple(token for token in eos if token < self.target.vocab_size),
                seed=seed,
                choice=choice,
                verify=options.get("verify") or self.verify,
                speculate=bool(options.get("speculate", True)),
                task=options.get("task", ""),
                gamma=options.get("gamma"),
                methods=() if method is None else base.drafters_of(method),
                logprobs=options.get("logprobs"),
            )
            for choice in range(n)
        ]


def check_method(
    name: str,
    drafters: Seq[str],
    has_draft: bool,
    heads: Seq[str],
    branch: int,
    stop_below: float,
    tree: str | None,
    nodes: int | None,
    exit_layer: int | None,
    ngram: tuple[int, int] | None,
) -> None:
    """Raise OptionError for a setting that none of a method's drafters would use. heads: their kinds."""
    methods = {each: base.method(each) for each in drafters}
    traits = methods.values()
    if has_draft and not any(each.needs_draft for each in traits):
        raise OptionError(f"method {name} uses no draft model, but one is named; leave one of them out")
    for kind, method in methods.items():
        if method.needs_head and kind not in heads:
            got = f" and got one of kind {', '.join(heads)}" if heads else ""
            raise OptionError(
                f"method {kind} needs a head of its kind{got}; name its folder (draft=, --draft)"
            )
    for kind in heads:
        if kind not in methods or not (methods[kind].needs_head or methods[kind].exits):
            raise OptionError(
                f"method {name} uses no head, but a {kind} head is named; leave one of them out"
            )
    if not has_draft and any(each.needs_draft for each in traits):
        raise OptionError(f"method {name} needs a draft model; name one (draft=, --draft)")
    if tree is not None and not any(each.shapes for each in traits):
        raise OptionError(f"method {name} has one kind of tree; leave tree out")
    if branch == 1 and (tree is not None or nodes is not None):
        what = "tree" if tree is not None else "nodes"
        raise OptionError(f"branch is 1, a line, which {what} can't shape; leave one of them out")
    if branch > 1 and not any(each.trees for each in traits):
        raise OptionError(f"method {name} drafts one line; branch is {branch}, expected 1")
    if exit_layer is not None and not any(each.exits for each in traits):
        raise OptionError(f"method {name} doesn't draft with the model's own layers; leave exit_layer out")
    if ngram is not None and not any(each.matches for each in traits):
        raise OptionError(f"method {name} looks for no n-grams; leave ngram out")
    if stop_below > 0 and not any(each.confident for each in traits):
        raise OptionError(f"method {name} has no confidence to stop at; leave stop_below out")


def _events(scheduler: Scheduler) -> Generator[Event, None, None]:
    with closing(scheduler.run()) as steps:
        for number, event in steps:
            yield replace(event, index=number)


def _listed(prompt: Prompt | Seq[Prompt]) -> tuple[list[Prompt], bool]:
    """The prompts, and whether it was a single one: a list of messages is one prompt."""
    if isinstance(prompt, str):
        return [prompt], True
    if not isinstance(prompt, list | tuple):
        raise PromptError(f"a prompt is text, or a list of texts or messages; got {type(prompt).__name__}")
    if prompt and (all(isinstance(p, Mapping) for p in prompt) or all(isinstance(p, int) for p in prompt)):
        return [prompt], True
    return list(prompt), False
