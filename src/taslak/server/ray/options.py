"""What a deployment is told. Knows nothing of Ray, and loads no model."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from taslak.server.settings import Settings


class Options(BaseModel):
    """
    model:    what to serve, or a dict of names to serve models under
    draft:    its drafter, or a dict by those names
    method, gamma, verify, cross_vocab, dtype, device, exact: as in `taslak.load`
    replicas: how many at least, and with no max_replicas how many at all
    max_replicas: most of them; beyond `replicas` they come and go with the load
    target_ongoing_requests: of a replica; above it there are soon more replicas, below it fewer
    upscale_delay_s, downscale_delay_s: seconds a load lasts before replicas come or go
    max_surge_percent: how many more replicas there may be while they are replaced. 0: each ends before
              its successor starts, which needs no room; else after, and a failed start costs no replica
    ingresses: processes that hand requests to replicas
    num_cpus: the share of a replica, and the threads it computes with (at least one)
    num_gpus: None = one where device is not the CPU
    record:   whether each node keeps the figures of its answers for `taslak stats`
    settings: of each replica; its fields may also stand beside the others: `serve run ... timeout=60`

    Raises ValidationError for what is out of range, OptionError for settings that are.
    """

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: str | dict[str, str]
    draft: str | dict[str, str] | None = None
    method: str | None = None
    gamma: int | None = Field(None, ge=1, le=16)
    verify: str = "coupled"
    cross_vocab: bool = False
    dtype: str = "auto"
    device: str = "cpu"
    exact: bool = False
    replicas: int = Field(1, ge=1)
    max_replicas: int | None = Field(None, ge=1)
    target_ongoing_requests: float = Field(16.0, gt=0)
    upscale_delay_s: float = Field(30.0, ge=0)
    downscale_delay_s: float = Field(600.0, ge=0)
    max_surge_percent: int = Field(0, ge=0, le=100)
    ingresses: int = Field(1, ge=1)
    num_cpus: float = Field(1.0, gt=0)
    num_gpus: float | None = Field(None, ge=0)
    record: bool = False
    settings: Settings = Settings()

    @model_validator(mode="before")
    @classmethod
    def _gathered(cls, given: Any) -> Any:
        """With the settings' fields where they belong."""
        if not isinstance(given, dict):
            return given
        named = {field.name for field in fields(Settings)} & set(given)
        if not named:
            return given
        settings = given.get("settings", {})
        if not isinstance(settings, dict):
            raise ValueError(f"settings are given as a whole and beside it as {', '.join(sorted(named))}")
        rest = {key: value for key, value in given.items() if key not in named}
        return {**rest, "settings": {**settings, **{name: given[name] for name in named}}}

    @model_validator(mode="after")
    def _sensible(self) -> Options:
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError(
                f"max_replicas is {self.max_replicas}, which is less than the {self.replicas} replicas"
            )
        if isinstance(self.draft, dict) and not set(self.draft) <= set(self.models):
            unknown = ", ".join(sorted(set(self.draft) - set(self.models)))
            raise ValueError(f"a draft is given for {unknown}; there is {', '.join(self.models)}")
        if isinstance(self.draft, str) and len(self.models) > 1:
            raise ValueError("of several models say whose draft it is: a dict by their names")
        if self.settings.admin:
            raise ValueError(
                "admin changes the drafter of one replica alone; deploy anew to change it in all of them"
            )
        return self

    @property
    def models(self) -> dict[str, str]:
        """By the names they are served under."""
        return {self.model: self.model} if isinstance(self.model, str) else self.model

    @property
    def drafts(self) -> dict[str, str]:
        """By the names of their models."""
        if isinstance(self.draft, str):
            return dict.fromkeys(self.models, self.draft)
        return self.draft or {}

    @property
    def gpus(self) -> float:
        """Of a replica."""
        if self.num_gpus is not None:
            return self.num_gpus
        return 0.0 if self.device == "cpu" else 1.0

    @property
    def threads(self) -> int:
        """A replica computes with."""
        return max(1, int(self.num_cpus))
