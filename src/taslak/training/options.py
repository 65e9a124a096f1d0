"""What a training run is asked for, and which settings mean anything to which kind of head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from taslak.drafters.formats import find_head, read_head
from taslak.engine.policy import FixedGamma
from taslak.errors import OptionError
from taslak.models.loading import DEFAULT_PACK
from taslak.training.answers import Shard
from taslak.training.draft_model import DraftModel
from taslak.training.eagle import Eagle, Eagle3
from taslak.training.early_exit import EarlyExit
from taslak.training.kind import Kind
from taslak.training.medusa import Medusa
from taslak.training.teacher import Teacher
from taslak.training.trainer import Schedule

DRAFT_VOCAB = 8192


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """prompts or texts, one of them:
    prompts:       file or folder the target answers
    texts:         JSONL files of answers instead of the target's own
    out:           the folder of the head; what is kept between stages is in its `work`
    store:         the folder of the hidden states, to be shared by runs on the same texts; None = in `work`
    init:          what to go on from: the folder or name of a head of this kind; for a draft-model, the
                   folder of a checkpoint
    dtype:         of the target's weights, "auto" = the checkpoint's own. Train with the one decoded with
    device:        "cpu" or "cuda"
    shard:         answer only this part of the prompts, and stop there
    temperatures:  answers are sampled at these in turns
    batch:         prompts that are answered together
    held_out:      prompts kept for the evaluation, None = 5 %, 4 to 64
    draft_vocab:   tokens the head can say, the most frequent ones; None = 8192, 0 = all
    evaluate:      held-out prompts decoded at the end, 0 = none
    gamma:         drafted depth there
    settings:      of the kind: medusa heads, blocks, unembedding; eagle ttt, feature_weight,
                   inner_size; eagle3 ttt, captures, inner_size; early-exit exit_layer, rank; draft-model
                   layers
    """

    kind: str
    out: Path
    model: str = DEFAULT_PACK
    prompts: Path | None = None
    texts: tuple[Path, ...] = ()
    store: Path | None = None
    init: str | None = None
    dtype: str = "auto"
    device: str = "cpu"
    shard: Shard | None = None
    temperatures: tuple[float, ...] = (0.0,)
    max_tokens: int = 256
    max_length: int = 1024
    batch: int = 32
    held_out: int | None = None
    draft_vocab: int | None = None
    evaluate: int = 8
    gamma: int = 4
    plot: bool = True
    schedule: Schedule = field(default_factory=Schedule)
    settings: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise OptionError(f"kind is {self.kind!r}; expected one of {', '.join(KINDS)}")
        if (self.prompts is None) == (not self.texts):
            both = "; both were given" if self.texts else "; neither was given"
            raise OptionError(
                f"give prompts for the target to answer (--prompts), or answers (--texts){both}"
            )
        if self.shard is not None and self.texts:
            raise OptionError("--shard shares out the answering of prompts; with --texts there is none")
        known = KINDS[self.kind].settings
        if foreign := sorted(self.settings.keys() - set(known)):
            raise OptionError(
                f"method {self.kind} has no setting {foreign[0]}; it has {', '.join(known) or 'none'}"
            )
        for name, least in (("max_tokens", 1), ("max_length", 8), ("batch", 1), ("evaluate", 0)):
            if getattr(self, name) < least:
                raise OptionError(f"{name} is {getattr(self, name)}; expected at least {least}")
        FixedGamma(self.gamma)  # raises for one that the evaluation, hours later, could not use
        if not self.temperatures or min(self.temperatures) < 0:
            raise OptionError(f"temperatures are {list(self.temperatures)}; expected some, none below 0")
        if self.draft_vocab is not None and self.draft_vocab < 0:
            raise OptionError(f"draft_vocab is {self.draft_vocab}; expected a number of tokens, 0 = all")
        if self.store is not None and self.shard is not None:
            raise OptionError("--shard only answers; --store is for the hidden states that come after that")
        if self.draft_vocab is not None and self.init is not None and KINDS[self.kind].draft_vocab:
            raise OptionError("what a head from --init can say is settled already; leave draft_vocab out")
        if self.draft_vocab and not KINDS[self.kind].draft_vocab:
            raise OptionError(f"a {self.kind} says every token of the target's; leave draft_vocab out")
        if self.schedule.batch_tokens < self.max_length:
            raise OptionError(
                f"batch_tokens is {self.schedule.batch_tokens} and max_length {self.max_length}; "
                "expected a batch to hold the longest text"
            )

    def draft_vocab_size(self, vocab_size: int) -> int | None:
        """Tokens the head can say, None = all of them. Raises OptionError for more than the target has."""
        if not KINDS[self.kind].draft_vocab or self.draft_vocab == 0:
            return None
        if self.draft_vocab is not None and self.draft_vocab > vocab_size:
            raise OptionError(
                f"draft_vocab is {self.draft_vocab} and {self.model} has {vocab_size} tokens; "
                "expected at most as many, or 0 for all of them"
            )
        size = DRAFT_VOCAB if self.draft_vocab is None else self.draft_vocab
        return size if size < vocab_size else None

    def build(self, teacher: Teacher) -> Kind:
        """The head to be trained. Raises OptionError for what this target can't have or `init` isn't,
        CheckpointError for a head made for another target."""
        settings = {k: v for k, v in self.settings.items() if v is not None}
        if self.init is None:
            return KINDS[self.kind].make(teacher, **settings)
        if self.kind == "draft-model":
            return KINDS[self.kind].make(teacher, init=Path(self.init), **settings)
        folder = find_head(self.init)
        if folder is None:
            raise OptionError(f"init is {self.init!r}; expected the folder or name of a {self.kind} head")
        head = read_head(folder)
        c = teacher.config
        head.check_fits(c.hidden_size, teacher.vocab_size, c.vocab_size, c.layers)
        teacher.draft_ids = head.draft_ids
        kind = KINDS[self.kind].make(teacher, **settings)
        kind.go_on(head)
        return kind


@dataclass(frozen=True, slots=True)
class Trainable:
    """make: builds it; settings: what it is asked for; draft_vocab: whether it may know fewer tokens."""

    make: Callable[..., Kind]
    settings: tuple[str, ...]
    draft_vocab: bool = True


KINDS: dict[str, Trainable] = {
    "medusa": Trainable(Medusa, ("heads", "blocks", "unembedding")),
    "eagle": Trainable(Eagle, ("ttt", "feature_weight", "inner_size")),
    "eagle3": Trainable(Eagle3, ("ttt", "captures", "inner_size")),
    "early-exit": Trainable(EarlyExit, ("exit_layer", "rank")),
    "draft-model": Trainable(DraftModel, ("layers",), draft_vocab=False),
}
"""What can be trained, by the name of the method that drafts with it."""
