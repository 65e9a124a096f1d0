"""A tiny model in this process answers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from taslak.chat.backend import CONTEXT, LENGTH, End
from taslak.chat.in_process import InProcess
from taslak.chat.session import Session
from taslak.chat.settings import Settings
from taslak.engine.language_model import LanguageModel
from taslak.engine.policy import FixedGamma
from taslak.errors import ContextFull, OptionError
from taslak.models.pretrained import Pretrained
from tests.support.chat import Paper
from tests.support.tiny import tiny_model

CONTEXT_TOKENS = 64
HI = [{"role": "user", "content": "ABCABC"}]


class Tokenizer:
    """Letters 'A' to 'z' as ids 0 to 57; a chat message becomes '<' text '>'."""

    eos_ids: tuple[int, ...] = ()
    has_text = True

    def __init__(self, template: bool = True) -> None:
        self.has_chat_template = template

    def encode(self, text: str) -> list[int]:
        return [ord(c) - 65 for c in text if 0 <= ord(c) - 65 < 58]

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return "".join(chr(65 + i) for i in ids)

    def chat(self, messages: Sequence[Any]) -> list[int]:
        return [id for m in messages for id in (58, *self.encode(m["content"]), 59)]


class Loader:
    """Loads the tiny model with look-ups, or with early exit; remembers what it was asked for."""

    def __init__(self, **tokenizer: Any) -> None:
        self.asked: list[tuple[str | None, int | None]] = []
        self._tokenizer = tokenizer

    def __call__(self, method: str | None, gamma: int | None) -> LanguageModel:
        self.asked.append((method, gamma))
        if method == "medusa":
            raise OptionError("method medusa needs a head")
        decoder = tiny_model(1, context=CONTEXT_TOKENS)
        target = Pretrained("tiny", decoder, Tokenizer(**self._tokenizer), "float32")  # type: ignore[arg-type]
        return LanguageModel(target, method=method or "suffix", gamma=gamma or 4)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured of the tiny model is kept elsewhere."""
    monkeypatch.setenv("TASLAK_HOME", str(tmp_path))


SHORT = Settings(gamma=4, max_tokens=12)


def answer(backend: InProcess, settings: Settings = SHORT) -> tuple[str, End]:
    parts = list(backend.stream(HI, settings))
    assert parts[-1].end is not None
    return "".join(text for part in parts for text, _ in part.pieces), parts[-1].end


def test_a_reply_is_the_models_own() -> None:
    backend = InProcess(Loader(), SHORT)
    text, end = answer(backend)
    expected = backend.model.generate(HI, max_tokens=12)
    assert (text, end.finish, end.figures.tokens) == (expected.text, LENGTH, 12)
    assert end.figures.counts == expected.counts
    assert (end.figures.method, end.figures.gamma) == ("suffix", 4)
    plain, end = answer(backend, Settings(gamma=4, max_tokens=12, speculation=False))
    assert plain == text
    assert end.figures.method == "plain"
    assert end.figures.counts is not None
    assert end.figures.counts.drafted == 0


def test_a_seed_repeats_a_sampled_reply() -> None:
    backend = InProcess(Loader(), SHORT)
    settings = Settings(gamma=4, max_tokens=12, temperature=1.0, seed=3)
    first, end = answer(backend, settings)
    assert end.figures.seed == 3
    assert answer(backend, settings)[0] == first
    others = {answer(backend, Settings(max_tokens=12, temperature=1.0, seed=seed))[0] for seed in range(4)}
    assert len(others) > 1


def test_a_full_context_is_told_apart() -> None:
    backend = InProcess(Loader(), SHORT)
    _, end = answer(backend, Settings(gamma=4))
    assert end.finish == CONTEXT
    screen = Paper()
    session = Session(backend, screen, SHORT)
    session.take("A" * 100)
    assert "the context is full" in screen.notes[0]
    assert str(CONTEXT_TOKENS) in screen.notes[0]
    with pytest.raises(ContextFull):
        list(backend.stream([{"role": "user", "content": "A" * 100}], SHORT))


def test_a_closed_reply_gives_its_memory_back() -> None:
    backend = InProcess(Loader(), SHORT)
    whole, _ = answer(backend)
    for _ in range(100):
        with closing(backend.stream(HI, SHORT)) as parts:
            next(parts)
    assert answer(backend)[0] == whole


def test_methods_it_has_and_look_ups_need_no_loading() -> None:
    load = Loader()
    backend = InProcess(load, SHORT)
    text, _ = answer(backend)
    backend.prepare(Settings(gamma=4, method="ngram"))
    again, end = answer(backend)
    assert (again, end.figures.method) == (text, "ngram")
    backend.prepare(Settings(gamma=4))
    assert backend.model.method == "suffix"
    assert load.asked == [(None, 4)]


def test_another_method_loads_the_model_anew() -> None:
    load = Loader()
    backend = InProcess(load, SHORT)
    text, _ = answer(backend)
    backend.prepare(Settings(gamma=4, method="early-exit"))
    again, end = answer(backend)
    assert (again, end.figures.method) == (text, "early-exit")
    backend.prepare(Settings(gamma=4))
    assert backend.model.method == "suffix"
    assert load.asked == [(None, 4), ("early-exit", 4), (None, 4)]


def test_a_method_that_can_not_be_had_leaves_the_model() -> None:
    backend = InProcess(Loader(), SHORT)
    model = backend.model
    with pytest.raises(OptionError, match="head"):
        backend.prepare(Settings(gamma=4, method="medusa"))
    assert backend.model is model
    assert backend.model.method == "suffix"
    backend.prepare(SHORT)


def test_gamma_is_fixed_or_chosen_anew() -> None:
    backend = InProcess(Loader(), SHORT)
    text, _ = answer(backend)
    backend.prepare(Settings(gamma=2))
    assert backend.model.policy == FixedGamma(2, 1, 0.0, None)
    backend.prepare(Settings())
    assert backend.model.gamma is None
    assert "γ as it pays" in backend.title
    assert answer(backend)[0] == text


def test_ctrl_c_while_costs_are_measured_leaves_all_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = InProcess(Loader(), SHORT)
    policy = backend.model.policy

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("taslak.chat.in_process.control_depth", interrupted)
    with pytest.raises(KeyboardInterrupt):
        backend.prepare(Settings(method="ngram"))
    assert (backend.model.method, backend.model.policy) == ("suffix", policy)
    monkeypatch.undo()
    backend.prepare(Settings(gamma=4, method="ngram"))
    assert backend.model.method == "ngram"


def test_a_model_without_a_chat_template_is_refused() -> None:
    with pytest.raises(OptionError, match="no chat template"):
        InProcess(Loader(template=False), SHORT)
