"""Self-distillation: the target's own answers to the prompts, in a file that survives a kill.

One JSON object a line, appended as each answer ends: {"index" of the prompt, "prompt" ids, "answer" ids,
"temperature", "seed", "finish"}. The order is that of finishing; readers sort by index.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from taslak.engine import LanguageModel
from taslak.engine.prompts import Prompt, prompt_of, rows
from taslak.engine.scheduler import Scheduler
from taslak.engine.sequence import Request
from taslak.errors import OptionError, PromptError
from taslak.models.loading import Progress


@dataclass(frozen=True, slots=True)
class Answer:
    """One answered prompt. `index`: of the prompt in its file; `finish`: "stop", "length", or "given" for
    texts that were not generated here."""

    index: int
    prompt: list[int]
    answer: list[int]
    temperature: float
    seed: int
    finish: str

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt, *self.answer]


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `number` of `count`: the prompts whose index leaves this remainder."""

    number: int = 0
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From "i/n", i from 0 on. Raises OptionError."""
        number, _, count = text.partition("/")
        if not (number.isdigit() and count.isdigit() and int(number) < int(count)):
            raise OptionError(f"shard is {text!r}; expected i/n with i from 0 to n - 1, as in 0/4")
        return cls(int(number), int(count))

    def takes(self, index: int) -> bool:
        return index % self.count == self.number


class Answers:
    """The file. Opening it drops a last line that a kill cut short."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_file():
            data = path.read_bytes()
            whole = data.rfind(b"\n") + 1
            if whole < len(data):
                os.truncate(path, whole)

    def read(self) -> list[Answer]:
        """All answers by index. Raises PromptError for a line that is none."""
        if not self.path.is_file():
            return []
        found = {answer.index: answer for answer in (_answer(row, at) for at, row in rows(self.path))}
        return [found[index] for index in sorted(found)]

    def append(self, answer: Answer) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(answer), separators=(",", ":")) + "\n")


def answer_prompts(
    model: LanguageModel,
    prompts: Sequence[Prompt],
    file: Answers,
    *,
    temperatures: Sequence[float] = (0.0,),
    greedy: AbstractSet[int] = frozenset(),
    seed: int = 0,
    max_tokens: int = 256,
    max_length: int = 2048,
    batch: int = 32,
    shard: Shard = Shard(),
    progress: Progress | None = None,
) -> int:
    """Answer what `file` lacks, `batch` prompts sharing every pass; the number of prompts left out because
    they have `max_length` tokens or more.

    Prompt i is answered at temperatures[i mod n] with seed + i; those in `greedy` at temperature 0.
    Raises PromptError (naming file and line) for a prompt that can't be encoded, OptionError where the file
    holds answers to other prompts or made with other settings.
    """
    requests: dict[int, Request] = {}
    too_long = 0
    for index, prompt in enumerate(prompts):
        if not shard.takes(index):
            continue
        temperature = 0.0 if index in greedy else temperatures[index % len(temperatures)]
        try:
            request = model.requests(
                prompt.text,
                raw=prompt.raw,
                temperature=temperature,
                seed=seed + index,
                max_tokens=max_tokens,
                speculate=False,
            )[0]
        except PromptError as error:
            raise PromptError(f"{prompt.where}: {error}") from None
        if len(request.prompt) >= min(max_length, model.target.context):
            too_long += 1
        else:
            requests[index] = request
    done = {answer.index for answer in file.read() if _is_ours(answer, requests, file.path)}
    _run(model, {i: r for i, r in requests.items() if i not in done}, file, batch, len(done), progress)
    return too_long


def _run(
    model: LanguageModel,
    requests: dict[int, Request],
    file: Answers,
    batch: int,
    done: int,
    progress: Progress | None,
) -> None:
    """Longest prompts are not sorted to the front: the order of the file is the order of work."""
    scheduler = Scheduler(model.engine, model.tokenizer, max_running=batch)
    waiting = iter(requests.items())
    running: dict[int, int] = {}  # the scheduler's number -> index
    total = done + len(requests)

    def add() -> None:
        if (entry := next(waiting, None)) is not None:
            running[scheduler.add(entry[1])] = entry[0]

    for _ in range(batch):
        add()
    with closing(scheduler.run()) as events:
        for number, event in events:
            if progress is not None:
                progress("answering prompts", done, total)
            if event.answer is None:
                continue
            index = running.pop(number)
            request, answer = requests[index], event.answer
            if answer.error is None:
                file.append(
                    Answer(
                        index=index,
                        prompt=list(request.prompt),
                        answer=list(answer.ids),
                        temperature=request.sampling.temperature,
                        seed=answer.seed,
                        finish=answer.finish_reason,
                    )
                )
            done += 1
            add()
    if progress is not None:
        progress("answering prompts", total, total)


def read_texts(paths: Collection[Path], model: LanguageModel) -> list[Answer]:
    """Given answers instead of the target's own: rows as `Answers` writes them, or a `prompt` or `messages`
    with an `answer` (of messages, the last one where it is the assistant's).

    Raises PromptError naming file and line.
    """
    found: list[Answer] = []
    for path in paths:
        if not path.is_file():
            raise PromptError(f"there is no file {path}; expected answers (JSONL)")
        for where, row in rows(path):
            if isinstance(row.get("prompt"), list):
                answer = _answer(row, where)
                if max(answer.tokens) >= model.target.vocab_size:
                    raise PromptError(
                        f"{where}: token id {max(answer.tokens)}; the model has {model.target.vocab_size}. "
                        "Expected answers of this model"
                    )
                found.append(answer)
                continue
            messages = row.get("messages")
            text = row.get("answer")
            prompt = prompt_of(row, where)
            if text is None and isinstance(messages, list) and messages[-1].get("role") == "assistant":
                text = messages[-1]["content"]
            if not isinstance(text, str) or not text:
                raise PromptError(f'{where}: no "answer" beside the prompt; expected its text')
            ids = [*model.tokenizer.encode(text, add_special=False), *model.tokenizer.eos_ids[:1]]
            found.append(Answer(len(found), model.encode(prompt.text, prompt.raw), ids, 0.0, 0, "given"))
    if not found:
        raise PromptError(f"{', '.join(map(str, paths))}: no answers in it; expected one a line")
    if len({answer.index for answer in found}) < len(found):  # files of separate runs, each counted from 0
        found = [Answer(i, a.prompt, a.answer, a.temperature, a.seed, a.finish) for i, a in enumerate(found)]
    return sorted(found, key=lambda answer: answer.index)


def _is_ours(answer: Answer, requests: Mapping[int, Request], path: Path) -> bool:
    request = requests.get(answer.index)
    if (
        request is None
        or answer.prompt != list(request.prompt)
        or (answer.temperature, answer.seed) != (request.sampling.temperature, request.seed)
    ):
        raise OptionError(
            f"{path} holds answers to other prompts, or made with another temperature or seed (prompt "
            f"{answer.index}); give the same ones to go on with it, or another --out"
        )
    return True


def _answer(row: dict[str, Any], where: str) -> Answer:
    try:
        answer = Answer(**row)
        ids = [*answer.prompt, *answer.answer]
        if not (answer.prompt and answer.answer and all(type(i) is int and i >= 0 for i in ids)):
            raise TypeError
    except TypeError:
        raise PromptError(
            f"{where}: not an answer; expected index, prompt, answer (token ids), temperature, seed, finish"
        ) from None
    return answer
