"""What a server is told at its start."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from taslak.errors import OptionError

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Settings:
    """
    api_key:          None = nobody has to show one
    max_running:      sequences of a model that share a pass
    max_waiting:      sequences of a model that wait; more are refused with 429
    timeout:          seconds a request may take, waiting included; None = as long as it likes
    max_body_bytes:   of a request; more is refused with 413
    max_prompt_tokens: None = what the model's context holds
    prefix_bytes:     of each model's K/V cache, most that is kept for prompts which begin alike; 0 = nothing
    hosts:            names it may be asked under; none = any
    origins:          from which web pages of other hosts may ask (CORS); none by default
    price_per_hour:   of the machine, for the cost of a million tokens
    collect:          file that served prompts are appended to; None = they are kept nowhere
    log_prompts:      whether the log holds prompts
    admin:            whether drafters may be changed over HTTP

    Raises OptionError for what is out of range.
    """

    api_key: str | None = field(default=None, repr=False)
    max_running: int = 64
    max_waiting: int = 256
    timeout: float | None = 600.0
    max_body_bytes: int = 8 * MIB
    max_prompt_tokens: int | None = None
    prefix_bytes: int = 512 * MIB
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    price_per_hour: float | None = None
    collect: Path | None = None
    log_prompts: bool = False
    admin: bool = False

    def __post_init__(self) -> None:
        for name, least in (
            ("max_running", 1),
            ("max_waiting", 0),
            ("timeout", 0.001),
            ("max_body_bytes", 1024),
            ("max_prompt_tokens", 1),
            ("prefix_bytes", 0),
            ("price_per_hour", 0),
        ):
            value = getattr(self, name)
            if value is not None and not least <= value < float("inf"):
                raise OptionError(f"{name.replace('_', '-')} is {value}; expected at least {least}")
        if self.api_key is not None:
            object.__setattr__(self, "api_key", self.api_key.strip())  # a file's ends with its line
            if not self.api_key:
                raise OptionError("the API key is empty; give one that can't be guessed, or none")
