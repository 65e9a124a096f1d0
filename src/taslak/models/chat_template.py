"""A model's chat template: messages to the text it was trained on.

Templates are Jinja written for transformers, and untrusted. They get what transformers gives them (its names,
filters and block rules) in a sandbox; the results are the same, without importing it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


class ChatTemplate:
    """`source` compiled; `names` are the special tokens it may write, by name ("bos_token": "<s>")."""

    def __init__(self, source: str, names: Mapping[str, str]) -> None:
        self._template = _environment().from_string(source)
        self._names = dict(names)

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool) -> str:
        """The conversation as text. A key that is None is as good as absent: few templates expect it.

        Raises whatever the template does, and ValueError for a conversation without messages.
        """
        if not messages:
            raise ValueError("expected at least one")
        given = [
            {key: _plain(value) for key, value in message.items() if value is not None}
            for message in messages
        ]
        return self._template.render(
            messages=given,
            tools=None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **self._names,
        )


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return environment


class _Generation(Extension):
    """{% generation %} … {% endgeneration %} marks the answers in training data; here it is only a scope."""

    tags = {"generation"}  # noqa: RUF012, as jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Dict:
    """`dict` as a function: the type itself would lead a template into the interpreter."""

    def __call__(self, *args: Any, **entries: Any) -> dict[Any, Any]:
        return dict(*args, **entries)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """Refuses names with an underscore in front, which lead the same way."""

    def __init__(*args: Any, **entries: Any) -> None:  # no `self`: a template may call an entry so
        self, *rest = args
        attributes = dict(*rest, **entries)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace may not hold {name!r}")


def _plain(value: Any) -> Any:
    """`value` of plain types alone: methods of anything else are out of a template's reach."""
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or type(value) in (str, int, float, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind.__str__(value) if kind is str else kind(value)
    return f"<{type(value).__name__}>"


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter of this name writes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
