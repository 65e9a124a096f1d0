"""What may be asked: the bodies of requests. A parameter that isn't here is refused, never ignored."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from taslak.engine.sequence import DEEPEST, MOST_LOGPROBS

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "metadata": ({},),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "functions": ([],),
}
"""Parameters that clients send of their own accord: values that ask for nothing are taken, others refused."""

MOST_CHOICES = 64
MOST_STOPS = 16
LONGEST = 65_536
"""Characters of a regex, a grammar or a schema."""

StopText = Annotated[str, Field(min_length=1, max_length=1024)]

Finite = Annotated[float, Field(allow_inf_nan=False)]
Token = Annotated[int, Field(ge=0)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class Speculation(_Body):
    """How this answer is drafted. The text depends on none of it, but for `verify`.

    method: of the drafters loaded for the model, one or several joined by "+"; null = as the server decides
    gamma:  drafted depth of every pass; null = chosen as the answer goes
    verify: "coupled" (a seed's text is that of plain decoding) or "rejection" (the same distribution)
    off:    decode plainly
    flags:  tell which tokens came from an accepted draft
    """

    method: str | None = Field(None, min_length=1, max_length=200)
    gamma: int | None = Field(None, ge=1, le=DEEPEST)
    verify: Literal["coupled", "rejection"] | None = None
    off: bool = False
    flags: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> Speculation:
        if self.off and (self.method, self.gamma, self.verify) != (None, None, None):
            raise ValueError("off leaves nothing for method, gamma and verify to say; leave them out")
        return self


class StreamOptions(_Body):
    include_usage: bool = False


class JsonSchema(_Body):
    """name, description, strict: taken, and without effect: the schema always holds."""

    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    schema_: dict[str, Any] | bool = Field(default_factory=dict, alias="schema")

    @field_validator("schema_")
    @classmethod
    def _bounded(cls, schema: dict[str, Any] | bool) -> dict[str, Any] | bool:
        if len(json.dumps(schema)) > LONGEST:
            raise ValueError(f"longer than the {LONGEST} characters this server takes")
        return schema


class ResponseFormat(_Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _whole(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError('json_schema belongs to type "json_schema", and to it alone')
        return self


class Generation(_Body):
    """What chat and completion have in common.

    Beyond OpenAI's: top_k, min_p, repetition_penalty, min_tokens, ignore_eos, regex, grammar, task (a label
    for statistics), speculation.
    """

    model: str
    max_tokens: int | None = Field(None, ge=1)
    n: int = Field(1, ge=1, le=MOST_CHOICES)
    stop: list[StopText] | None = Field(None, max_length=MOST_STOPS)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    temperature: Finite = Field(1.0, ge=0.0)
    top_p: Finite = Field(1.0, gt=0.0, le=1.0)
    presence_penalty: Finite = Field(0.0, ge=-2.0, le=2.0)
    frequency_penalty: Finite = Field(0.0, ge=-2.0, le=2.0)
    logit_bias: dict[str, Finite] = Field(default_factory=dict, max_length=1024)
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, max_length=512)

    top_k: int = Field(0, ge=-1)
    min_p: Finite = Field(0.0, ge=0.0, le=1.0)
    repetition_penalty: Finite = Field(1.0, gt=0.0)
    min_tokens: int = Field(0, ge=0)
    ignore_eos: bool = False
    response_format: ResponseFormat | None = None
    regex: str | None = Field(None, min_length=1, max_length=LONGEST)
    grammar: str | None = Field(None, min_length=1, max_length=LONGEST)
    task: str = Field("", max_length=64)
    speculation: Speculation = Field(default_factory=Speculation.model_construct)

    @model_validator(mode="before")
    @classmethod
    def _given(cls, body: Any) -> Any:
        """Without what asks for nothing: null is OpenAI's word for "the default"."""
        if not isinstance(body, dict):
            return body
        return {
            key: value
            for key, value in body.items()
            if value is not None
            and not (key in NEUTRAL and key not in cls.model_fields and value in NEUTRAL[key])
        }

    @field_validator("stop", mode="before")
    @classmethod
    def _listed(cls, stop: Any) -> Any:
        return [stop] if isinstance(stop, str) else stop

    @field_validator("logit_bias")
    @classmethod
    def _ids(cls, bias: dict[str, float]) -> dict[str, float]:
        for token in bias:
            if not token.isascii() or not token.isdigit() or len(token) > 9:
                raise ValueError(f"{token!r} is no token id; expected a whole number in quotes")
        return bias

    @model_validator(mode="after")
    def _sensible(self) -> Generation:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options belongs to a stream; set stream to true or leave it out")
        if self.seed is not None and self.seed < 0:
            self.seed += 2**64
        return self

    @property
    def most_tokens(self) -> int | None:
        """None = to the end of the context."""
        return self.max_tokens

    @property
    def usage_asked(self) -> bool:
        """Whether a stream ends with what was used."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def top_logprobs_asked(self) -> int | None:
        """How many alternatives beside each token's log-probability; None = no log-probabilities."""
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        """As `LanguageModel.requests` takes them."""
        asked: dict[str, Any] = {
            "max_tokens": self.most_tokens,
            "n": self.n,
            "stop": tuple(self.stop or ()),
            "seed": self.seed,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "logit_bias": {int(token): bias for token, bias in self.logit_bias.items()},
            "top_k": max(self.top_k, 0),
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "min_tokens": self.min_tokens,
            "task": self.task,
            "logprobs": self.top_logprobs_asked,
            "speculate": not self.speculation.off,
            "method": self.speculation.method,
            "gamma": self.speculation.gamma,
            "verify": self.speculation.verify,
        }
        if self.ignore_eos:
            asked["eos"] = None
        asked.update(self._form())
        return asked

    def _form(self) -> dict[str, Any]:
        """What the answer must be, as options."""
        form: dict[str, Any] = {}
        if self.response_format is not None and self.response_format.type != "text":
            schema = self.response_format.json_schema
            form["json_schema"] = True if schema is None else schema.schema_
        if self.regex is not None:
            form["regex"] = self.regex
        if self.grammar is not None:
            form["grammar"] = self.grammar
        return form


class TextPart(_Body):
    type: Literal["text"]
    text: str


class Message(BaseModel):
    """name: taken, and not shown to the model, whose template has no place for it."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _given(cls, message: Any) -> Any:
        """Clients send back what they were given, nulls and all."""
        if not isinstance(message, dict):
            return message
        return {k: v for k, v in message.items() if v is not None and (k, v) != ("tool_calls", [])}

    @property
    def plain(self) -> dict[str, str]:
        """As a chat template takes it."""
        content = self.content
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatRequest(Generation):
    """A body of /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)

    @model_validator(mode="after")
    def _consistent(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) > 1:
            raise ValueError("max_tokens and max_completion_tokens differ; give one of them")
        return self

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def top_logprobs_asked(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(Generation):
    """A body of /v1/completions."""

    prompt: str | list[Token] | list[str] | list[list[Token]]
    max_tokens: int | None = Field(16, ge=1)
    suffix: str | None = None
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)

    @model_validator(mode="after")
    def _consistent(self) -> CompletionRequest:
        if self.echo and self.logprobs is not None:
            raise ValueError("logprobs of a prompt (echo with logprobs) isn't supported; ask for one of them")
        if not self.prompts or (self.suffix is None and not all(self.prompts)):
            raise ValueError("the prompt is empty; expected some text or token ids")
        if self.suffix is not None and not (
            isinstance(self.prompt, str) or all(isinstance(part, str) for part in self.prompt)
        ):
            raise ValueError("suffix needs a prompt of text")
        return self

    @property
    def top_logprobs_asked(self) -> int | None:
        return self.logprobs

    @property
    def prompts(self) -> list[str | list[int]]:
        """One by one."""
        prompt = self.prompt
        if isinstance(prompt, str) or (prompt and all(isinstance(part, int) for part in prompt)):
            return [prompt]  # type: ignore[list-item]
        return list(prompt)  # type: ignore[arg-type]


class DrafterChange(_Body):
    """draft: a model, a head's folder or name; null = what comes with the model. method: null = "auto"."""

    model: str
    draft: str | None = None
    method: str | None = None
