"""The engine thread: who joins and leaves, who waits, and that nobody takes another with him."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taslak.engine.language_model import LanguageModel
from taslak.engine.sequence import Answer, Event, Request
from taslak.errors import TaslakError
from taslak.models.target import Output
from taslak.server.worker import Broken, Busy, Closed, Job, TimedOut, Worker
from tests.support.checkpoint import write_model
from tests.support.serving import tiny_language_model


class Caller:
    """Whoever waits for a job's events."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.error: TaslakError | None = None
        self._changed = threading.Condition()

    def __call__(self, what: Event | TaslakError) -> None:
        with self._changed:
            if isinstance(what, TaslakError):
                self.error = what
            else:
                self.events.append(what)
            self._changed.notify_all()

    @property
    def answers(self) -> list[Answer]:
        done = {event.index: event.answer for event in self.events if event.answer is not None}
        return [done[index] for index in sorted(done)]

    def wait(self, what: Callable[[Caller], object], seconds: float = 60) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: what(self), seconds)

    def done(self, answers: int = 1) -> list[Answer]:
        self.wait(lambda c: len(c.answers) == answers or c.error)
        assert self.error is None
        return self.answers


class Gate:
    """Holds a model's passes back until it is opened, so that a test knows what is running."""

    def __init__(self, model: LanguageModel) -> None:
        self._pass = model.target.forward
        self._open = threading.Event()
        self.passes = 0
        model.target.forward = self._forward  # type: ignore[method-assign]

    def _forward(self, *args: Any, **kwargs: Any) -> Output:
        assert self._open.wait(60)
        self.passes += 1
        return self._pass(*args, **kwargs)

    def open(self) -> None:
        self._open.set()

    def shut(self) -> None:
        self._open.clear()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("worker") / "tiny", context=512)


@pytest.fixture
def model(folder: Path) -> LanguageModel:
    return tiny_language_model(folder)


def asked(model: LanguageModel, text: str = "abcabc", **options: Any) -> list[Request]:
    return model.requests(text, raw=True, **{"max_tokens": 20, "eos": None, **options})


def until(what: Callable[[], object], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_c25_eight_requests_share_one_drafter(model: LanguageModel) -> None:
    """Greedy answers equal those of serial runs, whoever shared their passes."""
    texts = [f"request {i} says {'ab' * i}" for i in range(8)]
    serial = [model.generate(text, raw=True, max_tokens=30, eos=None) for text in texts]
    worker = Worker(model, prefix_bytes=1 << 20)
    callers = [Caller() for _ in texts]
    for text, caller in zip(texts, callers, strict=True):
        worker.submit(asked(model, text, max_tokens=30), caller)
    together = [caller.done()[0] for caller in callers]
    assert [a.ids for a in together] == [a.ids for a in serial]
    assert [a.text for a in together] == [a.text for a in serial]
    assert worker.close()
    assert model.target.pool.free_pages == model.target.pool.pages


def test_choices_of_one_job_come_with_their_index(model: LanguageModel) -> None:
    alone = model.generate("abc", raw=True, max_tokens=20, eos=None, n=3, seed=4, temperature=1.0)
    worker = Worker(model)
    caller = Caller()
    worker.submit(asked(model, "abc", n=3, seed=4, temperature=1.0), caller)
    assert [a.ids for a in caller.done(3)] == [a.ids for a in alone]
    worker.close()


def test_c26_who_leaves_is_gone_before_the_next_pass(model: LanguageModel) -> None:
    """Memory is free again, and the next request with the same beginning gets the right answer."""
    text = "the same beginning, and long enough for a page: " * 3
    alone = model.generate(text, raw=True, max_tokens=20, eos=None)
    gate = Gate(model)
    worker = Worker(model, prefix_bytes=1 << 20)
    stays, leaves = Caller(), Caller()
    gate.open()
    staying = worker.submit(asked(model, "other", max_tokens=300), stays)
    leaving = worker.submit(asked(model, text, max_tokens=300), leaves)
    leaves.wait(lambda c: len(c.events) > 3)
    gate.shut()
    worker.cancel(leaving)
    before = gate.passes
    gate.open()
    until(lambda: worker.running == 1)
    assert gate.passes <= before + 20  # of three hundred
    next_ = Caller()
    worker.submit(asked(model, text), next_)
    answer = next_.done()[0]
    assert answer.ids == alone.ids
    assert answer.cached_tokens >= 64
    worker.cancel(staying)
    worker.close()
    assert model.target.pool.free_pages == model.target.pool.pages


def test_who_leaves_while_waiting_never_runs(model: LanguageModel) -> None:
    gate = Gate(model)
    worker = Worker(model, max_running=1)
    first, second = Caller(), Caller()
    worker.submit(asked(model), first)
    until(lambda: worker.running == 1)
    job = worker.submit(asked(model), second)
    worker.cancel(job)
    gate.open()
    first.done()
    worker.close()
    assert not second.events
    assert worker.waiting == 0


def test_a_full_queue_refuses(model: LanguageModel) -> None:
    gate = Gate(model)
    worker = Worker(model, max_running=2, max_waiting=1)
    callers = [Caller() for _ in range(3)]
    for caller in callers:
        worker.submit(asked(model), caller)
    with pytest.raises(Busy) as refused:
        worker.submit(asked(model), Caller())
    assert refused.value.retry_after >= 1
    with pytest.raises(Busy):
        worker.submit(asked(model, n=4), Caller())
    gate.open()
    for caller in callers:
        caller.done()
    worker.submit(asked(model), caller := Caller())
    caller.done()
    worker.close()


def test_more_than_may_run_wait_their_turn(model: LanguageModel) -> None:
    worker = Worker(model, max_running=2)
    callers = [Caller() for _ in range(7)]
    for caller in callers:
        worker.submit(asked(model), caller)
    assert len({caller.done()[0].ids for caller in callers}) == 1
    worker.close()


def test_a_request_that_takes_too_long_ends(model: LanguageModel) -> None:
    gate = Gate(model)
    worker = Worker(model, timeout=0.05)
    caller = Caller()
    worker.submit(asked(model, max_tokens=400), caller)
    time.sleep(0.1)
    gate.open()
    caller.wait(lambda c: c.error)
    assert isinstance(caller.error, TimedOut)
    assert worker.close()
    assert model.target.pool.free_pages == model.target.pool.pages


def test_a_pass_that_fails_takes_only_its_own_request_with_it(
    model: LanguageModel, caplog: pytest.LogCaptureFixture
) -> None:
    """One request's rows break every pass they are in."""
    bad = model.tokenizer.encode("!")[0]
    forward = model.target.forward

    def breaking(batch: Any, *args: Any, **kwargs: Any) -> Output:
        if any(bad in rows.tokens for rows in batch):
            raise RuntimeError("broken")
        return forward(batch, *args, **kwargs)

    alone = [model.generate(text, raw=True, max_tokens=20, eos=None, banned=(bad,)) for text in ("ab", "cd")]
    model.target.forward = breaking  # type: ignore[method-assign]
    worker = Worker(model)
    good, broken, other = Caller(), Caller(), Caller()
    worker.submit(asked(model, "ab", banned=(bad,)), good)
    worker.submit(asked(model, "x!x", banned=(bad,)), broken)
    worker.submit(asked(model, "cd", banned=(bad,)), other)
    assert [c.done()[0].ids for c in (good, other)] == [a.ids for a in alone]
    failed = broken.done()[0]
    assert failed.finish_reason == "error"
    assert "broken" not in (failed.error or "")  # no inner detail
    assert "RuntimeError" in caplog.text
    worker.close()
    assert model.target.pool.free_pages == model.target.pool.pages


def test_a_caller_that_fails_takes_nobody_with_it(model: LanguageModel) -> None:
    worker = Worker(model)

    def broken(_: Event | TaslakError) -> None:
        raise RuntimeError("gone")

    caller = Caller()
    worker.submit(asked(model, "abc"), broken)
    worker.submit(asked(model, "abd"), caller)
    caller.done()
    until(lambda: worker.running == 0)
    worker.close()


def test_closing_lets_what_runs_end_or_drops_it(model: LanguageModel) -> None:
    worker = Worker(model)
    caller = Caller()
    worker.submit(asked(model, max_tokens=60), caller)
    assert worker.close(drain=True)
    assert len(caller.answers[0].ids) == 60
    with pytest.raises(Closed):
        worker.submit(asked(model), Caller())

    gate = Gate(model)
    worker = Worker(model)
    caller = Caller()
    worker.submit(asked(model, max_tokens=400), caller)
    until(lambda: worker.running == 1)
    closing = threading.Thread(target=lambda: worker.close(drain=False))
    closing.start()
    gate.open()
    closing.join(30)
    assert not closing.is_alive()
    assert isinstance(caller.error, Closed)
    assert model.target.pool.free_pages == model.target.pool.pages


def test_a_drafter_changes_while_answers_run(model: LanguageModel) -> None:
    """Who runs ends as he began, who comes is answered with the new one, and counts are kept."""
    alone = model.generate("abab", raw=True, max_tokens=200, eos=None)
    gate = Gate(model)
    worker = Worker(model)
    before, after = Caller(), Caller()
    worker.submit(asked(model, "abab", max_tokens=200), before)
    until(lambda: worker.running == 1)
    other = LanguageModel(model.pretrained, method="ngram", gamma=2)
    changed = worker.replace(other)
    gate.open()
    changed.result(30)
    worker.submit(asked(other, "abab", max_tokens=200), after)
    assert before.done()[0].ids == after.done()[0].ids == alone.ids
    assert set(before.answers[0].by) - {"plain"} == {"suffix"}
    assert set(after.answers[0].by) - {"plain"} == {"ngram"}
    worker.submit(asked(other), caller := Caller())
    caller.done()
    until(lambda: worker.running == 0)
    # the first model's counts hold the answer before all this too: it came from the same engine
    counted = sum(a.counts.passes for a in (alone, *before.answers, *after.answers, *caller.answers))
    assert sum(counts.passes for counts in worker.totals.values()) == counted
    worker.close()


def test_a_change_that_fails_changes_nothing_and_none_is_taken_at_the_end(model: LanguageModel) -> None:
    worker = Worker(model)

    def failing() -> None:
        raise RuntimeError("no")

    other = LanguageModel(model.pretrained, method="ngram", gamma=2)
    with pytest.raises(RuntimeError, match="no"):
        worker.replace(other, failing).result(30)
    assert worker.model is model
    worker.close()
    with pytest.raises(Closed):
        worker.replace(other)


def test_an_engine_that_fails_tells_everybody(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault outside of any request: nobody waits for ever, nothing new is taken."""
    gate = Gate(model)
    worker = Worker(model)
    first, second = Caller(), Caller()
    worker.submit(asked(model), first)
    until(lambda: worker.running == 1)

    def broken(*_: object) -> None:
        raise SystemError("gone")

    monkeypatch.setattr(worker, "_expire", broken)
    worker.submit(asked(model), second)
    gate.open()
    for caller in (first, second):
        caller.wait(lambda c: c.error)
        assert isinstance(caller.error, Broken)
    until(lambda: not worker.open)
    with pytest.raises(Broken):
        worker.submit(asked(model), Caller())
    assert "SystemError" in caplog.text


def test_who_finished_is_told(model: LanguageModel) -> None:
    told: list[tuple[Job, int, Answer]] = []
    worker = Worker(model, finished=lambda *of: told.append(of))
    caller = Caller()
    worker.submit(asked(model, n=2), caller)
    caller.done(2)
    worker.close()
    assert len(told) == 2
    job = told[0][0]
    assert sorted(index for _, index, _ in told) == [0, 1]
    for index in (0, 1):
        assert job.started <= job.first[index] <= job.ended[index]
    assert worker.tokens == 40


def test_streams_flow_while_a_long_prompt_is_taken_in(model: LanguageModel) -> None:
    """A prompt of several chunks beside a running answer: there is a token between any two of its chunks."""
    rows: list[int] = []
    forward = model.target.forward

    def counting(batch: Any, *args: Any, **kwargs: Any) -> Output:
        rows.append(max(len(each.tokens) for each in batch))
        return forward(batch, *args, **kwargs)

    model.target.forward = counting  # type: ignore[method-assign]
    gate = Gate(model)
    gate.open()
    worker = Worker(model)
    stream, prompt = Caller(), Caller()
    worker.submit(asked(model, max_tokens=200), stream)
    stream.wait(lambda c: len(c.events) > 2)
    gate.shut()
    worker.submit(asked(model, "long " * 80), prompt)
    gate.open()
    prompt.done()
    stream.done()
    assert max(rows) <= 128
    worker.close()


def test_an_engine_that_has_ended_is_not_alive(model: LanguageModel) -> None:
    worker = Worker(model)
    assert worker.alive
    worker.close()
    assert not worker.alive
