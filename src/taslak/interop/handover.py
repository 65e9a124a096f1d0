"""A drafter handed over to another engine: its files, and the command that serves its target there."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from taslak.control.history import History
from taslak.drafters.formats import find_head, read_head
from taslak.drafters.formats.llama import CONTEXT
from taslak.errors import CheckpointError, OptionError
from taslak.interop.depth import depth
from taslak.interop.engines import ENGINES, Wanted
from taslak.models.config import DecoderConfig
from taslak.models.layers import HEAD
from taslak.models.loading import Progress, adopt, fetch, find_pack, resolve
from taslak.models.loading.huggingface import stored_tensors
from taslak.models.loading.storage import make_folder, read_json, write_json

MARK = "handover.json"
"""Says in a folder what was handed over there; a folder without it is not written to."""

LOOK_UPS = ("ngram", "suffix")


@dataclass(frozen=True, slots=True)
class Handover:
    """What an engine needs.

    kind:      of drafter, as methods are named here
    model:     the target's name there
    gamma:     drafted depth, and where it is from
    settings:  in the engine's own words
    before:    commands to be run once, before; command: the one that serves
    """

    engine: str
    kind: str
    model: str
    gamma: int
    gamma_from: str
    folder: Path
    settings: dict[str, Any]
    command: str
    before: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "folder": str(self.folder)}


def hand_over(
    draft: str,
    engine: str,
    *,
    model: str | None = None,
    target: str | None = None,
    out: Path | None = None,
    gamma: int | None = None,
    history: History | None = None,
    progress: Progress | None = None,
) -> Handover:
    """Write what the engine reads, and say how it is started.

    draft:    a head's folder or name, "ngram" or "suffix", else a draft model: a folder, a .gguf file, a
              pack, a Hub id
    engine:   a name in ENGINES
    model:    the target's name there; None = what the head was made for, where that is a Hub id or a folder
    target:   its name here, for what was measured and what a layout needs of it; None = the head's own
    out:      None = in the current folder, named after both
    gamma:    None = from what was measured (`depth`)
    history:  of requests here; None = none is looked at

    Raises OptionError for what the engine can't take, saying what to use instead, and the UserErrors of
    reading the drafter and writing the files.
    """
    if engine not in ENGINES:
        raise OptionError(f"there is no engine {engine!r}; expected one of {', '.join(ENGINES)}")
    folder, head = None, None
    if draft not in LOOK_UPS and (folder := find_head(draft)) is not None:
        head = read_head(folder)
    kind = head.kind if head is not None else draft if draft in LOOK_UPS else "draft-model"
    taking = ENGINES[engine]
    taking.check(kind)
    target = target or (None if head is None else head.target.name)
    model = model or _named(target, engine)
    if kind == "draft-model":
        folder = Path(draft).expanduser() if Path(draft).expanduser().is_dir() else None
    chosen = depth(kind, target, asked=gamma, head=head, folder=folder, history=history)
    wanted = Wanted(
        gamma=chosen.gamma,
        model=model,
        folder=_folder(out or Path(f"{Path(draft).name}-{engine}"), {"engine": engine, "kind": kind}),
        context=_context(model, target),
        head=head,
        draft=_draft_model(draft, engine, progress) if kind == "draft-model" else "",
        target_folder=lambda: _resolved(target, progress),
        unembedding=lambda: _unembedding(target, progress),
    )
    recipe = taking.takes[kind](wanted)
    made = Handover(
        engine=engine,
        kind=kind,
        model=model,
        gamma=chosen.gamma,
        gamma_from=chosen.source,
        folder=wanted.folder,
        settings=dict(recipe.settings),
        command=shlex.join(recipe.command),
        before=[shlex.join(command) for command in recipe.before],
        notes=recipe.notes,
    )
    write_json(make_folder(wanted.folder) / MARK, made.as_json())
    return made


def _named(target: str | None, engine: str) -> str:
    """What the engine calls the target, where that is the name it has here."""
    pack = None if target is None else find_pack(target)
    if target is not None and pack is None and ("/" in target or Path(target).is_dir()):
        return target
    here = "" if pack is None else f", which is {pack.name!r} here"
    raise OptionError(f"name the target as {engine} knows it{here}: --model org/name")


def _folder(folder: Path, what: dict[str, str]) -> Path:
    """The folder for the files, absolute. Raises OptionError for one that holds anything but an earlier
    hand-over of `what`: an engine might read what is left of it."""
    folder = folder.expanduser().absolute()
    if folder.is_dir() and any(folder.iterdir()):
        before = read_json(folder / MARK) or {}
        if {name: before.get(name) for name in what} != what:
            raise OptionError(f"{folder} holds other files; name a new folder (--out)")
    return folder


def _context(*names: str | None) -> int:
    """Positions the target knows, where one of its names is a folder."""
    for name in names:
        values = read_json(Path(name) / "config.json") if name else None
        if isinstance(values, dict) and "max_position_embeddings" in values:
            return int(values["max_position_embeddings"])
    return CONTEXT


def _draft_model(name: str, engine: str, progress: Progress | None) -> str:
    """A draft model as another program finds it: a file or folder by its whole path, a Hub id as it is."""
    if (pack := find_pack(name)) is not None and not Path(name).is_dir():
        gguf = engine == "llama.cpp"
        return str(fetch(pack, progress=progress) if gguf else _resolved(name, progress))
    path = Path(name).expanduser()
    if path.exists():
        return str((path if path.is_file() else _resolved(name, progress)).absolute())
    if "/" not in name:
        _resolved(name, progress)  # raises, and says what names there are
    return name


def _resolved(name: str | None, progress: Progress | None) -> Path:
    if name is None:
        raise OptionError("the target is needed for it: name it (--target)")
    return resolve(name, dtype=torch.bfloat16, progress=progress).absolute()


def _unembedding(name: str | None, progress: Progress | None) -> Tensor:
    folder = _resolved(name, progress)
    config = DecoderConfig.from_folder(folder)
    wanted = "model.embed_tokens.weight" if config.tied else HEAD
    found = (tensor for name, tensor in adopt(config, stored_tensors(folder)) if name == wanted)
    if (unembedding := next(found, None)) is None:
        raise CheckpointError(f"{folder} holds no {wanted}; name a complete checkpoint (--target)")
    return unembedding
