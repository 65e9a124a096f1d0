"""A server answers: any with OpenAI's interface, and taslak's own, which also tells what came of drafts."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from taslak.chat.backend import LENGTH, STOP, End, Messages, Part
from taslak.chat.figures import Figures
from taslak.chat.settings import Settings
from taslak.core.counts import Counts
from taslak.errors import ContextFull, OptionError, ServerError

if TYPE_CHECKING:
    from openai import OpenAI

OURS = "taslak"
"""Whom models of taslak's own server are owned by."""

KEYS = ("TASLAK_API_KEY", "OPENAI_API_KEY")
NO_KEY = "none"
"""The client insists on a key; servers that ask for none don't look at it."""

_FULL = re.compile(r"context[ _](length|window|size)|maximum context", re.IGNORECASE)


class OverUrl:
    """See Backend."""

    def __init__(self, url: str, model: str | None = None, key: str | None = None) -> None:
        """url: with or without /v1. model: None = the first that the server has. key: None = of the
        environment variables KEYS.

        Raises OptionError for a wrong address or key and where the client isn't installed, ServerError for a
        server that can't be asked for its models.
        """
        self._url = _address(url)
        self._client = _client(self._url, key)
        known = self._known(named=model is not None)
        if model is None and not known:
            raise ServerError(f"{self._url} has no models to choose from; name one with --model")
        self.model = next(iter(known)) if model is None else model
        self.ours = OURS in known.values()
        self._counts_usage = True

    @property
    def title(self) -> str:
        return f"{self.model} at {self._url}"

    def prepare(self, settings: Settings) -> None:
        """See Backend."""
        if not self.ours and (settings.method or settings.gamma or not settings.speculation):
            raise OptionError(f"{self._url} is not taslak's server: it can't be told how to speculate")

    def stream(self, messages: Messages, settings: Settings) -> Generator[Part, None, None]:
        """See Backend."""
        started = time.monotonic()
        finish, tokens, told = None, None, None
        for chunk in self._chunks(messages, settings):
            try:
                choice = chunk.choices[0] if chunk.choices else None
                text = "" if choice is None else choice.delta.content or choice.delta.refusal or ""
                finish = finish if choice is None else choice.finish_reason or finish
                tokens = chunk.usage.completion_tokens if chunk.usage else tokens
                told = getattr(chunk, "speculation", None) or told
                pieces = _pieces(_text(text), getattr(chunk, "speculation", None))
            except (AttributeError, IndexError, TypeError) as error:
                raise ServerError(f"{self._url} sent what is no part of a reply ({error})") from error
            if pieces:
                yield Part(pieces)
        if finish is None:
            raise ServerError(f"{self._url} broke off before the reply's end")
        figures = _figures(time.monotonic() - started, tokens, told)
        yield Part(end=End(finish if finish in (STOP, LENGTH) else _text(str(finish)), figures))

    def _chunks(self, messages: Messages, settings: Settings) -> Generator[Any, None, None]:
        """A reply as the client reads it. Raises ContextFull and ServerError for all that goes wrong."""
        import openai

        try:
            try:
                stream = self._client.chat.completions.create(**self._request(messages, settings))
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                if not self._counts_usage or "stream_options" not in str(error):
                    raise
                self._counts_usage = False  # an older server
                stream = self._client.chat.completions.create(**self._request(messages, settings))
            with stream:
                yield from stream
        except (openai.OpenAIError, ValueError) as error:
            raise self._error(error) from error

    def _request(self, messages: Messages, settings: Settings) -> dict[str, Any]:
        given = settings.sampling
        extra: dict[str, Any] = {name: given.pop(name) for name in ("top_k", "min_p") if name in given}
        if self.ours:
            how = {"method": settings.method, "gamma": settings.gamma}
            extra["speculation"] = {
                "off": not settings.speculation,
                "flags": True,
                **{name: value for name, value in how.items() if value is not None},
            }
        if settings.seed is not None:
            given["seed"] = settings.seed
        if settings.max_tokens is not None:
            given["max_tokens"] = settings.max_tokens
        if settings.stop:
            given["stop"] = list(settings.stop)
        if self._counts_usage:
            given["stream_options"] = {"include_usage": True}
        return {"model": self.model, "messages": list(messages), "stream": True, "extra_body": extra, **given}

    def _known(self, *, named: bool) -> dict[str, str]:
        """The server's models, and who owns them; none where it keeps no list and one is named."""
        import openai

        try:
            data = self._client.models.list().data
            return {model.id: str(getattr(model, "owned_by", "")) for model in data}
        except (openai.NotFoundError, openai.PermissionDeniedError) as error:
            if named:
                return {}
            raise self._error(error) from error
        except (openai.OpenAIError, ValueError) as error:
            raise self._error(error) from error
        except (AttributeError, TypeError) as error:
            raise ServerError(
                f"{self._url} answers, but not as OpenAI's interface does; expected its address, as in "
                "http://localhost:8000/v1"
            ) from error

    def _error(self, error: Exception) -> ContextFull | ServerError:
        """One line for a person."""
        import openai

        if isinstance(error, openai.APITimeoutError):
            return ServerError(f"{self._url} did not answer in time")
        if isinstance(error, openai.APIConnectionError):
            reason = str(error.__cause__ or error)
            return ServerError(f"cannot reach {self._url}, or it broke off ({reason})")
        if not isinstance(error, openai.APIError):
            return ServerError(f"{self._url} sent what can't be read ({error})")
        message = _text(_message(error))
        if error.code == "context_length_exceeded" or _FULL.search(message):
            return ContextFull(message)
        if not isinstance(error, openai.APIStatusError):
            return ServerError(f"{self._url} broke off: {message}")
        hint = ""
        if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError):
            hint = f" (a key is given with --api-key or {KEYS[0]})"
        return ServerError(f"{self._url} refuses ({error.status_code}): {message}{hint}")


def _address(url: str) -> str:
    """With the scheme's and the path's usual ends. Raises OptionError for what is no address."""
    try:
        parts = urlsplit(url.strip())
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise OptionError(f"--url is {url!r}; expected an address as http://localhost:8000/v1")
    path = parts.path.rstrip("/").removesuffix("/chat/completions") or "/v1"
    return parts._replace(path=path, fragment="").geturl()


def _client(url: str, key: str | None) -> OpenAI:
    try:
        from openai import OpenAI
    except ImportError as error:
        raise OptionError(
            "--url needs the openai client, which isn't installed: pip install 'taslak[serve]'"
        ) from error
    key = (key or next((value for name in KEYS if (value := os.environ.get(name))), NO_KEY)).strip()
    if not key.isascii() or not key.isprintable():
        raise OptionError("the API key holds characters that no key has; give it again (--api-key)")
    # a failure is told at once: whoever types can ask again
    return OpenAI(base_url=url, api_key=key, max_retries=0)


def _message(error: Any) -> str:
    """What a server says went wrong, at most a line or two."""
    body = error.body
    if isinstance(body, Mapping):
        body = body.get("message") or body.get("detail") or body.get("error") or body
    text = " ".join(str(body or error.message).split())
    return text if len(text) <= 300 else text[:299] + "…"


def _text(text: str) -> str:
    """Lone surrogates, which JSON can hold and UTF-8 can't, become replacement characters."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _pieces(text: str, told: Any) -> tuple[tuple[str, bool], ...]:
    """A chunk's text with whether it was drafted, as far as the server says so of this very text."""
    listed = told.get("pieces") if isinstance(told, Mapping) else None
    if isinstance(listed, list) and all(
        isinstance(each, list | tuple) and len(each) == 2 and isinstance(each[0], str) for each in listed
    ):
        pieces = tuple((piece, drafted is True) for piece, drafted in listed if piece)
        if "".join(piece for piece, _ in pieces) == text:
            return pieces
    return ((text, False),) if text else ()


def _figures(seconds: float, tokens: int | None, told: Any) -> Figures:
    """What a server of taslak's has told, as far as it can be used."""
    told = told if isinstance(told, Mapping) else {}
    passes, drafted, accepted = (_count(told.get(name)) for name in ("passes", "drafted", "accepted"))
    counts = None
    if passes is not None and drafted is not None and accepted is not None:
        tau = _number(told.get("tau"))
        emitted = _count(tokens) or accepted if tau is None else round(tau * passes)
        counts = Counts(passes, drafted, accepted=accepted, bonuses=max(emitted - accepted, 0))
    method = told.get("method")
    return Figures(
        seconds=seconds,
        tokens=_count(tokens),
        counts=counts,
        speedup=_number(told.get("speedup")),
        method=_text(method) if isinstance(method, str) else None,
        gamma=_count(told.get("gamma")),
        seed=_count(told.get("seed")),
    )


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _number(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and abs(value) < float("inf") else None
