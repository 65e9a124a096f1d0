"""The models of a server by name, each with its worker and its monitor."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from taslak.control.monitor import Event, Monitor
from taslak.control.record import Record
from taslak.control.recorder import Recorder, break_even
from taslak.engine.language_model import LanguageModel
from taslak.engine.sequence import Answer
from taslak.loading import control_as
from taslak.server.settings import Settings
from taslak.server.worker import Job, Worker

Loads = Callable[[str | None, str | None], LanguageModel]
"""(draft, method) -> the same target with another drafter, its depth not controlled yet."""

Finished = Callable[[str, Job, int, Answer], None]
"""Told of every answer, with the model's name, from the engine thread."""


@dataclass(slots=True)
class Served:
    """One model.

    loads:  None = its drafter stays
    origin: the draft and method it was loaded with last
    """

    name: str
    worker: Worker
    monitor: Monitor
    loads: Loads | None = None
    origin: tuple[str | None, str | None] = (None, None)
    started: int = field(default_factory=lambda: int(time.time()))

    @property
    def model(self) -> LanguageModel:
        return self.worker.model

    def break_even(self, method: str) -> float | None:
        """The acceptance rate from which on a method pays; None = unknown."""
        return break_even(self.model)(self.model.name, method)


class Catalogue:
    """Models join at the start; their drafters may change while they run."""

    def __init__(
        self,
        settings: Settings,
        *,
        finished: Finished | None = None,
        records: Callable[[Record], object] | None = None,
        events: Callable[[str, Event], object] | None = None,
    ) -> None:
        """records: told of what each drafter did in every answer; events: of what monitors see, by model."""
        self.settings = settings
        self._finished = finished
        self._records = records
        self._events = events
        self._served: dict[str, Served] = {}

    def __iter__(self) -> Iterator[Served]:
        return iter(list(self._served.values()))

    def __len__(self) -> int:
        return len(self._served)

    def get(self, name: str) -> Served | None:
        """The model of this name."""
        return self._served.get(name)

    def add(
        self,
        name: str,
        model: LanguageModel,
        loads: Loads | None = None,
        origin: tuple[str | None, str | None] = (None, None),
    ) -> Served:
        """Serve a model under a name from now on. loads, origin: see Served."""
        told = self._events
        monitor = Monitor(
            lambda of, method: (
                self._served[name].break_even(method) if of == self._served[name].model.name else None
            ),
            [] if told is None else [lambda event: told(name, event)],
        )
        self._listen(model, monitor)
        settings, finished = self.settings, self._finished
        worker = Worker(
            model,
            max_running=settings.max_running,
            max_waiting=settings.max_waiting,
            timeout=settings.timeout,
            prefix_bytes=settings.prefix_bytes,
            finished=None if finished is None else lambda *of: finished(name, *of),
        )
        self._served[name] = Served(name, worker, monitor, loads, origin)
        return self._served[name]

    def change_drafter(self, served: Served, draft: str | None, method: str | None) -> None:
        """Load another drafter beside the running one, then take it for new requests. Takes seconds; raises
        what loading does, and nothing has changed then."""
        assert served.loads is not None
        model = served.loads(draft, method)
        self._listen(model, served.monitor)
        before = served.model
        served.worker.replace(model, lambda: control_as(model, before)).result()
        served.origin = (draft, method)

    def reload(self, served: Served) -> None:
        """Load its drafter anew, from where it came: for a head that was trained on."""
        self.change_drafter(served, *served.origin)

    def close(self, drain: bool, timeout: float | None = None) -> bool:
        """End all workers; whether all ended in time."""
        ended = [served.worker.close(drain, timeout) for served in self]
        return all(ended)

    def _listen(self, model: LanguageModel, monitor: Monitor) -> None:
        receivers = [monitor.record] + ([] if self._records is None else [self._records])
        model.listeners.append(Recorder(model, receivers))
