"""How replies are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from taslak.core.noise import noise_key
from taslak.core.sampling import Sampling
from taslak.drafters.base import drafters_of
from taslak.engine.policy import FixedGamma
from taslak.errors import OptionError

AUTO = "auto"
"""The method, or the γ, that is left to whoever answers."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What may change from one reply to the next. None leaves it to whoever answers.

    seed:        None = another one for every reply
    max_tokens:  most tokens of a reply
    stop:        texts that a reply ends before
    speculation: False = plain decoding
    method:      a name of the drafter registry, or several joined by "+"; None = what comes with the model
    gamma:       drafted depth of every pass; None = chosen as it goes

    Raises OptionError for values out of range.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    speculation: bool = True
    method: str | None = None
    gamma: int | None = None

    def __post_init__(self) -> None:
        Sampling(**self.sampling)
        if self.seed is not None:
            noise_key(self.seed)
        if self.max_tokens is not None and self.max_tokens < 1:
            raise OptionError(f"max_tokens is {self.max_tokens}; expected at least 1")
        if self.gamma is not None:
            FixedGamma(self.gamma)
        if self.method is not None:
            drafters_of(self.method)

    @property
    def sampling(self) -> dict[str, Any]:
        """Those of the settings that say how tokens are chosen, as far as they are set."""
        names = ("temperature", "top_k", "top_p", "min_p")
        return {name: value for name in names if (value := getattr(self, name)) is not None}
