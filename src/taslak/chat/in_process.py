"""A model in this process answers."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing

from taslak.chat.backend import CONTEXT, LENGTH, End, Messages, Part
from taslak.chat.figures import Figures
from taslak.chat.settings import Settings
from taslak.engine import Answer, LanguageModel
from taslak.engine.policy import FixedGamma
from taslak.errors import OptionError, SamplingError
from taslak.loading import control_depth

MAX_TOKENS = 1024
"""Most tokens of a reply where nothing else is said: a small model that repeats itself ends some time."""


class InProcess:
    """See Backend. Another method than it has drafters for loads the model anew."""

    def __init__(
        self,
        load: Callable[[str | None, int | None], LanguageModel],
        settings: Settings,
        *,
        task: str = "",
        stop_below: float | None = None,
    ) -> None:
        """load: (method, γ) -> the model, None as in Settings. task: a label for statistics. stop_below: as
        `taslak.load` has it.

        Raises what `load` does, and OptionError for a model without a chat template.
        """
        self._load, self._task = load, task
        self._stop_below = stop_below
        self._loaded = self._method = settings.method
        self._gamma = settings.gamma
        self.model = _chatting(load(settings.method, settings.gamma))
        self._first = self.model.method

    @property
    def title(self) -> str:
        model = self.model
        gamma = "γ as it pays" if model.gamma is None else f"γ {model.gamma}"
        return " · ".join([model.name, model.method, gamma, f"{model.weights.dtype} {model.weights.path}"])

    def prepare(self, settings: Settings) -> None:
        """See Backend."""
        if (settings.method, settings.gamma) == (self._method, self._gamma):
            return
        method, fresh = settings.method, False
        if method != self._method and method == self._loaded:
            method = self._first
        model = self.model
        if settings.method != self._method and (method is None or model.lacks(method)):
            model, fresh = _chatting(self._load(settings.method, settings.gamma)), True
            method = model.method
        before = model.method, model.policy
        try:
            if method is not None and settings.method != self._method:
                model.choose(method)
            if settings.gamma is not None:
                model.policy = FixedGamma(settings.gamma, model.branch, model.stop_below, model.nodes)
            elif not fresh:  # a method has costs of its own
                control_depth(model, self._stop_below)
        except BaseException:  # Ctrl-C while costs are measured
            model.choose(before[0])
            model.policy = before[1]
            raise
        if fresh:
            self.model, self._loaded, self._first = model, settings.method, model.method
        self._method, self._gamma = settings.method, settings.gamma

    def stream(self, messages: Messages, settings: Settings) -> Generator[Part, None, None]:
        """See Backend."""
        with closing(
            self.model.stream(
                list(messages),
                **settings.sampling,
                seed=settings.seed,
                stop=settings.stop,
                max_tokens=settings.max_tokens or MAX_TOKENS,
                speculate=settings.speculation,
                task=self._task,
            )
        ) as events:
            for event in events:
                yield Part(event.pieces)
                if event.answer is not None:
                    yield Part(end=self._end(event.answer, settings))

    def _end(self, answer: Answer, settings: Settings) -> End:
        if answer.error is not None:
            raise SamplingError(answer.error)
        finish: str = answer.finish_reason
        if finish == LENGTH and answer.prompt_tokens + len(answer.ids) >= self.model.target.context:
            finish = CONTEXT
        return End(
            finish,
            Figures(
                seconds=answer.seconds.total,
                tokens=len(answer.ids),
                counts=answer.counts,
                speedup=answer.speedup,
                method=self.model.method if settings.speculation else "plain",
                gamma=self.model.gamma if settings.speculation else None,
                seed=answer.seed,
            ),
        )


def _chatting(model: LanguageModel) -> LanguageModel:
    if not model.tokenizer.has_chat_template:
        raise OptionError(
            f"{model.name} has no chat template, so it knows no conversations; name a model that was trained "
            "for them, or continue a text with `taslak generate --raw`"
        )
    return model
