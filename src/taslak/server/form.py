"""What is answered: the objects of OpenAI's two endpoints, whole and in chunks, from events and answers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from taslak.core.counts import Counts
from taslak.engine.language_model import LanguageModel
from taslak.engine.sequence import Answer, Event, Logprob, Request
from taslak.server.protocol import Speculation

Json = dict[str, Any]


class Form(Protocol):
    """One endpoint's objects. Choices are numbered across prompts, as OpenAI's completions are."""

    def whole(self, answers: Sequence[Answer]) -> Json:
        """The response to a call without a stream, an answer a choice."""
        ...

    def opening(self) -> Iterable[Json]:
        """Chunks before any token."""
        ...

    def chunk(self, event: Event) -> Json | None:
        """What an event says; None where it says nothing yet."""
        ...

    def closing(self, answers: Sequence[Answer]) -> Iterable[Json]:
        """Chunks after the last event."""
        ...


class _Form:
    """What both have in common.

    requests:   one a choice
    flags:      whether answers tell which tokens were accepted drafts
    usage:      whether a stream ends with what was used
    """

    prefix: str
    whole_object: str
    chunk_object: str

    def __init__(
        self, model: LanguageModel, requests: Sequence[Request], asked: Speculation, usage: bool, name: str
    ) -> None:
        self._model = model
        self._requests = requests
        self._asked = asked
        self._usage = usage
        self._name = name
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"
        self._created = int(time.time())

    def whole(self, answers: Sequence[Answer]) -> Json:
        choices = [self._choice(index, answer) for index, answer in enumerate(answers)]
        return self._object(self.whole_object, choices) | {
            "usage": self._used(answers),
            "speculation": self._speculation(answers),
        }

    def opening(self) -> Iterable[Json]:
        for choice in self._openings():
            made = self._object(self.chunk_object, [choice])
            yield made | {"usage": None} if self._usage else made

    def _openings(self) -> Iterable[Json]:
        """Choices that say something before there is a token."""
        return ()

    def chunk(self, event: Event) -> Json | None:
        answer = event.answer
        if not event.text and not event.logprobs and answer is None:
            return None  # its text is held back: half a code point, or the beginning of a stop string
        made = self._object(self.chunk_object, [self._delta(event)])
        if self._asked.flags and event.pieces:
            made["speculation"] = {"pieces": [[text, accepted] for text, accepted in event.pieces]}
        if answer is not None:
            made["speculation"] = made.get("speculation", {}) | self._speculation([answer])
        if self._usage:
            made["usage"] = None
        return made

    def closing(self, answers: Sequence[Answer]) -> Iterable[Json]:
        if self._usage:
            yield self._object(self.chunk_object, []) | {"usage": self._used(answers)}

    def _choice(self, index: int, answer: Answer) -> Json:
        raise NotImplementedError

    def _delta(self, event: Event) -> Json:
        raise NotImplementedError

    def _object(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self._created,
            "model": self._name,
            "system_fingerprint": f"taslak-{self._model.dtype}",
            "choices": choices,
        }

    def _used(self, answers: Sequence[Answer]) -> Json:
        # choices of one prompt share it: it counts once
        prompts = [a for a, request in zip(answers, self._requests, strict=True) if request.choice == 0]
        prompt = sum(answer.prompt_tokens for answer in prompts)
        completion = sum(len(answer.ids) for answer in answers)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(answer.cached_tokens for answer in prompts)},
        }

    def _speculation(self, answers: Sequence[Answer]) -> Json:
        """What speculating came to. A list of answers is added up, the seed is the first one's."""
        counts = Counts.total(answer.counts for answer in answers)
        request, first = self._requests[0], answers[0]
        worked = [name for answer in answers for name, tally in answer.by.items() if tally.counts.drafted]
        speedups = [answer.speedup for answer in answers if answer.speedup is not None]
        told: Json = {
            "passes": counts.passes,
            "drafted": counts.drafted,
            "accepted": counts.accepted,
            "acceptance_rate": counts.acceptance_rate,
            "alpha": counts.alpha,
            "tau": counts.tau,
            "method": "+".join(request.methods) or self._model.method if request.speculate else "plain",
            "drafted_by": list(dict.fromkeys(worked)),
            "gamma": (request.gamma or self._model.gamma) if request.speculate else 0,
            "verify": request.verify,
            "seed": first.seed,
            "speedup": speedups[0] if len(speedups) == 1 else None,
            "seconds": {
                "draft": sum(answer.seconds.draft for answer in answers),
                "pass": sum(answer.seconds.pass_ for answer in answers),
                "other": sum(answer.seconds.other for answer in answers),
            },
        }
        if self._asked.flags:
            told["accepted_tokens"] = [list(answer.accepted) for answer in answers]
        return told

    def _spelled(self, token: int) -> tuple[str, list[int]]:
        """A token's text and its bytes, of which a code point may need several tokens'."""
        raw = self._model.tokenizer.token_bytes(token)
        return raw.decode(errors="replace"), list(raw)


class ChatForm(_Form):
    """/v1/chat/completions."""

    prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def _openings(self) -> Iterable[Json]:
        for index in range(len(self._requests)):
            yield _choice(index, delta={"role": "assistant", "content": ""}, logprobs=None)

    def _choice(self, index: int, answer: Answer) -> Json:
        message = {"role": "assistant", "content": answer.text, "refusal": None}
        asked = self._requests[index].logprobs is not None
        told = self._logprobs(answer.logprobs) if asked else None
        return _choice(index, message=message, logprobs=told, finish=answer.finish_reason)

    def _delta(self, event: Event) -> Json:
        delta = {"content": event.text} if event.text or event.answer is None else {}
        told = self._logprobs(event.logprobs) if event.logprobs else None
        finish = None if event.answer is None else event.answer.finish_reason
        return _choice(event.index, delta=delta, logprobs=told, finish=finish)

    def _logprobs(self, logprobs: Sequence[Logprob]) -> Json:
        def entry(token: int, logprob: float) -> Json:
            text, raw = self._spelled(token)
            return {"token": text, "logprob": _number(logprob), "bytes": raw}

        return {
            "content": [
                entry(one.token, one.logprob) | {"top_logprobs": [entry(*pair) for pair in one.top]}
                for one in logprobs
            ],
            "refusal": None,
        }


class CompletionForm(_Form):
    """/v1/completions.

    echoes: of each prompt, the text that stands before its answers; "" = none
    """

    prefix = "cmpl"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(
        self,
        model: LanguageModel,
        requests: Sequence[Request],
        asked: Speculation,
        usage: bool,
        name: str,
        echoes: Mapping[int, str],
    ) -> None:
        super().__init__(model, requests, asked, usage, name)
        self._echoes = echoes
        self._told = {index: echoes.get(index, "").encode() for index in range(len(requests))}

    def _openings(self) -> Iterable[Json]:
        for index, text in self._echoes.items():
            if text:
                yield _choice(index, text=text, logprobs=None)

    def _choice(self, index: int, answer: Answer) -> Json:
        asked = self._requests[index].logprobs is not None
        told = self._logprobs(index, answer.logprobs) if asked else None
        text = self._echoes.get(index, "") + answer.text
        return _choice(index, text=text, logprobs=told, finish=answer.finish_reason)

    def _delta(self, event: Event) -> Json:
        told = self._logprobs(event.index, event.logprobs) if event.logprobs else None
        finish = None if event.answer is None else event.answer.finish_reason
        return _choice(event.index, text=event.text, logprobs=told, finish=finish)

    def _logprobs(self, index: int, logprobs: Sequence[Logprob]) -> Json:
        offsets = []
        for one in logprobs:
            # whole code points before the token: what it shares one with counts for neither
            offsets.append(len(self._told[index].decode(errors="ignore")))
            self._told[index] += bytes(self._spelled(one.token)[1])
        return {
            "tokens": [self._spelled(one.token)[0] for one in logprobs],
            "token_logprobs": [_number(one.logprob) for one in logprobs],
            "top_logprobs": [self._alternatives(one) for one in logprobs],
            "text_offset": offsets,
        }

    def _alternatives(self, one: Logprob) -> Json:
        told: Json = {}
        # two of one spelling (parts of code points): the likelier one's. The token itself is always told
        for token, logprob in (*one.top, (one.token, one.logprob)):
            told.setdefault(self._spelled(token)[0], _number(logprob))
        return told


def _choice(index: int, *, finish: str | None = None, **content: Any) -> Json:
    return {"index": index, **content, "finish_reason": finish}


def _number(logprob: float) -> float:
    """JSON knows no −∞; OpenAI says −9999 for what is as good as impossible."""
    return max(logprob, -9999.0)
