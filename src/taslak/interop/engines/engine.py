"""An engine: what it takes, and what to use where it takes a drafter not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from taslak.drafters.formats import Eagle3Config, Head, eagle3
from taslak.errors import OptionError

TRAIN_EAGLE3 = "train an eagle3 head (taslak train eagle3)"
EXIT = f"no engine lets the target's own first layers draft; use a draft model, or {TRAIN_EAGLE3}"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A drafter for an engine.

    gamma:         drafted depth of a step
    model:         the target's name there
    folder:        for the files, absolute; made when the first is written
    context:       positions the target knows
    head, draft:   the drafter where it is a head, or a draft model: a folder, a .gguf file or a Hub id
    target_folder: the target's, in Hugging Face's layout; fetched when called
    unembedding:   the target's, [V, H]; the same
    """

    gamma: int
    model: str
    folder: Path
    context: int
    head: Head | None = None
    draft: str = ""
    target_folder: Callable[[], Path] = Path
    unembedding: Callable[[], Tensor] = field(default=lambda: torch.empty(0))

    @property
    def made(self) -> Head:
        """The head, where it is one."""
        assert self.head is not None
        return self.head


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an engine is started with a drafter.

    settings:  in its own words
    command:   its arguments, the program first
    before:    commands to run once, before
    notes:     what is different there
    """

    settings: Mapping[str, Any]
    command: list[str]
    before: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Engine:
    """takes: by kind, how; writes the files, raises OptionError for a drafter it can't take after all.
    instead: by kind it never takes, why not, and what to use."""

    title: str
    takes: Mapping[str, Callable[[Wanted], Recipe]]
    instead: Mapping[str, str]

    def check(self, kind: str) -> None:
        """Raise OptionError for a kind it never takes, saying what to use instead."""
        if kind not in self.takes:
            raise OptionError(f"{self.title} takes no drafter of kind {kind}: {self.instead[kind]}")


def flags(settings: Mapping[str, Any]) -> list[str]:
    """{"spec_type": "x"} -> ["--spec-type", "x"]"""
    return [text for name, value in settings.items() for text in (f"--{name.replace('_', '-')}", str(value))]


def checkpoint(draft: str, engine: str) -> str:
    """A draft model that is a checkpoint. Raises OptionError for a .gguf file."""
    if draft.endswith(".gguf"):
        raise OptionError(
            f"{engine} takes no .gguf file as a draft model: {draft}; name a folder or a Hub id"
        )
    return draft


def write_specforge(wanted: Wanted, engine: str) -> Eagle3Config:
    """SpecForge's layout, for an engine that knows no more than it says. Raises OptionError."""
    config = wanted.made.config
    assert isinstance(config, Eagle3Config)
    if config.norm_before_residual:
        raise OptionError(f"{engine} doesn't know norm_before_residual, which this head has; use vllm")
    check_biases(config, engine)
    eagle3.write(wanted.folder, wanted.made, context=wanted.context)
    return config


def check_biases(config: Eagle3Config, engine: str) -> None:
    """Raise OptionError for biases that an engine's EAGLE-3 lacks: it would leave them out without a word."""
    if config.layer.qkv_bias:
        raise OptionError(
            f"{engine} has no biases of q, k and v in its EAGLE-3, and this head has some, as its target "
            "does; use vllm"
        )


def every_token(head: Head) -> list[str]:
    """A note, where a layout has no draft vocabulary and the head has one."""
    if head.draft_ids is None:
        return []
    known = f"{head.draft_vocab_size} of {head.target.vocab_size} tokens"
    return [f"there the head says every token, here {known}: its logits cost more"]
