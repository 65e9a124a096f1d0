"""What an answer may say, given as a JSON schema, a regex or a Lark grammar: compiled for one tokenizer.

llguidance does the work: from a grammar and what an answer holds so far to the tokens that may come next, in
tens of microseconds. It is imported when the first grammar is. Knows nothing about models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import takewhile
from typing import Any

import numpy as np
import torch

from taslak.core.constraint import Allowed, Matcher
from taslak.drafters.base import common_prefix
from taslak.errors import NothingToChoose, OptionError, SamplingError, UserError
from taslak.models.tokenizer import Tokenizer

REMEMBERED = 64
"""Compiled grammars kept, the latest used."""

SPACE = r"[ \n\r\t]{0,40}"
"""Between the parts of a JSON text: enough to indent with, and too little for a model that has lost its way
to spend its whole answer on."""

_END = "<|taslak: the end of the grammar|>"
"""A token that stands for the end in llguidance, where EOS would stand: the model's own end ids, none, one or
several, may change with every request."""


class Grammars:
    """Grammars for one tokenizer, each compiled once."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """vocab_size: the target's; ids without a text of their own are never allowed."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._compile = lru_cache(REMEMBERED)(self._compiled)

    def of(
        self,
        json_schema: Mapping[str, Any] | str | bool | None = None,
        regex: str | None = None,
        grammar: str | None = None,
    ) -> Grammar | None:
        """The one that is given; None where none is.

        json_schema:  a schema or its JSON text; {} or True = any JSON object
        regex:        of the whole answer, in the syntax of Rust's regex crate, without look-around
        grammar:      in llguidance's form of Lark

        Raises OptionError for more than one, and for one that doesn't compile or lets nothing be said;
        UserError where llguidance isn't installed or can't read the tokenizer.
        """
        given = {"json_schema": json_schema, "regex": regex, "grammar": grammar}
        named = [name for name, value in given.items() if value is not None]
        if len(named) > 1:
            raise OptionError(f"{' and '.join(named)} exclude each other; give one of them")
        if json_schema is not None:
            return self._compile("json_schema", _schema(json_schema))
        for name, text in (("regex", regex), ("grammar", grammar)):
            if text is not None:
                if not isinstance(text, str) or not text.strip() or not _is_text(text):
                    raise OptionError(f"{name} is {text!r}; expected its text")
                return self._compile(name, text)
        return None

    def _compiled(self, kind: str, text: str) -> Grammar:
        vocabulary, end = self._vocabulary  # where llguidance is missing this says so
        from llguidance import LLMatcher

        if kind == "json_schema":
            source = LLMatcher.grammar_from_json_schema(text, {"whitespace_pattern": SPACE})
        elif kind == "regex":
            source = LLMatcher.grammar_from_regex(text)
        else:
            source = LLMatcher.grammar_from_lark(text)
        matcher = LLMatcher(vocabulary, source, log_level=0)
        if matcher.is_error():
            raise OptionError(f"{kind} can't be used: {_why(kind, matcher.get_error())}")
        compiled = Grammar(matcher, Ids(self._vocab_size, vocabulary.vocab_size, end))
        try:
            first = compiled.matcher().allowed(())
        except SamplingError as error:
            raise OptionError(f"{kind} can't be used: {error}") from error
        if not first.tokens.any():
            what = "but the empty one" if first.end else f"that {self._tokenizer.name} has tokens for"
            raise OptionError(f"{kind} allows no answer {what}")
        return compiled

    @cached_property
    def _vocabulary(self) -> tuple[Any, int]:
        """llguidance's form of the tokenizer, and the id of its end token."""
        try:
            from llguidance import LLTokenizer
        except ImportError as error:
            raise UserError(
                "constrained answers need llguidance, which isn't installed: "
                'pip install "taslak[serve]" or pip install llguidance'
            ) from error
        import tokenizers

        fast = tokenizers.Tokenizer.from_str(self._tokenizer.as_json())
        taken = frozenset(fast.get_vocab().values())
        fast.add_special_tokens([_END])
        end = fast.token_to_id(_END)
        try:
            if end is None or end in taken:  # where ids are left out the next free one may be given twice
                raise ValueError(f"an added token would share the id {end}")
            return LLTokenizer(fast.to_str(), eos_token=end), end
        except ValueError as error:
            raise UserError(
                f"answers of {self._tokenizer.name} can't be constrained: llguidance can't read its "
                f"tokenizer: {error}"
            ) from error


@dataclass(frozen=True, slots=True)
class Ids:
    """The target's token ids beside llguidance's.

    vocab_size:  the target's
    known:       llguidance knows the ids below; the target may have more, which no text has
    end:         of them the one that stands for the end; the target may have padding of the same id
    """

    vocab_size: int
    known: int
    end: int

    def text(self, token: int) -> bool:
        """Whether it may be part of an answer's text."""
        return token < self.known and token != self.end


class Grammar:
    """A compiled grammar, shared by all answers that keep to it."""

    def __init__(self, fresh: Any, ids: Ids) -> None:
        """fresh: an LLMatcher that has consumed nothing."""
        self._fresh = fresh
        self._ids = ids

    def matcher(self) -> Matcher:
        """For one answer."""
        return GrammarMatcher(self._fresh, self._ids)


class GrammarMatcher:
    """Stands behind some tokens of an answer; asked about others it goes back to where they part, and on."""

    def __init__(self, fresh: Any, ids: Ids) -> None:
        self._fresh = fresh
        self._ids = ids
        self._at: Any = None
        """An LLMatcher that has consumed `_answer`; None before the first question, and after an error, which
        an LLMatcher never recovers from."""
        self._answer: list[int] = []
        self._told: tuple[list[int], Allowed] | None = None

    def allowed(self, answer: Sequence[int]) -> Allowed:
        answer = list(answer)
        if self._told is None or self._told[0] != answer:
            self._told = answer, self._ask(answer)
        return self._told[1]

    def admits(self, answer: Sequence[int]) -> bool:
        try:
            return self._move(list(answer))
        except SamplingError:
            return False

    def _ask(self, answer: list[int]) -> Allowed:
        bits = np.zeros(self._ids.vocab_size, dtype=np.uint8)
        end = False
        if self._move(answer):
            end = bool(self._at.is_accepting())
            told = np.unpackbits(np.frombuffer(self._at.compute_bitmask(), dtype=np.uint8), bitorder="little")
            if not self._failed(dead_end=True):  # at a dead end the bits mean nothing
                told[self._ids.end] = 0
                n = min(len(told), len(bits))
                bits[:n] = told[:n]
        return Allowed(torch.from_numpy(bits.view(np.bool_)), end)

    def _move(self, answer: list[int]) -> bool:
        """Go to behind these tokens; False where the grammar ends or forbids one before that."""
        if self._at is None:
            self._at, self._answer = self._fresh.deep_copy(), []
        shared = common_prefix(self._answer, answer)
        if shared < len(self._answer):
            self._at.rollback(len(self._answer) - shared)
        rest = [*takewhile(self._ids.text, answer[shared:])]
        taken = self._at.try_consume_tokens(rest) if rest else 0
        self._answer = answer[: shared + taken]
        return not self._failed() and self._answer == answer

    def _failed(self, dead_end: bool = False) -> bool:
        """Whether llguidance gave up where no token of the vocabulary goes on. Raises SamplingError where it
        gave up for another reason: a limit."""
        if not self._at.is_error():
            return False
        why = self._at.get_error().partition("\n")[0]
        self._at = None
        if dead_end and why.startswith("NoExtension"):
            return True
        raise NothingToChoose(f"the constraint can't be followed: {why}")


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # lone surrogates
        return False
    return True


def _schema(given: Mapping[str, Any] | str | bool) -> str:
    """The JSON text of a schema. Raises OptionError for what is none."""
    schema = given
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except json.JSONDecodeError as error:
            raise OptionError(f"json_schema is not JSON: {error}") from error
    if schema is True or schema == {}:
        schema = {"type": "object"}
    if not isinstance(schema, Mapping):
        raise OptionError(f"json_schema is {given!r}; expected a JSON schema, or {{}} for any object")
    try:
        text = json.dumps(schema, ensure_ascii=False)
        text.encode()  # lone surrogates are no text
        return text
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(f"json_schema is not JSON: {error}") from error


def _why(kind: str, message: str) -> str:
    """In one line what llguidance says in several, the last of which repeat the grammar."""
    first, *more = message.splitlines()
    if kind == "regex":  # the place is one in a grammar around it
        first = first.partition("): ")[2] or first
    return " ".join([first, *(line.removeprefix("error: ") for line in more if line.startswith("error: "))])
